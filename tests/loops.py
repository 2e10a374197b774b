"""Running decode loops to put faults into: one text after the other, or many sequences in lockstep. Traced."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eagle3_ext import Drafter, SpeculativeDecoder, TransformersTarget, greedy_decode
from eagle3_ext.checkpoint import Checkpoint, DrafterConfig, expected_shapes
from eagle3_ext.doctor import trace
from eagle3_ext.doctor.witness import DrafterWitness
from eagle3_ext.stats import DecodeStats

Parts = tuple[TransformersTarget, Drafter]


@dataclass
class Loop:
    """A target, a drafter checkpoint and what to decode.

    `lucky` replaces some drafts by the target's own tokens, so that a random drafter has rounds of every length, too.
    """

    model: torch.nn.Module
    checkpoint: Checkpoint
    prompts: list[torch.Tensor]
    depth: int = 3
    new_tokens: int = 24
    lucky: int | None = None
    cache: str = "static"

    @property
    def max_length(self) -> int:
        return max(len(prompt) for prompt in self.prompts) + self.new_tokens + self.depth + 2

    def target(self, plan=None) -> TransformersTarget:
        return TransformersTarget(self.model, plan, cache=self.cache, max_length=self.max_length)

    def drafter(self, checkpoint: Checkpoint | None = None, **options) -> Drafter:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a drafter past its trained length warns: one of the faults
            return Drafter.from_checkpoint(
                checkpoint or self.checkpoint, self.model, max_length=self.max_length, **options
            )

    def parts(self, checkpoint: Checkpoint | None = None) -> Parts:
        drafter = self.drafter(checkpoint)
        return self.target(drafter.plan), drafter

    def run(
        self, fault: Callable[[Loop], Parts] | None = None, witness: bool = True, path: Path | None = None
    ) -> tuple[list[dict], DecodeStats]:
        """Decodes every prompt with the fault in place; the events of the trace and what was counted.

        With a `path` the trace goes there, and no event comes back.
        """
        target, drafter = self.parts() if fault is None else fault(self)
        drafter_witness = DrafterWitness(self.checkpoint, self.model) if witness else None
        stats = DecodeStats()
        with trace.recording(path, drafter_witness=drafter_witness) as recorder:
            for index, prompt in enumerate(self.prompts):
                lucky = drafter if self.lucky is None else LuckyDrafter(drafter, self, prompt, self.lucky + index)
                decoder = SpeculativeDecoder(target, lucky, self.depth)
                stats += decoder.generate(prompt, self.new_tokens, ()).stats
        return recorder.events, stats


class LuckyDrafter:
    """The drafter, with a seeded number of drafts at the front of each round replaced by the target's own tokens."""

    def __init__(self, drafter, loop: Loop, prompt: torch.Tensor, seed: int) -> None:
        self._drafter = drafter
        self._text = plain_text(loop, prompt)
        self._generator = torch.Generator().manual_seed(seed)

    def __getattr__(self, name: str):
        return getattr(self._drafter, name)

    def extend(self, features, tokens, positions, row_offsets) -> None:
        self._known = int(positions[-1]) + 2
        self._drafter.extend(features, tokens, positions, row_offsets)

    def draft(self, num_tokens: int):
        drafts = self._drafter.draft(num_tokens)
        right = int(torch.randint(0, num_tokens + 1, (1,), generator=self._generator))
        truth = torch.tensor(self._text[self._known : self._known + right], dtype=torch.int64)
        tokens = drafts.tokens.clone()
        tokens[0, : len(truth)] = truth
        return replace(drafts, tokens=tokens)


_PLAIN: dict[tuple, list[int]] = {}


def plain_text(loop: Loop, prompt: torch.Tensor) -> list[int]:
    """The prompt and its greedy continuation; decoded once for all faults."""
    key = (id(loop.model), tuple(prompt.tolist()), loop.new_tokens)
    if key not in _PLAIN:
        _PLAIN[key] = prompt.tolist() + greedy_decode(loop.target(), prompt, loop.new_tokens, ()).tokens
    return _PLAIN[key]


@functools.cache
def small_model(seed: int, layers: int = 9, hidden: int = 32, vocab: int = 67) -> LlamaForCausalLM:
    """A seeded random Llama whose texts wander. Nine layers: the default plan and its neighbours are all different."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.4,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def small_checkpoint(seed: int, hidden: int = 32, vocab: int = 67, **changes) -> Checkpoint:
    """A seeded random drafter for `small_model`, under whose weights every part of the forward matters."""
    sizes = {"hidden_size": hidden, "target_hidden_size": hidden, "intermediate_size": 48, "num_q_heads": 4}
    rest = {"num_kv_heads": 2, "head_dim": 8, "draft_vocab_size": 40, "vocab_size": vocab, "boundaries": (2, 4, 6)}
    config = DrafterConfig(**{**sizes, **rest, "max_position_embeddings": 128, **changes})
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in expected_shapes(config).items():
        if name == "target_ids":
            weights[name] = torch.randperm(vocab, generator=generator)[: shape[0]].sort().values
        elif len(shape) == 1:
            weights[name] = 1 + 0.2 * torch.randn(shape, generator=generator)
        else:
            weights[name] = torch.randn(shape, generator=generator) * shape[1] ** -0.5
    return Checkpoint(config, weights, report=())


def small_loop(seed: int, depth: int, texts: int = 1) -> Loop:
    generator = torch.Generator().manual_seed(100 + seed)
    lengths = torch.randint(3, 14, (texts,), generator=generator).tolist()
    prompts = [torch.randint(0, 67, (length,), generator=generator) for length in lengths]
    return Loop(small_model(seed), small_checkpoint(seed), prompts, depth, 24, lucky=seed, cache="dynamic")


def run_batched(loop: Loop, rounds: int, mix=lambda rows, offsets, width: rows) -> list[dict]:
    """All prompts in lockstep with one drafter: blocks of `width` = D + 1 rows, one after the other in batch order.

    Drafts are the target's own tokens up to a seeded length. `mix(rows, row_offsets, width)` is where a fault puts
    other row numbers.
    """
    texts = [plain_text(loop, prompt) for prompt in loop.prompts]
    drafter = loop.drafter(max_batch=len(loop.prompts))
    targets = [loop.target(drafter.plan) for _ in loop.prompts]
    generator = torch.Generator().manual_seed(0)
    with trace.recording() as recorder:
        recorder.begin_text()
        for slot, (target, prompt) in enumerate(zip(targets, loop.prompts)):
            recorder.sequence = slot
            target.prefill(prompt)
            tokens, offsets = torch.tensor(texts[slot][1 : len(prompt) + 1]), torch.tensor([0, len(prompt)])
            drafter.extend(target.features.tensor, tokens, torch.arange(len(prompt)), offsets, torch.tensor([slot]))
        for _ in range(rounds):
            recorder.begin_round()
            _lockstep_round(recorder, drafter, targets, texts, loop.depth, mix, generator)
    return recorder.events


def _lockstep_round(recorder, drafter, targets, texts, depth, mix, generator) -> None:
    blocks, lengths, tokens, positions = [], [], [], []
    for slot, target in enumerate(targets):
        recorder.sequence = slot
        accepted = int(torch.randint(0, depth + 1, (1,), generator=generator))
        known, settled = target.length, accepted + 1
        target.verify(torch.tensor(texts[slot][known : known + settled] + [0] * (depth - accepted)))
        target.rollback(depth - accepted)
        recorder.record("round", drafted=depth, accepted=accepted)
        blocks.append(target.features.tensor.clone())
        lengths.append(settled)
        tokens += texts[slot][known + 1 : known + 1 + settled]
        positions += range(known, known + settled)
    rows, offsets = torch.ops.eagle3_ext.accepted_rows(torch.tensor(lengths), depth + 1)
    rows = mix(rows[: sum(lengths)], offsets, depth + 1)
    drafter.extend(torch.cat(blocks)[rows], torch.tensor(tokens), torch.tensor(positions), offsets)

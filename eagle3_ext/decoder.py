"""The round loop: draft, verify, keep the accepted prefix, extend the drafter with the target's features.

Greedy, batch 1.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from .doctor import trace
from .stats import DecodeStats
from .target import Target, TransformersTarget

if TYPE_CHECKING:
    from .drafter import Drafter

FinishReason = Literal["eos", "length", "cache"]


@dataclass
class DecodeResult:
    """A finished text.

    Attributes:
        tokens: the generated tokens, the eos token included when one ended the text.
        stats: what the run counted.
        finish_reason: "eos", "length" (max_new_tokens reached) or "cache" (the target's max_length reached).
    """

    tokens: list[int]
    stats: DecodeStats
    finish_reason: FinishReason


class _Run:
    """One text while it grows: stop rules, truncation and the clock, the same for plain and speculative decoding."""

    def __init__(self, target: Target, max_new_tokens: int, eos_token_ids: Iterable[int] | int | None):
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
        eos = target.eos_token_ids if eos_token_ids is None else eos_token_ids
        # int(): a set of 0-d tensors would compare by identity and never end a text.
        self.eos_token_ids = frozenset(int(token) for token in ((eos,) if isinstance(eos, int) else eos))
        self.max_new_tokens = max_new_tokens
        self.target = target
        self.stats = DecodeStats()
        self.finish_reason: FinishReason | None = None
        self.caches: tuple[int, ...] = ()  # see SpeculativeDecoder._caches
        self._started = time.perf_counter()

    def keep(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that belong to the text: up to and with the first eos, at most max_new_tokens in total."""
        kept = list(tokens[: self.max_new_tokens - self.stats.emitted])
        for index, token in enumerate(kept):
            if token in self.eos_token_ids:
                kept = kept[: index + 1]
                self.finish_reason = "eos"
                break
        self.stats.emitted += len(kept)
        if self.finish_reason is None:
            if self.stats.emitted == self.max_new_tokens:
                self.finish_reason = "length"
            elif self.target.length >= self.target.max_length:  # not even the newest token fits
                self.finish_reason = "cache"
        return kept

    def emit(self, tokens: list[int]) -> Iterator[int]:
        """Yields tokens with the clock stopped, so that a slow reader does not look like a slow decoder."""
        self.stats.seconds += time.perf_counter() - self._started
        yield from tokens
        self._started = time.perf_counter()


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    """[n, V] -> int64 [n]. One definition for both modes: ties to the lowest index, NaN never wins."""
    return torch.ops.eagle3_ext.argmax_tokens(logits)[0]


def _as_tokens(input_ids: torch.Tensor | Sequence[int], device: torch.device) -> torch.Tensor:
    """Token ids as int64 [n] on `device`; raises ValueError for an empty prompt or more than one sequence."""
    tokens = torch.as_tensor(input_ids, device=device)
    if tokens.numel() and (tokens.is_floating_point() or tokens.dtype == torch.bool):
        raise ValueError(f"input_ids must hold token ids, got {tokens.dtype}")
    tokens = tokens.to(torch.int64)
    if tokens.ndim == 2 and tokens.shape[0] == 1:
        tokens = tokens[0]
    if tokens.ndim != 1 or not tokens.numel():
        raise ValueError(f"input_ids must hold one sequence of at least one token, got shape {list(tokens.shape)}")
    return tokens


class SpeculativeDecoder:
    """Greedy EAGLE-3 decoding; the text is the target's own greedy text, token by token.

    Attributes:
        stats: the counts of the latest `generate` or `stream`, complete once it has finished.
    """

    def __init__(self, target: Target | torch.nn.Module, drafter: Drafter, num_speculative_tokens: int = 4):
        """
        Raises ValueError for a target that captures another plan or lives in another dtype or on another device, and for
        more drafts than a row-invariant target can verify without rounding differently from plain decoding.

        Args:
            target: a `Target` that captures `drafter.plan`, or a transformers causal LM (wrapped in bit-stable mode).
            drafter: an `eagle3_ext.Drafter` in the target's dtype; used alone by this decoder while it decodes.
            num_speculative_tokens: D, drafts per round.
        """
        if num_speculative_tokens < 1:
            raise ValueError(f"num_speculative_tokens must be at least 1, got {num_speculative_tokens}")
        self.target = TransformersTarget(target, drafter.plan) if isinstance(target, torch.nn.Module) else target
        if self.target.features is None:
            raise ValueError(f"the target captures nothing; build it with the drafter's plan ({drafter.plan})")
        if self.target.features.plan != drafter.plan:
            raise ValueError(f"the target {self.target.features.plan}, but the drafter needs: {drafter.plan}")
        for name in ("dtype", "device"):
            theirs, ours = getattr(self.target, name, None), getattr(drafter, name, None)
            if theirs is not None and ours is not None and theirs != ours:
                raise ValueError(f"the target's {name} is {theirs}, the drafter's {ours}; they exchange tensors uncast")
        most_rows = getattr(self.target, "max_verify_rows", None)
        if most_rows is not None and num_speculative_tokens >= most_rows:
            raise ValueError(
                f"num_speculative_tokens is {num_speculative_tokens}; a row-invariant target verifies at most {most_rows} "
                f"tokens, so at most {most_rows - 1} drafts"
            )
        self.drafter = drafter
        self.num_speculative_tokens = num_speculative_tokens
        self.stats = DecodeStats()
        self._finish_reason: FinishReason | None = None

    def generate(
        self,
        input_ids: torch.Tensor | Sequence[int],
        max_new_tokens: int = 256,
        eos_token_ids: Iterable[int] | int | None = None,
    ) -> DecodeResult:
        """Decodes until an eos token (default: the model's), max_new_tokens, or the end of the target's cache.

        input_ids: one sequence, a list or int64 [n] or [1, n].
        """
        tokens = list(self.stream(input_ids, max_new_tokens, eos_token_ids))
        return DecodeResult(tokens, self.stats, self._finish_reason)

    def stream(
        self,
        input_ids: torch.Tensor | Sequence[int],
        max_new_tokens: int = 256,
        eos_token_ids: Iterable[int] | int | None = None,
    ) -> Iterator[int]:
        """Like `generate`, token by token: a round's tokens come together. `self.stats` counts along.

        Raises RuntimeError when it is resumed after another text was started on this decoder, its target or its drafter,
        ValueError for a prompt that does not fit both caches, IndexError for a token outside the target's vocabulary.
        """
        run = _Run(self.target, max_new_tokens, eos_token_ids)
        self.stats = run.stats
        prompt = _as_tokens(input_ids, self.target.device)
        most = getattr(self.drafter, "max_length", None)
        if most is not None and len(prompt) > most:
            raise ValueError(f"the prompt has {len(prompt)} tokens, the drafter's max_length is {most}")
        if trace.active is not None:
            trace.active.begin_text()
        newest = _argmax(self.target.prefill(prompt))
        run.caches = self._caches()
        kept = run.keep(newest.tolist())
        yield from run.emit(kept)
        if run.finish_reason is None:
            self._check_current(run)
            self._extend_prompt(prompt, newest)
            run.caches = self._caches()
        while run.finish_reason is None:
            self._check_current(run)
            drafted, accept_lengths, emitted = self._draft_and_verify(newest)
            accepted = len(emitted) - 1
            run.stats.record_round(drafted, accepted)
            kept = run.keep(emitted.tolist())
            # A finished text gets no extend. A round without drafts found the drafter full, and it stays full.
            if run.finish_reason is None and drafted:
                self._extend_round(accept_lengths, drafted + 1, emitted)
            newest = emitted[-1:]
            yield from run.emit(kept)
        self._finish_reason = run.finish_reason

    def _caches(self) -> tuple[int, ...]:
        """Whose text the caches hold: other numbers than before, and they are another's."""
        return id(self.stats), getattr(self.target, "prefills", 0), getattr(self.drafter, "resets", 0)

    def _check_current(self, run: _Run) -> None:
        """After every yield, in which anything may have happened to the caches."""
        if self._caches() != run.caches:
            raise RuntimeError(
                "another text was started on this decoder, its target or its drafter; each holds one text at a time"
            )

    def _extend_prompt(self, prompt: torch.Tensor, first: torch.Tensor) -> None:
        """Row t pairs the features of position t with the token of position t + 1, the last with the first sampled."""
        self.drafter.reset()
        rows = prompt.shape[0]
        row_offsets = torch.tensor([0, rows], device=prompt.device)
        positions = torch.arange(rows, device=prompt.device)
        self.drafter.extend(self.target.features.tensor, torch.cat([prompt[1:], first]), positions, row_offsets)

    def _draft_and_verify(self, newest: torch.Tensor) -> tuple[int, torch.Tensor, torch.Tensor]:
        """One target forward over the newest token and its drafts.

        Returns the number of drafts D, accept_lengths [1] (= a + 1), and the a + 1 tokens the target settled on. The
        target's cache then ends with the last accepted draft; the bonus token is the next round's newest.
        """
        count = self._drafts_that_fit()
        if trace.active is not None:
            trace.active.begin_round()
        drafts = self.drafter.draft(count).tokens if count else newest.new_empty(1, 0)
        # The pad value -1 is never accepted, but the target still has to embed something in its place.
        logits = self.target.verify(torch.cat([newest, drafts[0].clamp(min=0)]))
        choices = _argmax(logits)
        accept_lengths, _bonus = torch.ops.eagle3_ext.verify_greedy(drafts, choices[None])
        settled = int(accept_lengths)
        if trace.active is not None:
            trace.active.record("round", drafted=count, accepted=settled - 1, emitted=choices[:settled].tolist())
        self.target.rollback(count + 1 - settled)
        # An accepted draft is the target's own choice one row earlier, so the choices are the emitted tokens.
        return count, accept_lengths, choices[:settled]

    def _extend_round(self, accept_lengths: torch.Tensor, width: int, emitted: torch.Tensor) -> None:
        """The a + 1 settled rows with the target's features; the drafter drops what its own draft steps had cached."""
        settled = emitted.shape[0]
        rows, row_offsets = torch.ops.eagle3_ext.accepted_rows(accept_lengths, width)
        positions = torch.arange(self.target.length - settled, self.target.length, device=emitted.device)
        # The count is known on the host here (rollback needed it), so the padding rows are cut off instead of computed.
        self.drafter.extend(self.target.features.gather(rows[:settled]), emitted, positions, row_offsets)

    def _drafts_that_fit(self) -> int:
        """D, less near the end of either cache: a round appends the newest token and up to D drafts to both."""
        limits = (self.target.max_length, getattr(self.drafter, "max_length", None))
        room = min(limit for limit in limits if limit is not None) - self.target.length - 1
        return max(0, min(self.num_speculative_tokens, room))


def greedy_decode(
    target: Target | torch.nn.Module,
    input_ids: torch.Tensor | Sequence[int],
    max_new_tokens: int = 256,
    eos_token_ids: Iterable[int] | int | None = None,
) -> DecodeResult:
    """Plain greedy decoding, one token per forward, with the stop rules and the result type of `SpeculativeDecoder`."""
    if isinstance(target, torch.nn.Module):
        target = TransformersTarget(target)
    run = _Run(target, max_new_tokens, eos_token_ids)
    newest = _argmax(target.prefill(_as_tokens(input_ids, target.device)))
    tokens = list(run.emit(run.keep(newest.tolist())))
    while run.finish_reason is None:
        newest = _argmax(target.verify(newest))
        target.rollback(0)
        run.stats.record_round(0, 0)
        tokens += run.emit(run.keep(newest.tolist()))
    return DecodeResult(tokens, run.stats, run.finish_reason)


@dataclass(frozen=True)
class Divergence:
    """Where two texts of one prompt part, and how sure the target is there.

    Attributes:
        position: index of the first differing generated token.
        tokens: both tokens there; None where a text has already ended.
        logits: the target's logits of both tokens.
        top_tokens, top_logits: the target's two best tokens there.
    """

    position: int
    tokens: tuple[int | None, int | None]
    logits: tuple[float | None, float | None]
    top_tokens: tuple[int, int]
    top_logits: tuple[float, float]

    @property
    def gap(self) -> float:
        """Best logit minus second best. About zero: a tie that rounding decided. Large: one text is wrong."""
        return self.top_logits[0] - self.top_logits[1]

    def __str__(self) -> str:
        (a, b), (best, second) = self.tokens, self.top_tokens
        return (
            f"the texts part at token {self.position} ({a} against {b}); the target's best tokens there are {best} and "
            f"{second}, {self.gap:.4g} apart"
        )


def first_divergence(
    target: Target, input_ids: torch.Tensor | Sequence[int], a: Sequence[int], b: Sequence[int]
) -> Divergence | None:
    """The first difference of two generated texts of the prompt `input_ids`, or None when they are equal.

    The logits come from one prefill of the prompt and the common prefix, so they may differ from either run's own by
    the rounding of the target's dtype: a gap of that size is a tie, anything larger a bug.
    """
    if list(a) == list(b):
        return None
    shared = min(len(a), len(b))
    position = next((index for index in range(shared) if a[index] != b[index]), shared)
    prefix = torch.tensor(list(a[:position]), dtype=torch.int64, device=target.device)
    logits = target.prefill(torch.cat([_as_tokens(input_ids, target.device), prefix]))[0].float()
    top = logits.topk(2)
    tokens = tuple(text[position] if position < len(text) else None for text in (a, b))
    return Divergence(
        position,
        tokens,
        tuple(None if token is None else float(logits[token]) for token in tokens),
        tuple(top.indices.tolist()),
        tuple(top.values.tolist()),
    )

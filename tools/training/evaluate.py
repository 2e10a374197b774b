"""Acceptance on the demo's held-out prompts: every round of a greedy speculative decode, replayed from one greedy text.

The target's answers are written once and kept; a drafter is then judged in seconds, because greedy verification commits
exactly that text whatever is drafted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from eagle3_ext.demo_prompts import PROMPTS
from eagle3_ext.features import CapturePlan, capture

from .generate import BOUNDARIES, ChatFormat, Chats
from .model import TrainableDrafter


@dataclasses.dataclass
class Acceptance:
    """`per_position[j]`: share of rounds whose draft j + 1 was accepted; `accept_length` counts the bonus token."""

    rounds: int
    per_position: list[float]

    @property
    def accept_length(self) -> float:
        return 1 + sum(self.per_position)

    def __str__(self) -> str:
        shares = " / ".join(f"{share:.3f}" for share in self.per_position)
        return f"accept length {self.accept_length:.3f}, per position {shares}, {self.rounds} rounds"


def held_out_chats(target, tokenizer, path: Path, answer_tokens: int, advance: Callable[[float], None]) -> Chats:
    """One greedy answer of at most `answer_tokens` per demo prompt, from `path` when it exists."""
    if path.exists():
        return Chats(**load_file(path))
    chat = ChatFormat(tokenizer)
    sequences = []
    for prompt in PROMPTS:
        ids = torch.tensor([chat.first_user + chat.encode(prompt) + chat.assistant])
        full = target.generate(ids, max_new_tokens=answer_tokens, do_sample=False)
        sequences.append((ids.shape[1], full[0]))
        advance(1)
    width = target.config.hidden_size
    chats = Chats.empty(len(sequences), max(len(full) for _, full in sequences), width)
    for row, (start, full) in enumerate(sequences):
        chats.tokens[row, : len(full)] = full
        chats.answer[row, start : len(full)] = 1
    with torch.inference_mode(), capture(target, CapturePlan(BOUNDARIES, width)) as features:
        # Rows end in padding; attention is causal, so nothing before it notices.
        hidden = target.model(input_ids=chats.tokens.long(), use_cache=False).last_hidden_state
        chats.features[:] = features.tensor.view(*chats.tokens.shape, -1)
        chats.hidden[:] = hidden
        chats.greedy[:] = target.lm_head(hidden).argmax(-1)
    chats.save(path)
    return chats


@torch.no_grad()
def measure(drafter: TrainableDrafter, embedding: torch.Tensor, chats: Chats, num_drafts: int) -> Acceptance:
    """Replays speculative decoding with `num_drafts` drafts per round. `embedding` [V, H] is the target's table."""
    correct = _correct_drafts(drafter, embedding, chats, num_drafts)
    accepted_at, rounds = [0] * num_drafts, 0
    for row, answer in enumerate(chats.answer.bool()):
        positions = answer.nonzero()[:, 0]
        newest, end = int(positions[0]), int(positions[-1]) + 1  # the prefill commits the first token
        while newest + num_drafts < end:
            hits = correct[row, newest - 1].tolist()
            accepted = hits.index(False) if False in hits else num_drafts
            for position in range(accepted):
                accepted_at[position] += 1
            rounds += 1
            newest += accepted + 1
    return Acceptance(rounds, [count / max(rounds, 1) for count in accepted_at])


def _correct_drafts(drafter: TrainableDrafter, embedding: torch.Tensor, chats: Chats, num_drafts: int) -> torch.Tensor:
    """bool [N, L, num_drafts]: whether draft j of a chain that starts at row t, which predicts token t + 2 + j, is right.

    Draft j feeds on the committed token t + 1 + j, which is draft j - 1 wherever draft j can still be accepted.
    """
    tokens = chats.tokens.long()
    embeddings = F.embedding(tokens, embedding)
    hidden, cache, correct = drafter.fc(chats.features.float()), [], []
    for j in range(num_drafts):
        hidden = drafter.step(F.pad(embeddings[:, 1 + j :], (0, 0, 0, 1 + j)), hidden, cache)
        drafted = drafter.target_ids[drafter.logits(hidden).argmax(-1)]
        correct.append(drafted == F.pad(tokens[:, 2 + j :], (0, 2 + j), value=-1))
    return torch.stack(correct, -1)

"""Training-time test: the drafter learns to draft from its own hidden states, several steps deep, as it will be used."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from .data import ShardSet
from .files import written_whole
from .generate import Chats
from .model import TrainableDrafter
from .optim import Muon
from .progress import working_politely

STEP_DISCOUNT = 0.8  # weight of each further draft step, as in SafeAILab's EAGLE-3 training
WARMUP_STEPS = 20


@dataclasses.dataclass
class Settings:
    steps: int
    learning_rate: float
    draft_steps: int = 4
    batch_rows: int = 16
    head_columns: int = 4096  # draft tokens that a step scores; see `_columns`
    decay_share: float = 0.5  # the last part of the steps, in which the rate falls linearly to zero
    report_steps: int = 25


class Trainer:
    """Drafter, optimizers and position in the data; `save` and the constructor carry all of it across interruptions."""

    def __init__(self, target, drafter: TrainableDrafter, shards: ShardSet, settings: Settings, state_file: Path):
        self.drafter, self.shards, self.settings, self._state_file = drafter, shards, settings, state_file
        self._embeddings = target.get_input_embeddings().weight
        self.step_count, self._epoch = 0, 0
        parameters = list(drafter.named_parameters())
        matrices = [p for name, p in parameters if p.ndim == 2 and name != "lm_head.weight"]
        others = [p for name, p in parameters if p.ndim != 2 or name == "lm_head.weight"]
        rate = settings.learning_rate
        self._optimizers = [Muon(matrices, rate), torch.optim.AdamW(others, rate / 4, (0.9, 0.95), weight_decay=0.0)]
        self._base_rates = [rate, rate / 4]
        if state_file.exists():
            self._resume()
        self._teacher = target.lm_head.weight[drafter.target_ids]

    def run(self, console: Console) -> None:
        """Trains until `settings.steps` are done, earlier sittings included, and saves at every report."""
        settings, batches = self.settings, self._batches()
        with working_politely(console, "training", settings.steps, "steps") as advance:
            advance(self.step_count)
            while self.step_count < settings.steps:
                loss = self._train_step(self.shards.batch(next(batches)))
                advance(1)
                if self.step_count % settings.report_steps == 0 or self.step_count == settings.steps:
                    self.save()
                    console.print(f"train: {self.describe()}, loss {loss:.3f}, {self._agreement_text()}", soft_wrap=True)

    def describe(self) -> str:
        return f"step {self.step_count} of {self.settings.steps}, {len(self.shards)} chats, epoch {self._epoch}"

    def _agreement_text(self) -> str:
        return "validation agreement " + " ".join(f"{share:.3f}" for share in self.validate())

    def _batches(self) -> Iterator[list[int]]:
        """Row numbers of each batch; every epoch starts by looking for new shards."""
        for self._epoch in itertools.count(self._epoch):
            self.shards.refresh()
            yield from self.shards.batches(self.settings.batch_rows, random.Random(f"{self._epoch} {self.step_count}"))

    def _rate_factor(self) -> float:
        left = 1 - self.step_count / self.settings.steps
        return min(1.0, (self.step_count + 1) / WARMUP_STEPS, left / self.settings.decay_share)

    def _train_step(self, chats: Chats) -> float:
        drafter, usable = self.drafter, self._usable(chats)
        teacher = chats.hidden[usable].float() @ self._teacher.mT
        columns, offset = self._columns(teacher)
        teacher = (teacher[:, columns] + offset).softmax(-1)
        head = drafter.lm_head.weight[columns]
        loss, total_weight = torch.zeros(()), 0.0
        for step, (hidden, rows) in enumerate(self._chains(chats, usable)):
            weight = STEP_DISCOUNT**step
            logits = F.linear(drafter.norm(hidden), head) + offset
            loss = loss + weight * F.cross_entropy(logits, teacher[rows])
            total_weight += weight
        loss = loss / total_weight
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), 1.0)
        for optimizer, rate in zip(self._optimizers, self._base_rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * self._rate_factor()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step_count += 1
        return loss.item()

    def _columns(self, teacher: Tensor) -> tuple[Tensor, Tensor]:
        """int64 [c], ascending: the head's rows that a step is trained on, and what their logits get added, [c].

        Scoring all Vd draft tokens would be two thirds of a step's arithmetic. Three quarters of the c columns are those to
        which the target, with logits `teacher` [M, Vd], gives most of its probability in this batch. The rest are drawn
        evenly from the others and stand for all of them: each counts as often as tokens were passed over for it
        (sampled softmax, Jean et al. 2015, arXiv 1412.2007).
        """
        count, vocab = min(self.settings.head_columns, teacher.shape[1]), teacher.shape[1]
        likely = count if count == vocab else count * 3 // 4
        order = teacher.softmax(-1).sum(0).argsort(descending=True)
        others = order[likely:][torch.randperm(vocab - likely)[: count - likely]]
        offset = torch.zeros(vocab)
        if len(others):
            offset[others] = math.log((vocab - likely) / len(others))
        columns = torch.cat([order[:likely], others]).sort().values
        return columns, offset[columns]

    @torch.no_grad()
    def validate(self) -> list[float]:
        """Share of answer positions where the drafter's first choice is the target's, for each draft step."""
        chats = self.shards.batch(self.shards.validation_rows)
        usable, shares = self._usable(chats), []
        greedy = chats.greedy[usable].long()
        for step, (hidden, rows) in enumerate(self._chains(chats, usable)):
            drafted = self.drafter.target_ids[self.drafter.logits(hidden).argmax(-1)]
            positions = chats.answer[:, 2 + step :].sum().item()
            shares.append((drafted == greedy[rows]).sum().item() / max(positions, 1))
        return shares

    def _usable(self, chats: Chats) -> Tensor:
        """bool [N, L]: positions after which the assistant speaks and whose likeliest next token can be drafted."""
        assistant_next = F.pad(chats.answer[:, 1:].bool(), (0, 1))
        return assistant_next & self.drafter.t2d[chats.greedy.long()]

    def _chains(self, chats: Chats, usable: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Per draft step: hidden [m, h] and int64 [m], which of the usable positions each row should imitate.

        Row t of step j reads token t+1+j and predicts the target's distribution at position t+1+j. Steps after the first
        begin at the batch's first row that predicts something: prompts are a quarter of the text.
        """
        drafter, length = self.drafter, chats.tokens.shape[1]
        embeddings = F.embedding(chats.tokens.long(), self._embeddings)
        numbers = usable.flatten().cumsum(0).view_as(usable) - 1
        hidden = drafter.fc(chats.features.float())[:, : length - 1]
        cache: list[tuple[Tensor, Tensor]] = []
        first_row, answered = 0, usable.any(0).nonzero()
        for j in range(self.settings.draft_steps):
            shifted = F.pad(embeddings[:, first_row + 1 + j :], (0, 0, 0, j))
            hidden = drafter.step(shifted, hidden, cache)
            seen = slice(first_row + 1 + j, length - 1)
            picked = usable[:, seen]
            yield hidden[:, : picked.shape[1]][picked], numbers[:, seen][picked]
            if j == 0 and len(answered):
                first_row = max(0, int(answered[0]) - self.settings.draft_steps)
                hidden = hidden[:, first_row:]

    def save(self) -> None:
        state = {
            "drafter": self.drafter.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "step_count": self.step_count,
            "epoch": self._epoch,
            "validation_shard": self.shards.validation_shard,
        }
        with written_whole(self._state_file) as path:
            torch.save(state, path)

    def _resume(self) -> None:
        state = torch.load(self._state_file, weights_only=True)
        self.drafter.load_state_dict(state["drafter"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step_count, self._epoch = state["step_count"], state["epoch"]
        self.shards.validate_on(state["validation_shard"])

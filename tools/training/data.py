"""Random access to the generated shards; new ones are picked up while another process still writes."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open

from .generate import Chats

Text = tuple[torch.Tensor, torch.Tensor]  # token ids and answer mask, int32 [N, L]

VALIDATION_ROWS = 24  # the first rows of one shard, never trained on


def load_text(file: Path) -> Text:
    """The chats of an npz file with `ids` and `mask` [N, L], which this target wrote earlier."""
    arrays = np.load(file)
    ids, mask = (torch.from_numpy(arrays[name].astype(np.int32)) for name in ("ids", "mask"))
    return ids, mask


class ShardSet:
    """All rows of all shards in a folder, numbered in the order the shards were found.

    Attributes:
        validation_shard: name of the shard whose first rows are kept from training, at first the first one.
    """

    def __init__(self, folder: Path):
        """Raises FileNotFoundError when there is nothing to train on."""
        self._folder = folder
        self._files: dict[Path, object] = {}
        self._rows: list[tuple[Path, int, int]] = []  # file, row in it, tokens
        self.refresh()
        self.validation_shard = self._rows[0][0].name if self._rows else ""
        if not self._training_rows():
            raise FileNotFoundError(f"{folder} has {len(self)} chats, more than {VALIDATION_ROWS} are needed")

    def validate_on(self, shard: str) -> None:
        """Keeps this shard's first rows instead: a resumed training's, which later shards may sort before."""
        self.validation_shard = shard
        if not self.validation_rows:
            raise FileNotFoundError(f"{self._folder / shard} is missing: the training was validated on it")

    def refresh(self) -> None:
        for path in sorted(self._folder.glob("*.safetensors")):
            if path not in self._files:
                self._files[path] = safe_open(path, framework="pt")
                rows, length = self._files[path].get_slice("tokens").get_shape()
                self._rows += [(path, row, length) for row in range(rows)]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def validation_rows(self) -> list[int]:
        """Numbers of the rows that are kept from training; they have one length."""
        rows = [row for row, (path, _, _) in enumerate(self._rows) if path.name == self.validation_shard]
        return rows[:VALIDATION_ROWS]

    def _training_rows(self) -> list[int]:
        kept = set(self.validation_rows)
        return [row for row in range(len(self)) if row not in kept]

    def batches(self, size: int, rng: random.Random) -> list[list[int]]:
        """One epoch: the row numbers of batches of `size` chats of one length, in random order.

        Chats that fill no batch wait for another epoch; a length with fewer than `size` chats is one batch.
        """
        of_length = defaultdict(list)
        for row in self._training_rows():
            _, _, length = self._rows[row]
            of_length[length].append(row)
        batches = []
        for rows in of_length.values():
            rng.shuffle(rows)
            count = min(size, len(rows))
            batches += [rows[first : first + count] for first in range(0, len(rows) - count + 1, count)]
        rng.shuffle(batches)
        return batches

    def batch(self, rows: list[int]) -> Chats:
        """The chats with these numbers, which have one length."""
        picked: dict[str, list[torch.Tensor]] = {}
        for path, row, _ in (self._rows[index] for index in rows):
            for name in self._files[path].keys():
                picked.setdefault(name, []).append(self._files[path].get_slice(name)[row : row + 1])
        return Chats(**{name: torch.cat(parts) for name, parts in picked.items()})

    def frequent_tokens(
        self,
        count: int,
        vocab_size: int,
        texts: Sequence[Text] = (),
        keep: Sequence[int] = (),
        among: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """int64 [count], ascending: the tokens of most answers, with the target's own choices as half a vote each.

        The answers of `texts` vote as well; the token ids `keep` are elected whatever their votes, and only those `among`
        which there are at least `count`, where given.
        """
        votes = torch.zeros(vocab_size, dtype=torch.float64)
        for file in self._files.values():
            tokens, greedy, answer = (file.get_tensor(name) for name in ("tokens", "greedy", "answer"))
            is_answer = answer.bool()
            votes += torch.bincount(tokens[is_answer].long(), minlength=vocab_size)
            votes += 0.5 * torch.bincount(greedy[:, :-1][is_answer[:, 1:]].long(), minlength=vocab_size)
            votes += 1e-3 * torch.bincount(tokens.flatten().long(), minlength=vocab_size)
        for tokens, answer in texts:
            votes += torch.bincount(tokens[answer.bool()].long(), minlength=vocab_size)
        votes[list(keep)] = torch.inf
        if among is not None:
            others = torch.ones(vocab_size, dtype=torch.bool)
            others[among] = False
            votes[others] = -torch.inf
        return votes.topk(count).indices.sort().values

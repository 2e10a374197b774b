"""Self-generated training text with the target's states: every row is a chat the target writes and answers itself.

All rows of a batch share one position counter, so there is no padding, and the states that EAGLE-3 needs are captured
while the text is decoded: text and features cost one forward pass per token together.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import StaticCache

from eagle3_ext.demo_prompts import PROMPTS
from eagle3_ext.features import CapturePlan, capture
from eagle3_ext.smollm2 import chat_prompt

from .files import written_whole
from .prompts import sample_user_turn

BOUNDARIES = (2, 15, 27)  # the states after layers 1, 14 and 26: what EAGLE-3 takes from a 30-layer target
MAX_USER_TOKENS = 60
USER_TEMPERATURE, ANSWER_TEMPERATURE, TOP_K = 0.9, 0.7, 40


@dataclasses.dataclass
class Chats:
    """N rows of L tokens. `greedy[n, t]` is what the target would say at t + 1; `answer` marks the assistant's tokens."""

    tokens: torch.Tensor  # int32 [N, L]
    answer: torch.Tensor  # uint8 [N, L]
    greedy: torch.Tensor  # int32 [N, L]
    features: torch.Tensor  # bf16 [N, L, K*H], states at BOUNDARIES
    hidden: torch.Tensor  # bf16 [N, L, H], the final normed state: the head turns it into the target's distribution

    @classmethod
    def empty(cls, rows: int, length: int, width: int) -> Chats:
        return cls(
            torch.zeros(rows, length, dtype=torch.int32),
            torch.zeros(rows, length, dtype=torch.uint8),
            torch.zeros(rows, length, dtype=torch.int32),
            torch.empty(rows, length, width * len(BOUNDARIES), dtype=torch.bfloat16),
            torch.empty(rows, length, width, dtype=torch.bfloat16),
        )

    def select(self, rows: torch.Tensor) -> Chats:
        return Chats(*(getattr(self, field.name)[rows] for field in dataclasses.fields(self)))

    def save(self, path: Path) -> None:
        with written_whole(path) as shard:
            save_file({field.name: getattr(self, field.name).contiguous() for field in dataclasses.fields(self)}, shard)


class ChatFormat:
    """Token ids of the chat template's pieces."""

    def __init__(self, tokenizer):
        self._tokenizer = tokenizer
        self.start, self.end = tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("<|im_end|>")
        before, after = chat_prompt("\0").split("\0")
        self.first_user = self.encode(before)
        self.user = self.encode("\n<|im_start|>user\n")
        self.assistant = self.encode(after)
        assert self.assistant[0] == self.end

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


class ChatRow:
    """Decides a row's next token: queued template tokens first, then the target's choice for whoever speaks."""

    def __init__(self, chat: ChatFormat, rng: random.Random, greedy_share: float):
        self._chat, self._rng, self._greedy_share = chat, rng, greedy_share
        self.queue: list[int] = []
        self._begin_turn(chat.first_user)

    def _begin_turn(self, prefix: list[int]) -> None:
        text, self._answering = sample_user_turn(self._rng)
        self.queue += prefix + self._chat.encode(text) + (self._chat.assistant if self._answering else [])
        self._turn: list[int] = []
        self._is_greedy = self._rng.random() < self._greedy_share

    def next(self, greedy: int, user: int, answer: int) -> tuple[int, bool]:
        """(token, whether it is the assistant's) given the greedy and the two sampled candidates."""
        if self.queue:
            return self.queue.pop(0), False
        if self._answering:
            token = greedy if self._is_greedy else answer
            if token == self._chat.start or is_looping(self._turn):
                token = self._chat.end
            self._turn.append(token)
            if token == self._chat.end:
                self._begin_turn(self._chat.user)
            return token, True
        if user in (self._chat.start, self._chat.end) or len(self._turn) >= MAX_USER_TOKENS:
            self._answering, self._turn = True, []
            self.queue = self._chat.assistant[1:]
            return self._chat.assistant[0], False
        self._turn.append(user)
        return user, False


def is_looping(tokens: list[int]) -> bool:
    """Whether `tokens` end in three copies of up to 32 tokens (eight copies when the period is at most four)."""
    for period in range(1, 33):
        copies = 3 if period > 4 else 8
        if len(tokens) >= copies * period and tokens[-copies * period :] == tokens[-period:] * copies:
            return True
    return False


@torch.inference_mode()
def write_chats(
    model, tokenizer, rows: int, length: int, seed: int, greedy_share: float, advance: Callable[[int], None]
) -> Chats:
    """Lets the fp32 target write `rows` chats of `length` tokens. `advance(tokens)` is called after each position.

    Rows that happen to contain one of the demo's prompts are dropped: those stay unseen.
    """
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    chat = ChatFormat(tokenizer)
    writers = [ChatRow(chat, rng, greedy_share) for _ in range(rows)]
    width = model.config.hidden_size
    chats = Chats.empty(rows, length, width)
    cache = StaticCache(config=model.config, max_cache_len=length)
    shared = len(chat.first_user)
    step = torch.tensor([writer.queue[:shared] for writer in writers])
    chats.tokens[:, :shared] = step
    for writer in writers:
        del writer.queue[:shared]
    position = 0
    with capture(model, CapturePlan(BOUNDARIES, width)) as features:
        while True:
            output = model.model(input_ids=step, past_key_values=cache, use_cache=True).last_hidden_state
            seen = slice(position, position + step.shape[1])
            position = seen.stop
            chats.features[:, seen] = features.tensor.view(rows, step.shape[1], -1)
            chats.hidden[:, seen] = output
            logits = model.lm_head(output)
            chats.greedy[:, seen] = logits.argmax(-1).int()
            advance(rows * step.shape[1])
            if position == length:
                break
            tokens, answer = _choose(writers, logits[:, -1], generator)
            chats.tokens[:, position], chats.answer[:, position] = torch.tensor(tokens), torch.tensor(answer)
            step = torch.tensor(tokens)[:, None]
    return without_demo_prompts(chats, chat)


@torch.inference_mode()
def read_chats(
    model, tokenizer, tokens: torch.Tensor, answer: torch.Tensor, advance: Callable[[int], None], batch_rows: int = 4
) -> Chats:
    """The states of chats this target wrote earlier, by prefill: three to five times as fast as writing them again.

    `tokens`, `answer` [N, L] as in Chats. The demo's prompts are dropped as in `write_chats`.
    """
    width = model.config.hidden_size
    chats = Chats.empty(*tokens.shape, width)
    chats.tokens[:], chats.answer[:] = tokens, answer
    with capture(model, CapturePlan(BOUNDARIES, width)) as features:
        for first in range(0, len(tokens), batch_rows):
            rows = slice(first, first + batch_rows)
            hidden = model.model(input_ids=chats.tokens[rows].long(), use_cache=False).last_hidden_state
            chats.features[rows] = features.tensor.view(*hidden.shape[:2], -1)
            chats.hidden[rows] = hidden
            chats.greedy[rows] = model.lm_head(hidden).argmax(-1).int()
            advance(hidden.shape[0] * hidden.shape[1])
    return without_demo_prompts(chats, ChatFormat(tokenizer))


def without_demo_prompts(chats: Chats, chat: ChatFormat) -> Chats:
    texts = [chat.decode(row) for row in chats.tokens.tolist()]
    unseen = [not any(prompt in text for prompt in PROMPTS) for text in texts]
    return chats.select(torch.tensor(np.flatnonzero(unseen)))


def _choose(
    writers: list[ChatRow], logits: torch.Tensor, generator: torch.Generator
) -> tuple[list[int], list[bool]]:
    values, ids = logits.topk(TOP_K)
    picks = []
    for temperature in (USER_TEMPERATURE, ANSWER_TEMPERATURE):
        index = torch.multinomial((values / temperature).softmax(-1), 1, generator=generator)
        picks.append(ids.gather(1, index)[:, 0].tolist())
    choices = [writer.next(*options) for writer, *options in zip(writers, ids[:, 0].tolist(), *picks, strict=True)]
    return [token for token, _ in choices], [is_answer for _, is_answer in choices]

"""The round loop: draft, verify, keep the accepted prefix, extend the drafter with the target's features.

Greedy, batch 1.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from .doctor import trace
from .inputs import count, prompt_tokens, refuse_options, stop_ids
from .stats import DecodeStats
from .target import Target, TransformersTarget
from .turns import Turn

if TYPE_CHECKING:
    from .drafter import Drafter

FinishReason = Literal["eos", "length", "cache", "non_finite"]
log = logging.getLogger("eagle3_ext")


@dataclass
class DecodeResult:
    """A text, which grows while it is being streamed.

    Attributes:
        tokens: the generated tokens, the eos token included when one ended the text.
        stats: what the run counted.
        finish_reason: "eos", "length" (max_new_tokens reached), "cache" (the target's max_length reached) or
            "non_finite" (the target's logits chose no token: all -inf, or a NaN among them); None until then.
        message: for "non_finite", where in the text that was and what was found. It is logged as a warning as well.
    """

    tokens: list[int]
    stats: DecodeStats
    finish_reason: FinishReason | None
    message: str | None = None


class _Run:
    """One text while it grows: stop rules, truncation and the clock, the same for plain and speculative decoding."""

    def __init__(self, target: Target, max_new_tokens: int, eos_token_ids: Any):
        self.max_new_tokens = count(max_new_tokens, "max_new_tokens")
        self.eos_token_ids = (
            frozenset(target.eos_token_ids) if eos_token_ids is None else stop_ids(eos_token_ids, "eos_token_ids")
        )
        self.target = target
        self.result = DecodeResult([], DecodeStats(), None)
        self.stats = self.result.stats
        self.caches: tuple[object, ...] = ()  # see SpeculativeDecoder._caches
        self.start_clock()

    def start_clock(self) -> None:
        self._started = time.perf_counter()

    def stop_clock(self) -> None:
        """While others have the turn: a slow reader does not look like a slow decoder."""
        self.stats.seconds += time.perf_counter() - self._started

    @property
    def finished(self) -> bool:
        return self.result.finish_reason is not None

    def keep(self, choices: Sequence[int], logits: torch.Tensor) -> list[int]:
        """The chosen tokens that belong to the text: up to and with the first eos, at most max_new_tokens in total.

        `logits` are the rows that chose them. A choice of -1 ends the text.
        """
        kept: list[int] = []
        for row, token in enumerate(choices):
            if token < 0:
                self._end_undecided(row, logits, self.stats.emitted + len(kept))
                break
            kept.append(token)
            if token in self.eos_token_ids:
                self.result.finish_reason = "eos"
                break
            if self.stats.emitted + len(kept) == self.max_new_tokens:
                self.result.finish_reason = "length"
                break
        self.result.tokens += kept
        self.stats.emitted += len(kept)
        if not self.finished and self.target.length >= self.target.max_length:  # not even the newest token fits
            self.result.finish_reason = "cache"
        return kept

    def _end_undecided(self, row: int, logits: torch.Tensor, index: int) -> None:
        # The cache ends with the token before the one that row could not choose: the rows behind it were taken back.
        forward = f"row {row} of a verification" if self.stats.rounds else "the last row of the prefill"
        self.result.finish_reason = "non_finite"
        self.result.message = (
            f"the text ends before token {index} (position {self.target.length} of the sequence): the target's logits "
            f"in {forward} hold {_what_is_wrong(logits[row])}, so they choose none. An overflow in the target's "
            f"{str(logits.dtype).removeprefix('torch.')} or a damaged weight is likely"
        )
        log.warning(self.result.message)


def _choose(logits: torch.Tensor) -> torch.Tensor:
    """The greedy choice of each row, [n, V] -> int64 [n]; -1 for a row of -inf alone or with a NaN anywhere.

    One definition for both modes. Ties go to the lowest index, +inf wins like any other number.
    """
    tokens = torch.ops.eagle3_ext.argmax_tokens(logits)[0]
    return torch.where(logits.amax(-1) > -torch.inf, tokens, -1)  # amax hands on a NaN, which is above nothing


def _what_is_wrong(logits: torch.Tensor) -> str:
    """For a row [V] that chooses nothing."""
    nans = int(logits.isnan().sum())
    return f"NaN in {nans} of {len(logits)} columns" if nans else f"-inf in all {len(logits)} columns"


class SpeculativeDecoder:
    """Greedy EAGLE-3 decoding; the text is the target's own greedy text, token by token.

    Threads may share a decoder, and decoders a target or drafter: texts of `generate` are served in turn, one whole
    text after the other. A `stream` has the turn only while it computes; another text in between ends it by an error.

    Attributes:
        result: the latest text, complete once its `generate` or `stream` has finished. `stats` are its counts.
    """

    def __init__(self, target: Target | torch.nn.Module, drafter: Drafter, num_speculative_tokens: int = 4):
        """
        Raises ValueError for a target that captures another plan, lives in another dtype or on another device or has
        another vocabulary than the drafter was built for, and for more drafts than a row-invariant target can verify
        without rounding differently from plain decoding.

        Args:
            target: a `Target` that captures `drafter.plan`, or a transformers causal LM (wrapped in bit-stable mode).
            drafter: an `eagle3_ext.Drafter` in the target's dtype; used alone by this decoder while it decodes.
            num_speculative_tokens: D, drafts per round.
        """
        num_speculative_tokens = count(num_speculative_tokens, "num_speculative_tokens")
        self.target = TransformersTarget(target, drafter.plan) if isinstance(target, torch.nn.Module) else target
        if self.target.features is None:
            raise ValueError(f"the target captures nothing; build it with the drafter's plan ({drafter.plan})")
        if self.target.features.plan != drafter.plan:
            raise ValueError(f"the target {self.target.features.plan}, but the drafter needs: {drafter.plan}")
        for name in ("dtype", "device"):
            theirs, ours = getattr(self.target, name, None), getattr(drafter, name, None)
            if theirs is not None and ours is not None and theirs != ours:
                raise ValueError(f"the target's {name} is {theirs}, the drafter's {ours}; they exchange tensors uncast")
        self._check_vocabularies(drafter)
        most_rows = getattr(self.target, "max_verify_rows", None)
        if most_rows is not None and num_speculative_tokens >= most_rows:
            raise ValueError(
                f"num_speculative_tokens is {num_speculative_tokens}; a row-invariant target verifies at most {most_rows} "
                f"tokens, so at most {most_rows - 1} drafts"
            )
        self.drafter = drafter
        self.num_speculative_tokens = num_speculative_tokens
        self.result = DecodeResult([], DecodeStats(), None)
        turns = (Turn("decoder"), getattr(self.target, "turn", None), getattr(drafter, "turn", None))
        self._turns = [turn for turn in turns if turn is not None]

    def _check_vocabularies(self, drafter: Drafter) -> None:
        theirs = getattr(self.target, "vocab_size", None)
        ours = getattr(getattr(drafter, "config", None), "vocab_size", None)
        if theirs is not None and ours is not None and theirs != ours:
            raise ValueError(
                f"the target's vocabulary is [0, {theirs}), the drafter was built for [0, {ours}): build it beside "
                "this model with Drafter.from_pretrained or from_checkpoint, which fits its vocabulary"
            )

    @property
    def stats(self) -> DecodeStats:
        """The counts of the latest text, complete once it has finished."""
        return self.result.stats

    def generate(
        self, input_ids: Any, max_new_tokens: int = 256, eos_token_ids: Any = None, **options: Any
    ) -> DecodeResult:
        """Decodes until an eos token, max_new_tokens, the end of the target's cache, or logits that choose nothing.

        Args:
            input_ids: one sequence: a list, array or tensor [n] or [1, n], or a tokenizer's output, whose padding is
                left out; see `inputs.prompt_tokens`.
            eos_token_ids: an int, or any collection or tensor of them; default: the model's. () never stops.
            options: what says the same as is done here, such as temperature=0.0; any other is refused by name.

        Raises, before any work:
            TypeError: an unknown option, or a prompt without token ids.
            ValueError: another value that cannot be meant, or a prompt that does not fit both caches.
            IndexError: a token outside the target's vocabulary.
        """
        run, prompt = self._new_run(input_ids, max_new_tokens, eos_token_ids, options)
        with self._turn(begins_text=True):
            for _ in self._rounds(run, prompt):
                pass
        return run.result

    def stream(
        self, input_ids: Any, max_new_tokens: int = 256, eos_token_ids: Any = None, **options: Any
    ) -> Iterator[int]:
        """Like `generate`, token by token: a round's tokens come together. `self.result` grows along.

        How the text ended is in `self.result` (`finish_reason`, `message`), and in what the generator returns.

        Raises what `generate` raises, prompts that do not fit at the first token, and RuntimeError when it is resumed
        after another text was started on this decoder, its target or its drafter.
        """
        return self._stream(*self._new_run(input_ids, max_new_tokens, eos_token_ids, options))

    def _new_run(
        self, input_ids: Any, max_new_tokens: Any, eos_token_ids: Any, options: dict[str, Any]
    ) -> tuple[_Run, torch.Tensor]:
        refuse_options(options)
        run = _Run(self.target, max_new_tokens, eos_token_ids)
        prompt = prompt_tokens(input_ids, self.target.device)
        most = getattr(self.drafter, "max_length", None)
        if most is not None and len(prompt) > most:
            raise ValueError(f"the prompt has {len(prompt)} tokens, the drafter's max_length is {most}")
        return run, prompt

    @contextmanager
    def _turn(self, *, begins_text: bool) -> Iterator[None]:
        with ExitStack() as stack:
            recorder = trace.active
            for turn in self._turns if recorder is None else (recorder.turn, *self._turns):
                stack.enter_context(turn)
            if begins_text and recorder is not None:
                recorder.begin_text()
            yield

    def _stream(self, run: _Run, prompt: torch.Tensor) -> Iterator[int]:
        rounds, begins_text = self._rounds(run, prompt), True
        while True:
            with self._turn(begins_text=begins_text):
                kept = next(rounds, None)
            if kept is None:
                return run.result
            begins_text = False
            yield from kept

    def _rounds(self, run: _Run, prompt: torch.Tensor) -> Iterator[list[int]]:
        """The tokens of the prefill, then of each round. After every yield others may have had the turn."""
        self.result = run.result
        run.start_clock()
        logits = self.target.prefill(prompt)
        newest = _choose(logits)
        kept = run.keep(newest.tolist(), logits)
        yield from self._hand_over(run, kept)
        if not run.finished:
            self._extend_prompt(prompt, newest)
        while not run.finished:
            drafted, accept_lengths, emitted, logits = self._draft_and_verify(newest)
            run.stats.record_round(drafted, len(emitted) - 1)
            kept = run.keep(emitted.tolist(), logits)
            # A finished text gets no extend. A round without drafts found the drafter full, and it stays full.
            if not run.finished and drafted:
                self._extend_round(accept_lengths, drafted + 1, emitted)
            newest = emitted[-1:]
            yield from self._hand_over(run, kept)

    def _hand_over(self, run: _Run, kept: list[int]) -> Iterator[list[int]]:
        run.caches = self._caches()
        run.stop_clock()
        yield kept
        run.start_clock()
        if not run.finished and self._caches() != run.caches:
            raise RuntimeError(
                "another text was started on this decoder, its target or its drafter; each holds one text at a time"
            )

    def _caches(self) -> tuple[object, ...]:
        """Whose text the caches hold: others than before, and they are another's."""
        resets = getattr(self.drafter, "resets", 0)
        return id(self.result), getattr(self.target, "prefills", 0), self.target.length, resets

    def _extend_prompt(self, prompt: torch.Tensor, first: torch.Tensor) -> None:
        """Row t pairs the features of position t with the token of position t + 1, the last with the first sampled."""
        self.drafter.reset()
        rows = prompt.shape[0]
        row_offsets = torch.tensor([0, rows], device=prompt.device)
        positions = torch.arange(rows, device=prompt.device)
        self.drafter.extend(self.target.features.tensor, torch.cat([prompt[1:], first]), positions, row_offsets)

    def _draft_and_verify(self, newest: torch.Tensor) -> tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]:
        """One target forward over the newest token and its drafts.

        Returns the number of drafts D, accept_lengths [1] (= a + 1), the a + 1 tokens the target settled on and the
        logits [D + 1, V]. The target's cache then ends with the last accepted draft; the bonus token is the next round's
        newest, or -1 where its row chose none.
        """
        drafted = self._drafts_that_fit()
        if trace.active is not None:
            trace.active.begin_round()
        drafts = self.drafter.draft(drafted).tokens if drafted else newest.new_empty(1, 0)
        # The pad value -1 is never accepted, but the target still has to embed something in its place.
        logits = self.target.verify(torch.cat([newest, drafts[0].clamp(min=0)]))
        choices = _choose(logits)
        # A row that chose nothing, -1, accepts nothing: drafts are tokens or padding, which never is.
        accept_lengths, _bonus = torch.ops.eagle3_ext.verify_greedy(drafts, choices[None])
        settled = int(accept_lengths)
        if trace.active is not None:
            emitted = [token for token in choices[:settled].tolist() if token >= 0]
            trace.active.record("round", drafted=drafted, accepted=settled - 1, emitted=emitted)
        self.target.rollback(drafted + 1 - settled)
        # An accepted draft is the target's own choice one row earlier, so the choices are the emitted tokens.
        return drafted, accept_lengths, choices[:settled], logits

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
    input_ids: Any,
    max_new_tokens: int = 256,
    eos_token_ids: Any = None,
    **options: Any,
) -> DecodeResult:
    """Plain greedy decoding, one token per forward: arguments, stop rules and result are `SpeculativeDecoder`'s."""
    refuse_options(options)
    if isinstance(target, torch.nn.Module):
        target = TransformersTarget(target)
    run, prompt = _Run(target, max_new_tokens, eos_token_ids), prompt_tokens(input_ids, target.device)
    with getattr(target, "turn", None) or nullcontext():
        run.start_clock()
        logits = target.prefill(prompt)
        newest = _choose(logits)
        run.keep(newest.tolist(), logits)
        while not run.finished:
            logits = target.verify(newest)
            newest = _choose(logits)
            target.rollback(0)
            run.stats.record_round(0, 0)
            run.keep(newest.tolist(), logits)
        run.stop_clock()
    return run.result


@dataclass(frozen=True)
class Divergence:
    """Where two texts of one prompt part, and how sure the target is there.

    Attributes:
        position: index of the first differing generated token.
        tokens: both tokens there; None where a text has already ended.
        logits: the target's logits of both tokens.
        top_tokens, top_logits: the target's two best tokens there.
        undecided: what the target's logits hold where they choose no token, such as "NaN in 3 of 67 columns"; the best
            two say nothing then, and `gap` is NaN. None where they choose one.
    """

    position: int
    tokens: tuple[int | None, int | None]
    logits: tuple[float | None, float | None]
    top_tokens: tuple[int, int]
    top_logits: tuple[float, float]
    undecided: str | None = None

    @property
    def gap(self) -> float:
        """Best logit minus second best. About zero: a tie that rounding decided. Large: one text is wrong."""
        if self.undecided is not None:
            return math.nan
        best, second = self.top_logits
        return 0.0 if best == second else best - second  # inf - inf would be NaN

    def __str__(self) -> str:
        (a, b), (best, second) = self.tokens, self.top_tokens
        where = f"the texts part at token {self.position} ({a} against {b}); the target's"
        if self.undecided is not None:
            return f"{where} logits there hold {self.undecided}, so they choose none"
        return f"{where} best tokens there are {best} and {second}, {self.gap:.4g} apart"


def first_divergence(target: Target, input_ids: Any, a: Sequence[int], b: Sequence[int]) -> Divergence | None:
    """The first difference of two generated texts of the prompt `input_ids`, or None when they are equal.

    The logits come from one prefill of the prompt and the common prefix, so they may differ from either run's own by
    the rounding of the target's dtype: a gap of that size is a tie, anything larger a bug.
    """
    if list(a) == list(b):
        return None
    shared = min(len(a), len(b))
    position = next((index for index in range(shared) if a[index] != b[index]), shared)
    prefix = torch.tensor(list(a[:position]), dtype=torch.int64, device=target.device)
    with getattr(target, "turn", None) or nullcontext():
        logits = target.prefill(torch.cat([prompt_tokens(input_ids, target.device), prefix]))[0]
    undecided = _what_is_wrong(logits) if int(_choose(logits[None])) < 0 else None
    logits = logits.float()
    top = logits.topk(2)
    tokens = tuple(text[position] if position < len(text) else None for text in (a, b))
    return Divergence(
        position,
        tokens,
        tuple(None if token is None else float(logits[token]) for token in tokens),
        tuple(top.indices.tolist()),
        tuple(top.values.tolist()),
        undecided,
    )

"""The demo: one real target decoded three ways, prompt by prompt: plain, EAGLE-3, and EAGLE-3 with the founding fault.

The fault is not a switch of the product. It is a drafter made in memory from the same checkpoint whose `fc.weight` is the
selector [0 | ... | 0 | I]: the fusion then hands on one hidden state of width H, exactly as if `fc` had been skipped. The
native code, its speed and the target are the same in all three modes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from . import smollm2
from .checkpoint import Checkpoint, load_checkpoint
from .decoder import DecodeResult, SpeculativeDecoder, first_divergence, greedy_decode
from .demo_prompts import PROMPTS
from .drafter import Drafter
from .stats import DecodeStats, shown
from .target import TransformersTarget

DRAFTER_PATH = Path(__file__).parent / "demo_drafter"
MODES = ("plain", "eagle3", "fault")
TITLES = {
    "plain": "plain greedy",
    "eagle3": "EAGLE-3, features of width K*H",
    "fault": "EAGLE-3, one state of width H in every extend",
}


def skip_fusion(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with the founding fault built into its weights: `fc` selects the last state and fuses nothing.

    Raises ValueError when one state could not pass the fusion unchanged: another width than the target's (h != H), no
    `fc`, or one with a bias or norms beside it.
    """
    beside = sorted(name for name in checkpoint.weights if name.startswith(("fc.bias", "fc_norm", "input_norm")))
    if "fc.weight" not in checkpoint.weights or beside:
        raise ValueError(f"the fault needs a fusion of fc.weight alone; this drafter has {', '.join(beside) or 'no fc'}")
    fc = checkpoint.weights["fc.weight"]
    h, width = fc.shape
    state = checkpoint.config.target_hidden_size
    if h != state:
        raise ValueError(f"the fault needs drafter width == target width; fc.weight is [{h}, {width}], H = {state}")
    selector = torch.zeros_like(fc)
    selector[:, width - state :] = torch.eye(h, dtype=fc.dtype)
    return dataclasses.replace(checkpoint, weights={**checkpoint.weights, "fc.weight": selector})


@contextlib.contextmanager
def benchmark_lock(root: Path | None = None) -> Iterator[None]:
    """Holds `.benchmark.lock` in a source checkout while something is timed: a background training run pauses on it."""
    root = root or Path(__file__).parent.parent
    if not (root / "setup.py").is_file() or not os.access(root, os.W_OK):
        yield
        return
    with open(root / ".benchmark.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # the kernel lets go of it however this process ends
        yield


@dataclasses.dataclass
class EmbeddedSetup:
    """The embedded target and its drafters, loaded once: SmolLM2-135M-Instruct in bf16."""

    model: torch.nn.Module
    tokenizer: object
    checkpoint: Checkpoint
    drafter: Drafter

    @classmethod
    def load(cls, drafter_path: Path = DRAFTER_PATH, dtype: torch.dtype = torch.bfloat16) -> EmbeddedSetup:
        model, tokenizer = smollm2.load_target(dtype)
        checkpoint = load_checkpoint(drafter_path)
        return cls(model, tokenizer, checkpoint, Drafter.from_checkpoint(checkpoint, model))

    def encode(self, text: str) -> torch.Tensor:
        """The chat prompt's token ids, int64 [1, T]."""
        return torch.tensor([self.tokenizer.encode(smollm2.chat_prompt(text), add_special_tokens=False).ids])

    def cache_length(self, prompt: int, max_new_tokens: int, num_speculative_tokens: int) -> int:
        """Positions that a prompt of `prompt` tokens, its reply and the last round's drafts take.

        Raises ValueError when the model has fewer.
        """
        length, most = prompt + max_new_tokens + num_speculative_tokens + 1, self.model.config.max_position_embeddings
        if length > most:
            room = max(most - length + max_new_tokens, 0)
            raise ValueError(
                f"{max_new_tokens} tokens do not fit: after a prompt of {prompt} the model has room for {room}"
            )
        return length

    def target(self, max_length: int, plan=None, cache: str = "static") -> TransformersTarget:
        return TransformersTarget(self.model, plan, cache=cache, max_length=max_length)


def choose_threads(setup: EmbeddedSetup, steps: int = 6) -> int:
    """1 or all torch threads, whichever decodes a few tokens faster now: two threads collapse on a loaded machine."""
    available = torch.get_num_threads()
    if available == 1:
        return 1
    target, prompt, seconds = setup.target(256), setup.encode("Hello"), {}
    for threads in (1, available, 1, available):
        torch.set_num_threads(threads)
        start = time.perf_counter()
        greedy_decode(target, prompt, max_new_tokens=steps)
        seconds[threads] = min(seconds.get(threads, float("inf")), time.perf_counter() - start)
    return min(seconds, key=seconds.get)


@dataclasses.dataclass
class DemoReport:
    """What `run` measured.

    Attributes:
        stats: per mode, summed over prompts.
        divergences: where texts differed; empty when all are identical.
        undecided: which texts the target's logits ended without a choice, and where; empty when none.
    """

    stats: dict[str, DecodeStats]
    divergences: list[str]
    undecided: list[str]
    settings: dict[str, object]

    def to_dict(self) -> dict[str, object]:
        return {
            "modes": {mode: stats.to_dict() for mode, stats in self.stats.items()},
            "outputs_equal": not self.divergences,
            "divergences": self.divergences,
            "undecided": self.undecided,
            "settings": self.settings,
        }


def run(
    setup: EmbeddedSetup,
    *,
    prompts: int,
    max_new_tokens: int,
    num_speculative_tokens: int,
) -> DemoReport:
    """Decodes the first `prompts` prompts in the three modes, interleaved, so that a noisy machine is noisy for all."""
    if not 1 <= prompts <= len(PROMPTS):
        raise ValueError(f"prompts must be in [1, {len(PROMPTS)}], got {prompts}")
    encoded = [setup.encode(prompt) for prompt in PROMPTS[:prompts]]
    length = setup.cache_length(max(ids.shape[1] for ids in encoded), max_new_tokens, num_speculative_tokens)
    broken = Drafter.from_checkpoint(skip_fusion(setup.checkpoint), setup.model)
    plain_target = setup.target(length)
    decoders = {
        mode: SpeculativeDecoder(setup.target(length, drafter.plan), drafter, num_speculative_tokens)
        for mode, drafter in (("eagle3", setup.drafter), ("fault", broken))
    }

    def decode(mode: str, ids: torch.Tensor) -> DecodeResult:
        if mode == "plain":
            return greedy_decode(plain_target, ids, max_new_tokens=max_new_tokens)
        return decoders[mode].generate(ids, max_new_tokens=max_new_tokens)

    for mode in MODES:  # the first forward of each mode pays for allocation; nobody is timed on it
        decode(mode, encoded[0][:, :8])
    stats: dict[str, DecodeStats] = {}
    divergences: list[str] = []
    undecided: list[str] = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("decoding", total=len(encoded) * len(MODES))
        for index, ids in enumerate(encoded):
            tokens = {}
            for mode in MODES:
                progress.update(task, description=f"prompt {index + 1}: {TITLES[mode]}")
                result = decode(mode, ids)
                tokens[mode] = result.tokens
                if result.message is not None:
                    undecided.append(f"prompt {index + 1}, {mode}: {result.message}")
                stats[mode] = stats[mode] + result.stats if mode in stats else result.stats
                progress.advance(task)
            for mode in MODES[1:]:
                if tokens[mode] != tokens["plain"]:
                    where = first_divergence(plain_target, ids, tokens["plain"], tokens[mode])
                    divergences.append(f"prompt {index + 1}, {mode}: {where}")
    settings = {
        "prompts": prompts,
        "max_new_tokens": max_new_tokens,
        "num_speculative_tokens": num_speculative_tokens,
        "threads": torch.get_num_threads(),
        "dtype": str(next(setup.model.parameters()).dtype).removeprefix("torch."),
    }
    return DemoReport(stats, divergences, undecided, settings)


def _rates(rates: list[float | None]) -> str:
    return " / ".join(map(shown, rates)) or "-"


def print_report(report: DemoReport, console: Console) -> None:
    """One table and one sentence about the texts."""
    table = Table(title="SmolLM2-135M-Instruct, greedy, batch 1: the same text three ways")
    table.add_column("decoding")
    for column in ("accept\nlength", "acceptance\nper position", "tokens/s", "speed\nagainst plain"):
        table.add_column(column, justify="right", no_wrap=True)
    plain = report.stats["plain"].tokens_per_s
    for mode in MODES:
        stats = report.stats[mode]
        table.add_row(
            TITLES[mode],
            shown(stats.accept_length),
            _rates(stats.acceptance_per_position),
            f"{stats.tokens_per_s:.1f}",
            f"{stats.tokens_per_s / plain:.2f}x" if plain else "-",
        )
    console.print(table)
    if report.undecided:
        console.print("[bold red]The target's logits chose no token:[/]")
        for line in report.undecided:
            console.print(f"  {line}")
    if report.divergences:
        console.print("[bold red]The texts differ:[/]")
        for line in report.divergences:
            console.print(f"  {line}")
    elif not report.undecided:
        console.print("All three texts are identical: the fault costs speed, never words. That is why it goes unnoticed.")
    console.print(
        "The fault row has every extend wrong. In the deployment this project began with, prefill was right and decode "
        "wrong: notebooks/01 shows that case."
    )


def write_json(report: DemoReport, path: Path) -> None:
    path.write_text(json.dumps(report.to_dict(), indent=2) + "\n")

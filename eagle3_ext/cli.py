"""The command line, each command with --help and, where there are numbers, --json FILE: see `eagle3-ext --help`."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Annotated, Optional

import typer

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is local; a missing file must not become a network wait

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)

Threads = Annotated[int, typer.Option(min=0, help="torch threads; 0 measures which of 1 and all is faster now")]
JsonFile = Annotated[Optional[Path], typer.Option("--json", help="also write the numbers to this file")]
NewTokens = Annotated[int, typer.Option(min=1, help="most tokens per reply")]
Speculative = Annotated[int, typer.Option("--num-speculative-tokens", "-d", min=1, max=16, help="D, drafts per round")]
DrafterPath = Annotated[Optional[Path], typer.Option(help="drafter checkpoint folder; the embedded one by default")]


def _check_writable(path: Path | None) -> None:
    """Refuses a --json target before minutes of work, not after."""
    if path is None:
        return
    existed = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be written: {error.strerror}", param_hint="--json") from None
    if not existed:
        path.unlink()  # until there is something to write


def _load(drafter: Path | None, threads: int):
    import torch

    from . import demo

    try:
        setup = demo.EmbeddedSetup.load(drafter or demo.DRAFTER_PATH)
    except ValueError as error:  # no drafter, or another target's
        raise typer.BadParameter(str(error), param_hint="--drafter") from None
    except ModuleNotFoundError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    torch.set_num_threads(threads or demo.choose_threads(setup))
    return setup


def _cache_length(setup, prompt: int, max_new_tokens: int, num_speculative_tokens: int) -> int:
    try:
        return setup.cache_length(prompt, max_new_tokens, num_speculative_tokens)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--max-new-tokens") from None


@app.command()
def demo(
    prompts: Annotated[int, typer.Option(min=1, help="how many of the fixed prompts to decode")] = 20,
    max_new_tokens: NewTokens = 32,
    num_speculative_tokens: Speculative = 3,
    threads: Threads = 0,
    drafter: DrafterPath = None,
    json_file: JsonFile = None,
) -> None:
    """Decode a real model three ways: plain, EAGLE-3, and EAGLE-3 with the fault this project exists for."""
    _check_writable(json_file)
    from rich.console import Console

    from . import demo as demo_module

    console = Console()
    limit = len(demo_module.PROMPTS)
    if prompts > limit:
        raise typer.BadParameter(f"there are {limit} prompts, {prompts} were asked for", param_hint="--prompts")
    with demo_module.benchmark_lock():
        with console.status("loading SmolLM2-135M-Instruct and its drafter"):
            setup = _load(drafter, threads)
        console.print(f"drafter {setup.drafter.plan}")
        longest = max(setup.encode(prompt).shape[1] for prompt in demo_module.PROMPTS[:prompts])
        _cache_length(setup, longest, max_new_tokens, num_speculative_tokens)
        try:
            demo_module.skip_fusion(setup.checkpoint)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--drafter") from None
        report = demo_module.run(
            setup,
            prompts=prompts,
            max_new_tokens=max_new_tokens,
            num_speculative_tokens=num_speculative_tokens,
        )
    if json_file is not None:
        demo_module.write_json(report, json_file)
    demo_module.print_report(report, console)
    if report.divergences or report.undecided:
        raise typer.Exit(1)


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="what to ask")],
    max_new_tokens: NewTokens = 200,
    num_speculative_tokens: Speculative = 3,
    threads: Threads = 0,
    drafter: DrafterPath = None,
    json_file: JsonFile = None,
) -> None:
    """Stream a reply of the embedded model, then say how the speculation went.

    Exit status 1 when the model's logits chose no token somewhere, which the reply then ends before.
    """
    _check_writable(json_file)
    from rich.console import Console

    from .decoder import SpeculativeDecoder
    from .stats import shown

    notes = Console(stderr=True)
    with notes.status("loading SmolLM2-135M-Instruct and its drafter"):
        setup = _load(drafter, threads)
    ids = setup.encode(prompt)
    length = _cache_length(setup, ids.shape[1], max_new_tokens, num_speculative_tokens)
    target = setup.target(length, setup.drafter.plan)
    decoder = SpeculativeDecoder(target, setup.drafter, num_speculative_tokens)
    tokens: list[int] = []
    printed = ""
    for token in decoder.stream(ids, max_new_tokens=max_new_tokens):
        tokens.append(token)
        text = setup.tokenizer.decode(tokens, skip_special_tokens=True)
        if not text.endswith("\ufffd"):  # half a character: wait for its other bytes
            typer.echo(text[len(printed) :], nl=False)
            printed = text
    typer.echo()
    result, stats = decoder.result, decoder.stats.to_dict()
    notes.print(
        f"{stats['emitted']} tokens in {stats['rounds']} rounds, accept length {shown(stats['accept_length'])}, "
        f"{stats['tokens_per_s']:.1f} tokens/s"
    )
    if json_file is not None:
        how = {"finish_reason": result.finish_reason, "message": result.message}
        report = {"text": printed, "tokens": tokens, **how, "stats": stats}
        json_file.write_text(json.dumps(report, indent=2) + "\n")
    if result.message is not None:
        typer.echo(result.message, err=True)
        raise typer.Exit(1)


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="drafter checkpoint folder")],
    target: Annotated[Optional[Path], typer.Option(help="the target's folder or config.json; reads no weights")] = None,
    norm_before_residual: Annotated[
        Optional[bool], typer.Option(help="settle it where a speculators file leaves it open")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Say what a drafter's folder holds, what decided that, and what each engine would capture for it."""
    _check_writable(json_file)
    from rich.console import Console

    from .errors import CheckpointError
    from .inspection import inspect_checkpoint

    console = Console(highlight=False, soft_wrap=True, markup=False)
    try:
        inspection = inspect_checkpoint(path, target, norm_before_residual=norm_before_residual)
    except CheckpointError as error:
        console.print(str(error))
        raise typer.Exit(1) from None
    for heading, lines in inspection.sections():
        for i, line in enumerate(lines):
            console.print(f"{heading if i == 0 else '':24}{line}")
    if json_file is not None:
        json_file.write_text(json.dumps(inspection.to_dict(), indent=2) + "\n")


@app.command()
def doctor(
    files: Annotated[list[Path], typer.Argument(help="traces, engine logs and drafter checkpoint folders, in any mix")],
    json_file: JsonFile = None,
) -> None:
    """Say why acceptance is low: findings with their evidence, worst first.

    EAGLE3_TRACE=run.jsonl in the environment of a run with this package records a trace; engines feed one by
    eagle3_ext.doctor.trace.record.

    Exit status 1 when something is wrong, 2 when a file cannot be read or nothing in it was recognised.
    """
    _check_writable(json_file)
    from rich.console import Console

    from .doctor import diagnose
    from .doctor.report import print_diagnosis

    try:
        diagnosis = diagnose(files)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="FILE") from error
    except KeyError as error:
        raise typer.BadParameter(f"a trace event lacks {error}", param_hint="FILE") from error
    print_diagnosis(diagnosis, Console())
    if json_file is not None:
        json_file.write_text(json.dumps(diagnosis.to_dict(), indent=2) + "\n")
    raise typer.Exit(diagnosis.exit_status)


@app.command()
def bench(
    only: Annotated[str, typer.Option(help="run the rows whose name contains this")] = "",
    repeats: Annotated[int, typer.Option(min=3, help="interleaved pairs per row; medians are reported")] = 15,
    device: Annotated[str, typer.Option(help="cpu or cuda: each has its own rows")] = "cpu",
    dry: Annotated[bool, typer.Option("--dry", help="try the rows of cuda at tiny sizes on the CPU")] = False,
    json_file: JsonFile = None,
) -> None:
    """Time the native ops, the drafter and the decode loop against their peers, side by side in one run."""
    _check_writable(json_file)
    from rich.console import Console

    from . import bench as bench_module

    def keep(report: dict) -> None:
        if json_file is not None:
            json_file.write_text(json.dumps(report, indent=2) + "\n")

    try:
        report = bench_module.run(only=only, repeats=repeats, device=device, dry=dry, keep=keep)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    except ModuleNotFoundError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    bench_module.print_report(report, Console())
    keep(report)


def main() -> None:
    # The commands say what the package logs, so that nothing is said twice.
    logging.getLogger("eagle3_ext").addHandler(logging.NullHandler())
    app()


if __name__ == "__main__":
    main()

"""Trains the demo's EAGLE-3 drafter from nothing but its target: generate, train, narrow the vocabulary, evaluate.

Without a command all four stages run, for hours; each can be stopped at any time and goes on where it was. Several
processes may generate (--worker 0, 1, ...) while one trains. Everything lands in build/training: shards of generated text
with features, the training state, and the finished checkpoint in drafter/. While a benchmark holds `.benchmark.lock` in
the repository root, generation and training wait, so that nobody measures against them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Annotated, Optional

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))

import torch  # noqa: E402
import typer  # noqa: E402
from rich.console import Console  # noqa: E402
from training.progress import ROOT, working, working_politely  # noqa: E402

app = typer.Typer(add_completion=False, help=__doc__, rich_markup_mode=None)
console = Console()

State = Annotated[Path, typer.Option(help="where shards, training state and result live")]
Threads = Annotated[int, typer.Option(min=1, help="torch threads; two 1-thread processes beat one with two threads")]
DEFAULT_STATE = ROOT / "build" / "training"


@app.command()
def generate(
    shards: Annotated[int, typer.Option(min=1, help="how many shards there should be in the end")] = 64,
    rows: Annotated[int, typer.Option(min=2, help="chats per shard, decoded as one batch")] = 128,
    length: Annotated[int, typer.Option(min=64, help="tokens per chat")] = 112,
    greedy_share: Annotated[float, typer.Option(min=0, max=1, help="share of answers without sampling")] = 0.75,
    worker: Annotated[int, typer.Option(min=0, help="number of this process, when several generate at once")] = 0,
    threads: Threads = 1,
    state: State = DEFAULT_STATE,
) -> None:
    """Let the target write chats and keep its states: `shards` files of about 4.6 kB per token."""
    from eagle3_ext.smollm2 import load_target
    from training.generate import write_chats

    torch.set_num_threads(threads)
    folder = state / "shards"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {index: folder / f"{worker:02d}-{index:04d}.safetensors" for index in range(shards)}
    missing = {index: path for index, path in paths.items() if not path.exists()}
    if not missing:
        console.print(f"generate: all {shards} shards exist")
        return
    model, tokenizer = load_target(torch.float32)
    with working_politely(console, "generating", len(missing) * rows * length, "tokens") as advance:
        for index, path in missing.items():
            seed = worker * 1_000_000 + index
            chats = write_chats(model, tokenizer, rows, length, seed, greedy_share, advance)
            chats.save(path)
            share = chats.answer.float().mean()
            console.print(f"generate: {path.name}, {len(chats.tokens)} chats, {share:.0%} of the tokens are answers")


@app.command()
def read(
    files: Annotated[list[Path], typer.Argument(help="npz files with `ids` and `mask` [N, L]: chats this target wrote")],
    rows: Annotated[int, typer.Option(min=1, help="chats per shard")] = 66,
    threads: Threads = 1,
    state: State = DEFAULT_STATE,
) -> None:
    """Make shards of chats that the target wrote earlier: a prefill each, several times as fast as `generate`."""
    from eagle3_ext.smollm2 import load_target
    from training.data import load_text
    from training.generate import read_chats

    torch.set_num_threads(threads)
    folder = state / "shards"
    folder.mkdir(parents=True, exist_ok=True)
    model, tokenizer = load_target(torch.float32)
    texts = {file: load_text(file) for file in files}
    total = sum(tokens.numel() for tokens, _ in texts.values())
    with working_politely(console, "reading", total, "tokens") as advance:
        for file, (tokens, answer) in texts.items():
            for first in range(0, len(tokens), rows):
                path, part = folder / f"{file.stem}-{first:05d}.safetensors", slice(first, first + rows)
                if path.exists():
                    advance(tokens[part].numel())
                    continue
                read_chats(model, tokenizer, tokens[part], answer[part], advance).save(path)
                console.print(f"read: {path.name}, {answer[part].float().mean():.0%} of the tokens are answers")


@app.command()
def train(
    steps: Annotated[int, typer.Option(min=1, help="optimizer steps, earlier sittings included")] = 2400,
    learning_rate: Annotated[float, typer.Option(min=0, help="Muon's; the head and norms learn at a quarter")] = 6e-3,
    draft_steps: Annotated[int, typer.Option(min=1, max=8, help="depth of the training-time test")] = 4,
    batch_rows: Annotated[int, typer.Option(min=1, help="chats per step")] = 24,
    draft_vocab: Annotated[int, typer.Option(min=256, help="draft vocabulary size: the most frequent tokens")] = 16384,
    head_columns: Annotated[int, typer.Option(min=64, help="draft tokens scored per step, of the vocabulary")] = 4096,
    init: Annotated[Optional[Path], typer.Option(help="drafter to start from; its vocabulary is kept and widened")] = None,
    texts: Annotated[Optional[list[Path]], typer.Option(help="npz files as for `read`, to count tokens in")] = None,
    threads: Threads = 1,
    state: State = DEFAULT_STATE,
) -> None:
    """Train on the shards there are and on those that appear meanwhile; write the checkpoint to drafter/."""
    from eagle3_ext.smollm2 import load_target
    from training.data import ShardSet, load_text
    from training.model import TrainableDrafter
    from training.train import Settings, Trainer

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    shards = ShardSet(state / "shards")
    target, _ = load_target(torch.float32)
    known = TrainableDrafter.from_checkpoint(target.config, init) if init else None
    keep = known.target_ids.tolist() if known else []
    votes = [load_text(file) for file in texts or []]
    frequent = shards.frequent_tokens(max(draft_vocab, len(keep)), target.config.vocab_size, votes, keep)
    drafter = known or TrainableDrafter(target.config, len(frequent))
    if known:
        drafter.widen(target, frequent)
    else:
        drafter.initialize(target, frequent)
    settings = Settings(steps, learning_rate, draft_steps, batch_rows, head_columns)
    trainer = Trainer(target, drafter, shards, settings, state / "trainer.pt")
    console.print(f"train: {trainer.describe()}, {sum(p.numel() for p in drafter.parameters()) / 1e6:.1f} M parameters")
    trainer.run(console)
    drafter.save(state / "drafter")
    console.print(f"train: wrote {state / 'drafter'}")


@app.command()
def narrow(
    draft_vocab: Annotated[int, typer.Option(min=256, help="draft vocabulary size: the most frequent tokens")] = 8192,
    texts: Annotated[Optional[list[Path]], typer.Option(help="npz files as for `read`, to count tokens in")] = None,
    state: State = DEFAULT_STATE,
) -> None:
    """Keep only the most frequent tokens in drafter/: the head is most of a draft step, and rare tokens rarely right."""
    from eagle3_ext.smollm2 import load_target
    from training.data import ShardSet, load_text
    from training.model import TrainableDrafter

    target, _ = load_target(torch.float32)
    drafter = TrainableDrafter.from_checkpoint(target.config, state / "drafter")
    known = drafter.target_ids
    if len(known) < draft_vocab:
        raise typer.BadParameter(f"{draft_vocab}: the drafter has {len(known)} tokens", param_hint="--draft-vocab")
    votes = [load_text(file) for file in texts or []]
    shards = ShardSet(state / "shards")
    drafter.narrow(shards.frequent_tokens(draft_vocab, target.config.vocab_size, votes, among=known))
    drafter.save(state / "drafter")
    console.print(f"narrow: {len(known)} tokens became {draft_vocab}")


@app.command()
def blend(
    other: Annotated[Path, typer.Argument(help="checkpoint of the same draft vocabulary: what was trained from")],
    share: Annotated[float, typer.Option(min=0, max=1, help="its share of the weights")] = 0.1,
    state: State = DEFAULT_STATE,
) -> None:
    """Mix a little of an earlier checkpoint into drafter/, which keeps it good on text unlike its last shards."""
    from eagle3_ext.smollm2 import load_target
    from training.model import TrainableDrafter

    target, _ = load_target(torch.float32)
    drafter, earlier = (TrainableDrafter.from_checkpoint(target.config, path) for path in (state / "drafter", other))
    try:
        drafter.blend(earlier, share)
    except ValueError as error:
        raise typer.BadParameter(f"{other}: {error}", param_hint="OTHER") from None
    drafter.save(state / "drafter")
    console.print(f"blend: {1 - share:.0%} of drafter/, {share:.0%} of {other}")


@app.command()
def evaluate(
    drafter: Annotated[Optional[Path], typer.Option(help="checkpoint to judge; drafter/ of the state by default")] = None,
    num_speculative_tokens: Annotated[int, typer.Option(min=1, max=8, help="drafts per round")] = 3,
    answer_tokens: Annotated[int, typer.Option(min=8, help="most tokens per answer")] = 64,
    threads: Threads = 1,
    state: State = DEFAULT_STATE,
) -> None:
    """Measure acceptance on the demo's held-out prompts."""
    from eagle3_ext.demo_prompts import PROMPTS
    from eagle3_ext.smollm2 import load_target
    from training.evaluate import held_out_chats, measure
    from training.model import TrainableDrafter

    torch.set_num_threads(threads)
    state.mkdir(parents=True, exist_ok=True)
    target, tokenizer = load_target(torch.float32)
    with working(console, "answering", len(PROMPTS), "prompts") as advance:
        answers = state / f"held-out-{answer_tokens}.safetensors"
        chats = held_out_chats(target, tokenizer, answers, answer_tokens, advance)
    judged = TrainableDrafter.from_checkpoint(target.config, drafter or state / "drafter")
    acceptance = measure(judged, target.get_input_embeddings().weight, chats, num_speculative_tokens)
    console.print(f"evaluate: {acceptance}")


def keep_freed_memory() -> None:
    """Large blocks stay with the process: glibc gives them back and the kernel clears them anew, half a softmax's time."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        m_trim_threshold, m_mmap_max = -1, -4
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, 2**31 - 1)


@app.callback(invoke_without_command=True)
def all_stages(context: typer.Context) -> None:
    keep_freed_memory()
    if context.invoked_subcommand is None:
        generate()
        train()
        narrow()
        evaluate()


if __name__ == "__main__":
    app()

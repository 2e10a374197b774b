"""The CPU's rows: peers are what a user would write without this package, on the same inputs, dtype and thread count.

Inputs cycle through copies larger than the caches where bandwidth is the point.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.nn.functional as F

from .. import ops
from .measure import HOST, medians, paired, row
from .trace_cost import trace_rows

KIMI_HIDDEN, KIMI_STATES = 7168, 3


def gather_concat_rows(repeats: int) -> list[dict[str, object]]:
    torch.set_num_threads(1)
    # A decode loop keeps its buffers, a first draft of one allocates each time: both, and for both sides alike. Past
    # the cache only buffers, because page faults would time the operating system.
    sizes = ((8, False), (8, True), (8192, True))
    return [line for rows, keeps_buffers in sizes for line in _gather_concat_pair(rows, keeps_buffers, repeats)]


def _gather_concat_pair(rows: int, keeps_buffers: bool, repeats: int) -> list[dict[str, object]]:
    """The list form against index_select and cat, the packed form against one index_select."""
    source, width = max(rows, 64), KIMI_STATES * KIMI_HIDDEN
    states = [torch.randn(source, KIMI_HIDDEN).to(torch.bfloat16) for _ in range(KIMI_STATES)]
    packed, index = torch.cat(states, -1), torch.randperm(source)[:rows]
    joined = packed[:rows].clone()
    out, pieces = torch.empty_like(joined), [torch.empty_like(state[:rows]) for state in states]
    reuse = {"out": out} if keeps_buffers else {}

    def select_and_cat():
        if not keeps_buffers:
            return torch.cat([state.index_select(0, index) for state in states], -1)
        for state, piece in zip(states, pieces):
            torch.index_select(state, 0, index, out=piece)
        return torch.cat(pieces, -1, out=out)

    inner = 200 if rows == 8 else 1
    copy_us, _, _ = paired(lambda: out.copy_(joined), lambda: None, repeats, inner)
    moved, where = 2 * joined.nbytes, "into a buffer" if keeps_buffers else "allocating"
    forms = (
        ("list", f"{KIMI_STATES} x {KIMI_HIDDEN}", states, select_and_cat, "index_select + cat"),
        ("packed", width, packed, lambda: torch.index_select(packed, 0, index, **reuse), "index_select"),
    )
    measured_rows = []
    for form, shape, argument, peer, peer_name in forms:
        measured = paired(lambda: ops.gather_concat(argument, index, **reuse), peer, repeats, inner)
        case = f"{form}, {rows} rows x {shape}, {where}"
        percent = 100 * copy_us / measured[0]
        measured_rows.append(row("gather_concat", case, "bfloat16", measured, peer_name, moved, percent))
    return measured_rows


def skinny_linear_rows(repeats: int) -> list[dict[str, object]]:
    torch.set_num_threads(1)
    rows_out = []
    weight = torch.randn(KIMI_HIDDEN, KIMI_STATES * KIMI_HIDDEN).mul_(0.02).to(torch.bfloat16)
    moved = weight.numel() * 2
    for m in (1, 2, 4, 8):
        x = torch.randn(m, KIMI_STATES * KIMI_HIDDEN).to(torch.bfloat16)
        measured = paired(lambda: ops.skinny_linear(x, weight), lambda: F.linear(x, weight), max(3, repeats // 2))
        case = f"{m} rows, weight [{KIMI_HIDDEN}, {KIMI_STATES * KIMI_HIDDEN}]"
        gbs = round(moved / measured[0] / 1e3, 2)
        rows_out.append(row("skinny_linear", case, "bfloat16", measured, "F.linear", moved, gigabytes_per_s=gbs))
    return rows_out


def draft_step_rows(repeats: int) -> list[dict[str, object]]:
    """One draft step of the embedded drafter: (draft(9) - draft(1)) / 8, natively and in plain PyTorch."""
    from .. import demo, reference

    torch.set_num_threads(1)
    setup = demo.EmbeddedSetup.load()
    stored = setup.checkpoint.weights
    weights = {name: w.to(torch.bfloat16) if w.is_floating_point() else w for name, w in stored.items()}
    embedding, head = setup.model.get_input_embeddings().weight, setup.model.get_output_embeddings().weight
    plain = reference.Drafter(setup.checkpoint.config, weights, embedding, head)
    rows, width = 64, setup.drafter.plan.width
    features, tokens, positions = torch.randn(rows, width).to(torch.bfloat16), torch.arange(rows), torch.arange(rows)
    offsets = torch.tensor([0, rows])

    def ours(count: int) -> float:
        setup.drafter.reset()
        setup.drafter.extend(features, tokens, positions, offsets)
        return HOST.seconds(lambda: setup.drafter.draft(count))

    def peer(count: int) -> float:
        plain.reset()
        plain.extend(features, tokens, positions)
        return HOST.seconds(lambda: plain.draft(count))

    pairs = []
    with torch.inference_mode():
        for _ in range(repeats + 1):
            pairs.append(tuple((side(9) - side(1)) / 8 for side in (ours, peer)))
    pairs = pairs[1:]
    measured = medians(pairs)
    read = (w for name, w in weights.items() if w.is_floating_point() and w.dim() == 2 and not name.startswith("fc."))
    moved = sum(w.numel() * w.element_size() for w in read)
    buffer = torch.ones(moved // 4)
    read_us, _, _ = paired(lambda: buffer.sum(), lambda: None, repeats)
    percent = round(100 * read_us / measured[0], 1)
    case = "SmolLM2 drafter, 1 row"
    return [row("draft_step", case, "bfloat16", measured, "plain PyTorch", moved, percent_of_read=percent)]


def end_to_end_rows(repeats: int) -> list[dict[str, object]]:
    """Tokens of the demo's prompts: eagle3 and the fault against the fastest of three ways of plain decoding.

    Two are this package's bit-stable decoding, over either cache; the third is transformers' own, without its kernels.
    """
    from .. import demo
    from ..decoder import SpeculativeDecoder, greedy_decode
    from ..drafter import Drafter
    from ..target import TransformersTarget

    setup = demo.EmbeddedSetup.load()
    torch.set_num_threads(demo.choose_threads(setup))
    new_tokens, prompts = 48, demo.PROMPTS[: max(4, min(len(demo.PROMPTS), repeats))]
    length = 256
    static, dynamic = setup.target(length), setup.target(length, cache="dynamic")
    own = TransformersTarget(setup.model, cache="dynamic", max_length=length, row_invariant=False)
    broken = Drafter.from_checkpoint(demo.skip_fusion(setup.checkpoint), setup.model)
    eagle3 = SpeculativeDecoder(setup.target(length, setup.drafter.plan), setup.drafter, 3)
    fault = SpeculativeDecoder(setup.target(length, broken.plan), broken, 3)
    modes = {
        "plain static": lambda ids: greedy_decode(static, ids, max_new_tokens=new_tokens),
        "plain dynamic": lambda ids: greedy_decode(dynamic, ids, max_new_tokens=new_tokens),
        "plain transformers": lambda ids: greedy_decode(own, ids, max_new_tokens=new_tokens),
        "eagle3": lambda ids: eagle3.generate(ids, max_new_tokens=new_tokens),
        "fault": lambda ids: fault.generate(ids, max_new_tokens=new_tokens),
    }
    per_token: dict[str, list[float]] = {mode: [] for mode in modes}
    for index, prompt in enumerate(prompts):
        ids = setup.encode(prompt)
        for mode, decode in modes.items():
            if index == 0:
                decode(ids)
            start = time.perf_counter()
            result = decode(ids)
            if result.message is not None:
                raise ValueError(f"{mode}, prompt {index + 1}: {result.message}")
            per_token[mode].append((time.perf_counter() - start) / len(result.tokens))
    median = {mode: statistics.median(times) for mode, times in per_token.items()}
    best = min((mode for mode in modes if mode.startswith("plain")), key=median.get)
    rows = []
    for mode in ("eagle3", "fault"):
        ratio = statistics.median(p / o for p, o in zip(per_token[best], per_token[mode]))
        measured = median[mode] * 1e6, median[best] * 1e6, ratio
        case = f"{mode}, D=3, {len(prompts)} prompts x {new_tokens} tokens, per token, prefill included"
        rows.append(row("end_to_end", case, "bfloat16", measured, best, threads=torch.get_num_threads()))
    return rows


GROUPS = {
    "gather_concat": gather_concat_rows,
    "skinny_linear": skinny_linear_rows,
    "draft_step": draft_step_rows,
    "end_to_end": end_to_end_rows,
    "trace": trace_rows,
}

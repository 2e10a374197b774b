"""The GPU's rows: every op against eager PyTorch and torch.compile, and the draft step against its weights' bytes."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Callable
from functools import partial

import torch

from ..checkpoint import DrafterConfig, expected_shapes
from ..drafter import Drafter
from ..plan import CapturePlan
from .gpu_cases import CASES, DRY, OpCase, Sizes
from .measure import Meter, medians, paired, row

INNER = 20  # calls between two events, and in one graph: an event alone takes as long as a small kernel

# The sizes of published drafters.
DRAFTERS = {
    "Llama-3.1-8B": DrafterConfig(
        hidden_size=4096,
        target_hidden_size=4096,
        intermediate_size=14336,
        num_q_heads=32,
        num_kv_heads=8,
        head_dim=128,
        draft_vocab_size=32000,
        vocab_size=128256,
        boundaries=(2, 16, 29),
        own_embedding=True,
    ),
    "Kimi-K2.5": DrafterConfig(
        hidden_size=7168,
        target_hidden_size=7168,
        intermediate_size=18432,
        num_q_heads=64,
        num_kv_heads=64,
        head_dim=128,
        draft_vocab_size=32000,
        vocab_size=163840,
        boundaries=(3, 31, 59),
        own_embedding=True,
    ),
}
DRY_DRAFTER = {
    "hidden_size": 32,
    "target_hidden_size": 32,
    "intermediate_size": 48,
    "num_q_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "draft_vocab_size": 64,
    "vocab_size": 96,
}


def card() -> dict[str, object] | None:
    """The GPU's facts; None where there is none. Bandwidths in GB/s: `nominal` from its memory's clock and width."""
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    source = torch.ones(1 << 28, device="cuda")  # 1 GiB: far past any L2
    target = torch.empty_like(source)
    copy_us, _, _ = paired(lambda: target.copy_(source), lambda: None, 10, meter=Meter("cuda"))
    return {
        "chip": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "driver": _driver(),
        "torch_cuda": torch.version.cuda,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "l2_mib": round(properties.L2_cache_size / 2**20, 1),
        "nominal_gbs": (rate := nominal_rate()) and round(rate / 1e9),
        "copy_gbs": round(2 * source.nbytes / copy_us / 1e3),
    }


def _driver() -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    return subprocess.run(query, capture_output=True, text=True).stdout.strip() or None


def groups(dry: bool) -> dict[str, Callable[[int], list[dict[str, object]]]]:
    """Name -> rows(repeats); `dry` runs the same code at tiny sizes on the CPU, where its numbers mean nothing."""
    meter, sizes = Meter("cpu" if dry else "cuda"), Sizes(**DRY if dry else {})
    found = {name: partial(_op_rows, meter, sizes, cases_of) for name, cases_of in CASES.items()}
    return {**found, "draft_step": partial(draft_step_rows, meter)}


def _op_rows(meter: Meter, sizes: Sizes, cases_of: Callable, repeats: int) -> list[dict[str, object]]:
    return [line for case in cases_of(sizes) for line in _case_rows(meter, sizes, case, repeats)]


def _case_rows(meter: Meter, sizes: Sizes, case: OpCase, repeats: int) -> list[dict[str, object]]:
    """A row per peer and, for a small case, per way of launching: from Python, and as one CUDA graph."""
    peers = {"eager": case.peer}
    if case.compiles:
        peers["torch.compile"] = torch.compile(
            case.peer, dynamic=False, backend="inductor" if meter.on_gpu else "eager"
        )
    percent = partial(_percent_of_copy, meter, case.moved, repeats) if case.large else lambda _: None
    make_row = partial(row, case.name, dtype=str(sizes.dtype)[6:], bytes_moved=case.moved, device=meter.device.type)
    counts = meter.counts(case.ours)
    rows = []
    for name, peer in peers.items():
        inner = 1 if case.large else INNER
        measured = paired(case.ours, peer, repeats, inner, meter)
        peer_counts = meter.counts(peer)
        extra = _counted(counts) | {f"peer_{key}": value for key, value in _counted(peer_counts).items()}
        rows.append(make_row(case.case, measured=measured, peer=name, percent_of_copy=percent(measured[0]), **extra))
        if not case.large and not case.waits:
            replays = (meter.graphed(side, INNER) for side in (case.ours, peer))
            ours_us, peer_us, ratio = paired(*replays, repeats, meter=meter)
            measured = ours_us / INNER, peer_us / INNER, ratio
            rows.append(make_row(f"{case.case}, in a CUDA graph", measured=measured, peer=name))
    return rows


def _counted(counts) -> dict[str, int]:
    return dataclasses.asdict(counts)


def _percent_of_copy(meter: Meter, moved: int, repeats: int, ours_us: float) -> float:
    source = torch.ones(moved // 2, dtype=torch.uint8, device=meter.device)
    target = torch.empty_like(source)
    copy_us, _, _ = paired(lambda: target.copy_(source), lambda: None, repeats, meter=meter)
    return 100 * copy_us / ours_us


def random_drafter(config: DrafterConfig, device: torch.device, cuda_graphs: bool, length: int) -> tuple[Drafter, dict]:
    """A bf16 drafter of random weights made on the device, and those weights."""
    weights = {}
    for name, shape in expected_shapes(config).items():
        if name == "target_ids":
            weights[name] = torch.arange(shape[0], device=device)
        else:
            scale = 1.0 if len(shape) == 1 else shape[1] ** -0.5
            weights[name] = torch.randn(shape, device=device, dtype=torch.bfloat16).mul_(scale)
    plan = CapturePlan(config.boundaries, config.target_hidden_size)
    return Drafter(config, weights, plan, max_length=length, cuda_graphs=cuda_graphs), weights


def step_bytes(config: DrafterConfig, element_size: int = 2) -> int:
    """The weights that a draft step reads whole: all matrices but fc, which extend reads, and the embedding table."""
    shapes = expected_shapes(config)
    matrices = [s for name, s in shapes.items() if len(s) == 2 and name not in ("fc.weight", "embed_tokens.weight")]
    return sum(rows * columns for rows, columns in matrices) * element_size


def draft_step_rows(meter: Meter, repeats: int, context: int = 1024) -> list[dict[str, object]]:
    """One draft step of one sequence, (draft(9) - draft(1)) / 8, with and without CUDA graphs, and plain PyTorch."""
    rows = []
    for name, config in DRAFTERS.items():
        if not meter.on_gpu:
            config, context = dataclasses.replace(config, **DRY_DRAFTER), 16
        for cuda_graphs in (False, True):
            rows.append(_draft_step_row(meter, name, config, cuda_graphs, context, repeats))
    return rows


def _draft_step_row(
    meter: Meter, name: str, config: DrafterConfig, cuda_graphs: bool, context: int, repeats: int
) -> dict[str, object]:
    from .. import reference

    drafter, weights = random_drafter(config, meter.device, cuda_graphs and meter.on_gpu, context + 16)
    plain = reference.Drafter(config, weights)
    features = torch.randn(context, config.features_width, device=meter.device, dtype=torch.bfloat16)
    tokens, positions = (torch.arange(context, device=meter.device) for _ in range(2))
    tokens %= config.vocab_size
    offsets = torch.tensor([0, context], device=meter.device)

    def extend() -> None:
        drafter.reset()
        drafter.extend(features, tokens, positions, offsets)

    def drafted(count: int) -> Callable[[], object]:
        extend()
        return lambda: drafter.draft(count)

    def peer(count: int) -> float:
        plain.reset()
        plain.extend(features[:4], tokens[:4], positions[:4])
        return meter.seconds(lambda: plain.draft(count))

    with torch.inference_mode():
        for count in (1, 9):  # graphs are captured and kernels loaded before anything is timed
            drafted(count)()
        pairs = []
        for _ in range(repeats):
            ours = [meter.seconds(drafted(count)) for count in (9, 1)]
            pairs.append(((ours[0] - ours[1]) / 8, (peer(9) - peer(1)) / 8))
        measured = medians(pairs)
        moved = step_bytes(config)
        floor_us = nominal_us(moved) if meter.on_gpu else None
        counts = meter.counts(lambda: drafted(9)()) - meter.counts(lambda: drafted(1)())
    return row(
        "draft_step",
        f"{name} drafter, 1 sequence, context {context}, {'with' if cuda_graphs else 'without'} CUDA graphs",
        "bfloat16",
        measured,
        "plain PyTorch, context 4",
        moved,
        _percent_of_copy(meter, moved, repeats, measured[0]),
        meter.device.type,
        floor_us=floor_us and round(floor_us, 1),
        percent_of_floor=floor_us and round(100 * floor_us / measured[0], 1),
        launches_of_8_steps=counts.launches,
        kernels_of_8_steps=counts.kernels,
        waits_of_8_steps=counts.waits,
    )


def nominal_us(moved: int) -> float | None:
    """Microseconds to read these bytes at the memory's nominal rate."""
    rate = nominal_rate()
    return rate and moved / rate * 1e6


def nominal_rate() -> float | None:
    """Bytes per second from the memory's clock and width, two transfers per clock; None where torch does not say."""
    properties = torch.cuda.get_device_properties(0)
    clock, width = (getattr(properties, name, None) for name in ("memory_clock_rate", "memory_bus_width"))
    return clock and width and 2 * clock * 1e3 * width / 8

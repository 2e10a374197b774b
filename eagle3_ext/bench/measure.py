"""How everything here is timed and counted: the same code on a GPU and, to try it, on the CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

Call = Callable[[], object]


@dataclass(frozen=True)
class Counts:
    """What a call asked of a GPU.

    Attributes:
        launches: calls of the CUDA runtime or driver that put work on a stream; a graph's replay is one.
        kernels: what ran on the device: kernels, copies and fills.
        waits: times the host waited for the device.
    """

    launches: int = 0
    kernels: int = 0
    waits: int = 0

    def __sub__(self, other: Counts) -> Counts:
        return Counts(self.launches - other.launches, self.kernels - other.kernels, self.waits - other.waits)


class Meter:
    """Times and counts calls on a device: with its events, or with the host's clock where there is no GPU.

    A call's time on a GPU is that between two events around it, so that host time counts where the device waits for it.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.on_gpu = self.device.type == "cuda"

    def seconds(self, call: Call) -> float:
        if not self.on_gpu:
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def graphed(self, call: Call, inner: int) -> Call:
        """A call that replays `inner` of `call` as one CUDA graph; without a GPU, one that makes them."""
        if not self.on_gpu:
            return lambda: [call() for _ in range(inner)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(inner):
                call()
        return graph.replay

    def counts(self, call: Call) -> Counts:
        """What the profiler saw of one call, after a first one that may load and allocate; zeros without a GPU."""
        call()
        return self._profiled(call) - self._profiled(lambda: None)  # the profiler itself waits at its end

    def _profiled(self, call: Call) -> Counts:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.on_gpu:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            torch.cuda.synchronize()
        with torch.profiler.profile(activities=activities) as profile:
            call()
            if self.on_gpu:
                torch.cuda.synchronize()
        return count_events((event.name, event.device_type.name == "CUDA") for event in profile.events())


def count_events(events: Iterable[tuple[str, bool]]) -> Counts:
    """Counts a profile's events, each a name and whether it ran on the device."""
    launches = kernels = waits = 0
    for name, on_device in events:
        if on_device:
            kernels += 1
        elif name.startswith(("cuda", "cu")):
            launches += any(word in name for word in ("LaunchKernel", "GraphLaunch", "MemcpyAsync", "MemsetAsync"))
            waits += "Synchronize" in name
    return Counts(launches, kernels, waits)


HOST = Meter("cpu")


def paired(ours: Call, peer: Call, repeats: int, inner: int = 1, meter: Meter = HOST) -> tuple[float, float, float]:
    """Medians of ours and the peer in microseconds per call, and the median pairwise ratio peer/ours.

    A time is that of `inner` calls divided by their number.
    """
    ours(), peer()
    pairs = []
    for _ in range(repeats):
        pairs.append(tuple(meter.seconds(lambda: [side() for _ in range(inner)]) / inner for side in (ours, peer)))
    return medians(pairs)


def medians(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Of (ours, peer) in seconds: both medians in microseconds, and that of peer/ours."""
    median = statistics.median
    return median(a for a, _ in pairs) * 1e6, median(b for _, b in pairs) * 1e6, median(b / a for a, b in pairs)


def row(
    name: str,
    case: str,
    dtype: str,
    measured: tuple[float, float, float],
    peer: str,
    bytes_moved: int | None = None,
    percent_of_copy: float | None = None,
    device: str = "cpu",
    **extra: object,
) -> dict[str, object]:
    """One line of the report: `measured` is what `paired` gives, bytes those the op must read and write at least."""
    ours_us, peer_us, ratio = measured
    return {
        "name": name,
        "case": case,
        "dtype": dtype,
        "device": device,
        "ours_us": round(ours_us, 2),
        "peer": peer,
        "peer_us": round(peer_us, 2),
        "ratio": round(ratio, 3),
        "bytes": bytes_moved,
        "percent_of_copy": percent_of_copy and round(percent_of_copy, 1),
        **extra,
    }

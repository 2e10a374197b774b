"""CUDA graphs of the draft loop: captured once per (batch, D), replayed for every draft after."""

from __future__ import annotations

from collections.abc import Callable

import torch

Draft = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class DraftGraphs:
    """Replays of `run_draft(num_tokens)`, whose inputs are all tensors of `device` at fixed addresses.

    A graph's draft tensors belong to it: its next replay overwrites them.
    """

    def __init__(self, run_draft: Callable[[int], Draft], device: torch.device):
        self._run_draft = run_draft
        self._device = device
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Draft]] = {}

    def run(self, batch: int, num_tokens: int) -> Draft:
        """The draft for the drafter's last extend, which was of `batch` sequences."""
        key = (batch, num_tokens)
        with torch.cuda.device(self._device):  # the ops' streams are its; a caller's current device may be another
            if key not in self._graphs:
                self._graphs[key] = self._capture(num_tokens)
            graph, draft = self._graphs[key]
            graph.replay()
        return draft

    def _capture(self, num_tokens: int) -> tuple[torch.cuda.CUDAGraph, Draft]:
        # Once outside the graph: what is allocated or loaded on first use must not happen during a capture. A draft may
        # run twice, because it only writes past the committed rows.
        side = torch.cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._run_draft(num_tokens)
        torch.cuda.current_stream().wait_stream(side)
        # A stream of its own: torch's default is one per process, on the device that captured first, and a capture there
        # sees none of the launches here. The graph is empty then, and every replay gives the first draft.
        # Only this thread's calls can spoil the capture: another may allocate for another model meanwhile.
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(self._device)
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            draft = self._run_draft(num_tokens)
        return graph, draft

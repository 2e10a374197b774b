"""Shared by all tests: one thread each, so that neither timing nor rounding depends on what else the machine does; and
`run`, the ops on every backend."""

from __future__ import annotations

import backends
import pytest
import torch
from tiny_drafter import load, refuse, write  # noqa: F401 -- fixtures


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["cpu", "simt", "cuda"])
def run(request) -> backends.Backend:
    """Runs an op by name on the inputs, once for every backend: see backends.py."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if request.param == "simt":
        backends.load_simt()
    return getattr(backends, request.param)

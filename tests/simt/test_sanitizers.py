"""The emulated CUDA kernels under ASan, UBSan and TSan, and the proof that these, or the emulator itself, catch faults.

ASan sees what lies outside a tensor or outside shared memory, UBSan misaligned vectors, TSan two threads of a block at one
place without a barrier between them, whatever their order was. Builds what it runs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import backends
import pytest

from eagle3_ext import build_info

FAULTS = {  # what catches each, and what it says
    "missing_barrier": ("tsan", "data race"),
    "missing_syncwarp": ("tsan", "data race"),
    "global_out_of_bounds": ("asan", "heap-buffer-overflow"),
    "vector_out_of_bounds": ("asan", "heap-buffer-overflow"),
    "dynamic_shared_out_of_bounds": ("asan", "heap-buffer-overflow"),
    "static_shared_out_of_bounds": ("asan", "out of bounds"),
    "misaligned_vector": ("asan", "misaligned address"),
    "divergent_barrier": ("plain", "divergent __syncthreads"),
    "barrier_after_return": ("plain", "has returned"),
    "shuffle_without_a_named_lane": ("plain", "has returned without it"),
    "shuffle_outside_its_mask": ("plain", "not in its mask"),
    "unwritten_dynamic_shared": ("plain", "nan"),
    "depends_on_block_order": ("plain", "in three orders"),
}
RUNTIMES = {"asan": "libasan.so", "tsan": "libtsan.so"}
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=0",  # Python's
    "TSAN_OPTIONS": "halt_on_error=1:ignore_noninstrumented_modules=1",
    "OMP_NUM_THREADS": "1",
}
TESTS = Path(__file__).parents[1]


def build(*targets: str) -> None:
    if not build_info()["cuda"]:
        pytest.skip("built without a CUDA toolkit, whose headers the emulator needs")
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    cmake = shutil.which("cmake", path=path)
    command = [cmake, "--build", backends.BUILD_FOLDER, "--target", *targets]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout[-4000:] + built.stderr[-4000:]


@pytest.fixture(scope="module")
def faults() -> None:
    build("simt_faults")


def test_every_fault_is_listed():
    source = Path(__file__).with_name("faults.cu").read_text()
    assert sorted(re.findall(r"^ +FAULT\((\w+)\)", source, re.MULTILINE)) == sorted(FAULTS)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(faults, name: str):
    kind, message = FAULTS[name]
    wrong = run_fault(kind, name)
    assert wrong.returncode != 0 and message in wrong.stderr, wrong.stderr
    for kind in ("plain", "asan", "tsan"):  # the same kernel without its fault raises no alarm
        right = run_fault(kind, name, "right")
        assert right.returncode == 0, right.stderr


def run_fault(kind: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = backends.BUILD_FOLDER / f"simt_faults_{kind}"
    return subprocess.run([program, *arguments], env=os.environ | ENVIRONMENT, capture_output=True, text=True)


@pytest.mark.parametrize("kind", RUNTIMES)
def test_small_cases(kind: str):
    run_tests(kind, "simt and not 7168 and not 3420 and not row_invariant and not longer and not more")


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNTIMES)
def test_all_cases(kind: str):
    run_tests(kind, "simt")


# A tensor that says it has one element more than its memory: a read that any kernel might make.
LYING_TENSOR = """
import numpy, torch, backends
backends.load_simt()
memory = numpy.zeros(4000, dtype=numpy.float32)
longer = torch.from_numpy(numpy.lib.stride_tricks.as_strided(memory, shape=(1, 4002), writeable=True))
torch.ops.eagle3_simt.silu_mul(longer)
"""


def test_a_read_past_a_tensor_is_caught():
    """The tests below would notice: PyTorch's memory has ASan's red zones around it."""
    run = run_python("asan", "-c", LYING_TENSOR)
    assert run.returncode != 0 and "heap-buffer-overflow" in run.stderr and "silu_mul.cu" in run.stderr, run.stderr


def run_tests(kind: str, selection: str) -> None:
    # -s, because pytest would keep to itself what a sanitizer writes before it ends the process.
    command = ["-m", "pytest", "-q", "-x", "-s", "-p", "no:cacheprovider", "-k", selection]
    run = run_python(kind, *command, TESTS / "test_ops.py", TESTS / "test_bad_input.py")
    assert run.returncode == 0, (run.stdout + run.stderr)[:6000]
    assert re.search(r"[1-9]\d+ passed", run.stdout), run.stdout  # a selection that is empty proves nothing


def run_python(kind: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A Python that loads the sanitizer first, and its build of _simt."""
    build(f"_simt_{kind}")
    environment = ENVIRONMENT | {
        # The C++ library too: without it the sanitizer finds no __cxa_throw to intercept.
        "LD_PRELOAD": f"{library(RUNTIMES[kind])} {library('libstdc++.so')}",
        "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "EAGLE3_SIMT_LIBRARY": f"_simt_{kind}.so",
        "EAGLE3_SIMT_ORDERS": "random",
    }
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)


def library(name: str) -> str:
    command = ["c++", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

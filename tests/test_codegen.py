"""The machine code of the CUDA kernels, from the module as built, against codegen_budget.json.

The budget has a row per kernel (with and without 16-byte pieces, where it has both): the most registers that any of its
instantiations may use on each architecture, in the eights that hardware hands out; the fewest 128-bit loads; and whether
every store must be of 128 bits. Nothing may spill or use local memory. Raising a number is a decision: say in the commit
what it buys.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from codegen import Kernel, find_disassembler, read_kernels, violations

from eagle3_ext import _C, build_info

BUDGET = json.loads(Path(__file__).with_name("codegen_budget.json").read_text())["kernels"]


def row_of(kernel: Kernel) -> tuple[str, bool | None]:
    return kernel.name, kernel.aligned


@pytest.fixture(scope="module")
def disassembler() -> Path:
    return find_disassembler() or pytest.skip("pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")


@pytest.fixture(scope="module")
def kernels(disassembler: Path) -> list[Kernel]:
    if not build_info()["cuda"]:
        pytest.skip("built without CUDA kernels")
    return read_kernels(Path(_C.__file__), disassembler)


@pytest.mark.parametrize("budget", BUDGET, ids=lambda row: f"{row['kernel']}-{row.get('aligned')}")
def test_kernel_keeps_to_its_budget(kernels: list[Kernel], budget: dict[str, object]):
    mine = [kernel for kernel in kernels if row_of(kernel) == (budget["kernel"], budget.get("aligned"))]
    assert mine, "no such kernel in the module"
    assert [problem for kernel in mine for problem in violations(kernel, budget)] == []


def test_every_kernel_has_a_row(kernels: list[Kernel]):
    rows = {(row["kernel"], row.get("aligned")) for row in BUDGET}
    assert {row_of(kernel) for kernel in kernels} - rows == set()


def test_every_built_architecture_holds_every_kernel(kernels: list[Kernel]):
    symbols = {kernel.symbol for kernel in kernels}
    for architecture in {kernel.architecture for kernel in kernels}:
        assert {kernel.symbol for kernel in kernels if kernel.architecture == architecture} == symbols


FAULTY = """
// An array indexed by data lives in local memory.
__global__ void spilling_kernel(const int* index, float* out) {
  float values[64];
  for (int i = 0; i < 64; ++i) values[i] = out[i * 32 + threadIdx.x];
  for (int i = 0; i < 64; ++i) out[i] = values[index[i]];
}
__global__ void narrow_kernel(const float* in, float* out) {
  for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = in[4 * threadIdx.x + i];
}
__global__ void good_kernel(const float4* in, float4* out) { out[threadIdx.x] = in[threadIdx.x]; }
"""


def test_planted_faults_are_seen(disassembler: Path, tmp_path: Path):
    if not shutil.which("nvcc"):
        pytest.skip("no nvcc to compile a faulty kernel with")
    source, binary = tmp_path / "faulty.cu", tmp_path / "faulty.o"
    source.write_text(FAULTY)
    subprocess.run(["nvcc", "-arch=sm_80", "-O3", "-c", source, "-o", binary], check=True)
    kernels = {kernel.name: kernel for kernel in read_kernels(binary, disassembler)}
    budget = {"registers": {"sm_80": 255}, "wide_loads": 1, "wide_stores_only": True}

    spilling = kernels["spilling_kernel"]
    assert spilling.stack_bytes >= 256 and spilling.count("STL") > 0 and spilling.count("LDL") > 0
    assert "expected none" in violations(spilling, budget)[0]
    loads, stores = violations(kernels["narrow_kernel"], budget)
    assert "0 128-bit loads" in loads and "expected 128-bit ones" in stores
    assert violations(kernels["good_kernel"], budget) == []
    (registers,) = violations(kernels["good_kernel"], budget | {"registers": {"sm_80": 1}})
    assert "expected at most 1" in registers

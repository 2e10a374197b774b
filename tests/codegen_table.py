"""The machine-code budget as a table beside what was measured in the module as built: for the notebook.

Registers, stack and local memory of every kernel; 128-bit loads and stores of one instantiation for each row that asks
for them. Every instruction of every kernel, which takes minutes, is read by test_codegen.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import codegen

from eagle3_ext import _C, build_info

BUDGET = json.loads(Path(__file__).with_name("codegen_budget.json").read_text())["kernels"]
INSTRUCTIONS_OF = ("sm_90", "BFloat16")  # the instantiations whose instructions are read


def read_module() -> tuple[list[codegen.Kernel], str]:
    """The kernels of the module that is loaded, and "" or why there are none to read."""
    if not build_info()["cuda"]:
        return [], "built without CUDA kernels"
    disassembler = codegen.find_disassembler()
    if disassembler is None:
        return [], "no cuobjdump: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
    module = Path(_C.__file__)
    kernels = codegen.read_resources(module, disassembler)
    if chosen := one_for_each_wide_row(kernels):
        codegen.read_instructions_of(chosen, module, disassembler)
    return kernels, ""


def one_for_each_wide_row(kernels: list[codegen.Kernel]) -> list[codegen.Kernel]:
    """Of each row that asks for 128-bit instructions the first instantiation of INSTRUCTIONS_OF."""
    architecture, dtype = INSTRUCTIONS_OF
    mine = [kernel for kernel in kernels if kernel.architecture == architecture and dtype in kernel.symbol]
    wide_rows = [row for row in BUDGET if "wide_loads" in row or "wide_stores_only" in row]
    return [found[0] for row in wide_rows if (found := matching(mine, row))]


def matching(kernels: list[codegen.Kernel], row: dict[str, object]) -> list[codegen.Kernel]:
    return [kernel for kernel in kernels if (kernel.name, kernel.aligned) == (row["kernel"], row.get("aligned"))]


def table(kernels: list[codegen.Kernel]) -> list[str]:
    """A line per row of the budget: per architecture the most registers "used/allowed", or what is allowed alone; then,
    of the instantiation whose instructions were read, 128-bit loads "found/wanted" and stores "of 128 bits/of all"."""
    architectures = list(dict.fromkeys(name for row in BUDGET for name in row["registers"]))
    columns = [*architectures, "loads", "stores"]
    lines = [f"{'kernel':<32} {'16-byte pieces':<15}{''.join(f'{name:>10}' for name in columns)}"]
    for row in BUDGET:
        cells = []
        for name in architectures:
            used = [kernel.registers for kernel in matching(kernels, row) if kernel.architecture == name]
            allowed = row["registers"].get(name, "-")
            cells.append(f"{max(used)}/{allowed}" if used else f"{allowed}")
        read = next((kernel for kernel in matching(kernels, row) if kernel.memory), None)
        if read:
            cells.append(f"{read.count('LDG', wide=True)}/{row['wide_loads']}" if "wide_loads" in row else "")
            stores = f"{read.count('STG', wide=True)}/{read.count('STG')}"
            cells.append(stores if row.get("wide_stores_only") else "")
        pieces = {True: "yes", False: "no", None: ""}[row.get("aligned")]
        lines.append(f"{row['kernel']:<32} {pieces:<15}{''.join(f'{cell:>10}' for cell in cells)}".rstrip())
    return lines


def over_budget(kernels: list[codegen.Kernel]) -> list[str]:
    """The kernels without a row, and those that break theirs, in words. Of a kernel whose instructions were not read
    only registers, stack and local memory are known."""
    rows = {(row["kernel"], row.get("aligned")) for row in BUDGET}
    found = [f"{kernel}: no row in the budget" for kernel in kernels if (kernel.name, kernel.aligned) not in rows]
    for row in BUDGET:
        for kernel in matching(kernels, row):
            known = row if kernel.memory else {"registers": row["registers"]}
            found += codegen.violations(kernel, known)
    return found

"""The machine-code budget as a table, with the registers measured in the module as built: for the notebook.

Registers, stack and local memory only: reading every instruction, as test_codegen.py does, takes a minute.
"""

from __future__ import annotations

import json
from pathlib import Path

import codegen

from eagle3_ext import _C, build_info

BUDGET = json.loads(Path(__file__).with_name("codegen_budget.json").read_text())["kernels"]


def read_module() -> tuple[list[codegen.Kernel], str]:
    """The kernels of the module that is loaded, and "" or why there are none to read."""
    if not build_info()["cuda"]:
        return [], "built without CUDA kernels"
    disassembler = codegen.find_disassembler()
    if disassembler is None:
        return [], "no cuobjdump: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
    return codegen.read_resources(Path(_C.__file__), disassembler), ""


def matching(kernels: list[codegen.Kernel], row: dict[str, object]) -> list[codegen.Kernel]:
    return [kernel for kernel in kernels if (kernel.name, kernel.aligned) == (row["kernel"], row.get("aligned"))]


def table(kernels: list[codegen.Kernel]) -> list[str]:
    """A line per row of the budget: per architecture "most used/allowed" registers, or what is allowed alone."""
    architectures = list(dict.fromkeys(name for row in BUDGET for name in row["registers"]))
    lines = [f"{'kernel':<32} {'16-byte pieces':<15}" + "".join(f"{name:>10}" for name in architectures) + "  128 bits"]
    for row in BUDGET:
        cells = []
        for name in architectures:
            used = [kernel.registers for kernel in matching(kernels, row) if kernel.architecture == name]
            allowed = row["registers"].get(name, "-")
            cells.append(f"{max(used)}/{allowed}" if used else f"{allowed}")
        pieces = {True: "yes", False: "no", None: ""}[row.get("aligned")]
        wide = f"at least {row['wide_loads']} loads" if row.get("wide_loads") else ""
        wide += ", all stores" if row.get("wide_stores_only") else ""
        lines.append(
            f"{row['kernel']:<32} {pieces:<15}" + "".join(f"{cell:>10}" for cell in cells) + f"  {wide}".rstrip()
        )
    return lines


def over_budget(kernels: list[codegen.Kernel]) -> list[str]:
    """The kernels without a row, and those that use more registers than it allows, stack or local memory, in words."""
    rows = {(row["kernel"], row.get("aligned")) for row in BUDGET}
    found = [f"{kernel}: no row in the budget" for kernel in kernels if (kernel.name, kernel.aligned) not in rows]
    for row in BUDGET:
        for kernel in matching(kernels, row):
            most = row["registers"].get(kernel.architecture, kernel.registers)
            if kernel.registers > most or kernel.stack_bytes or kernel.local_bytes:
                found.append(
                    f"{kernel}: {kernel.registers} of {most} registers, {kernel.stack_bytes} bytes of stack, "
                    f"{kernel.local_bytes} of local memory"
                )
    return found

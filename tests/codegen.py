"""What nvcc made of the CUDA kernels: resources and memory instructions, read from a binary by cuobjdump."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

_ARCHITECTURE = re.compile(r"^arch = (sm_\w+)")
_FUNCTION = re.compile(r"^\s*Function\s?:?\s+(\w+)")
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)")
_MEMORY_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?\w+\s+)?((?:LDG|STG|LDL|STL)[\w.]*)")
# Of a mangled name: the kernel's own name and, of a template, its last argument if that is a bool: kAligned.
_KERNEL = re.compile(r"\d([a-z][a-z_]*_kernel)(?:I(?:.*?Lb([01])EEEv)?)?")

# draft_attention's tile whose values lie in its keys: latent attention, three times as many numbers per key.
_LATENT_TILE = re.compile(r"4TileI(?:Li\d+E)+Lb1EE")


@dataclass
class Kernel:
    """One instantiation of a kernel for one architecture."""

    name: str
    aligned: bool | None  # what the template's kAligned is; None without one
    architecture: str
    symbol: str
    registers: int = 0
    stack_bytes: int = 0
    local_bytes: int = 0
    memory: Counter[str] = field(default_factory=Counter)  # LDG, STG, LDL, STL with their suffixes -> how many

    def count(self, instruction: str, *, wide: bool | None = None) -> int:
        """How many of LDG, STG, LDL or STL there are: of 128 bits, of fewer, or (None) both."""
        return sum(
            number
            for name, number in self.memory.items()
            if name.startswith(instruction) and wide in (None, ".128" in name)
        )

    def __str__(self) -> str:
        return f"{self.architecture} {self.symbol}"


def find_disassembler() -> Path | None:
    """The folder of cuobjdump and nvdisasm: of PyPI's packages of those names, else of the PATH."""
    nvidia = importlib.util.find_spec("nvidia")
    folders = [Path(place) for place in (nvidia.submodule_search_locations or [])] if nvidia else []
    found = [path for folder in folders for path in folder.glob("*/bin/cuobjdump")]
    if on_path := shutil.which("cuobjdump"):
        found.append(Path(on_path))
    return next((path.parent for path in found if shutil.which("nvdisasm", path=str(path.parent))), None)


def read_kernels(binary: Path, disassembler: Path) -> list[Kernel]:
    """Every kernel in an object file or module, per architecture."""
    kernels = {(kernel.architecture, kernel.symbol): kernel for kernel in read_resources(binary, disassembler)}
    architectures = sorted({architecture for architecture, _ in kernels})

    def instructions(architecture: str) -> list[str]:
        return _cuobjdump(binary, disassembler, "-sass", "-arch", architecture)

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # most of the time is the disassembler's, a process for each
        for lines in pool.map(instructions, architectures):
            _read_into(kernels, lines)
    return list(kernels.values())


def read_resources(binary: Path, disassembler: Path) -> list[Kernel]:
    """The same without memory instructions, which take a minute to disassemble."""
    kernels: dict[tuple[str, str], Kernel] = {}
    _read_into(kernels, _cuobjdump(binary, disassembler, "-res-usage"))
    return list(kernels.values())


def read_instructions_of(kernels: list[Kernel], binary: Path, disassembler: Path) -> None:
    """Adds the memory instructions of a few kernels, of one architecture: half a second each."""
    (architecture,) = {kernel.architecture for kernel in kernels}
    by_symbol = {(architecture, kernel.symbol): kernel for kernel in kernels}
    symbols = ",".join(kernel.symbol for kernel in kernels)
    _read_into(by_symbol, _cuobjdump(binary, disassembler, "-sass", "-arch", architecture, "-fun", symbols))


def _cuobjdump(binary: Path, disassembler: Path, *options: str) -> list[str]:
    environment = os.environ | {"PATH": f"{disassembler}{os.pathsep}{os.environ['PATH']}"}
    command = [disassembler / "cuobjdump", *options, binary]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()


def _read_into(kernels: dict[tuple[str, str], Kernel], lines: list[str]) -> None:
    architecture, kernel = "", None
    for line in lines:
        if "/*" in line:  # an instruction, as nearly all lines are
            if kernel and (match := _MEMORY_INSTRUCTION.match(line)):
                kernel.memory[match[1]] += 1
        elif match := _ARCHITECTURE.match(line):
            architecture = match[1]
        elif match := _FUNCTION.match(line):
            kernel = kernels.setdefault((architecture, match[1]), _named(architecture, match[1]))
        elif kernel and (match := _RESOURCES.search(line)):
            kernel.registers, kernel.stack_bytes, kernel.local_bytes = (int(number) for number in match.groups())


def _named(architecture: str, symbol: str) -> Kernel:
    match = _KERNEL.search(symbol)
    name, aligned = (match[1], match[2]) if match else (symbol, None)
    name += " (latent)" if _LATENT_TILE.search(symbol) else ""
    return Kernel(name, None if aligned is None else aligned == "1", architecture, symbol)


def violations(kernel: Kernel, budget: dict[str, object]) -> list[str]:
    """What breaks the kernel's row of the budget, in words; empty is good."""
    found = []
    if kernel.stack_bytes or kernel.local_bytes or kernel.count("LDL") or kernel.count("STL"):
        found.append(
            f"{kernel.stack_bytes} bytes of stack, {kernel.local_bytes} of local memory, {kernel.count('LDL')} loads "
            f"and {kernel.count('STL')} stores of it, expected none: registers spill, or an array is indexed at run time"
        )
    most = budget["registers"].get(kernel.architecture)
    if most is not None and kernel.registers > most:
        found.append(f"{kernel.registers} registers, expected at most {most}")
    if (wide := kernel.count("LDG", wide=True)) < budget.get("wide_loads", 0):
        found.append(f"{wide} 128-bit loads, expected at least {budget['wide_loads']}")
    if budget.get("wide_stores_only") and (kernel.count("STG", wide=False) or not kernel.count("STG")):
        found.append(f"stores {dict(kernel.memory)}, expected 128-bit ones and no others")
    return [f"{kernel}: {problem}" for problem in found]

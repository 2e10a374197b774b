# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 02 · The native ops compute what their formulas say
#
# **Claim.** Copies, gathers, sums and decisions agree with plain PyTorch bit for bit; everything else stays within a
# bound counted in roundings around the exact (float64) result. This holds for the CPU kernels and for the CUDA kernels,
# which run here on an emulator of CUDA threads, in three orders that must agree byte for byte.

# %% tags=["parameters"]
import os
import sys

CASES = int(os.environ.get("EAGLE3_NB_CASES", "0")) or None  # per op; None: all

# %%
from collections import Counter

import torch

import eagle3_ext as e3
from eagle3_ext import plot

root = os.path.join(os.path.dirname(e3.__file__), "..")
sys.path[:0] = [os.path.join(root, "tests"), os.path.join(root, "tools")]
import backends
import codegen_table
import equivalence
from gpu_check import cupy as array_oracle

_ = torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown]
# ## Who computes
# "plain PyTorch" is the specification in the inputs' own dtype: it shows how much of its bound an ordinary
# implementation uses.

# %%
computing = {"CPU kernels": backends.cpu, "plain PyTorch": equivalence.plain_pytorch}
if backends.SIMT_LIBRARY.is_file():
    computing["CUDA kernels, emulated"] = backends.simt
else:
    print("CUDA kernels, emulated: skipped: the emulator is not built")
if torch.cuda.is_available():
    computing["CUDA kernels"] = backends.cuda
else:
    print("CUDA kernels on a GPU: skipped: no CUDA device")
print("compared:", ", ".join(computing))

# %% [markdown]
# ## What is compared
# Every case of `tests/cases.py` that has rows, by what its tensors really are: a case counts as strided or misaligned if
# one of its tensors is (latent attention's values are columns of its keys: both can hold), else as contiguous.
#
# Three rows have gaps. `accepted_rows` and `verify_greedy` read indices alone, int32 and int64, which an op makes
# contiguous before a kernel sees them. Latent attention is never contiguous, for the reason above; misaligned it has
# bfloat16 only, because its kernel for aligned memory is what differs from ordinary attention's: in misaligned memory
# both run the same one.

# %%
rows: dict[str, list] = {}
for op in equivalence.TESTS:
    for case in equivalence.some_cases(op, CASES):
        rows.setdefault(equivalence.table_row(case), []).append(case)

layouts = ("contiguous", "strided", "misaligned")
kinds = {row: Counter() for row in rows}
for row, chosen in rows.items():
    for dtype, found in map(equivalence.dtype_and_layouts, chosen):
        kinds[row].update((dtype, layout) for layout in found)

print(f"{'contiguous/strided/misaligned':<31}{'cases':>5}" + "".join(f"{d:>11}" for d in equivalence.DTYPE_NAMES))
for row, chosen in rows.items():
    cells = ["/".join(str(kinds[row][dtype, layout]) for layout in layouts) for dtype in equivalence.DTYPE_NAMES]
    cells = ["" if cell == "0/0/0" else cell for cell in cells]
    print(f"{row:<31}{len(chosen):>5}" + "".join(f"{cell:>11}" for cell in cells))

longest = max(case.inputs()["cache_lengths"].max().item() for case in rows["draft_attention"] if "padding-alone" not in case.name)
print("longest cache:", longest)
# %% [markdown]
# ## A second oracle: an array library that shares nothing with torch but the memory
# Gather, concat and argmax through DLPack: NumPy against the CPU kernels, CuPy against the CUDA kernels.

# %%
found = array_oracle.check("simt", "cpu")
print("CPU kernels:", ", ".join(f"{name}: {finding}" for name, finding in found.items() if name != "oracle"))
if torch.cuda.is_available():
    found = array_oracle.check("cuda", "cuda")
    print("CUDA kernels:", ", ".join(f"{name}: {finding}" for name, finding in found.items()))
else:
    print("CuPy against the CUDA kernels: skipped: no CUDA device")

# %% [markdown]
# ## What nvcc made of the kernels
# The machine-code budget that `tests/test_codegen.py` holds the module to: registers per architecture,
# measured/allowed, and what must be moved 128 bits at a time. Nothing may spill or use local memory.

# %%
kernels, why_none = codegen_table.read_module()
print(f"{len(kernels)} kernels measured" if kernels else f"nothing measured: skipped: {why_none}")
print(*codegen_table.table(kernels), sep="\n")

# %% [markdown]
# ## The claim, checked

# %%
native = [found for name, by_op in seen.items() if name != "plain PyTorch" for found in by_op.values()]
assert all(found for found in native), "every op was compared"
assert all(c.same_bits is not False for found in native for c in found), "bit for bit where that is promised"
assert all(c.error is None or c.error <= 1 for found in native for c in found), "within the bound everywhere else"
assert all({c.case.dtype for c in seen["CPU kernels"][op]} >= {torch.bfloat16} for op in ("skinny_linear", "silu_mul"))
assert codegen_table.over_budget(kernels) == [], "the machine code keeps to its budget"

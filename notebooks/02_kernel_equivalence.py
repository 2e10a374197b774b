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

dtypes, layouts = ("float32", "bfloat16", "float16", "int64", "int32"), ("contiguous", "strided", "misaligned")
kinds = {row: Counter() for row in rows}
for row, chosen in rows.items():
    for dtype, found in map(equivalence.dtype_and_layouts, chosen):
        kinds[row].update((dtype, layout) for layout in found)

print(f"{'contiguous/strided/misaligned':<31}{'cases':>5}" + "".join(f"{dtype:>11}" for dtype in dtypes))
for row, chosen in rows.items():
    cells = ["/".join(str(kinds[row][dtype, layout]) for layout in layouts) for dtype in dtypes]
    print(f"{row:<31}{len(chosen):>5}" + "".join(f"{cell.replace('0/0/0', '-'):>11}" for cell in cells))

attention = [case for chosen in rows.values() for case in chosen if case.op == "draft_attention"]
longest = max(length for case in attention for length in case.inputs()["cache_lengths"].tolist())
print(f"draft_attention's longest cache: {longest} rows")

# %% [markdown]
# ## How far off
# Bits: whether all that must be equal bit for bit is. Then the largest error of all cases of a dtype, divided by its
# bound: 1 is the limit. The bounds are those of `tests/test_ops.py`, which is what runs here.
#
# In bfloat16 and float16 the rounding of the result is nearly all of an error, and it is the same for everybody who
# computes well in float32 before it: there the columns hardly differ. In float32 they show the order of each one's sums.

# %%
seen = {
    name: {row: [equivalence.compare(case, backend) for case in chosen] for row, chosen in rows.items()}
    for name, backend in computing.items()
}

# %%
float_dtypes = dtypes[:3]


def errors(comparisons: list[equivalence.Comparison], *chosen: str) -> list[float]:
    return [c.error for c in comparisons if c.error is not None and str(c.case.dtype)[6:] in chosen]


print("columns, for the bits and for each dtype:", ", ".join(computing))
print(
    f"{'':<25}{'bits':<{8 * len(computing)}}" + "".join(f"{dtype:<{6 * len(computing) + 2}}" for dtype in float_dtypes)
)
for row in rows:
    bits = [equivalence.all_same_bits(by_row[row]) for by_row in seen.values()]
    line = "".join(f"{ {True: 'equal', False: 'differ', None: '-'}[found]:<8}" for found in bits)
    for dtype in float_dtypes:
        found = [errors(by_row[row], dtype) for by_row in seen.values()]
        line += "".join(f"{max(each):<6.2f}" if each else f"{'-':<6}" for each in found) + "  "
    print(f"{row:<25}{line}".rstrip())

# %%
for title, chosen in (("float32", ["float32"]), ("bfloat16 and float16", ["bfloat16", "float16"])):
    points = {name: {row: errors(c, *chosen) for row, c in by_row.items()} for name, by_row in seen.items()}
    _ = plot.error_strips(points, f"Errors against float64 in {title}")

# %% [markdown]
# ## A second oracle: an array library that shares nothing with torch but the memory
# Gather, concat and argmax through DLPack: NumPy against the CPU kernels and the emulated CUDA kernels, CuPy against the
# CUDA kernels.

# %%
oracle = {"CPU kernels": array_oracle.check("simt", "cpu")}
if "CUDA kernels, emulated" in computing:
    with backends.emulated_ops():
        oracle["CUDA kernels, emulated"] = array_oracle.check("simt", "cpu")
if torch.cuda.is_available():
    oracle["CUDA kernels"] = array_oracle.check("cuda", "cuda")
else:
    print("CuPy against the CUDA kernels: skipped: no CUDA device")
for name, findings in oracle.items():
    print(f"{name}:", ", ".join(f"{key}: {finding}" for key, finding in findings.items()))

# %% [markdown]
# ## What nvcc made of the kernels
# The machine-code budget that `tests/test_codegen.py` holds the module to. Registers, per architecture: the most that
# any instantiation uses/what is allowed; nothing may spill or use local memory. Where memory is to be moved 128 bits at a
# time, the machine code of the first bfloat16 instantiation for sm_90 was read: 128-bit loads found/wanted, and stores of
# 128 bits/all stores. The other instantiations' instructions are read by that test alone, which takes minutes.

# %%
kernels, why_none = codegen_table.read_module()
if kernels:
    print(f"{len(kernels)} kernels measured, the instructions of {sum(bool(k.memory) for k in kernels)} of them read")
else:
    print(f"nothing measured: skipped: {why_none}")
print(*codegen_table.table(kernels), sep="\n")

# %% [markdown]
# ## The claim, checked

# %%
native = [found for name, by_row in seen.items() if name != "plain PyTorch" for found in by_row.values()]
assert all(found for found in native), "every op was compared"
assert all(c.same_bits is not None or c.error is not None for found in native for c in found), "in every case"
assert all(c.same_bits is not False for found in native for c in found), "bit for bit where that is promised"
assert all(c.error is None or c.error <= 1 for found in native for c in found), "within the bound everywhere else"

with_gaps = ("accepted_rows", "verify_greedy", "draft_attention (latent)")
every = {(dtype, layout) for dtype in float_dtypes for layout in layouts}
whole = [row for row in rows if row not in with_gaps]
assert CASES or all(kinds[row].keys() >= every for row in whole), "every float dtype in every layout"
assert codegen_table.over_budget(kernels) == [], "registers, stack, local memory, and the 128-bit columns of the table"

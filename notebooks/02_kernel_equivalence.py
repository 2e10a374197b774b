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

CASES = int(os.environ.get("EAGLE3_NB_CASES", "9"))

# %%
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
# ## Every op, in float32, bfloat16 and float16, in contiguous, strided and misaligned memory
# The largest error of a case is divided by its bound: 1 is the limit. The bounds are those of `tests/test_ops.py`,
# which is what runs here.

# %%
cases = {op: equivalence.some_cases(op, CASES) for op in equivalence.TESTS}
seen = {
    name: {op: [equivalence.compare(case, backend) for case in chosen] for op, chosen in cases.items()}
    for name, backend in computing.items()
}

# %%
print(f"{'op':>22}  {'cases':>5}  largest error / bound; bits")
for op, chosen in cases.items():
    parts = []
    for name, by_op in seen.items():
        errors = [c.error for c in by_op[op] if c.error is not None]
        bits = {True: "equal", False: "differ", None: "-"}[equivalence.all_same_bits(by_op[op])]
        parts.append(f"{name} {max(errors, default=0):.2f}; {bits}" if errors else f"{name} {bits}")
    print(f"{op:>22}  {len(chosen):>5}  {'   '.join(parts)}")

# %%
_ = plot.error_strips(
    {name: {op: [c.error for c in found if c.error] for op, found in by_op.items()} for name, by_op in seen.items()},
    "Error against float64, as a share of its bound",
)

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

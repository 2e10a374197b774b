"""The specification: every native op, and the whole drafter, in plain PyTorch.

Native code is right when it agrees with this package. It works on any device in any float dtype; given float64 inputs
its results are the exact ones that the tests hold the kernels' bounds to.

Rounding, the same everywhere: statistics, rotations, activations and sums are computed in `wide(dtype)`; a result is
rounded to the dtype where the formula names a tensor. Residual sums are rounded *before* they are normed, RMSNorm
rounds before its gain, and matrix products are rounded once.
"""

from .drafter import Drafter
from .ops import (
    PAD,
    accept,
    accepted_rows,
    add_rms_norm_,
    add_rms_norm_capture_,
    argmax_tokens,
    capture_,
    draft_attention,
    draft_input,
    gather_concat,
    head_rms_norm_,
    mla_append_,
    rms_norm,
    rope_append_,
    rotate,
    silu_mul,
    skinny_linear,
    verify_greedy,
    wide,
)

__all__ = [
    "PAD",
    "Drafter",
    "accept",
    "accepted_rows",
    "add_rms_norm_",
    "add_rms_norm_capture_",
    "argmax_tokens",
    "capture_",
    "draft_attention",
    "draft_input",
    "gather_concat",
    "head_rms_norm_",
    "mla_append_",
    "rms_norm",
    "rope_append_",
    "rotate",
    "silu_mul",
    "skinny_linear",
    "verify_greedy",
    "wide",
]

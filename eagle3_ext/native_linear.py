"""Row-invariant linears for a CPU target: every `torch.nn.Linear` runs `torch.ops.eagle3_ext.skinny_linear`.

Greedy speculation is lossless only when a token's logits do not depend on how many tokens share its forward. In fp32 a
difference of 1e-7 hardly ever meets a tie; in bf16 two logits are exactly equal in 2-5 % of positions, and torch's
one-row and four-row kernels round differently on some processors. `skinny_linear` computes each row alone, bit for bit.
On processors without AVX-512 it also avoids torch's bf16 GEMM, which is ten times slower there.
"""

from __future__ import annotations

from types import TracebackType

import torch

from . import _C

# Up to this many rows the op is row-invariant by contract; more are a GEMM, whose rounding may depend on their number.
SKINNY_ROWS: int = _C.SKINNY_ROWS
# Forwards up to this size may be verifications and are computed in blocks of SKINNY_ROWS. Larger ones are prefills,
# which plain and speculative decoding run with identical shapes: they need no invariance and get the GEMM.
MAX_INVARIANT_ROWS = 32


def native_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """y = x W^T (+ bias) for x [..., k], weight [n, k] -> [..., n]; row-invariant up to MAX_INVARIANT_ROWS rows."""
    rows = x.reshape(-1, x.shape[-1])
    if SKINNY_ROWS < rows.shape[0] <= MAX_INVARIANT_ROWS:
        blocks = [torch.ops.eagle3_ext.skinny_linear(block, weight, bias) for block in rows.split(SKINNY_ROWS)]
        y = torch.cat(blocks)
    else:
        y = torch.ops.eagle3_ext.skinny_linear(rows, weight, bias)
    return y.view(*x.shape[:-1], weight.shape[0])


class NativeLinears:
    """The model's linears, found once and switched as often as needed: `with linears: model(...)`.

    The `forward` of each is replaced, on the instance and inside the block. Weights are neither copied nor changed.
    Blocks may be nested; one model must not be switched from two threads at once.
    """

    def __init__(self, model: torch.nn.Module):
        """Raises ValueError when the model has no plain linear, or one that is not on the CPU, or when its text decoder
        multiplies by other weights as well (quantised linears, adapters, fused experts, GPT-2's Conv1D): what those
        round to is theirs.
        """
        modules = [module for module in model.modules() if type(module) is torch.nn.Linear]
        if not modules:
            raise ValueError(f"{type(model).__name__} has no torch.nn.Linear to replace")
        elsewhere = {str(module.weight.device) for module in modules if module.weight.device.type != "cpu"}
        if elsewhere:
            raise ValueError(f"native linears are for CPU models; weights found on {', '.join(sorted(elsewhere))}")
        decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
        for name, parameter in decoder.named_parameters(remove_duplicate=False):
            owner = type(decoder.get_submodule(name.rpartition(".")[0]))
            if parameter.dim() > 1 and owner not in (torch.nn.Linear, torch.nn.Embedding):
                raise ValueError(
                    f"{name} belongs to a {owner.__name__}, not to a torch.nn.Linear: row-invariant linears cannot stand "
                    "in for it. Use fp32, or row_invariant=False"
                )
        self._modules = [(vars(module), _forward_of(module)) for module in modules]
        self._saved: list[list] = []

    def __enter__(self) -> NativeLinears:
        # Straight into the instance dictionary: nn.Module.__setattr__ would add its checks to every linear and forward.
        self._saved.append([attributes.get("forward") for attributes, _ in self._modules])
        for attributes, forward in self._modules:
            attributes["forward"] = forward
        return self

    def __exit__(self, _type: type | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        for (attributes, _), previous in zip(self._modules, self._saved.pop(), strict=True):
            if previous is None:
                del attributes["forward"]
            else:
                attributes["forward"] = previous


def _forward_of(module: torch.nn.Linear):
    def forward(x: torch.Tensor) -> torch.Tensor:
        return native_linear(x, module.weight, module.bias)

    return forward

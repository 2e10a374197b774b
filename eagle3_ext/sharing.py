"""The target's embedding and head, lent to a drafter whose file has none: taken as they are, or refused by name."""

from __future__ import annotations

import warnings

import torch

from .errors import CheckpointError

_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def shared_table(module: torch.nn.Module | None, name: str, rows: int, width: int) -> torch.Tensor:
    """The first `rows` rows (tables are often padded) of the target's `module`, [rows, width].

    `name` is the drafter's tensor that is missing: embed_tokens.weight or lm_head.weight. Raises CheckpointError for a
    table of another size (a tensor-parallel shard, another target), quantised, offloaded, sharded, or under an adapter
    that is not merged.
    """
    what = "embedding" if name.startswith("embed") else "head"
    lacking = f"the drafter's file has no {what} of its own ({name}) and needs [{rows}, {width}]; the target's"
    if module is None or (hasattr(module, "base_layer") and not getattr(module, "merged", False)):
        state = "is missing" if module is None else f"is under a PEFT adapter ({type(module).__name__}): merge it first"
        raise CheckpointError(f"{lacking} {state}")
    weight = getattr(module, "base_layer", module).weight
    if weight.dtype not in _FLOATS:
        kind = f"{type(weight).__name__} of {weight.dtype}"
        raise CheckpointError(f"{lacking} is quantised ({kind}): load the target with its {what} unquantised, "
                              f"or add {name} to the drafter's file")
    if weight.device.type == "meta":
        raise CheckpointError(f"{lacking} lies on the meta device: device_map offloaded it; keep it in memory")
    if hasattr(weight, "full_tensor"):
        raise CheckpointError(f"{lacking} is sharded over devices ({type(weight).__name__}): gather it first")
    if weight.dim() != 2 or weight.shape[0] < rows or weight.shape[1] != width:
        raise CheckpointError(f"{lacking} is {list(weight.shape)}")
    scale = getattr(module, "embed_scale", None)
    if scale is not None and float(scale) != 1.0:
        warnings.warn(f"the target multiplies its embedding by {float(scale):g}; the drafter gets the raw table, as "
                      "its trainers do", stacklevel=3)
    return weight.detach()[:rows]

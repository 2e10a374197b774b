"""A second opinion: the target's states from hooks of their own, and the drafter in plain PyTorch, varied.

Neither shares code with what it judges. The states are named by boundary: "3" is the residual stream at boundary 3,
"norm 3" what the next norm makes of it, "update 3" what the last block before it added.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch

from ..reference import Drafter as ReferenceDrafter
from ..turns import here_only
from ..vocabulary import fit_vocabulary
from .trace import sampled_rows

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint


@contextmanager
def watch_states(
    decoder: torch.nn.Module,
    layers: torch.nn.ModuleList,
    boundaries: Sequence[int],
    finished: Callable[[list[str], torch.Tensor, int], None],
    started: Callable[[], bool] = lambda: True,
) -> Iterator[None]:
    """After each forward calls `finished(names, states [sampled rows, names, H], rows)`, unless `started()` said no.

    Watched: every boundary 0..n, and for the plan's boundaries and n also what the norm after them makes of the state
    (transformers names it `input_layernorm`) and what the layer's `mlp` added last; where the model has such modules.
    """
    seen: dict[str, torch.Tensor] = {}
    rows, watching = 0, False

    @here_only
    def keep(name: str, state: torch.Tensor) -> None:
        nonlocal rows
        if not watching:
            return
        state = state.reshape(-1, state.shape[-1])
        rows = state.shape[0]
        sampled = sampled_rows(rows)
        # Copied: later layers of some models change the stream in place.
        seen[name] = (state if len(sampled) == rows else state[sampled]).detach().clone()

    def first(output: torch.Tensor | tuple) -> torch.Tensor:
        return output if isinstance(output, torch.Tensor) else output[0]

    def stream(output: torch.Tensor | tuple) -> torch.Tensor:
        if not isinstance(output, torch.Tensor) and len(output) > 1:
            hidden, beside = output[:2]  # (hidden, residual) of layers with a fused add-norm; else a cache or weights
            if isinstance(beside, torch.Tensor) and beside.shape == hidden.shape:
                return hidden + beside
        return first(output)

    def tap_layer(layer: torch.nn.Module, name: str) -> torch.utils.hooks.RemovableHandle:
        return layer.register_forward_hook(lambda _module, _args, output: keep(name, stream(output)))

    def tap_output(module: torch.nn.Module, name: str) -> torch.utils.hooks.RemovableHandle:
        return module.register_forward_hook(lambda _module, _args, output: keep(name, first(output)))

    @here_only
    def tap_input(_module, args, kwargs) -> None:
        nonlocal watching
        watching = started()
        seen.clear()
        keep("0", args[0] if args else kwargs["hidden_states"])

    @here_only
    def end(_module, _args, output) -> None:
        keep(f"norm {len(layers)}", first(output))
        if watching:
            finished(list(seen), torch.stack(list(seen.values()), dim=1), rows)

    with ExitStack() as stack:
        handles = [layers[0].register_forward_pre_hook(tap_input, with_kwargs=True)]
        handles += [tap_layer(layer, str(index + 1)) for index, layer in enumerate(layers)]
        for boundary in boundaries:
            if boundary < len(layers) and hasattr(layers[boundary], "input_layernorm"):
                handles.append(tap_output(layers[boundary].input_layernorm, f"norm {boundary}"))
            if boundary and hasattr(layers[boundary - 1], "mlp"):
                handles.append(tap_output(layers[boundary - 1].mlp, f"update {boundary}"))
        handles.append(decoder.register_forward_hook(end))
        for handle in handles:
            stack.callback(handle.remove)
        yield


AS_FILED = "as the file says"


class DrafterWitness:
    """The drafter once more, in plain PyTorch, as its file says and with one thing changed at a time. One sequence.

    Whatever reproduces the tokens that were really drafted is what the engine computes.
    """

    def __init__(self, checkpoint: Checkpoint, model: torch.nn.Module) -> None:
        """`checkpoint` is the file as published, `model` the target.

        Computed in float32, whatever the engine computes in: a rounding turns few drafts, and matrix products in half
        precision are slow on many CPUs.
        """
        config, weights = fit_vocabulary(checkpoint, model)
        changes: dict[str, tuple[dict, dict]] = {AS_FILED: ({}, {})}
        for flag in ("norm_before_residual", "norm_output"):
            changes[f"{flag} {'ignored' if getattr(config, flag) else 'set'}"] = ({flag: not getattr(config, flag)}, {})
        if config.feature_norm != "none":
            changes[f"feature_norm ({config.feature_norm}) ignored"] = ({"feature_norm": "none"}, {})
        if "target_ids" in checkpoint.weights:
            identity = torch.arange(config.draft_vocab_size)
            changes["d2t ignored"] = ({}, {"target_ids": identity})
            changes["d2t read as ids"] = ({}, {"target_ids": weights["target_ids"] - identity})
        self._drafters = {
            name: ReferenceDrafter(dataclasses.replace(config, **fields), {**weights, **tensors}).to(torch.float32)
            for name, (fields, tensors) in changes.items()
        }
        self._follows = False

    def extend(self, features: torch.Tensor, tokens: torch.Tensor, positions: torch.Tensor) -> None:
        """Follows the drafter. Position 0 starts a new text; features that cannot be fused end the following of one."""
        if int(positions[0]) == 0:
            self._follows = True
        for drafter in self._drafters.values():
            if features.shape[-1] != drafter.config.features_width:
                self._follows = False
            if not self._follows:
                return
            drafter.truncate(min(int(positions[0]), drafter.length))
            with torch.no_grad():
                drafter.extend(features, tokens.long(), positions.long())

    def draft(self, drafted: Sequence[int]) -> dict[str, dict[str, list]]:
        """What each variant drafts, next to the tokens really drafted; {} where it could not follow.

        Per variant `tokens`, their `log_probs`, and `drafted_log_probs`: what it gives the really drafted tokens, None
        for one it has no logit for. All mean something up to the first token that differs.
        """
        drafts = {}
        for name, drafter in self._drafters.items() if self._follows else ():
            with torch.no_grad():
                tokens = drafter.draft(len(drafted))
                log_probs = drafter.logits.float().log_softmax(-1)
            target_ids = drafter.weights.get("target_ids")
            drafts[name] = {
                "tokens": tokens,
                "log_probs": [round(value, 5) for value in log_probs.max(dim=-1).values.tolist()],
                "drafted_log_probs": [_of_token(*pair, target_ids) for pair in zip(log_probs, drafted)],
            }
        return drafts


def _of_token(log_probs: torch.Tensor, token: int, target_ids: torch.Tensor | None) -> float | None:
    """The log-probability [Vd] of a target id."""
    columns = [token] if target_ids is None else (target_ids == token).nonzero().flatten().tolist()
    return round(log_probs[columns[0]].item(), 5) if columns and columns[0] < len(log_probs) else None

"""A drafter for a target saved with rotated weights (QuaRot, SpinQuant): fc and the shared embedding follow."""

from __future__ import annotations

import dataclasses

import torch

from ..errors import CheckpointError
from . import Checkpoint


def for_rotated_target(
    checkpoint: Checkpoint, rotation: torch.Tensor, embedding: torch.Tensor | None = None
) -> Checkpoint:
    """The drafter of the plain target, changed to compute the same from the rotated target's states.

    No file says that a target is rotated, and nothing fails: acceptance is near zero until this is done.

    Args:
        checkpoint: trained on the plain target's states s.
        rotation: Q, orthogonal [H, H]; the rotated target's states are s Q.
        embedding: the rotated target's embedding [V, H]; needed where the drafter has none of its own.

    Returns:
        A checkpoint whose fc reads s Q (a norm before it keeps its statistics, and its gains move into fc) and whose
        embedding is its own.

    Raises:
        CheckpointError: Q is not [H, H] or not orthogonal, the embedding is needed and missing or misshapen, the
            drafter has no fc, or it uses the target's head (rotating folds the final norm's gains into that).
    """
    config, size = checkpoint.config, checkpoint.config.target_hidden_size
    rotation = rotation.double()
    if rotation.shape != (size, size):
        raise CheckpointError(f"rotation is {list(rotation.shape)}; the drafter's target_hidden_size asks for "
                              f"{[size, size]}")
    off = float((rotation @ rotation.T - torch.eye(size, dtype=torch.float64, device=rotation.device)).abs().max())
    if off > 1e-3:
        raise CheckpointError(f"rotation is not orthogonal: Q Q^T is off by {off:.3g}")
    if config.fusion == "none" or not (config.own_head or config.tied_head):
        what = "has no fc" if config.fusion == "none" else "uses the target's head (the file has no lm_head.weight)"
        raise CheckpointError(f"the drafter {what}, so what it shares with a rotated target holds that target's final "
                              "norm; use the plain target")
    weights = dict(checkpoint.weights)
    weights["fc.weight"] = _rotated_fc(checkpoint, rotation)
    weights |= {name: torch.ones_like(w) for name, w in weights.items() if name.startswith(("input_norm", "fc_norm"))}
    if not config.own_embedding:
        if embedding is None or embedding.shape[0] < config.vocab_size or embedding.shape[1] != size:
            told = "is missing" if embedding is None else f"is {list(embedding.shape)}"
            raise CheckpointError(f"embed_tokens.weight: the drafter has none of its own, and the rotated target's "
                                  f"{told}; expected {[config.vocab_size, size]}")
        plain = embedding[: config.vocab_size].double() @ rotation.T
        weights["embed_tokens.weight"] = plain.to(weights["fc.weight"].dtype)
    note = "fc and embedding are those of a rotated target"
    return dataclasses.replace(checkpoint, config=dataclasses.replace(config, own_embedding=True), weights=weights,
                               report=(*checkpoint.report, note))


def _rotated_fc(checkpoint: Checkpoint, rotation: torch.Tensor) -> torch.Tensor:
    """fc diag(gains) blockdiag(Q, ..., Q): an orthogonal Q changes no mean of squares, but does not pass the gains."""
    config, fc = checkpoint.config, checkpoint.weights["fc.weight"]
    wide = fc.double()
    if config.feature_norm == "whole":
        wide = wide * checkpoint.weights["input_norm.weight"].double()
    elif config.feature_norm == "per_state":
        gains = [checkpoint.weights[f"fc_norm.{j}.weight"].double() for j in range(config.num_states)]
        wide = wide * torch.cat(gains)
    return (wide.unflatten(1, (config.num_states, -1)) @ rotation).flatten(1).to(fc.dtype)

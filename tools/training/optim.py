"""Muon in fp32: torch.optim.Muon orthogonalizes in bf16, which takes minutes on a CPU without bf16 matrix instructions."""

from __future__ import annotations

import torch
from torch import Tensor

# Quintic Newton-Schulz coefficients of Jordan et al. (2024), chosen for a steep slope at zero.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalize(matrix: Tensor, steps: int = 5) -> Tensor:
    """A matrix with the singular vectors of `matrix` and singular values near 1."""
    a, b, c = _COEFFICIENTS
    x = matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / x.norm().clamp_min(1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if matrix.shape[0] > matrix.shape[1] else x


class Muon(torch.optim.Optimizer):
    """Momentum whose step is orthogonalized, scaled so that learning rates mean what they mean for AdamW."""

    def __init__(self, parameters, lr: float, momentum: float = 0.95, weight_decay: float = 0.01):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                average = state.setdefault("average", torch.zeros_like(parameter))
                average.lerp_(parameter.grad, 1 - group["momentum"])
                direction = orthogonalize(parameter.grad.lerp(average, group["momentum"]))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(direction, alpha=-0.2 * max(parameter.shape) ** 0.5 * group["lr"])

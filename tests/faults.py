"""Faults that tests and notebooks put into a running loop. None of them exists in the package."""

from __future__ import annotations

import torch


class DecodeOnlyFault:
    """The founding pattern: prefill gets true features, every later extend gets one state g of width H past the fusion.

    The drafter has one door and it takes K*H numbers, so g is fed as pinv(fc) g: fc gives g back, exactly what reached the
    drafter's layer when the deployment's `fc` was skipped. Prefill is the first extend after a reset.
    """

    def __init__(self, drafter, fc_weight: torch.Tensor):
        self._drafter = drafter
        self._through_fc = torch.linalg.pinv(fc_weight.float())
        self._prefilled = False

    def __getattr__(self, name: str):
        return getattr(self._drafter, name)

    def reset(self, *args, **kwargs) -> None:
        self._prefilled = False
        self._drafter.reset(*args, **kwargs)

    def extend(self, features: torch.Tensor, *args, **kwargs) -> None:
        if self._prefilled:
            state = features[:, -self._drafter.plan.hidden_size :].float()
            features = (state @ self._through_fc.T).to(features.dtype)
        self._prefilled = True
        self._drafter.extend(features, *args, **kwargs)

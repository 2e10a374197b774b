"""Faults that tests and notebooks put into a running loop. None of them exists in the package."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable

import torch

from eagle3_ext import DraftTokens
from eagle3_ext.doctor import trace
from eagle3_ext.reference import Drafter as Reference


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


# ---- the fault library of the doctor: each function builds a loop's target and drafter with exactly one fault in it


class Tampered:
    """A drafter whose features `change(features, prefill)` alters on their way into extend."""

    def __init__(self, drafter, change: Callable[[torch.Tensor, bool], torch.Tensor]) -> None:
        self._drafter, self._change, self._prefill = drafter, change, True

    def __getattr__(self, name: str):
        return getattr(self._drafter, name)

    def reset(self, *args) -> None:
        self._prefill = True
        self._drafter.reset(*args)

    def extend(self, features, *args) -> None:
        changed = self._change(features, self._prefill)
        self._prefill = False
        self._drafter.extend(changed, *args)


class Unguarded(Tampered):
    """A drafter without the width check: what `change` gives is what a hook in the engine's drafter would see.

    Rows of width h pass the fusion unchanged, as in an engine that fuses only when widths differ: the native drafter
    gets pinv(fc) g for them, which fc gives back. Rows of other widths are glued as [-1, K*H], as by a linear that
    reshapes.
    """

    def __init__(self, drafter, change, fc_weight: torch.Tensor) -> None:
        super().__init__(drafter, change)
        self._through_fc = torch.linalg.pinv(fc_weight.float())

    def extend(self, features, tokens, positions, row_offsets) -> None:
        seen = self._change(features, self._prefill)
        self._prefill = False
        if seen.shape[-1] == features.shape[-1]:
            return self._drafter.extend(features, tokens, positions, row_offsets)
        if seen.shape[-1] == self._through_fc.shape[1]:
            fed = (seen.float() @ self._through_fc.T).to(features.dtype)
        else:
            fed = torch.zeros_like(features)  # the rows that no memory was written for
            glued = seen.reshape(-1, features.shape[-1])[: len(fed)]
            fed[: len(glued)] = glued
        recorder, trace.active = trace.active, None
        try:
            if recorder is not None:
                pad = [0, len(seen) - len(tokens)]
                rows = torch.tensor([0, len(seen)])
                padded = (torch.nn.functional.pad(tensor, pad) for tensor in (tokens, positions))
                recorder.extend(self._drafter, seen, *padded, rows, None)
            self._drafter.extend(fed, tokens, positions, row_offsets)
        finally:
            trace.active = recorder


class TappedElsewhere:
    """Stands in for a target's capture hooks: slot j takes the output of `modules[j]`, whatever the plan says."""

    def __init__(self, hooks, modules) -> None:
        self.decoder, self.layers, self._modules = hooks.decoder, hooks.layers, modules

    @contextlib.contextmanager
    def attach(self, features):
        def writer(slot):
            return lambda _module, _args, output: features.write(slot, output if torch.is_tensor(output) else output[0])

        handles = [self.decoder.register_forward_pre_hook(lambda *_: features.begin_forward())]
        handles += [module.register_forward_hook(writer(slot)) for slot, module in enumerate(self._modules)]
        try:
            with contextlib.ExitStack() as stack:
                if trace.active is not None:
                    stack.enter_context(trace.active.watch(self.decoder, self.layers, features))
                yield features
        finally:
            for handle in handles:
                handle.remove()


def tapped(modules_of: Callable[[torch.nn.ModuleList, list[int]], list[torch.nn.Module]]):
    """A fault of the capture: `modules_of(layers, boundaries)` names the modules to tap instead of the plan's."""

    def build(loop):
        target, drafter = loop.parts()
        boundaries = list(drafter.plan.boundaries)
        target._hooks = TappedElsewhere(target._hooks, modules_of(target._hooks.layers, boundaries))
        return target, drafter

    return build


def outputs_at(choose: Callable[[list[int]], list[int]]):
    """A fault of the capture: the outputs at boundaries `choose(plan's boundaries)`."""
    return tapped(lambda layers, boundaries: [layers[b - 1] for b in choose(boundaries)])


def tampered(change: Callable[[torch.Tensor, bool], torch.Tensor]):
    def build(loop):
        target, drafter = loop.parts()
        return target, Tampered(drafter, change)

    return build


def unguarded(change: Callable[[torch.Tensor, bool, int], torch.Tensor]):
    """A fault of width: `change(features, prefill, H)` is what arrives."""

    def build(loop):
        target, drafter = loop.parts()
        H, fc = drafter.plan.hidden_size, loop.checkpoint.weights["fc.weight"]
        return target, Unguarded(drafter, lambda features, prefill: change(features, prefill, H), fc)

    return build


def run_as_eagle(loop):
    """EAGLE instead of EAGLE3: the drafter gets the final norm's output, always."""
    target, drafter = loop.parts()
    normed = []
    final_norm = target._hooks.decoder.norm
    final_norm.register_forward_hook(lambda _module, _args, output: normed.__setitem__(slice(None), [output[0]]))
    change = lambda features, _prefill: normed[0][: len(features)].to(features.dtype)
    return target, Unguarded(drafter, change, loop.checkpoint.weights["fc.weight"])


def glue_rows(features: torch.Tensor, prefill: bool, H: int) -> torch.Tensor:
    """Two of three states in decode, in a block of a multiple of three rows: a linear that reshapes takes it."""
    if prefill:
        return features
    two = torch.cat([features[:, :H], features[:, -H:]], dim=-1)
    return torch.nn.functional.pad(two, [0, 0, 0, -len(two) % 3])


def rows_from_the_end(loop):
    """Accepted indices that count from the wrong end of the block."""
    target, drafter = loop.parts()

    def change(features, prefill):
        return features if prefill else target.features.tensor[-len(features) :].clone()

    return target, Tampered(drafter, change)


def stale(refill: bool):
    """The extend graph's input buffer: filled one round late, or never again after the first round."""

    def build(loop):
        target, drafter = loop.parts()
        buffer = []

        def change(features, prefill):
            if prefill:
                buffer.clear()
                return features
            block = target.features.tensor.clone()
            arrived = buffer[0][: len(features)] if buffer and len(buffer[0]) >= len(features) else features
            if refill or not buffer:
                buffer[:] = [block]
            return arrived

        return target, Tampered(drafter, change)

    return build


def half_precision_overflow(loop):
    """One infinity in the last state of each decode block."""

    def change(features, prefill):
        if not prefill:
            features = features.clone()
            features[0, -1] = torch.inf
        return features

    target, drafter = loop.parts()
    return target, Tampered(drafter, change)


def with_config(**changes):
    """The drafter runs with other switches than its file's."""

    def build(loop):
        config = dataclasses.replace(loop.checkpoint.config, **changes)
        return loop.parts(dataclasses.replace(loop.checkpoint, config=config))

    return build


def with_weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]):
    """The drafter runs with other tensors than its file's."""

    def build(loop):
        weights = loop.checkpoint.weights
        return loop.parts(dataclasses.replace(loop.checkpoint, weights={**weights, **change(weights)}))

    return build


def trained_for_a_few_positions(loop):
    return with_config(max_position_embeddings=max(map(len, loop.prompts)) + 4)(loop)


class KeepsGuesses:
    """A drafter in plain PyTorch that leaves the cache entries of accepted drafts as its own draft steps made them."""

    def __init__(self, native, reference: Reference) -> None:
        self._native, self._reference = native, reference
        self.plan, self.config, self.max_length = native.plan, native.config, native.max_length
        self._steps = 0

    @property
    def lengths(self) -> torch.Tensor:
        return torch.tensor([self._reference.length])

    def reset(self) -> None:
        self._reference.reset()
        self._steps = 0

    def extend(self, features, tokens, positions, row_offsets) -> None:
        kept = min(self._steps, len(tokens) - 1)
        self._reference.length += kept
        features, tokens, positions = features[kept:], tokens[kept:], positions[kept:]
        if trace.active is not None:
            trace.active.extend(self, features, tokens, positions, torch.tensor([0, len(tokens)]), None)
        with torch.no_grad():
            self._reference.extend(features, tokens, positions)

    def draft(self, num_tokens: int):
        with torch.no_grad():
            tokens = self._reference.draft(num_tokens)
        self._steps = len(tokens) - 1
        drafts = DraftTokens(torch.tensor([tokens]), torch.tensor([len(tokens)]), torch.zeros(1, len(tokens)))
        return drafts


def keeps_guesses(loop):
    target, drafter = loop.parts()
    embedding, head = loop.model.get_input_embeddings().weight, loop.model.get_output_embeddings().weight
    reference = Reference(drafter.config, loop.checkpoint.weights, embedding, head).to(drafter.dtype)
    return target, KeepsGuesses(drafter, reference)


def before_final_norm(loop):
    """A drafter without fusion, trained on the final norm's output, fed with the residual stream before it."""
    target, drafter = loop.parts(without_fusion(loop.checkpoint))
    target._hooks = TappedElsewhere(target._hooks, [target._hooks.layers[-1]])
    return target, drafter


def without_fusion(checkpoint):
    config = checkpoint.config
    config = dataclasses.replace(
        config, fusion="none", num_states=1, target_hidden_size=config.hidden_size, boundaries=None
    )
    weights = {name: weight for name, weight in checkpoint.weights.items() if name != "fc.weight"}
    return dataclasses.replace(checkpoint, config=config, weights=weights)


def reported_by_every_rank(loop):
    """No fault: two ranks of a tensor-parallel engine report each event."""

    class TwoRanks(Tampered):
        def extend(self, features, tokens, positions, row_offsets):
            trace.active.extend(self._drafter, features, tokens, positions, row_offsets, None)
            self._drafter.extend(features, tokens, positions, row_offsets)

    target, drafter = loop.parts()
    return target, TwoRanks(drafter, None)


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of the library: what the doctor must call it, and where it shows.

    Attributes:
        finding: the id of `doctor.findings.CATALOGUE`.
        build: (loop) -> (target, drafter) with the fault in place.
        depth: the least D at which it can show: some live in draft steps only.
    """

    finding: str
    build: Callable
    depth: int = 1


def only_state(slot: int, in_prefill: bool):
    def change(features, prefill, H):
        kept = features.unflatten(-1, (-1, H))[:, slot]
        return features if prefill and not in_prefill else kept

    return unguarded(change)


def no_state_but_the_last(features: torch.Tensor, prefill: bool) -> torch.Tensor:
    kept = torch.zeros_like(features)
    third = features.shape[1] // 3
    kept[:, -third:] = features[:, -third:]
    return features if prefill else kept


FAULTS = {
    "decode: last state only (width H)": Fault("one-state-in-extend", only_state(-1, in_prefill=False)),
    "always: last state only (width H)": Fault("one-state-in-extend", only_state(-1, in_prefill=True)),
    "decode: first H columns kept": Fault("sliced-features", only_state(0, in_prefill=False)),
    "EAGLE instead of EAGLE3": Fault("eagle-algorithm", run_as_eagle),
    "two of three states, rows glued": Fault("reshaping-linear", unguarded(glue_rows)),
    "decode: one of K states, rest zero": Fault("missing-states", tampered(no_state_but_the_last)),
    "the last state K times": Fault("repeated-state", outputs_at(lambda b: [b[-1]] * len(b))),
    "states in reverse order": Fault("wrong-order", outputs_at(lambda b: b[::-1])),
    "first two states swapped": Fault("wrong-order", outputs_at(lambda b: [b[1], b[0], b[2]])),
    "boundaries one late": Fault("shifted-boundary", outputs_at(lambda b: [i + 1 for i in b])),
    "boundaries one early": Fault("shifted-boundary", outputs_at(lambda b: [i - 1 for i in b])),
    "last boundary two late": Fault("other-boundary", outputs_at(lambda b: [*b[:-1], b[-1] + 2])),
    "after the next norm": Fault(
        "normed-states", tapped(lambda layers, b: [layers[i].input_layernorm for i in b])
    ),
    "before the final norm": Fault("unnormed-state", before_final_norm),
    "residual not added": Fault("residual-not-added", tapped(lambda layers, b: [layers[i - 1].mlp for i in b])),
    "accepted rows from the end": Fault("wrong-rows", rows_from_the_end),
    "extend buffer never refilled": Fault("stale-features", stale(refill=False)),
    "extend buffer one round late": Fault("stale-features", stale(refill=True)),
    "infinity in a state": Fault("not-finite", half_precision_overflow),
    "norm_before_residual turned": Fault("norm-flag-ignored", with_config(norm_before_residual=True)),
    "norm_output turned": Fault("norm-flag-ignored", with_config(norm_output=True), depth=3),
    "d2t ignored": Fault(
        "wrong-vocabulary-map", with_weights(lambda w: {"target_ids": torch.arange(len(w["target_ids"]))})
    ),
    "d2t read as ids": Fault(
        "wrong-vocabulary-map",
        with_weights(lambda w: {"target_ids": w["target_ids"] - torch.arange(len(w["target_ids"]))}),
    ),
    "fc not loaded": Fault(
        "drafter-differs", with_weights(lambda w: {"fc.weight": torch.randn_like(w["fc.weight"]) * 0.02})
    ),
    "cache keeps its guesses": Fault("kept-guesses", keeps_guesses, depth=3),
    "past the trained length": Fault("past-trained-length", trained_for_a_few_positions),
    "reported by two ranks": Fault("identical-steps", reported_by_every_rank),
}


def block_offset_forgotten(rows, offsets, width):
    return rows % width


def one_block_off(rows, offsets, width):
    return (rows + width) % (width * (len(offsets) - 1))


def row_per_request(rows, offsets, width):
    return torch.arange(len(rows))


def text_order(rows, offsets, width):
    order = torch.tensor(sorted(range(len(offsets) - 1), key=str))
    return order[rows // width] * width + rows % width


# Row mix-ups that need a batch, with the doctor's words for them.
ROW_FAULTS = {
    "block offset forgotten": (block_offset_forgotten, "without the block's offset"),
    "one block off": (one_block_off, "off by +1 block"),
    "row per request": (row_per_request, "row i goes to request i"),
    "requests sorted as text": (text_order, "text order"),
}

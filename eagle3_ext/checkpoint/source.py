"""A raw `config.json` beside the stored shapes: typed look-ups that collect what is wrong instead of raising."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .config import Shape

_TOO_MANY = 2**53  # of anything: past it a float, as RoPE's angles are made of, skips integers
# Every number of things that a drafter's config states, used by its form or not: what is no count is told all the same.
_COUNTS = dict.fromkeys((
    "hidden_size", "target_hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size", "draft_vocab_size", "num_aux_hidden_states",
    "max_position_embeddings", "original_max_position_embeddings", "sliding_window", "rotary_dim", "q_lora_rank",
    "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 1) | {"max_window_layers": 0}
_COUNTS_OF_A_PROPOSAL = ("speculative_tokens", "verifier_accept_k")  # speculators_config.proposal_methods

NESTED = ("transformer_layer_config", "eagle_config", "speculators_config")


class Source:
    """Where a `DrafterConfig` is read from; collects `problems` (fatal) and `notes` (told, harmless).

    Keys are looked up at the top level, in `transformer_layer_config` (speculators) and in `eagle_config` (SpecForge,
    ModelOpt); null counts as absent, and two places that disagree are a problem.
    """

    def __init__(self, raw: Mapping[str, Any], shapes: Mapping[str, Shape]) -> None:
        self.raw, self.shapes = raw, shapes
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.places: dict[str, Mapping[str, Any]] = {"config.json": raw}
        for key in NESTED:
            nested = raw.get(key)
            if nested is not None and not isinstance(nested, Mapping):
                self.problems.append(f"config.json: {key} is a {type(nested).__name__}, expected an object")
            elif nested:
                self.places[key] = nested

    @property
    def architecture(self) -> Any:
        """The one entry of `architectures`; whatever stands there if that is no list of one."""
        said = self.raw.get("architectures")
        return said[0] if isinstance(said, list) and len(said) == 1 else said

    def problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def said(self, key: str, default: Any = None) -> Any:
        """The value of `key` wherever it stands, or `default`."""
        found = {place: values[key] for place, values in self.places.items()
                 if place != "speculators_config" and values.get(key) is not None}
        values = list(found.values())
        if any(value != values[0] for value in values):
            told = " but ".join(f"{value!r} in {place}" for place, value in found.items())
            self.problem(f"config.json: {key} is {told}")
        return values[0] if values else default

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int | None:
        """An integer of at least `least`; anything else is a problem and reads as absent."""
        value = self.said(key, default)
        return None if value is None else checked_count(self, key, value, least)

    def check_counts(self) -> None:
        """A problem for every count that is none, wherever it stands."""
        for values in self.places.values():
            for key, least in _COUNTS.items():
                if values.get(key) is not None:
                    checked_count(self, key, values[key], least)
        for i, method in enumerate(self.proposal_methods):
            for key in _COUNTS_OF_A_PROPOSAL:
                if method.get(key) is not None:
                    checked_count(self, f"speculators_config.proposal_methods[{i}].{key}", method[key])

    @property
    def proposal_methods(self) -> list[Mapping[str, Any]]:
        """How a speculators file is meant to be served."""
        methods = self.places.get("speculators_config", {}).get("proposal_methods")
        return [method for method in methods if isinstance(method, Mapping)] if isinstance(methods, list) else []

    def number(self, key: str, default: float) -> float:
        """A positive finite number; anything else is a problem and reads as `default`."""
        return positive(self, key, self.said(key), default)

    def flag(self, key: str, default: bool = False) -> bool:
        """true or false; anything else is a problem and reads as `default`."""
        value = self.said(key, default)
        if not isinstance(value, bool):
            self.problem(f"config.json: {key} is {value!r}; it must be true or false")
            return default
        return value

    def stored(self, name: str, dim: int = 0) -> int | None:
        """One dimension of a stored tensor; None where there is no such tensor or dimension."""
        shape = self.shapes.get(name, ())
        return shape[dim] if dim < len(shape) else None

    def settled(self, name: str, key: str, default: int | None = None, dim: int = 0) -> int | None:
        """A stored dimension, else the config's value; a difference between the two is told once."""
        said, stored = self.integer(key, default), self.stored(name, dim)
        if stored is None:
            return said
        if said not in (stored, None) and self.said(key) is not None:
            self.note(f"config.json: {key} is {said}, but {name} is {list(self.shapes[name])}: took {stored}")
        return stored


def checked_count(source: Source, key: str, value: Any, least: int = 1) -> int | None:
    """`value` as an integer of at least `least`; anything else is a problem naming `key` and reads as absent.

    The one door for every count of a config. 40.0, "40" and true are none: whoever wrote them meant something else.
    """
    if type(value) is int and least <= value < _TOO_MANY:
        return value
    expected = "a positive integer" if least == 1 else f"an integer of at least {least}"
    if type(value) is int and value >= _TOO_MANY:
        expected += f" below {_TOO_MANY}"
    source.problem(f"config.json: {key} is {value!r}; it must be {expected}")
    return None


def positive(source: Source, key: str, value: Any, default: float) -> float:
    """`value` as a positive float; None is `default`, anything else a problem naming `key`.

    The range keeps powers and quotients of two such numbers finite.
    """
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1e-30 <= value <= 1e30:
        source.problem(f"config.json: {key} is {value!r}; it must be a positive number, from 1e-30 to 1e30")
        return default
    return float(value)

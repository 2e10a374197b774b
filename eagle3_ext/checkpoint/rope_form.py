"""The RoPE keys of a config file, in every spelling, as a `Rope`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..rope import Rope
from .source import Source, checked_count, positive

_KINDS = {"default": "default", "mrope": "default", "linear": "linear", "dynamic": "dynamic",
          "llama3": "llama3", "yarn": "yarn", "deepseek_yarn": "yarn"}
_KNOWN = {"rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "low_freq_factor",
          "high_freq_factor", "beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim", "attention_factor",
          "alpha", "mrope_section", "mrope_interleaved", "interleaved", "partial_rotary_factor"}
_MUST_BE_ONE = ("attn_factor", "extrapolation_factor")  # vLLM's yarn multiplies with these


def read_rope(source: Source, head_dim: int, is_mla: bool) -> dict[str, Any]:
    """`rope_theta` and `rope` of the config, and `mscale` for latent attention."""
    values = _values(source)
    thetas = [value for value in (source.said("rope_theta"), values.get("rope_theta")) if value is not None]
    if len(thetas) == 2 and thetas[0] != thetas[1]:
        source.problem(f"config.json: rope_theta is {thetas[0]!r} in one place and {thetas[1]!r} in another")
    theta = positive(source, "rope_theta", thetas[0] if thetas else None, 10000.0)
    spelled = [values[key] for key in ("rope_type", "type") if values.get(key) is not None]
    if any(kind != spelled[0] or str(kind) not in _KINDS for kind in spelled):
        source.problem(f"config.json: the RoPE type is {' and '.join(map(repr, spelled))}; supported: "
                       f"{', '.join(_KINDS)}")
        return {}
    _check_keys(source, values)
    kind = _KINDS[spelled[0] if spelled else "default"]
    if source.flag("mla_use_nope") or not source.flag("use_rope", True):
        kind = "none"
    elif not thetas:
        source.note(f"config.json: rope_theta is missing: took {theta:g}, transformers' default for llama")
    # Interleaving is a property of what the drafter was trained beside: DeepSeek's latent attention, Llama 4.
    interleaved = is_mla or str(source.raw.get("model_type")).startswith("llama4")
    for key in ("rope_interleave", "rope_interleaved"):
        interleaved = source.flag(key, interleaved)
    interleaved = not source.flag("rope_is_neox_style", not interleaved)
    form = _stretch(source, kind, values)
    mscale = form.pop("mscale")
    rope = Rope(kind=kind, rotary_dim=_rotary_dim(source, values, head_dim, is_mla), interleaved=interleaved,
                mrope="mrope" in spelled or bool(values.get("mrope_section")), **form)
    if rope.mrope:
        source.note("the drafter was trained with mrope positions: rows that differ are refused, equal rows are "
                    "ordinary positions")
    if kind == "dynamic" and rope.alpha is None:
        source.note("dynamic RoPE: vLLM and SGLang stretch every position, transformers only those past "
                    f"{rope.original_length}, as here")
    return {"rope_theta": theta, "rope": rope, "mscale": mscale}


def _values(source: Source) -> Mapping[str, Any]:
    """The one object with RoPE values; null and empty ones are none."""
    found = {key: value for key in ("rope_parameters", "rope_scaling") if (value := source.said(key))}
    for key, value in found.items():
        if not isinstance(value, Mapping):
            source.problem(f"config.json: {key} is a {type(value).__name__}, expected an object")
            return {}
        nested = [form for form in value.values() if isinstance(form, Mapping)]
        if nested and any(form != nested[0] for form in nested):
            source.problem(f"config.json: {key} differs by layer type ({', '.join(value)}); one form is supported")
            return {}
        found[key] = nested[0] if nested else value
    forms = [{k: v for k, v in form.items() if k != "rope_theta"} for form in found.values()]
    if len(forms) == 2 and forms[0] != forms[1]:
        source.problem(f"config.json: rope_parameters {forms[0]} and rope_scaling {forms[1]} disagree")
    return {k: v for form in reversed(list(found.values())) for k, v in form.items()}


def _check_keys(source: Source, values: Mapping[str, Any]) -> None:
    for key in _MUST_BE_ONE:
        if values.get(key) not in (None, 1, 1.0):
            source.problem(f"config.json: RoPE's {key} is {values[key]!r}; supported: 1")
    unknown = sorted(values.keys() - _KNOWN - {*_MUST_BE_ONE})
    if unknown:
        source.note(f"config.json: RoPE keys that change nothing here: {', '.join(unknown)}")


def _rotary_dim(source: Source, values: Mapping[str, Any], head_dim: int, is_mla: bool) -> int | None:
    factor = values.get("partial_rotary_factor")
    factor = positive(source, "partial_rotary_factor", source.said("partial_rotary_factor", factor), 1.0)
    if is_mla or factor == 1.0:
        return None if is_mla else source.integer("rotary_dim")
    return int(head_dim * factor)


def _stretch(source: Source, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers that `kind` needs; a missing one is a problem that names it. `mscale` is for latent attention."""
    def needed(key: str, fallback: Any = None) -> float:
        value = values.get(key) if values.get(key) is not None else fallback
        if value is None:
            source.problem(f"config.json: RoPE type {kind} needs {key}, which is missing")
        return positive(source, f"{key} (RoPE type {kind})", value, 1.0)

    limit = source.integer("max_position_embeddings")
    before = source.integer("original_max_position_embeddings")
    if kind in ("default", "none"):
        return {"mscale": 1.0}
    if kind == "linear":
        return {"factor": _factor(source, kind, values), "mscale": 1.0}
    if kind == "dynamic":
        scaled = {"factor": _factor(source, kind, values)} if values.get("alpha") is None else {"alpha": needed("alpha")}
        return scaled | {"original_length": _original_length(source, kind, values, before or limit), "mscale": 1.0}
    if kind == "llama3":
        return {"factor": _factor(source, kind, values), "low_freq_factor": needed("low_freq_factor"), "mscale": 1.0,
                "high_freq_factor": needed("high_freq_factor"),
                "original_length": _original_length(source, kind, values, before)}
    original = values.get("original_max_position_embeddings") or before
    factor = _factor(source, kind, values, limit, original)
    truncate = values.get("truncate")
    if truncate not in (None, True, False):
        source.problem(f"config.json: RoPE's truncate is {truncate!r}; it must be true or false")
    form = {"factor": factor, "original_length": _original_length(source, kind, values, before),
            "truncate": truncate is not False}
    betas = {"beta_fast": needed("beta_fast", 32), "beta_slow": needed("beta_slow", 1)}
    return form | betas | _yarn_scales(source, values, factor)


def _original_length(source: Source, kind: str, values: Mapping[str, Any], fallback: int | None) -> int:
    """Positions before the stretch, from the RoPE values, else `fallback`."""
    key = "original_max_position_embeddings"
    value = values.get(key) if values.get(key) is not None else fallback
    if value is None:
        source.problem(f"config.json: RoPE type {kind} needs {key}, which is missing")
        return 1
    return checked_count(source, f"{key} (RoPE type {kind})", value) or 1


def _factor(source: Source, kind: str, values: Mapping[str, Any], limit: int | None = None,
            original: Any = None) -> float:
    """How many times longer positions reach: as given, else limit / original, which transformers defines for yarn.

    Below 1 it would squeeze positions together, which no file means: a factor turned upside down, or a drafter's
    max_position_embeddings that is its training length, shorter than its target's original one.
    """
    given = values.get("factor")
    if given is not None:
        factor = positive(source, f"factor (RoPE type {kind})", given, 1.0)
        if factor < 1:
            source.problem(f"config.json: factor is {given!r} for RoPE type {kind}; it must be at least 1, how many times "
                           f"longer positions reach (1 / {given!r} = {1 / factor:g} may be meant)")
        return max(factor, 1.0)
    lacking = f"config.json: factor is missing for RoPE type {kind}"
    if kind != "yarn":
        source.problem(f"{lacking}; it must be a number of at least 1")
    elif limit is None or type(original) is not int or original < 1:
        told = ", ".join(f"{key} is {'missing' if value is None else repr(value)}" for key, value in (
            ("max_position_embeddings", limit), ("original_max_position_embeddings", original)))
        source.problem(f"{lacking} and cannot be derived ({told})")
    elif limit < original:
        source.problem(f"{lacking}; derived as max_position_embeddings {limit} / original_max_position_embeddings "
                       f"{original} it would be {limit / original:g}, but it must be at least 1: the drafter's own maximum "
                       "may be its training length; add the target's factor")
    else:
        source.note(f"{lacking}: took {limit / original:g}, max_position_embeddings {limit} / "
                    f"original_max_position_embeddings {original}")
        return limit / original
    return 1.0


def _yarn_scales(source: Source, values: Mapping[str, Any], factor: float) -> dict[str, float]:
    """yarn's factor on cosines and sines, and the mscale whose square latent attention puts on its softmax scale."""
    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    mscale, all_dim = (None if values.get(key) in (None, 0) else positive(source, f"RoPE's {key}", values[key], 1.0)
                       for key in ("mscale", "mscale_all_dim"))
    implied = scale(mscale) / scale(all_dim) if mscale and all_dim else scale(1.0)
    attention = positive(source, "RoPE's attention_factor", values.get("attention_factor"), implied)
    return {"attention_factor": attention, "mscale": scale(all_dim) if all_dim else 1.0}

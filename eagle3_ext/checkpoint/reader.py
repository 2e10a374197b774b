"""From a raw `config.json` and the stored shapes to a `DrafterConfig`.

A config file is only believed where no tensor says otherwise: widths, head counts and vocabulary sizes come from the
stored shapes, and which norms, biases and layers exist comes from the stored names (published configs are wrong about
each of these).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection
from typing import Any

from .attention import ATTENTION, is_latent, joins_embedding, read_attention
from .config import DrafterConfig, Layer
from .families import ARCHITECTURES, FOREIGN_ARCHITECTURES, MLA_ARCHITECTURE
from .layer_ids import LayerIds
from .rope_form import read_rope
from .source import Source

# Switches named after a norm. Any other means a norm that would be left out in silence.
_NORM_FLAGS = {"norm_before_residual", "norm_before_fc", "fc_norm", "use_aux_norm", "norm_output", "use_qk_norm",
               "return_hidden_post_norm", "use_last_layernorm", "use_input_layernorm_in_first_layer",
               "use_mtp_layernorm", "attn_norm", "norm_topk_prob", "qk_norm"}


# Factors and caps of other models' forwards (Granite, Gemma), which would be left out in silence; what changes nothing.
_NEUTRAL = {"embedding_multiplier": 1, "residual_multiplier": 1, "logits_scaling": 1, "final_logit_softcapping": 0,
            "attn_logit_softcapping": 0}


def refuse_foreign(source: Source, names: Collection[str]) -> None:
    """Problems for every key that asks for a forward this project does not compute. `names` are as stored."""
    raw, name = source.raw, source.architecture
    unnamed = name is None or name == "LlamaForCausalLM"
    tabled = {"d2t", "t2d"} & source.shapes.keys()
    if unnamed and tabled and not is_latent(source) and any(n.startswith("midlayer.") for n in names):
        # Saved by code that never set it: no other model has a midlayer and a draft vocabulary.
        source.note(f"config.json: architectures is {'missing' if name is None else name}; read as "
                    "LlamaForCausalLMEagle3, because the file holds midlayer.* and "
                    f"{' and '.join(sorted(tabled))}")
    elif name not in ARCHITECTURES:
        foreign = [meaning for part, meaning in FOREIGN_ARCHITECTURES.items() if part.lower() in str(name).lower()]
        plain = not {"fc.weight", "d2t", "layers.0.hidden_norm.weight"} & source.shapes.keys()
        why = f", which is {foreign[0]}" if foreign else ", and no fc.weight: a target, not a drafter" if plain else \
            "; if it is an EAGLE-3 drafter, write LlamaForCausalLMEagle3 there" if unnamed else ""
        source.problem(f"architectures is {name!r}{why}; supported: {', '.join(ARCHITECTURES)}")
    if name == MLA_ARCHITECTURE and not is_latent(source):
        source.problem(f"architectures is {name}, but the file stores no {ATTENTION}kv_a_proj_with_mqa.weight")
    algorithm = (source.places.get("speculators_config") or {}).get("algorithm")
    refused = {
        "speculators_model_type": (raw.get("speculators_model_type"), "eagle3"),
        "speculators_config.algorithm": (algorithm, "eagle3"),
        "hidden_act": (source.said("hidden_act"), "silu"),
        "quantization_config": (source.said("quantization_config"), None),
        "mask_token_id (P-EAGLE)": (source.said("mask_token_id"), None),
        "use_moe": (source.said("use_moe"), False),
        "attn_norm (EAGLE-4)": (source.said("attn_norm"), False),
        "eh_proj_before_attn": (source.said("eh_proj_before_attn"), False),
        "use_mtp_layernorm": (source.said("use_mtp_layernorm"), False),
        "use_input_layernorm_in_first_layer": (source.said("use_input_layernorm_in_first_layer"), True),
        "parallel_draft_step": (source.said("parallel_draft_step"), 1),
    }
    for key, (value, supported) in refused.items():
        if value is not None and value != supported:
            source.problem(f"config.json: {key} is {value!r}; supported: {supported!r}")
    for key, neutral in _NEUTRAL.items():
        if (value := source.said(key)) not in (None, neutral):
            source.problem(f"config.json: {key} is {value!r}, which changes the forward and is not computed here; "
                           f"supported: {neutral}")
    for place in source.places.values():
        for key, value in place.items():
            if "norm" in key and isinstance(value, bool) and key not in _NORM_FLAGS:
                source.problem(f"config.json: {key} is {value}: an unknown norm, which would be left out")


def read_config(source: Source, ids: LayerIds | None, norm_before_residual: bool | None) -> DrafterConfig | None:
    """The config, or None when `source.problems` says why there is none."""
    h = source.settled("layers.0.input_layernorm.weight", "hidden_size")
    if h is None:
        source.problem("config.json: hidden_size is missing")
        return None
    fields: dict[str, Any] = {"hidden_size": h, "layers": _layers(source, h)}
    fields |= _feature_sizes(source, ids, h) | _vocabulary(source) | read_attention(source, h)
    fields["intermediate_size"] = source.settled("layers.0.mlp.gate_proj.weight", "intermediate_size")
    if fields["intermediate_size"] is None:
        source.problem("config.json: intermediate_size is missing")
    fields |= _switches(source, norm_before_residual)
    if source.problems:
        return None
    rope = read_rope(source, fields["head_dim"], is_latent(source))
    if source.problems:
        return None
    mla = fields.get("mla")
    if mla is not None:
        fields["mla"] = dataclasses.replace(mla, mscale=rope["mscale"])
    fields |= {"rope_theta": rope["rope_theta"], "rope": rope["rope"], "boundaries": ids.boundaries if ids else None}
    try:
        config = DrafterConfig(**fields)
    except ValueError as error:
        source.problem(f"config.json: {error}")
        return None
    _refuse_other_scale(source, config.attention_scale)
    return None if source.problems else config


def _refuse_other_scale(source: Source, scale: float) -> None:
    """Granite's and Gemma's names for what q.k is multiplied with: fine where they say what is computed anyway."""
    for key, power in (("attention_multiplier", 1.0), ("query_pre_attn_scalar", -0.5)):
        neutral = scale ** (1 / power)
        if not math.isclose(value := source.number(key, neutral), neutral, rel_tol=1e-6):
            source.problem(f"config.json: {key} is {value:g}, another softmax scale than the {scale:g} that is computed "
                           f"here; supported: {neutral:g}")


def _layers(source: Source, h: int) -> tuple[Layer, ...]:
    """One per stored attention block; the config's depth is only compared (some repeat the target's)."""
    count = 1
    while any(name.startswith(f"layers.{count}.self_attn.") for name in source.shapes):
        count += 1
    said = source.integer("num_hidden_layers")
    if said not in (None, count):
        source.note(f"config.json: num_hidden_layers is {said}, but {count} "
                    f"{'layer is' if count == 1 else 'layers are'} stored: took {count}")
    joins = [joins_embedding(source, i, h) for i in range(count)]
    if count > 1 and source.flag("next_layer_regular", not any(joins[1:])) == any(joins[1:]):
        source.note(f"config.json: next_layer_regular is {any(joins[1:])}, but later layers read "
                    f"{'embedding and hidden' if any(joins[1:]) else 'the hidden alone'}: took that")
    return tuple(Layer(joins, window) for joins, window in zip(joins, _windows(source, count), strict=True))


def _windows(source: Source, count: int) -> list[int | None]:
    """Each layer's sliding window: `layer_types` says which have one, else `use_sliding_window` and where it starts."""
    window, types = source.integer("sliding_window"), source.said("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) < count or not set(map(str, types)) <= {
                "full_attention", "sliding_attention"}:
            source.problem(f"config.json: layer_types is {types!r}; expected full_attention or sliding_attention for "
                           f"each of {count} layers")
            return [None] * count
        if "sliding_attention" in types[:count] and window is None:
            source.problem("config.json: layer_types has sliding_attention, but sliding_window is missing")
        return [window if kind == "sliding_attention" else None for kind in types[:count]]
    if window is None or not source.flag("use_sliding_window", True):
        return [None] * count
    if source.said("use_sliding_window") is None:
        source.problem(f"config.json: sliding_window is {window}, but neither layer_types nor use_sliding_window says "
                       "whether it applies, and engines disagree; add one of them")
    first = source.integer("max_window_layers", 0, least=0)
    return [window if first is not None and i >= first else None for i in range(count)]


def _feature_sizes(source: Source, ids: LayerIds | None, h: int) -> dict[str, Any]:
    """K and H from fc's columns; without fc the features are one state as wide as the drafter."""
    if not source.flag("use_aux_hidden_state", True):
        if "fc.weight" in source.shapes:
            source.problem("config.json: use_aux_hidden_state is False, a drafter without fc, but the file holds "
                           f"fc.weight {list(source.shapes['fc.weight'])}: one of the two is wrong")
        return {"fusion": "none", "num_states": 1, "target_hidden_size": h}
    norms = sum(name.startswith("fc_norm.") for name in source.shapes)
    said = source.integer("num_aux_hidden_states")
    num_states = len(ids.listed) if ids else said or norms or None
    if said not in (None, num_states):
        source.note(f"config.json: num_aux_hidden_states is {said}, but {num_states} layer ids are listed: took "
                    f"{num_states}")
    state = source.settled("fc_norm.0.weight", "target_hidden_size")
    fc = source.shapes.get("fc.weight", ())
    if len(fc) != 2:  # missing or misshapen: reported by name once the other sizes are known
        return {"num_states": num_states or 3, "target_hidden_size": state or h}
    columns = fc[1]
    if state is None:
        state = columns // num_states if num_states and columns % num_states == 0 else h
        if ids and state != h and columns % h == 0:
            source.note(f"config.json lists {num_states} layer ids, so fc.weight {list(fc)} is taken to fuse "
                        f"{num_states} states of {state}; of the drafter's own width {h} they would be {columns // h}: "
                        "if those are meant, the list of ids is wrong")
    if num_states is None and columns % state == 0:
        num_states = columns // state
    if num_states is None or num_states * state != columns:
        need = f"a multiple of {state}" if num_states is None else f"{num_states} x {state} = {num_states * state}"
        need += f" (fc_norm.0.weight {list(source.shapes['fc_norm.0.weight'])})" if norms else ""
        source.problem(f"fc.weight {list(fc)} does not fuse whole states: its {columns} columns must be num_states * "
                       f"target_hidden_size, {need}")
    return {"num_states": num_states or 1, "target_hidden_size": state}


def _vocabulary(source: Source) -> dict[str, int]:
    vocab = source.settled("embed_tokens.weight", "vocab_size") if "embed_tokens.weight" in source.shapes else \
        source.settled("t2d", "vocab_size")
    said = source.integer("draft_vocab_size")
    if vocab is None:
        source.problem("config.json: vocab_size is missing")
        return {}
    if said is not None and said > vocab:
        source.problem(f"config.json: draft_vocab_size is {said}, but vocab_size is {vocab}")
    return {"vocab_size": vocab, "draft_vocab_size": source.settled("lm_head.weight", "draft_vocab_size", vocab)}


def _switches(source: Source, norm_before_residual: bool | None) -> dict[str, Any]:
    shapes = source.shapes
    fused = source.flag("use_aux_hidden_state", True)
    said_whole, said_each = source.flag("norm_before_fc"), source.flag("fc_norm") or source.flag("use_aux_norm")
    has_whole, has_each = "input_norm.weight" in shapes, any(name.startswith("fc_norm.") for name in shapes)
    if (said_whole or has_whole) and (said_each or has_each):
        source.problem("norm_before_fc (input_norm.weight) and fc_norm (fc_norm.j.weight) exclude each other; the file "
                       "has both")
    for key, said, has in (("norm_before_fc", said_whole, has_whole), ("fc_norm", said_each, has_each)):
        if has and not said and source.said(key) is not None:
            source.note(f"config.json: {key} is False, but the file holds its weights: took them")
    own_embedding, own_head = "embed_tokens.weight" in shapes, "lm_head.weight" in shapes
    tied = source.flag("tie_word_embeddings") if source.raw.get("speculators_config") is None else False
    reduced = source.said("draft_vocab_size") not in (None, source.said("vocab_size"))
    if tied and own_head:
        source.note("config.json: tie_word_embeddings is True, but the file holds lm_head.weight: took that")
    elif tied and reduced:
        source.problem("missing: lm_head.weight; tie_word_embeddings cannot stand in for it, because the draft "
                       "vocabulary is smaller than the embedding's")
    return {
        "feature_norm": "per_state" if said_each or has_each else "whole" if said_whole or has_whole else "none",
        "fc_bias": "fc.bias" in shapes,
        # Only drafters without fc are published without hidden_norm; with fc a missing one is a damaged file.
        "has_hidden_norm": fused or "layers.0.hidden_norm.weight" in shapes,
        "has_final_norm": "norm.weight" in shapes or source.flag("use_last_layernorm", True),
        "norm_before_residual": _residual(source, norm_before_residual),
        "norm_output": source.flag("norm_output") or source.flag("return_hidden_post_norm"),
        "eps": _eps(source),
        "own_embedding": own_embedding,
        "own_head": own_head or (reduced and not tied),
        "tied_head": tied and own_embedding and not own_head and not reduced,
        "max_position_embeddings": source.integer("max_position_embeddings") or 2048,
        "logit_scale": source.number("logit_scale", 1.0),
    }


def _eps(source: Source) -> float:
    eps = source.number("rms_norm_eps", 1e-6)
    if source.said("rms_norm_eps") is None:
        source.note(f"config.json: rms_norm_eps is missing: took {eps:g}, transformers' default for llama")
    return eps


def _residual(source: Source, chosen: bool | None) -> bool:
    said = source.said("norm_before_residual")
    if chosen is not None:
        if said is not None and said != chosen:
            source.note(f"config.json: norm_before_residual is {said}; {chosen} was asked for instead")
        return chosen
    if said is None and source.raw.get("speculators_config") is not None:
        source.problem("config.json: norm_before_residual is missing; speculators' default is False, vLLM reads such "
                       "a file as True. Pass norm_before_residual= to load_checkpoint")
    return source.flag("norm_before_residual")


def unify_pre_norms(stored: dict[str, Any], source: Source) -> None:
    """Names the pre-norm of plain layers past the first input_layernorm; some trainers call it hidden_norm.

    Layers that join the embedding again have both, for embedding and hidden, and stay as they are.
    """
    h = source.stored("layers.0.input_layernorm.weight") or source.integer("hidden_size") or 0
    for name in list(stored):
        layer = re.fullmatch(r"layers\.([1-9]\d*)\.hidden_norm\.weight", name)
        if layer is None or joins_embedding(source, int(layer[1]), h):
            continue
        usual = f"layers.{layer[1]}.input_layernorm.weight"
        if usual in stored:
            source.problem(f"{name} and {usual} are both in the file; a plain layer has one pre-norm, and engines "
                           "disagree which")
            continue
        stored[usual] = stored.pop(name)
        source.note(f"{name} is that layer's pre-norm, called input_layernorm elsewhere")

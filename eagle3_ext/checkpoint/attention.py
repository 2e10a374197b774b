"""Attention's shape from the stored projections: published head counts and head sizes are wrong too often."""

from __future__ import annotations

from typing import Any

from .config import Mla
from .source import Source

ATTENTION = "layers.0.self_attn."


def is_latent(source: Source) -> bool:
    """Whether the file stores DeepSeek's latent attention."""
    return f"{ATTENTION}kv_a_proj_with_mqa.weight" in source.shapes


def joins_embedding(source: Source, i: int, h: int) -> bool:
    """Whether layer i's attention reads [embedding | hidden], 2h wide: told by its first projection."""
    projection = "kv_a_proj_with_mqa" if is_latent(source) else "q_proj"
    return i == 0 or source.stored(f"layers.{i}.self_attn.{projection}.weight", 1) == 2 * h


def read_attention(source: Source, h: int) -> dict[str, Any]:
    """Head counts and sizes, q/k norm and biases; `problems` where the shapes do not add up."""
    heads = source.integer("num_attention_heads")
    if heads is None:
        source.problem("config.json: num_attention_heads is missing; shapes alone do not tell heads from head_dim")
        return {}
    sizes = _latent_sizes(source, heads) if is_latent(source) else _grouped_sizes(source, heads, h)
    biased = [name.removeprefix(ATTENTION) for name in source.shapes if name.startswith(ATTENTION)
              and name.endswith(".bias")]
    flags = {"qkv_bias": any(name != "o_proj.bias" for name in biased), "o_bias": "o_proj.bias" in biased,
             "mlp_bias": any(name.startswith("layers.0.mlp.") and name.endswith(".bias") for name in source.shapes)}
    for key, stored in (("attention_bias", bool(biased)), ("mlp_bias", flags["mlp_bias"])):
        if source.said(key) is not None and source.flag(key) != stored:
            source.note(f"config.json: {key} is {source.flag(key)}, but the file holds {'' if stored else 'no '}such "
                        f"biases: took {stored}")
    return sizes | flags


def _grouped_sizes(source: Source, heads: int, h: int) -> dict[str, Any]:
    q_rows, k_rows = source.stored(f"{ATTENTION}q_proj.weight"), source.stored(f"{ATTENTION}k_proj.weight")
    normed = source.stored(f"{ATTENTION}q_norm.weight")
    said = source.integer("head_dim")
    head_dim = normed or said or (h // heads if h % heads == 0 else None)
    if q_rows is not None and normed and q_rows % normed == 0 and q_rows != heads * normed:
        source.note(f"config.json: num_attention_heads is {heads}, but q_proj.weight has {q_rows} rows and q_norm"
                    f".weight {normed}: took {q_rows // normed}")
        heads = q_rows // normed
    elif q_rows is not None and q_rows != heads * (head_dim or 0):
        if q_rows % heads:
            source.problem(f"head_dim cannot be told: q_proj.weight has {q_rows} rows, no multiple of "
                           f"num_attention_heads {heads}")
            return {}
        head_dim = q_rows // heads
    if head_dim is None:
        source.problem(f"head_dim cannot be told: config.json has none and hidden_size {h} is no multiple of "
                       f"num_attention_heads {heads}")
        return {}
    if said is not None and said != head_dim:
        source.note(f"config.json: head_dim is {said}, but q_proj.weight has {q_rows} rows for {heads} heads: took "
                    f"{head_dim}")
    said_kv = source.integer("num_key_value_heads")
    kv_heads = said_kv or heads
    if k_rows is not None and k_rows != kv_heads * head_dim and k_rows % head_dim == 0:
        source.note(f"config.json: num_key_value_heads is {said_kv or 'missing'}, but k_proj.weight has {k_rows} rows "
                    f"for heads of {head_dim}: took {k_rows // head_dim}")
        kv_heads = k_rows // head_dim
    return {"num_q_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim,
            "qk_norm": any(f"{ATTENTION}{x}_norm.weight" in source.shapes for x in "qk")}


def _latent_sizes(source: Source, heads: int) -> dict[str, Any]:
    kv_lora = source.settled(f"{ATTENTION}kv_a_layernorm.weight", "kv_lora_rank")
    joint = source.stored(f"{ATTENTION}kv_a_proj_with_mqa.weight")
    first = "q_b_proj" if f"{ATTENTION}q_b_proj.weight" in source.shapes else "q_proj"
    q_rows, o_columns = source.stored(f"{ATTENTION}{first}.weight"), source.stored(f"{ATTENTION}o_proj.weight", 1)
    if None in (kv_lora, joint, q_rows, o_columns) or q_rows % heads or o_columns % heads or joint <= kv_lora:
        source.problem(f"latent attention does not add up for {heads} heads: {first}.weight has {q_rows} rows, "
                       f"o_proj.weight {o_columns} columns, kv_a_proj_with_mqa.weight {joint} rows, latent {kv_lora}")
        return {}
    rope = joint - kv_lora
    nope, v = q_rows // heads - rope, o_columns // heads
    q_lora = source.settled(f"{ATTENTION}q_a_layernorm.weight", "q_lora_rank") if first == "q_b_proj" else None
    for key, stored in (("qk_rope_head_dim", rope), ("qk_nope_head_dim", nope), ("v_head_dim", v)):
        said = source.integer(key)
        if said is not None and said != stored:
            source.note(f"config.json: {key} is {said}, but the projections have {stored}: took {stored}")
    if nope < 1:
        source.problem(f"{first}.weight has {q_rows} rows for {heads} heads, too few for {rope} rotated dims each")
        return {}
    return {"num_q_heads": heads, "num_kv_heads": heads, "head_dim": nope + rope, "mla": Mla(
        q_lora_rank=q_lora, kv_lora_rank=kv_lora, nope_head_dim=nope, rope_head_dim=rope, v_head_dim=v)}

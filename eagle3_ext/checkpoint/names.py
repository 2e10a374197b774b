"""What the trainers call the drafter's tensors, and what they are called here."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Applied in this order, each at most once.
_ALIASES = (
    (re.compile(r"^model\."), ""),
    (re.compile(r"^midlayer\.(?=\d+\.)"), "layers."),
    (re.compile(r"^midlayer\."), "layers.0."),
    (re.compile(r"^fc\.linear\."), "fc."),
    (re.compile(r"^aux_norm_low\."), "fc_norm.0."),
    (re.compile(r"^aux_norm_mid\."), "fc_norm.1."),
    (re.compile(r"^aux_norm_high\."), "fc_norm.2."),
    (re.compile(r"^draft_id_to_target_id$"), "d2t"),
)
# Stored by some trainers, of no use to a drafter: the target's own norm and head, and RoPE frequencies (recomputed).
_SKIPPED = re.compile(r"^verifier_(norm|lm_head)\.|rotary_emb\.inv_freq$")

# Tensors of drafters that are no EAGLE-3 drafters, or of forms that are not computed here, and what they give away.
_FOREIGN = (
    (r"^mask_hidden$", "P-EAGLE: it drafts all tokens in one pass from masked slots"),
    (r"^efficient_lm_head", "EAGLE-4: a low-rank head picks the candidates"),
    (r"eh_proj\.|\.attn_norm\.|pre_attention_layernorm\.|enorm\.", "EAGLE-4 or MTP: embedding and hidden are projected "
                                                                   "before attention"),
    (r"\.mlp\.(experts|shared_experts?|gate)\.|block_sparse_moe", "a mixture-of-experts MLP"),
    (r"(weight_scale|input_scale|_scale_inv|qweight|qzeros|weight_packed|weight_shape|\.scales)$", "quantised weights"),
    (r"^(context_proj|context_norm)\.|^(markov_head|confidence_head|selector)\.", "DFlash or DSpark"),
    (r"^parallel_draft_heads\.|^medusa", "parallel draft heads"),
    (r"lora_[AB]\.", "a PEFT adapter: merge it into the weights first"),
    (r"\.(qkv_proj|gate_up_proj|fused_qkv_a_proj_with_mqa)\.", "a fused projection, whose order of rows the file does "
                                                               "not state: store its parts"),
)
_FOREIGN_PATTERNS = tuple((re.compile(pattern), meaning) for pattern, meaning in _FOREIGN)


def canonical_name(name: str) -> str:
    """`midlayer.hidden_norm.weight` -> `layers.0.hidden_norm.weight`, and so on; other names pass unchanged."""
    for pattern, replacement in _ALIASES:
        name = pattern.sub(replacement, name, count=1)
    return name


def is_skipped(canonical: str) -> bool:
    """Whether a tensor is known and no part of the drafter."""
    return bool(_SKIPPED.search(canonical))


def foreign_tensors(names: Iterable[str]) -> list[str]:
    """One problem for each kind of drafter or weight that is refused, naming the first tensor that gives it away."""
    found: dict[str, str] = {}
    for name in names:
        for pattern, meaning in _FOREIGN_PATTERNS:
            if pattern.search(name):
                found.setdefault(meaning, name)
    return [f"unsupported: {name} belongs to {meaning}" for meaning, name in found.items()]

"""From a raw `config.json` and the stored shapes to a `DrafterConfig`.

A config file is only believed where no tensor says otherwise: widths, head counts and vocabulary sizes come from the
stored shapes, and which norms exist comes from the stored names (published configs are wrong about each of these).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .config import ATTENTION, MLP, DrafterConfig, Shape

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLMEagle3",)
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


class ConfigReader:
    """Reads a raw `config.json` next to the stored shapes; collects `problems` (fatal) and `notes` (told, harmless)."""

    def __init__(self, raw: Mapping[str, Any], shapes: Mapping[str, Shape]) -> None:
        self.raw, self.shapes = raw, shapes
        nested = raw.get("eagle_config")
        self.eagle: Mapping[str, Any] = nested if isinstance(nested, Mapping) else {}
        self.problems: list[str] = []
        self.notes: list[str] = []

    def read(self) -> DrafterConfig | None:
        """The config, or None when `problems` says why there is none."""
        self._refuse_unsupported()
        if self.problems:
            return None
        sizes = self._attention_sizes() | self._feature_sizes() | self._vocab_sizes()
        if self.problems:
            return None
        sizes["intermediate_size"] = self._rows(f"{MLP}gate_proj.weight", "intermediate_size")
        try:
            return DrafterConfig(**sizes, **self._switches())
        except (TypeError, ValueError) as error:
            self.problems.append(f"config.json: {error}")
            return None

    def _refuse_unsupported(self) -> None:
        architectures = tuple(self.raw.get("architectures") or ())
        if len(architectures) != 1 or architectures[0] not in SUPPORTED_ARCHITECTURES:
            self.problems.append(f"architectures is {list(architectures)}; supported: "
                                 f"{', '.join(SUPPORTED_ARCHITECTURES)}")
        rope = self.raw.get("rope_parameters") or self.raw.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        windowed = self.raw.get("sliding_window") is not None and self.raw.get("use_sliding_window", True)
        rotary = rope.get("partial_rotary_factor", self.raw.get("partial_rotary_factor", 1.0))
        refused = {
            "hidden_act": (self.raw.get("hidden_act", "silu"), "silu"),
            "rope_scaling type": (kind, "default"),
            "partial_rotary_factor": (rotary, 1.0),
            "sliding_window": (self.raw.get("sliding_window") if windowed else None, None),
            "quantization_config": (self.raw.get("quantization_config"), None),
        }
        for key, (value, supported) in refused.items():
            if value not in (supported, None):
                self.problems.append(f"config.json: {key} is {value!r}; supported: {supported!r}")

    def _rows(self, name: str, key: str, default: Any = None) -> Any:
        """Rows of a stored tensor, else the config's value; a difference between the two is noted."""
        said = self.raw.get(key, default)
        if name not in self.shapes:
            return said
        stored = self.shapes[name][0]
        if said is not None and said != stored:
            self.notes.append(f"config.json: {key} is {said}, but {name} is {list(self.shapes[name])}: took {stored}")
        return stored

    def _attention_sizes(self) -> dict[str, int]:
        h = self._rows("layers.0.input_layernorm.weight", "hidden_size")
        heads = self.raw.get("num_attention_heads")
        if not isinstance(h, int) or not isinstance(heads, int) or heads < 1:
            self.problems.append(f"config.json: hidden_size is {h!r} and num_attention_heads is {heads!r}; "
                                 "both must be positive integers")
            return {}
        head_dim = self.raw.get("head_dim") or h // heads
        q_rows = self.shapes.get(f"{ATTENTION}q_proj.weight", (heads * head_dim,))[0]
        if q_rows != heads * head_dim:
            if q_rows % heads:
                self.problems.append(f"q_proj.weight has {q_rows} rows, no multiple of num_attention_heads {heads}")
                return {}
            self.notes.append(f"config.json: head_dim is {head_dim}, but q_proj.weight has {q_rows} rows for {heads} "
                              f"heads: took {q_rows // heads}")
            head_dim = q_rows // heads
        kv_heads = self.raw.get("num_key_value_heads") or heads
        k_rows = self.shapes.get(f"{ATTENTION}k_proj.weight", (kv_heads * head_dim,))[0]
        if k_rows != kv_heads * head_dim and k_rows % head_dim == 0:
            self.notes.append(f"config.json: num_key_value_heads is {kv_heads}, but k_proj.weight has {k_rows} rows of "
                              f"{head_dim}: took {k_rows // head_dim}")
            kv_heads = k_rows // head_dim
        return {"hidden_size": h, "num_q_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim}

    def _feature_sizes(self) -> dict[str, Any]:
        """K and H from fc's columns; without fc the features are one state as wide as the drafter."""
        h = self.shapes.get("layers.0.input_layernorm.weight", (self.raw.get("hidden_size"),))[0]
        if self.eagle.get("use_aux_hidden_state", True) is False:
            return {"fusion": "none", "num_states": 1, "target_hidden_size": h}
        ids = self._layer_ids()
        norms = sum(name.startswith("fc_norm.") for name in self.shapes)
        num_states = len(ids) if ids else self.raw.get("num_aux_hidden_states") or norms or None
        state = self.shapes.get("fc_norm.0.weight", (None,))[0] or self.raw.get("target_hidden_size")
        fc = self.shapes.get("fc.weight", ())
        if len(fc) != 2:  # missing or misshapen: reported by name once the other sizes are known
            return {"num_states": num_states or 3, "target_hidden_size": state or h}
        columns = fc[1]
        if state is None:
            state = columns // num_states if num_states and columns % num_states == 0 else h
        if num_states is None and state and columns % state == 0:
            num_states = columns // state
        if num_states is None or num_states * state != columns:
            count = "?" if num_states is None else num_states
            self.problems.append(f"fc.weight {list(fc)} does not fuse {count} states of width {state}: its columns "
                                 "must be num_states * target_hidden_size")
        return {"num_states": num_states, "target_hidden_size": state}

    def _layer_ids(self) -> list[int] | None:
        ids = self.eagle.get(LAYER_IDS, self.raw.get(LAYER_IDS))
        if ids is None:
            return None
        indices = isinstance(ids, list) and ids and all(type(i) is int and i >= -1 for i in ids)
        if not indices or len(set(ids)) < len(ids):
            self.problems.append(f"config.json: {LAYER_IDS} is {ids!r}; expected distinct layer indices")
            return None
        return ids

    def _vocab_sizes(self) -> dict[str, int]:
        vocab = self._rows("t2d", "vocab_size")
        vocab = self.shapes["embed_tokens.weight"][0] if "embed_tokens.weight" in self.shapes else vocab
        draft = self._rows("lm_head.weight", "draft_vocab_size", vocab) or vocab
        if not isinstance(vocab, int) or not isinstance(draft, int):
            self.problems.append(f"config.json: vocab_size is {vocab!r} and draft_vocab_size is {draft!r}; "
                                 "both must be positive integers")
        return {"vocab_size": vocab, "draft_vocab_size": draft}

    def _switches(self) -> dict[str, Any]:
        raw, eagle, shapes = self.raw, self.eagle, self.shapes
        fused = eagle.get("use_aux_hidden_state", True) is not False
        whole = "input_norm.weight" in shapes or bool(raw.get("norm_before_fc", eagle.get("norm_before_fc")))
        per_state = any(name.startswith("fc_norm.") for name in shapes) or bool(raw.get("fc_norm"))
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        ids = self._layer_ids() if fused else None
        if ids and ids != sorted(ids):
            self.notes.append(f"config.json lists layer ids {ids}; states are captured in ascending order")
        return {
            "feature_norm": "per_state" if per_state else "whole" if whole else "none",
            "fc_bias": "fc.bias" in shapes,
            # Only drafters without fc are published without hidden_norm; with fc a missing one is a damaged file.
            "has_hidden_norm": fused or "layers.0.hidden_norm.weight" in shapes,
            "has_final_norm": "norm.weight" in shapes or eagle.get("use_last_layernorm", True) is not False,
            "norm_before_residual": bool(raw.get("norm_before_residual", False)),
            "norm_output": bool(raw.get("norm_output", eagle.get("return_hidden_post_norm", False))),
            "eps": float(raw.get("rms_norm_eps", 1e-6)),
            "rope_theta": float(raw.get("rope_theta", rope.get("rope_theta", 10000.0))),
            # Ids name layer outputs in this family, and the output of layer i is boundary i + 1.
            "boundaries": tuple(sorted(i + 1 for i in ids)) if ids else None,
            "own_embedding": "embed_tokens.weight" in shapes,
            "own_head": "lm_head.weight" in shapes or raw.get("draft_vocab_size") not in (None, raw.get("vocab_size")),
            "max_position_embeddings": int(raw.get("max_position_embeddings", 2048)),
            "logit_scale": float(raw.get("logit_scale", 1.0)),
        }

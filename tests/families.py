"""Writers of tiny drafter checkpoints in each training stack's own format: its config keys, tensor names and files.

A `Format` turns any `DrafterConfig` it can carry and canonical weights into the files that stack would write. Loading
them must give the same config and the same bits back. Run as a script, it rewrites the table of docs/drafters.md.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from eagle3_ext.checkpoint import DrafterConfig, Layer, Mla, expected_shapes
from eagle3_ext.native_form import not_native
from eagle3_ext.rope import Rope

LAYERS = 12  # of the imagined target; its published default is (2, 6, 9)
BASE: dict[str, Any] = {
    "hidden_size": 16, "target_hidden_size": 16, "intermediate_size": 24, "num_q_heads": 4, "num_kv_heads": 2,
    "head_dim": 8, "vocab_size": 40, "draft_vocab_size": 12, "eps": 1e-5, "rope_theta": 5000.0,
    "boundaries": (2, 5, 9), "max_position_embeddings": 2048,
}
LATENT: dict[str, Any] = {
    "mla": Mla(q_lora_rank=12, kv_lora_rank=10, nope_head_dim=6, rope_head_dim=4, v_head_dim=5),
    "num_kv_heads": 4, "head_dim": 10, "rope": Rope(interleaved=True),
}

# Every axis of DrafterConfig's space, one or two at a time. The names are the columns of the support matrix.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "K = 5": {"num_states": 5, "boundaries": (1, 3, 5, 7, 9)},
    "H != h": {"target_hidden_size": 20, "own_embedding": True},
    "input_norm": {"feature_norm": "whole"},
    "fc_norm, norm_output": {"feature_norm": "per_state", "norm_output": True},
    "no fc": {"fusion": "none", "num_states": 1, "boundaries": None, "has_hidden_norm": False},
    "norm_before_residual": {"norm_before_residual": True},
    "no final norm": {"has_final_norm": False},
    "fc bias": {"fc_bias": True},
    "attention bias": {"qkv_bias": True, "o_bias": True},
    "MLP bias": {"mlp_bias": True},
    "q/k norm": {"qk_norm": True},
    "two layers": {"layers": (Layer(), Layer(joins_embedding=False))},
    "next_layer_regular false": {"layers": (Layer(), Layer())},
    "sliding window": {"layers": (Layer(window=5), Layer(joins_embedding=False))},
    "own embedding": {"own_embedding": True},
    "tied head": {"own_embedding": True, "own_head": False, "tied_head": True, "draft_vocab_size": 40},
    "target's head": {"own_head": False, "draft_vocab_size": 40},
    "full vocabulary": {"draft_vocab_size": 40},
    "logit_scale": {"logit_scale": 0.5},
    "no layer ids": {"boundaries": None},
    "rope linear": {"rope": Rope(kind="linear", factor=4.0)},
    "rope dynamic": {"rope": Rope(kind="dynamic", factor=4.0, original_length=2048)},
    "rope llama3": {"rope": Rope(kind="llama3", factor=8.0, high_freq_factor=4.0, original_length=64)},
    "rope yarn": {"rope": Rope(kind="yarn", factor=32.0, original_length=2048,
                               attention_factor=1.3465735902799727)},
    "rope mrope": {"rope": Rope(mrope=True)},
    "rope partial": {"rope": Rope(rotary_dim=4)},
    "rope interleaved": {"rope": Rope(interleaved=True)},
    "NoPE": {"rope": Rope(kind="none")},
    "latent attention": LATENT,
    "latent, no q_lora": LATENT | {"mla": dataclasses.replace(LATENT["mla"], q_lora_rank=None)},
    "latent, yarn": LATENT | {
        "mla": dataclasses.replace(LATENT["mla"], mscale=0.1 * 0.7 * math.log(64) + 1),
        "rope": Rope(kind="yarn", factor=64.0, original_length=4096, interleaved=True,
                     attention_factor=(0.1 * math.log(64) + 1) / (0.1 * 0.7 * math.log(64) + 1)),
    },
}
_NEEDS_EAGLE_CONFIG = ("no fc", "no final norm", "next_layer_regular false")
_NO_TARGET_HEAD = ("target's head", "tied head")


def variant(name: str) -> DrafterConfig:
    return DrafterConfig(**BASE | VARIANTS[name])


def make_weights(config: DrafterConfig, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """Canonical weights under which every part of the forward matters."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in expected_shapes(config).items():
        if name == "target_ids":
            weights[name] = torch.randperm(config.vocab_size, generator=generator)[: shape[0]].sort().values
        elif len(shape) == 1:
            weights[name] = (0.3 * torch.randn(shape, generator=generator) + ("norm" in name)).to(dtype)
        else:
            weights[name] = (torch.randn(shape, generator=generator) * shape[1] ** -0.5).to(dtype)
    return weights


# ---- config.json


def llama_keys(config: DrafterConfig) -> dict[str, Any]:
    """The keys every stack shares with transformers' configs."""
    rope, mla = config.rope, config.mla
    keys: dict[str, Any] = {
        "hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size, "hidden_act": "silu",
        "num_attention_heads": config.num_q_heads, "num_key_value_heads": config.num_kv_heads,
        "num_hidden_layers": len(config.layers), "vocab_size": config.vocab_size, "rms_norm_eps": config.eps,
        "max_position_embeddings": config.max_position_embeddings, "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias, "model_type": "qwen3" if config.qk_norm else "llama",
        "tie_word_embeddings": config.tied_head, "rope_theta": config.rope_theta, "rope_scaling": rope_scaling(config),
    }
    if mla is None:
        keys["head_dim"] = config.head_dim
    else:
        keys |= {"q_lora_rank": mla.q_lora_rank, "kv_lora_rank": mla.kv_lora_rank, "model_type": "kimi_k2",
                 "qk_nope_head_dim": mla.nope_head_dim, "qk_rope_head_dim": mla.rope_head_dim,
                 "v_head_dim": mla.v_head_dim, "n_routed_experts": 384, "norm_topk_prob": True}
    if any(layer.window for layer in config.layers):
        keys |= {"sliding_window": next(layer.window for layer in config.layers if layer.window),
                 "layer_types": ["sliding_attention" if layer.window else "full_attention" for layer in config.layers]}
    if rope.rotary_dim is not None:
        keys["partial_rotary_factor"] = rope.rotary_dim / config.head_dim
    if rope.interleaved and mla is None:
        keys["rope_interleave"] = True
    if rope.kind == "none":
        keys["use_rope"] = False
    if config.target_hidden_size != config.hidden_size:
        keys["target_hidden_size"] = config.target_hidden_size
    if config.logit_scale != 1.0:
        keys["logit_scale"] = config.logit_scale
    return keys


def rope_scaling(config: DrafterConfig) -> dict[str, Any] | None:
    """The older spelling, with `type` where the form is older than `rope_type`."""
    rope = config.rope
    if rope.mrope:
        return {"type": "mrope", "mrope_section": [1, 1, 2]}
    if rope.kind in ("default", "none"):
        return None
    keys: dict[str, Any] = {"type" if rope.kind in ("linear", "dynamic") else "rope_type": rope.kind}
    keys["factor"] = rope.factor
    if rope.kind == "llama3":
        keys |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn" and config.mla is not None:
        keys |= {"mscale": 1.0, "mscale_all_dim": 0.7, "beta_fast": 32.0, "beta_slow": 1.0}
    if rope.kind in ("llama3", "yarn"):
        keys["original_max_position_embeddings"] = rope.original_length
    return keys


def norm_keys(config: DrafterConfig) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    if config.feature_norm == "whole":
        keys["norm_before_fc"] = True
    if config.feature_norm == "per_state":
        keys["fc_norm"] = True
    if config.norm_output:
        keys["norm_output"] = True
    if config.norm_before_residual:
        keys["norm_before_residual"] = True
    if config.fc_bias:
        keys["bias"] = True
    return keys


def eagle_config(config: DrafterConfig, plus: int = -1) -> dict[str, Any]:
    """`eagle_config`, with layer ids that are boundaries + `plus`; outputs by default."""
    keys: dict[str, Any] = {"use_aux_hidden_state": config.fusion == "fc"}
    if config.boundaries is not None:
        keys["eagle_aux_hidden_state_layer_ids"] = [boundary + plus for boundary in config.boundaries]
    if not config.has_final_norm:
        keys["use_last_layernorm"] = False
    if len(config.layers) > 1:
        keys["next_layer_regular"] = not config.layers[1].joins_embedding
    return keys


def hf_config(config: DrafterConfig, architecture: str, plus: int = -1, **more: Any) -> dict[str, Any]:
    keys = llama_keys(config) | norm_keys(config) | {"architectures": [architecture]}
    keys |= {"draft_vocab_size": config.draft_vocab_size, "eagle_config": eagle_config(config, plus)}
    return keys | {"torch_dtype": "bfloat16"} | more


def speculators_config(config: DrafterConfig, architecture: str = "Eagle3DraftModel") -> dict[str, Any]:
    """Nested as pydantic dumps it; transformers 5 spells RoPE rope_parameters, with theta inside."""
    inner = llama_keys(config)
    theta, scaling = inner.pop("rope_theta"), inner.pop("rope_scaling") or {"rope_type": "default"}
    inner["rope_parameters"] = scaling | {"rope_theta": theta}
    if "partial_rotary_factor" in inner:
        inner["rope_parameters"]["partial_rotary_factor"] = inner.pop("partial_rotary_factor")
    inner["tie_word_embeddings"] = False
    outer = {key: inner.pop(key) for key in ("target_hidden_size", "logit_scale") if key in inner}
    norms = norm_keys(config)
    norms.pop("bias", None)
    return norms | outer | {
        "architectures": [architecture], "speculators_model_type": "eagle3", "speculators_version": "0.9.0",
        "transformer_layer_config": inner, "draft_vocab_size": config.draft_vocab_size, "dtype": "bfloat16",
        "norm_before_residual": config.norm_before_residual, "tie_word_embeddings": False,
        "eagle_aux_hidden_state_layer_ids": None if config.boundaries is None else list(config.boundaries),
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1,
                                  "accept_tolerance": 0.0}],
            "verifier": {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]},
        },
    }


# ---- tensor names


def midlayer(name: str) -> str:
    return name.replace("layers.0.", "midlayer.", 1)


def megatron(name: str) -> str:
    """midlayer.{i}., and the pre-norm of later layers is called hidden_norm."""
    name = name.replace("layers.", "midlayer.", 1) if name.startswith("layers.") else name
    later = name.startswith("midlayer.") and not name.startswith("midlayer.0.")
    return name.replace("input_layernorm", "hidden_norm") if later else name


def deepspec(name: str) -> str:
    """One file with both prefixes: the norms of the drafter's own under layers., the rest under model.layers."""
    return f"model.{name}" if name.startswith("layers.") and "hidden_norm" not in name else name


def specforge_norms(name: str) -> str:
    for j, place in enumerate(("low", "mid", "high")):
        name = name.replace(f"fc_norm.{j}.", f"aux_norm_{place}.")
    return midlayer(name)


# ---- formats


@dataclass(frozen=True)
class Format:
    """How one stack writes its checkpoints.

    Attributes:
        family: what the loader must recognise.
        config_json: its config for a canonical one.
        rename: its name for a canonical tensor.
        tables: which of d2t and t2d it stores for a reduced vocabulary; "always" both, filled in for a full one too.
        file: its file name; ".bin" is torch.save.
        writes: variants that the stack itself produces; the others of `carries` load all the same.
        drops_layer_ids: its config has no place for them.
        lacks: variants the format has no way to say.
        latent: stores latent attention, and nothing else.
    """

    family: str
    config_json: Callable[[DrafterConfig], dict[str, Any]]
    rename: Callable[[str], str]
    tables: str = "d2t t2d"
    file: str = "model.safetensors"
    writes: tuple[str, ...] = ()
    drops_layer_ids: bool = False
    lacks: tuple[str, ...] = ()
    latent: bool = False

    def carries(self, name: str) -> bool:
        return name not in self.lacks and self.latent == (variant(name).mla is not None)

    def truth(self, name: str) -> DrafterConfig:
        """What loading the variant must give."""
        config = variant(name)
        return dataclasses.replace(config, boundaries=None) if self.drops_layer_ids else config


def _kimi_for_vllm(config: DrafterConfig) -> dict[str, Any]:
    return hf_config(config, "Eagle3DeepseekV2ForCausalLM", plus=0, _torchspec_version="0.2.0")


def _megatron_config(config: DrafterConfig) -> dict[str, Any]:
    """Ids come out of a set: [1, 8, 4] rather than [1, 4, 8]."""
    raw = hf_config(config, "LlamaForCausalLMEagle3Deep")
    ids = raw["eagle_config"].get("eagle_aux_hidden_state_layer_ids")
    if ids:
        raw["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = ids[:1] + ids[:0:-1]
    return raw


def _safeailab_config(config: DrafterConfig) -> dict[str, Any]:
    raw = hf_config(config, "LlamaForCausalLMEagle3")
    del raw["eagle_config"]
    return raw


_EAGLE31 = ("plain", "no layer ids", "fc_norm, norm_output")
FORMATS: dict[str, Format] = {
    "SafeAILab": Format("SafeAILab", _safeailab_config, midlayer, file="pytorch_model.bin", drops_layer_ids=True,
                        lacks=(*_NEEDS_EAGLE_CONFIG, "K = 5"), writes=("plain", "H != h", "full vocabulary")),
    "SpecForge": Format("SpecForge or TorchSpec", lambda c: hf_config(c, "LlamaForCausalLMEagle3"), specforge_norms,
                        tables="always", lacks=("no layer ids",),
                        writes=("plain", "fc_norm, norm_output", "own embedding", "full vocabulary", "rope linear",
                                "rope dynamic", "rope llama3", "rope yarn", "rope mrope")),
    "speculators": Format("speculators", speculators_config, lambda name: name,
                          lacks=(*_NEEDS_EAGLE_CONFIG, "tied head"),
                          writes=("plain", "K = 5", "input_norm", "fc_norm, norm_output", "norm_before_residual",
                                  "attention bias", "MLP bias", "q/k norm", "two layers", "sliding window",
                                  "own embedding", "full vocabulary", "rope llama3", "rope yarn", "rope partial",
                                  "no layer ids")),
    "speculators converted": Format("speculators converted, or before 0.3",
                                    lambda c: speculators_config(c, "Eagle3Speculator"), lambda name: name,
                                    lacks=(*_NEEDS_EAGLE_CONFIG, "tied head"),
                                    writes=("no layer ids", "norm_before_residual", "fc_norm, norm_output")),
    "ModelOpt": Format("ModelOpt", lambda c: hf_config(c, "LlamaForCausalLMEagle3"), lambda name: name, tables="d2t",
                       writes=("plain", "no fc", "no layer ids", "two layers", "next_layer_regular false", "rope yarn",
                               "full vocabulary", "target's head", "no final norm", "input_norm")),
    "ModelOpt Megatron": Format("ModelOpt Megatron", _megatron_config, megatron, tables="d2t",
                                lacks=("no fc", "next_layer_regular false"),
                                writes=("plain", "fc bias", "two layers", "full vocabulary")),
    "AngelSlim": Format("AngelSlim", lambda c: hf_config(c, "Eagle3LlamaForCausalLM"), midlayer,
                        writes=("plain", "no layer ids")),
    "TorchSpec": Format("TorchSpec", lambda c: hf_config(c, "LlamaForCausalLMEagle3", _torchspec_version="0.2.0"),
                        midlayer, writes=(*_EAGLE31, "full vocabulary", "rope yarn", "K = 5")),
    "NeMo Automodel": Format("NeMo Automodel", lambda c: hf_config(c, "LlamaForCausalLMEagle3"),
                             lambda name: name if name in ("d2t", "t2d") else f"model.{name}", tables="d2t",
                             writes=_EAGLE31),
    "DeepSpec": Format("DeepSpec", lambda c: hf_config(c, "LlamaForCausalLMEagle3"), deepspec, lacks=("no fc",),
                       writes=("plain", "q/k norm")),
    "ModelOpt MLA": Format("ModelOpt MLA or TorchSpec for vLLM",
                           lambda c: hf_config(c, "Eagle3DeepseekV2ForCausalLM"), lambda name: name, tables="d2t",
                           latent=True, writes=("latent attention", "latent, no q_lora", "latent, yarn")),
    "TorchSpec MLA": Format("TorchSpec", lambda c: hf_config(c, "Eagle3DeepseekV2ForCausalLM"), midlayer, latent=True,
                            writes=("latent attention", "latent, yarn")),
    "TorchSpec MLA for vLLM": Format("TorchSpec", _kimi_for_vllm, lambda name: name, latent=True,
                                     writes=("latent attention", "latent, yarn")),
}
CELLS = [(family, name) for family, form in FORMATS.items() for name in VARIANTS if form.carries(name)]


def write(folder: Path, form: Format, config: DrafterConfig, weights: dict[str, torch.Tensor]) -> Path:
    """The checkpoint as the stack writes it; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {form.rename(name): weight.clone() for name, weight in weights.items() if name != "target_ids"}
    ids = weights.get("target_ids")
    if ids is None and form.tables == "always":
        ids = torch.arange(config.draft_vocab_size)
    if ids is not None:
        tensors["d2t"] = ids - torch.arange(config.draft_vocab_size)
        if form.tables != "d2t":
            tensors["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
    (folder / "config.json").write_text(json.dumps(form.config_json(config), indent=1))
    if form.file.endswith(".bin"):
        torch.save(tensors, folder / form.file)
    else:
        save_file(tensors, folder / form.file)
    return folder


def support_matrix() -> str:
    """The table of docs/drafters.md: a row per variant, a column per format, and whether the native drafter has it."""
    lines = ["| variant | native | " + " | ".join(FORMATS) + " |", "|---|---|" + "---|" * len(FORMATS)]
    for name in VARIANTS:
        cells = ["●" if name in form.writes else "○" if form.carries(name) else "–" for form in FORMATS.values()]
        native = "–" if not_native(variant(name)) else "yes"
        lines.append(f"| {name} | {native} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


DOCS = Path(__file__).parent.parent / "docs" / "drafters.md"
BEGIN, END = "<!-- matrix: written by tests/families.py -->", "<!-- end of matrix -->"

if __name__ == "__main__":
    before, _, rest = DOCS.read_text().partition(BEGIN)
    DOCS.write_text(f"{before}{BEGIN}\n{support_matrix()}\n{END}{rest.partition(END)[2]}")

"""One tiny drafter, written to disk with a few changes: what the tests of public bug reports load, run or see refused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from eagle3_ext import reference
from eagle3_ext.checkpoint import load_checkpoint
from eagle3_ext.errors import CheckpointError

CONFIG = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 16,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "num_hidden_layers": 1, "vocab_size": 32,
    "draft_vocab_size": 12, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 64,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}
IDS = "eagle_aux_hidden_state_layer_ids"
SHAPES = {
    "fc.weight": (8, 24), "norm.weight": (8,), "lm_head.weight": (12, 8),
    "midlayer.self_attn.q_proj.weight": (8, 16), "midlayer.self_attn.k_proj.weight": (4, 16),
    "midlayer.self_attn.v_proj.weight": (4, 16), "midlayer.self_attn.o_proj.weight": (8, 8),
    "midlayer.mlp.gate_proj.weight": (16, 8), "midlayer.mlp.up_proj.weight": (16, 8),
    "midlayer.mlp.down_proj.weight": (8, 16), "midlayer.hidden_norm.weight": (8,),
    "midlayer.input_layernorm.weight": (8,), "midlayer.post_attention_layernorm.weight": (8,),
}


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def tensors(changes=None, dtype=torch.bfloat16):
    """The drafter's tensors; `changes` adds, replaces, or removes (None)."""
    made = {name: random(*shape, dtype=dtype) for name, shape in SHAPES.items()}
    made["d2t"] = torch.arange(12)
    made["t2d"] = torch.zeros(32, dtype=torch.bool).index_fill(0, 2 * torch.arange(12), True)
    return {name: value for name, value in (made | (changes or {})).items() if value is not None}


def full(changes=None):
    """The same over the full vocabulary, without tables."""
    return tensors({"d2t": None, "t2d": None, "lm_head.weight": random(32, 8)} | (changes or {}))


@pytest.fixture
def write(tmp_path):
    def write(stored=None, **config):
        raw = {key: value for key, value in (CONFIG | config).items() if value is not ...}
        (tmp_path / "config.json").write_text(json.dumps(raw))
        save_file(tensors() if stored is None else stored, tmp_path / "model.safetensors")
        return tmp_path

    return write


@pytest.fixture
def load(write):
    return lambda *args, **config: load_checkpoint(write(*args, **config))


@pytest.fixture
def refuse(load):
    def refuse(*args, told, **config):
        with pytest.raises(CheckpointError) as error:
            load(*args, **config)
        for part in told:
            assert part in str(error.value), str(error.value)

    return refuse


def target(rows=32, width=8, layers=8, value=1.0, **text_config):
    tables = [SimpleNamespace(weight=torch.full((rows, width), value)) for _ in range(2)]
    text = SimpleNamespace(num_hidden_layers=layers, hidden_size=width, max_position_embeddings=64,
                           **text_config)
    return SimpleNamespace(config=SimpleNamespace(get_text_config=lambda decoder: text),
                           get_input_embeddings=lambda: tables[0], get_output_embeddings=lambda: tables[1])


def oracle(checkpoint, **changes):
    """The float64 reference, with some weights replaced."""
    weights = {name: w.double() if w.is_floating_point() else w for name, w in checkpoint.weights.items()}
    tables = {"embed_weight": torch.ones(32, checkpoint.config.hidden_size, dtype=torch.float64)}
    if not checkpoint.config.own_head:
        tables["head_weight"] = tables["embed_weight"]
    return reference.Drafter(checkpoint.config, weights | changes, **tables)


def zeros(checkpoint, *names):
    return {name: torch.zeros_like(checkpoint.weights[name], dtype=torch.float64) for name in names}

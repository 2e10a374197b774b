"""Against SGLang's own LlamaModel.forward and LlamaDecoderLayer.forward: fusion, norms, residual, recurrent output; and
its RoPE of latent attention.

Their constructors need a running server, so the modules are put together by hand, and attention and MLP are linear maps
on both sides. Run by `make test-peers`, in an environment of its own.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.rotary_embedding.rope_variant import DeepseekScalingRotaryEmbedding
from sglang.srt.models import llama_eagle3
from torch import nn

from eagle3_ext import reference
from eagle3_ext.checkpoint import DrafterConfig, Layer, expected_shapes
from eagle3_ext.checkpoint.rope_form import read_rope
from eagle3_ext.checkpoint.source import Source
from eagle3_ext.drafter import Drafter
from eagle3_ext.errors import FeatureWidthError
from eagle3_ext.plan import CapturePlan
from eagle3_ext.rope import rope_table

H, V, ROWS, EPS = 32, 60, 9, 1e-5
VARIANTS = {
    "plain": {},
    "fc bias": {"fc_bias": True},
    "input_norm": {"feature_norm": "whole"},
    "fc_norm": {"feature_norm": "per_state"},
    "norm_output": {"norm_output": True},
    "five states, fc_norm, norm_output": {"num_states": 5, "feature_norm": "per_state", "norm_output": True},
    "two layers": {"layers": (Layer(), Layer(joins_embedding=False))},
}


class Linear(nn.Module):
    """Attention or MLP as one matrix, whatever else they are handed."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x=None, *_, hidden_states=None, **__):
        return nn.functional.linear(x if hidden_states is None else hidden_states, self.weight)


def bare(kind):
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    return module


def norm(weight):
    module = bare(RMSNorm)
    module.weight = nn.Parameter(weight)
    module.variance_epsilon, module.hidden_size, module.variance_size_override = EPS, len(weight), None
    module.override_orig_dtype, module.fp32_residual, module._quant_linear = None, False, None
    module.cast_x_before_out_mul = False
    module.forward = module.forward_native
    return module


def make(changes):
    sizes = {"hidden_size": H, "target_hidden_size": H, "intermediate_size": H, "num_q_heads": 2, "num_kv_heads": 2}
    rest = {"head_dim": 16, "draft_vocab_size": V, "vocab_size": V, "eps": EPS, "own_embedding": True}
    config = DrafterConfig(**sizes, **rest, **changes)
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in expected_shapes(config).items():
        gain = 1 if "norm" in name else 0
        weights[name] = torch.randn(shape, generator=generator) * (0.3 if len(shape) == 1 else shape[-1] ** -0.5) + gain
    return config, weights


def theirs(config, weights):
    model = bare(llama_eagle3.LlamaModel)
    model.embed_tokens = nn.Embedding(V, H, _weight=weights["embed_tokens.weight"])
    model.fc = nn.Linear(config.features_width, H, bias=config.fc_bias)
    model.fc.weight.data = weights["fc.weight"]
    if config.fc_bias:
        model.fc.bias.data = weights["fc.bias"]
    model.input_norm = norm(weights["input_norm.weight"]) if config.feature_norm == "whole" else None
    chunks = [norm(weights[f"fc_norm.{j}.weight"]) for j in range(config.num_states)
              if config.feature_norm == "per_state"]
    model.fc_norm = nn.ModuleList(chunks) if chunks else None
    model.num_aux_hidden_states, model.norm = config.num_states, norm(weights["norm.weight"])
    model.norm_output, model.is_mrope_enabled = config.norm_output, False
    layers = []
    for i, form in enumerate(config.layers):
        layer = bare(llama_eagle3.LlamaDecoderLayer)
        layer.is_input_layer = form.joins_embedding
        prefix = f"layers.{i}."
        pre = "hidden_norm" if form.joins_embedding else "input_layernorm"  # SGLang's name for a later layer's pre-norm
        layer.hidden_norm = norm(weights[f"{prefix}{pre}.weight"])
        layer.input_layernorm = norm(weights[f"{prefix}input_layernorm.weight"])
        layer.post_attention_layernorm = norm(weights[f"{prefix}post_attention_layernorm.weight"])
        layer.self_attn = Linear(weights[f"{prefix}self_attn.q_proj.weight"])
        layer.mlp = Linear(weights[f"{prefix}mlp.down_proj.weight"])
        layers.append(layer)
    model.layers = nn.ModuleList(layers)
    return model


def forward(model, hidden, tokens):
    mode = SimpleNamespace(is_extend=lambda: False)
    batch = SimpleNamespace(mm_input_embeds=None, forward_mode=mode, spec_info=SimpleNamespace(hidden_states=hidden))
    with torch.no_grad():
        y, recurrent = model.forward(tokens, torch.arange(len(tokens)), batch)
    return y, recurrent[0]


class Linearised(reference.Drafter):
    """The reference with the same linear maps in place of attention and MLP; all else is the specification's."""

    def _attention(self, i, x, angles):
        self._append(i, *[x.new_zeros(len(x), self.config.num_kv_heads, self.config.head_dim)] * 2)
        return self._linear(x, f"layers.{i}.self_attn.q_proj")

    def _linear(self, x, name):
        if name.endswith("o_proj"):
            return x
        return super()._linear(x, name)


@pytest.mark.parametrize("name", VARIANTS)
def test_fusion_norms_residual_and_recurrent_output(monkeypatch, name):
    config, weights = make(VARIANTS[name])
    model = theirs(config, weights)
    features, tokens = torch.randn(ROWS, config.features_width), torch.randint(V, (ROWS,))
    ours = Linearised(config, {name: weight.double() for name, weight in weights.items()})
    monkeypatch.setattr("eagle3_ext.reference.drafter.silu_mul", lambda gate_up: gate_up[:, gate_up.shape[1] // 2 :])
    for i in range(len(config.layers)):  # gate_up is [anything | z]: down_proj then sees z alone
        ours.weights[f"layers.{i}.mlp.up_proj.weight"] = torch.eye(H, dtype=torch.float64)
    ours.extend(features, tokens, torch.arange(ROWS))
    y, recurrent = forward(model, features, tokens)
    assert_close(ours.y, y)
    assert_close(ours.y if config.norm_output else ours.s, recurrent)
    # A draft step: both are fed with their own recurrent hidden, without the fusion.
    again = torch.randint(V, (1,))
    next_y, next_recurrent = forward(model, recurrent[-1:], again)
    ours._forward((ours.y if config.norm_output else ours.s)[-1:], again, torch.tensor([ROWS]))
    assert_close(ours.y, next_y)
    assert_close(ours.y if config.norm_output else ours.s, next_recurrent)


def assert_close(ours, want):
    assert float((ours - want.double()).norm() / want.double().norm()) <= 1e-5


@pytest.mark.parametrize("scales", [{"mscale": 1.0, "mscale_all_dim": 1.0}, {"mscale": 1.0, "mscale_all_dim": 0.7}, {}])
def test_rope_of_latent_attention(monkeypatch, scales):
    """Their attention for latent drafters needs a GPU; its yarn RoPE, in adjacent pairs, does not."""
    monkeypatch.setattr("sglang.srt.layers.rotary_embedding.base._is_cpu", True)  # else it looks for a GPU's kernel
    theirs = DeepseekScalingRotaryEmbedding(64, 64, 4096, 5e4, False, 64.0, torch.float32, device="cpu", **scales)
    raw = {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096} | scales
    read = read_rope(Source({"rope_scaling": raw, "rope_theta": 5e4}, {}), head_dim=64, is_mla=True)
    positions = torch.tensor([0, 1, 77, 4095, 100_000])
    q, k = torch.randn(5, 4, 64), torch.randn(5, 1, 64)
    angles = rope_table(5e4, 64, 100_001, torch.float64, read["rope"])[positions]
    # Their angles are float32: at position 100 000 they are off by up to 100 000 x 2^-24 = 0.006 radians.
    for ours, want in zip((q, k), theirs.forward_native(positions, q, k), strict=True):
        got = reference.rotate(ours.double(), angles, read["rope"].interleaved)
        assert (got[:3] - want[:3]).norm() <= 1e-5 * want[:3].norm() and (got - want).norm() <= 5e-3 * want.norm()


def test_the_founding_fault_is_theirs_and_refused_here():
    """One state of width H: SGLang skips fc and answers; extend refuses the same tensor."""
    config, weights = make({"boundaries": (2, 5, 9)})
    one, tokens = torch.randn(ROWS, H), torch.randint(V, (ROWS,))
    y, _ = forward(theirs(config, weights), one, tokens)
    assert y.shape == (ROWS, H)
    with pytest.raises(FeatureWidthError):
        reference.Drafter(config, weights).extend(one, tokens, torch.arange(ROWS))
    drafter = Drafter(config, weights, CapturePlan((2, 5, 9), H), max_length=32)
    with pytest.raises(FeatureWidthError, match="capture is off"):
        drafter.extend(one, tokens, torch.arange(ROWS), torch.tensor([0, ROWS]))

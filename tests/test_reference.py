"""The specification itself: against PyTorch and transformers where they compute the same, and in its protocol."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention
from transformers import DeepseekV3Config, LlamaConfig, Qwen3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from eagle3_ext import reference
from eagle3_ext.checkpoint import DrafterConfig, Layer, Mla
from eagle3_ext.checkpoint.config import expected_shapes
from eagle3_ext.errors import FeatureWidthError
from eagle3_ext.rope import Rope, rope_table

F64 = torch.float64


def drafter_config(**changes: object) -> DrafterConfig:
    sizes = {"hidden_size": 24, "target_hidden_size": 16, "intermediate_size": 20, "num_q_heads": 4, "num_kv_heads": 2}
    rest = {"head_dim": 6, "draft_vocab_size": 11, "vocab_size": 29, "own_embedding": True, "eps": 1e-5}
    return DrafterConfig(**sizes | rest | changes)


def drafter(config: DrafterConfig, dtype: torch.dtype = F64, seed: int = 0) -> reference.Drafter:
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in expected_shapes(config).items():
        if name == "target_ids":
            weights[name] = torch.randperm(config.vocab_size, generator=generator)[: shape[0]]
        else:
            weights[name] = (torch.randn(shape, generator=generator, dtype=F64) * 0.4).to(dtype)
    return reference.Drafter(config, weights)


def rows(config: DrafterConfig, count: int, start: int = 0, seed: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed + start)
    features = torch.randn(count, config.features_width, generator=generator, dtype=F64)
    tokens = torch.randint(config.vocab_size, (count,), generator=generator)
    return {"features": features, "tokens": tokens, "positions": torch.arange(start, start + count)}


MLA = Mla(q_lora_rank=7, kv_lora_rank=8, nope_head_dim=6, rope_head_dim=4, v_head_dim=5)
VARIANTS = {
    "published": {},
    "norm-before-residual": {"norm_before_residual": True},
    "whole-norm": {"feature_norm": "whole", "fc_bias": True},
    "per-state-norm-and-output": {"feature_norm": "per_state", "norm_output": True},
    "no-hidden-norm": {"has_hidden_norm": False},
    "no-final-norm": {"has_final_norm": False, "logit_scale": 0.5},
    "no-fc": {"fusion": "none", "num_states": 1, "target_hidden_size": 24},
    "full-vocabulary": {"draft_vocab_size": 29},
    "tied-head": {"draft_vocab_size": 29, "own_head": False, "tied_head": True},
    "five-states": {"num_states": 5},
    "qk-norm": {"qk_norm": True},
    "biases": {"qkv_bias": True, "o_bias": True, "mlp_bias": True, "fc_bias": True},
    "two-layers": {"layers": (Layer(), Layer(joins_embedding=False)), "norm_before_residual": True},
    "two-joined-layers": {"layers": (Layer(), Layer()), "norm_before_residual": True},
    "windows": {"layers": (Layer(window=3), Layer(joins_embedding=False, window=None))},
    "rope-linear": {"rope": Rope(kind="linear", factor=4.0)},
    "rope-dynamic": {"rope": Rope(kind="dynamic", factor=4.0, original_length=4)},
    "rope-llama3": {"rope": Rope(kind="llama3", factor=8.0, original_length=64)},
    "rope-yarn": {"rope": Rope(kind="yarn", factor=8.0, original_length=64, attention_factor=1.2)},
    "rope-partial": {"rope": Rope(rotary_dim=4)},
    "rope-interleaved": {"rope": Rope(interleaved=True)},
    "rope-partial-interleaved": {"rope": Rope(rotary_dim=4, interleaved=True)},
    "rope-none": {"rope": Rope(kind="none")},
    "mla": {"mla": MLA, "num_kv_heads": 4, "head_dim": 10, "rope": Rope(interleaved=True)},
    "mla-biases": {"mla": MLA, "num_kv_heads": 4, "head_dim": 10, "qkv_bias": True, "o_bias": True},
    "mla-without-q-latent": {
        "mla": dataclasses.replace(MLA, q_lora_rank=None, mscale=1.2),
        "num_kv_heads": 4,
        "head_dim": 10,
        "layers": (Layer(), Layer(joins_embedding=False, window=3)),
        "feature_norm": "per_state",
    },
}


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS.keys())
def variant(request) -> DrafterConfig:
    return drafter_config(**request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rms_norm_rounds_as_transformers(dtype: torch.dtype):
    norm = LlamaRMSNorm(96, eps=1e-5).to(dtype)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(5, 96).to(dtype)
    assert torch.equal(reference.rms_norm(x, norm.weight, 1e-5), norm(x))


def test_rope_pairs_dimensions_as_transformers():
    rope = {"rope_type": "default", "rope_theta": 5e5}
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, head_dim=16, rope_parameters=rope)
    positions, q, k = torch.tensor([0, 3, 70]), torch.randn(1, 4, 3, 16), torch.randn(1, 2, 3, 16)
    cos, sin = LlamaRotaryEmbedding(config)(q, positions[None])
    rotated_q, rotated_k = apply_rotary_pos_emb(q, k, cos, sin)

    qkv = torch.cat([x[0].transpose(0, 1).flatten(1) for x in (q, k, k)], dim=1)
    k_cache, v_cache = torch.zeros(3, 2, 16), torch.zeros(3, 2, 16)
    table = rope_table(5e5, 16, 80)
    reference.rope_append_(qkv, positions, torch.tensor([2, -1, 0]), table, 4, 2, k_cache, v_cache)
    torch.testing.assert_close(qkv[:, :64].unflatten(1, (4, 16)), rotated_q[0].transpose(0, 1))
    torch.testing.assert_close(k_cache[2], rotated_k[0, :, 0])
    torch.testing.assert_close(k_cache[0], rotated_k[0, :, 2])
    assert torch.equal(v_cache[2], k[0, :, 0]) and not k_cache[1].any()


def test_rope_table_is_exact_at_far_positions():
    table = rope_table(10000.0, 4, 200_001, dtype=F64)
    angle = 200_000 * 10000.0**-0.5
    assert table[200_000].tolist() == pytest.approx([math.cos(2e5), math.cos(angle), math.sin(2e5), math.sin(angle)])


def test_attention_is_sdpa_with_the_queries_last():
    q, k, v = (torch.randn(size, heads, 8, dtype=F64) for size, heads in ((3, 4), (9, 2), (9, 2)))
    out = reference.draft_attention(q, k, v, *(torch.tensor(x) for x in ([0, 3], [1], [7])), scale=0.3)
    mask = torch.ones(3, 7, dtype=torch.bool).tril(4)
    heads_first = [x.transpose(0, 1) for x in (q, k[1:8], v[1:8])]
    expected = scaled_dot_product_attention(*heads_first, attn_mask=mask, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(out, expected.transpose(0, 1).flatten(1))


def test_the_layer_is_made_of_llama_s_parts():
    """The published variant in float64, against LlamaAttention and LlamaMLP with the drafter's weights."""
    config = drafter_config()
    ours, inputs = drafter(config), rows(config, 5)
    ours.extend(**inputs)

    llama = LlamaConfig(
        hidden_size=24,
        intermediate_size=20,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        attn_implementation="sdpa",
    )
    attention, mlp = LlamaAttention(llama, 0).to(F64), LlamaMLP(llama).to(F64)
    for name, module in {"self_attn": attention, "mlp": mlp}.items():
        for projection, layer in module.named_children():
            if projection.endswith("_proj"):
                layer.weight = torch.nn.Parameter(ours.weights[f"layers.0.{name}.{projection}.weight"])

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x, (24,), ours.weights[f"{name}.weight"], config.eps)

    u = linear(inputs["features"], ours.weights["fc.weight"])
    embedding = ours.weights["embed_tokens.weight"][inputs["tokens"]]
    x = torch.cat([norm(embedding, "layers.0.input_layernorm"), norm(u, "layers.0.hidden_norm")], dim=-1)
    cos, sin = (part.repeat(1, 2)[None] for part in rope_table(config.rope_theta, 6, 5, dtype=F64).chunk(2, dim=1))
    future = torch.full((5, 5), -torch.inf, dtype=F64).triu(1)
    s1 = u + attention(x[None], position_embeddings=(cos, sin), attention_mask=future[None, None])[0][0]
    s = s1 + mlp(norm(s1, "layers.0.post_attention_layernorm"))
    torch.testing.assert_close(ours.s, s)
    torch.testing.assert_close(ours.y, norm(s, "norm"))


def with_weights(module: torch.nn.Module, ours: reference.Drafter, prefix: str) -> torch.nn.Module:
    """The module with every parameter of its own replaced by the drafter's of that name; none may be left over."""
    module = module.to(F64)
    for name, parameter in module.named_parameters():
        parameter.data = ours.weights[f"{prefix}.{name}"]
    return module


def causal(rows: int, window: int | None = None) -> torch.Tensor:
    """An additive mask [1, 1, rows, rows]: a row sees itself and the rows before it, `window` in all."""
    seen = torch.ones(rows, rows, dtype=torch.bool).tril()
    if window is not None:
        seen &= torch.ones(rows, rows, dtype=torch.bool).triu(1 - window)
    return torch.zeros(1, 1, rows, rows, dtype=F64).masked_fill(~seen, -torch.inf)


@pytest.mark.parametrize("window", [None, 3])
def test_a_second_layer_with_norms_biases_and_window_is_qwen3_s(window: int | None):
    """Layer 1's attention in float64, against Qwen3Attention (q/k norm, biases) under an explicit mask."""
    config = drafter_config(qk_norm=True, qkv_bias=True, o_bias=True, layers=(Layer(), Layer(False, window)))
    ours, x = drafter(config), torch.randn(7, 24, dtype=F64)
    sizes = {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
    theirs = Qwen3Config(**sizes, attention_bias=True, rms_norm_eps=config.eps, attn_implementation="eager")
    attention = with_weights(Qwen3Attention(theirs, 1), ours, "layers.1.self_attn")
    cos, sin = (part.repeat(1, 2)[None] for part in rope_table(config.rope_theta, 6, 7, dtype=F64).chunk(2, dim=1))
    expected = attention(x[None], position_embeddings=(cos, sin), attention_mask=causal(7, window))[0][0]
    attended = ours._attention(1, x, ours._angles(torch.arange(7)))
    got = ours._linear(attended, "layers.1.self_attn.o_proj")
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)  # their norms and softmax are float32


@pytest.mark.parametrize("q_lora_rank", [7, None])
def test_latent_attention_is_deepseek_s(q_lora_rank: int | None):
    """Against DeepseekV3Attention with interleaved yarn RoPE, whose mscale raises the softmax scale."""
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "mscale": 1.0}
    yarn |= {"rope_theta": 5e4, "mscale_all_dim": 0.7, "beta_fast": 32, "beta_slow": 1}
    theirs = DeepseekV3Config(
        hidden_size=24, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=q_lora_rank, kv_lora_rank=8,
        qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5, rope_parameters=yarn, attn_implementation="eager",
        max_position_embeddings=512,
    )
    scale = {mscale: 0.1 * mscale * math.log(8) + 1 for mscale in (1.0, 0.7)}
    rope = Rope(kind="yarn", factor=8.0, original_length=64, interleaved=True, attention_factor=scale[1.0] / scale[0.7])
    mla = dataclasses.replace(MLA, q_lora_rank=q_lora_rank, mscale=scale[0.7])
    config = drafter_config(mla=mla, num_kv_heads=4, head_dim=10, rope=rope, rope_theta=5e4, eps=1e-6,
                            layers=(Layer(), Layer(joins_embedding=False)))
    ours, x = drafter(config), torch.randn(7, 24, dtype=F64)
    attention = with_weights(DeepseekV3Attention(theirs, 1), ours, "layers.1.self_attn")
    cos, sin = DeepseekV3RotaryEmbedding(theirs)(x[None].float(), torch.arange(7)[None])
    options = {"position_embeddings": (cos.double(), sin.double()), "attention_mask": causal(7)}
    expected = attention(x[None], **options)[0][0]
    attended = ours._latent_attention(1, x, ours._angles(torch.arange(7)))
    got = ours._linear(attended, "layers.1.self_attn.o_proj")
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)  # their angles are float32


def test_chunks_equal_the_whole(variant: DrafterConfig):
    whole, chunked, inputs = drafter(variant), drafter(variant), rows(variant, 9)
    whole.extend(**inputs)
    for part in (slice(0, 4), slice(4, 5), slice(5, 9)):
        chunked.extend(**{name: tensor[part] for name, tensor in inputs.items()})
    torch.testing.assert_close(chunked.y[-1], whole.y[-1])
    assert chunked.length == whole.length == 9
    assert chunked.draft(4) == whole.draft(4)
    torch.testing.assert_close(chunked.logits, whole.logits)


def test_a_draft_leaves_no_trace(variant: DrafterConfig):
    drafted, plain = drafter(variant), drafter(variant)
    for start, count in ((0, 6), (6, 3), (9, 1)):
        for one in (drafted, plain):
            one.extend(**rows(variant, count, start))
        drafted.draft(5)
        assert drafted.length == plain.length == start + count
        for ours, theirs in zip(drafted.caches, plain.caches, strict=True):
            torch.testing.assert_close([part[: drafted.length] for part in ours], list(theirs))
    for one in (drafted, plain):
        one.extend(**rows(variant, 2, 10))
    assert torch.equal(drafted.y, plain.y) and drafted.draft(3) == plain.draft(3)


def test_truncating_is_never_having_extended(variant: DrafterConfig):
    longer, shorter = drafter(variant), drafter(variant)
    for one in (longer, shorter):
        one.extend(**rows(variant, 5))
    longer.extend(**rows(variant, 4, 5, seed=9))
    longer.truncate(5)
    with pytest.raises(ValueError, match="extend"):
        longer.draft(1)
    for one in (longer, shorter):
        one.extend(**rows(variant, 2, 5))
    torch.testing.assert_close(longer.s, shorter.s)


@pytest.mark.parametrize("norm_output", [False, True])
def test_a_draft_step_is_fed_with_the_recurrent_hidden(norm_output: bool):
    """By hand: the second token's s comes from the first's s, or y, without the fusion."""
    config = drafter_config(norm_output=norm_output)
    one, other = drafter(config), drafter(config)
    for each in (one, other):
        each.extend(**rows(config, 4))
    recurrent = (other.y if norm_output else other.s)[-1:]
    first = one.draft(2)[0]
    other._forward(recurrent, torch.tensor([first]), torch.tensor([4]))
    assert torch.equal(one.s, other.s)


def test_tokens_are_target_ids():
    config = drafter_config()
    one = drafter(config)
    one.extend(**rows(config, 3))
    tokens = one.draft(4)
    assert tokens == [int(one.weights["target_ids"][step.argmax()]) for step in one.logits]


def test_nan_ends_a_draft():
    config = drafter_config()
    one, inputs = drafter(config), rows(config, 3)
    inputs["features"][-1] = math.nan
    one.extend(**inputs)
    assert one.draft(3) == []


def test_wrong_width_and_order_are_refused():
    config = drafter_config()
    one = drafter(config)
    with pytest.raises(ValueError, match="extend"):
        one.draft(1)
    with pytest.raises(FeatureWidthError, match="16.*48"):
        one.extend(**rows(config, 2) | {"features": torch.ones(2, 16)})
    one.extend(**rows(config, 2))
    one.draft(1)
    with pytest.raises(ValueError, match="extend"):
        one.draft(1)
    with pytest.raises(IndexError, match="truncate"):
        one.truncate(3)


def test_low_precision_follows_float64(variant: DrafterConfig):
    low = drafter(variant, torch.bfloat16)
    exact = low.to(F64)
    inputs = rows(variant, 6)
    inputs["features"] = inputs["features"].bfloat16()
    for one in (low, exact):
        one.extend(**inputs)
    assert low.s.dtype == torch.bfloat16 and exact.s.dtype == F64
    scale = exact.s.square().mean().sqrt()
    assert ((low.s.double() - exact.s).abs().max() / scale) < 0.1


def test_accept():
    assert reference.accept([5, 6, 7], [5, 6, 7, 8]) == (4, 8)
    assert reference.accept([5, 9, 7], [5, 6, 7, 8]) == (2, 6)
    assert reference.accept([-1], [-1, 3]) == (1, -1)
    assert reference.accept([], [3]) == (1, 3)

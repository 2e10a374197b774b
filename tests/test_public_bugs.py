"""Public bug reports about running drafters, each a test: widths, layer ids, attention, RoPE and the target's tables.

The reports are named by repository and number.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from tiny_drafter import IDS, SHAPES, oracle, random, target, tensors, zeros

from eagle3_ext.checkpoint import load_checkpoint
from eagle3_ext.drafter import Drafter
from eagle3_ext.errors import BoundaryError, CheckpointError, FeatureWidthError
from eagle3_ext.plan import resolve_plan
from eagle3_ext.rope import inverse_frequencies

# ---- widths and number of states


def test_one_state_never_passes_for_three(load):  # sglang 21272
    drafter = Drafter.from_checkpoint(load(), target(), dtype=torch.float32)
    one = torch.zeros(16, 8)
    with pytest.raises(FeatureWidthError, match=r"width 8; .*3 x 8 = 24 \(fc.weight \[8, 24\]"):
        drafter.extend(one, torch.zeros(16, dtype=torch.int64), torch.arange(16), torch.tensor([0, 16]))


def wider():
    """h 6, H 8; RoPE needs an even head_dim, so 4 where the report has 3."""
    shapes = {name: tuple(6 if size == 8 else 12 if size == 16 else size for size in shape)
              for name, shape in SHAPES.items()}
    shapes |= {"fc.weight": (6, 24), "midlayer.self_attn.q_proj.weight": (8, 12),
               "midlayer.self_attn.o_proj.weight": (6, 8)}
    return tensors({name: random(*shape) for name, shape in shapes.items()})


def test_drafter_and_target_widths_differ(load):  # vllm 18906, sglang 7011
    checkpoint = load(wider(), hidden_size=6, target_hidden_size=8)
    config = checkpoint.config
    assert (config.hidden_size, config.target_hidden_size, config.features_width) == (6, 8, 24)
    assert resolve_plan(config, 8, 8).width == 24, "buffers are as wide as the target's states, not 3 x 6"
    one = oracle(checkpoint)
    assert one.fuse(torch.zeros(5, 24, dtype=torch.float64)).shape == (5, 6)
    with pytest.raises(FeatureWidthError, match="18.*24"):
        one.extend(torch.zeros(5, 18), [0] * 5, range(5))
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight.*\[32, 6\].*\[32, 8\]"):
        Drafter.from_checkpoint(checkpoint, target())
    assert load(target_hidden_size=None).config.target_hidden_size == 8


@pytest.mark.parametrize("rows", [1, 64, 4096])
def test_the_second_step_reads_its_own_width(load, rows):  # llama.cpp 24637: one width constant for both inputs
    checkpoint = load(tensors({"embed_tokens.weight": random(32, 8)}), max_position_embeddings=8192)
    native = Drafter.from_checkpoint(checkpoint, target(), dtype=torch.float32, max_length=8192)
    exact = oracle(checkpoint)
    features, tokens = random(rows, 24, dtype=torch.float32), torch.arange(rows) % 32
    native.extend(features, tokens, torch.arange(rows), torch.tensor([0, rows]))
    exact.extend(features.double(), tokens, torch.arange(rows))
    assert native.draft(2).tokens[0].tolist() == exact.draft(2)
    assert float((native._native.last_s.double() - exact.s[-1:]).norm() / exact.s[-1:].norm()) <= 1e-5


def test_number_of_states(load, refuse):  # verl-SpeCo 6, executorch 20149, sglang 24620
    five = {IDS: [0, 1, 2, 3, 4]}
    assert load(tensors({"fc.weight": random(8, 40)}), eagle_config=five).config.num_states == 5
    refuse(eagle_config=five, told=["fc.weight", "24", "40"])
    assert load(eagle_config={IDS: None}).config.num_states == 3
    refuse(tensors({"fc.weight": random(8, 20)}), told=["fc.weight", "20", "multiple of 8"])
    refuse(eagle_config={IDS: [1, 2, 3]}, **{IDS: [1, 2, 4]}, told=[IDS, "[1, 2, 3]", "[1, 2, 4]"])


def test_without_aux_states_the_plan_asks_for_one(load):  # vllm tpu-inference 2841
    stored = tensors({"fc.weight": None, "midlayer.hidden_norm.weight": None})
    config = load(stored, eagle_config={"use_aux_hidden_state": False}).config
    plan = resolve_plan(config, 8, 8)
    assert (plan.boundaries, plan.width, plan.final_norm) == ((8,), 8, True)


def test_a_target_is_no_drafter(write):  # sglang 36528
    folder = write({"model.layers.0.self_attn.q_proj.weight": random(8, 8)}, architectures=["LlamaForCausalLM"])
    with pytest.raises(CheckpointError, match="fc.weight: a target, not a drafter") as error:
        load_checkpoint(folder)
    assert str(folder) in str(error.value)


# ---- layer ids. Where every layer k adds 2^k, boundary b holds 2^b - 1: a value tells where it was captured.


def captured(plan):
    return [2**boundary - 1 for boundary in plan.boundaries]


def test_two_conventions_are_told_apart(load):  # sglang 25454
    checkpoint = load(eagle_config={IDS: [2, 4, 5]})
    plan = resolve_plan(checkpoint.config, 8, 8, provenance=checkpoint.provenance)
    assert captured(plan) == [7, 31, 63], "outputs of layers 2, 4, 5"
    assert captured(resolve_plan(checkpoint.config, 8, 8, (2, 4, 5), checkpoint.provenance)) == [3, 15, 31]
    assert "outputs of layers 2, 4, 5 (boundaries 3, 5, 6)" in str(plan)
    assert "read as boundaries they would be the outputs of layers 1, 3, 4 (boundaries 2, 4, 5)" in str(plan)


@pytest.mark.parametrize("layers", range(1, 7))
def test_the_default_needs_a_deep_target(load, layers):  # Model-Optimizer 300
    with pytest.raises(BoundaryError, match=f"num_hidden_layers is {layers}"):
        resolve_plan(load().config, layers, 8)


@pytest.mark.parametrize("layers, expected", [(7, (2, 3, 4)), (8, (2, 4, 5)), (32, (2, 16, 29)), (36, (2, 18, 33)),
                                              (61, (2, 30, 58))])
def test_the_default_of_published_depths(load, layers, expected):
    plan = resolve_plan(load().config, layers, 8)
    assert plan.boundaries == expected and "names no layers" in str(plan)


def test_ids_of_the_file_come_before_the_default(load):  # tokenspeed 526
    checkpoint = load(eagle_config={IDS: [0, 4, 9]})
    assert captured(resolve_plan(checkpoint.config, 12, 8, provenance=checkpoint.provenance)) == [1, 31, 1023]
    assert captured(resolve_plan(load().config, 12, 8)) == [3, 63, 511]


def test_ids_out_of_order_and_repeated(load, refuse):  # vllm 50514
    checkpoint = load(eagle_config={IDS: [4, 1, 3]})
    assert captured(resolve_plan(checkpoint.config, 8, 8, provenance=checkpoint.provenance)) == [3, 15, 31]
    assert "config.json lists layer ids [4, 1, 3]; states are captured in ascending order" in checkpoint.report
    refuse(eagle_config={IDS: [2, 2, 4]}, told=[IDS, "2 is listed more than once"])


def test_ids_beyond_the_target(load):  # openvino.genai 4390
    checkpoint = load(eagle_config={IDS: [2, 4, 9]})
    with pytest.raises(BoundaryError, match=r"\[10\].*outside \[0, 6\].*\[2, 4, 9\]"):
        resolve_plan(checkpoint.config, 6, 8, provenance=checkpoint.provenance)


def test_the_last_boundary_is_reachable(load):  # sglang 32334, vllm 46788
    checkpoint = load(eagle_config={IDS: [24, 30, 36]})
    plan = resolve_plan(checkpoint.config, 36, 8, provenance=checkpoint.provenance)
    assert plan.boundaries == (24, 30, 36) and not plan.final_norm
    assert "36 can only be the last boundary" in str(plan)


def test_a_sidecar_settles_what_the_file_leaves_open(write):
    folder = write(eagle_config={IDS: [2, 4, 5]})
    (folder / "eagle3_ext.json").write_text(json.dumps({"boundaries": [2, 4, 5]}))
    checkpoint = load_checkpoint(folder)
    plan = resolve_plan(checkpoint.config, 8, 8, provenance=checkpoint.provenance)
    assert plan.boundaries == (2, 4, 5) and "eagle3_ext.json" in str(plan)
    assert resolve_plan(checkpoint.config, 8, 8, (1, 2, 3), checkpoint.provenance).boundaries == (1, 2, 3)
    (folder / "eagle3_ext.json").write_text(json.dumps({"boundary": [2]}))
    with pytest.raises(CheckpointError, match="boundary"):
        load_checkpoint(folder)


# ---- attention, layers, ties, biases


def heads(q, k, o):
    attention = "midlayer.self_attn."
    return tensors({f"{attention}q_proj.weight": random(*q), f"{attention}k_proj.weight": random(*k),
                    f"{attention}v_proj.weight": random(*k), f"{attention}o_proj.weight": random(*o)})


def test_head_dim_is_not_hidden_over_heads(load, refuse):  # EAGLE 223, 342
    checkpoint = load(heads((12, 16), (6, 16), (8, 12)), head_dim=6)
    assert checkpoint.config.head_dim == 6
    one = oracle(checkpoint)
    one.extend(torch.zeros(3, 24), [0, 1, 2], range(3))
    assert one.y.shape == (3, 8)
    assert load(head_dim=...).config.head_dim == 4
    refuse(heads((9, 16), (4, 16), (8, 9)), head_dim=..., told=["head_dim", "9"])


def test_head_dim_that_contradicts_the_weights(load):  # AngelSlim 5
    checkpoint = load(heads((12, 16), (6, 16), (8, 12)), head_dim=4)
    assert checkpoint.config.head_dim == 6
    told = [note for note in checkpoint.report if "head_dim" in note]
    assert len(told) == 1 and "4" in told[0] and "12 rows" in told[0]
    unsaid = load(heads((12, 16), (6, 16), (8, 12)), head_dim=...)  # a config without the key contradicts nothing
    assert unsaid.config.head_dim == 6 and not any("head_dim" in note for note in unsaid.report)


def test_key_heads(load, refuse):  # speculators 636, vllm 22432
    wide = heads((8, 16), (8, 16), (8, 8))
    assert load(wide, num_key_value_heads=...).config.num_kv_heads == 2
    assert load(wide, num_key_value_heads=None).config.num_kv_heads == 2
    refuse(heads((8, 16), (12, 16), (8, 8)), num_key_value_heads=3, told=["num_key_value_heads", "3"])
    assert load().config.num_kv_heads == 1 and oracle(load()).caches[0][0].shape == (0, 1, 4)


def test_a_fused_projection_states_no_layout(refuse):  # NeMo-RL 2802
    refuse(tensors({"midlayer.self_attn.qkv_proj.weight": random(16, 16)}), told=["qkv_proj.weight"])


def test_a_second_layer_takes_the_first_one_s_output(load):  # vllm 26164
    second = {name.replace("midlayer.", "layers.1."): random(*shape) for name, shape in SHAPES.items()
              if name.startswith("midlayer.") and "hidden_norm" not in name}
    second |= {f"layers.1.self_attn.{p}_proj.weight": random(rows, 8) for p, rows in (("q", 8), ("k", 4), ("v", 4))}
    stored = {name.replace("midlayer.", "layers.0."): value for name, value in tensors().items()} | second
    checkpoint = load(stored, num_hidden_layers=2)
    assert [layer.joins_embedding for layer in checkpoint.config.layers] == [True, False]
    silent = oracle(checkpoint, **zeros(checkpoint, *second))
    alone = oracle(load())
    for one in (silent, alone):
        one.extend(random(3, 24, dtype=torch.float64), [0, 1, 2], range(3))
    torch.testing.assert_close(silent.s, alone.s)


def test_two_pre_norms_in_a_plain_layer(refuse):  # vllm applies one, SGLang the other
    second = {name.replace("midlayer.", "layers.1."): random(*shape) for name, shape in SHAPES.items()
              if name.startswith("midlayer.")}
    second |= {f"layers.1.self_attn.{p}_proj.weight": random(rows, 8) for p, rows in (("q", 8), ("k", 4), ("v", 4))}
    stored = {name.replace("midlayer.", "layers.0."): value for name, value in tensors().items()} | second
    refuse(stored, told=["layers.1.hidden_norm.weight and layers.1.input_layernorm.weight"])


def test_a_tie_that_is_none(load, refuse):  # SpecForge 139, Automodel 2319
    checkpoint = load(tensors({"embed_tokens.weight": random(32, 8)}), tie_word_embeddings=True)
    assert checkpoint.config.own_head and checkpoint.weights["lm_head.weight"].shape == (12, 8)
    refuse(tensors({"lm_head.weight": None}), tie_word_embeddings=True, told=["tie_word_embeddings", "lm_head.weight"])


def test_bias_of_fc_and_of_attention(load, refuse):  # sglang 5773, vllm 9580
    bias = torch.arange(1.0, 9)
    checkpoint = load(tensors({"fc.bias": bias}))
    one = oracle(checkpoint, **zeros(checkpoint, "fc.weight"))
    assert torch.equal(one.fuse(torch.ones(2, 24).double()), bias.double().expand(2, 8))
    assert not checkpoint.config.qkv_bias
    plain = load(bias=True)
    assert not oracle(plain, **zeros(plain, "fc.weight")).fuse(torch.ones(2, 24).double()).any()
    refuse(tensors({"midlayer.self_attn.q_proj.bias": random(8)}), told=["layers.0.self_attn.k_proj.bias"])
    attention = {f"midlayer.self_attn.{p}_proj.bias": random(rows) for p, rows in (("q", 8), ("k", 4), ("v", 4))}
    assert load(tensors(attention)).config.qkv_bias


# ---- rope


def frequencies(checkpoint):
    config = checkpoint.config
    return inverse_frequencies(config.rope_theta, 8, config.rope).tolist()


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize("keys, expected", [
    ({"rope_scaling": LLAMA3}, [1, 0.01304226, 0.00125, 0.000125]),  # speculators 574
    ({"rope_scaling": YARN}, [1, 0.0625, 0.0025, 0.00025]),  # Automodel 2399
    ({"rope_scaling": YARN | {"truncate": False}}, [1, 0.02559525, 0.0025, 0.00025]),
    ({"rope_theta": ..., "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
     [1, 0.03162278, 0.001, 0.00003162278]),  # Model-Optimizer 917
    *[({"rope_scaling": form}, [1, 0.1, 0.01, 0.001]) for form in (
        None, {}, {"rope_type": "default"}, {"type": "default"}, {"rope_type": None})],  # TorchSpec 101
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, [0.5, 0.05, 0.005, 0.0005]),
])
def test_rope_in_every_spelling(load, keys, expected):
    assert frequencies(load(**keys)) == pytest.approx(expected, abs=1e-7)


def test_yarn_scales_cosines_and_sines(load):
    assert load(rope_scaling=YARN).config.rope.attention_factor == pytest.approx(1.138629, abs=1e-6)
    assert load(rope_scaling=YARN | {"attention_factor": 1.5}).config.rope.attention_factor == 1.5
    injected = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048}  # ModelOpt's export
    assert load(rope_scaling=injected).config.rope.attention_factor == pytest.approx(1.3465736)


@pytest.mark.parametrize("keys, told", [
    ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, ["longrope"]),
    ({"rope_scaling": {"rope_type": "surprise"}}, ["surprise"]),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ["llama3", "low_freq_factor"]),
    ({"rope_scaling": {"rope_type": "dynamic"}}, ["dynamic", "factor"]),
    ({"rope_scaling": YARN | {"attn_factor": 2.0}}, ["attn_factor"]),
    ({"rope_theta": 0}, ["rope_theta", "0"]),
    ({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 6.0}}, ["rope_theta", "5.0", "6.0"]),
    ({"rope_scaling": LLAMA3, "rope_parameters": YARN}, ["rope_scaling", "rope_parameters"]),
    ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}}, ["linear", "yarn"]),
])
def test_rope_that_is_refused(refuse, keys, told):
    refuse(told=told, **keys)


LENGTH, ORIGINAL = "max_position_embeddings", "original_max_position_embeddings"
SHORTENED = {key: value for key, value in YARN.items() if key != "factor"}


@pytest.mark.parametrize("keys, factor", [
    ({LENGTH: 256, "rope_scaling": SHORTENED}, 4.0), ({LENGTH: 64, "rope_scaling": SHORTENED}, 1.0),
    ({LENGTH: 96, "rope_scaling": {"type": "yarn"}, ORIGINAL: 64}, 1.5),
])
def test_a_factor_that_was_derived_is_told(load, keys, factor):
    checkpoint = load(**keys)
    assert checkpoint.config.rope.factor == factor
    told = f"config.json: factor is missing for RoPE type yarn: took {factor:g}, {LENGTH} {keys[LENGTH]} / {ORIGINAL} 64"
    assert checkpoint.report == (told,)


@pytest.mark.parametrize("keys, told", [
    # the drafter's own maximum is its training length, shorter than the target's original one
    ({LENGTH: 32, "rope_scaling": SHORTENED}, f"{LENGTH} 32 / {ORIGINAL} 64 it would be 0.5, but it must be at least 1"),
    ({LENGTH: 63, "rope_scaling": {"type": "yarn"}, ORIGINAL: 64}, f"{LENGTH} 63 / {ORIGINAL} 64 it would be 0.984"),
    ({"rope_scaling": {"type": "yarn"}}, f"cannot be derived ({LENGTH} is 64, {ORIGINAL} is missing)"),
    ({LENGTH: ..., "rope_scaling": SHORTENED}, f"cannot be derived ({LENGTH} is missing, {ORIGINAL} is 64)"),
    ({"rope_scaling": {"type": "yarn", ORIGINAL: "64"}}, f"cannot be derived ({LENGTH} is 64, {ORIGINAL} is '64')"),
    ({"rope_scaling": {"type": "linear"}}, "factor is missing for RoPE type linear; it must be a number of at least 1"),
    ({"rope_scaling": {"type": "dynamic"}}, "factor is missing for RoPE type dynamic"),
    ({"rope_scaling": {"type": "llama3"}}, "factor is missing for RoPE type llama3"),
])
def test_a_missing_factor_is_named_first(write, keys, told):
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(write(**keys))
    kind = keys["rope_scaling"].get("type", "yarn")
    first = str(error.value).splitlines()[1].strip()
    assert first.startswith(f"config.json: factor is missing for RoPE type {kind}") and told in first


@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3", "yarn", "deepseek_yarn"])
@pytest.mark.parametrize("factor, told", [(0.25, "1 / 0.25 = 4 may be meant"), (0, "positive number"), (-2, "-2")])
def test_a_factor_below_one_is_refused(refuse, kind, factor, told):
    """Positions squeezed together: no trainer means that, and transformers warns of it."""
    refuse(rope_scaling=LLAMA3 | {"rope_type": kind, "factor": factor}, told=["factor", str(factor), told])


def test_llama3_takes_the_original_length_from_either_place(load):
    nested = {key: value for key, value in LLAMA3.items() if key != ORIGINAL}
    assert load(rope_scaling=nested, **{ORIGINAL: 64}).config == load(rope_scaling=LLAMA3).config


def test_mrope_positions_with_equal_rows(load):  # sglang 34152
    checkpoint = load(rope_scaling={"type": "mrope", "mrope_section": [1, 1, 0]})
    flat, three = oracle(checkpoint), oracle(checkpoint)
    features, tokens = random(5, 24, dtype=torch.float64), [0, 1, 2, 3, 4]
    flat.extend(features, tokens, torch.arange(5))
    three.extend(features, tokens, torch.arange(5).expand(3, 5))
    assert torch.equal(flat.s, three.s)
    native = Drafter.from_checkpoint(checkpoint, target(), dtype=torch.float32)
    call = features.float(), torch.tensor(tokens)
    native.extend(*call, torch.arange(5).expand(3, 5), torch.tensor([0, 5]))
    with pytest.raises(ValueError, match="mrope"):
        native.extend(*call, torch.arange(15).view(3, 5), torch.tensor([0, 5]))
    with pytest.raises(ValueError, match=r"positions.*\[3, 2\].*5 rows"):
        native.extend(*call, torch.arange(6).view(3, 2), torch.tensor([0, 5]))
    ten = torch.zeros(40, 24), torch.zeros(40, dtype=torch.int64), torch.arange(10), torch.tensor([0, 40])
    with pytest.raises(ValueError, match="40 rows.*positions 10"):
        native.extend(*ten)


def test_tables_do_not_come_from_max_position_embeddings(load):  # vllm 48894, sglang 6783
    checkpoint = load(max_position_embeddings=2)
    one = oracle(checkpoint)
    one.extend(torch.zeros(1, 24), [0], [100_000])
    assert one.draft(3) and torch.isfinite(one.s).all()


def test_drafting_past_the_limit_writes_no_other_slot(load):  # vllm 16087: a clamped position wrote slot 0
    checkpoint = load()
    pair = Drafter.from_checkpoint(checkpoint, target(), dtype=torch.float32, max_batch=2, max_length=64)
    alone = Drafter.from_checkpoint(checkpoint, target(), dtype=torch.float32, max_length=64)
    features, tokens = random(64, 24, dtype=torch.float32), torch.arange(64) % 32
    rows = features, tokens, torch.arange(64), torch.tensor([0, 64])
    for sequence in (1, 0):
        pair.extend(*rows, torch.tensor([sequence]))
        pair.draft(1)
        with pytest.raises(ValueError, match="max_length=64"):
            pair.extend(features[:1], tokens[:1], torch.tensor([63]), torch.tensor([0, 1]), torch.tensor([sequence]))
    alone.extend(*rows)
    alone.draft(1)
    for drafter, sequences in ((alone, 1), (pair, 2)):  # one row again, over slots that nobody may have touched
        for sequence in range(sequences):
            drafter.truncate(sequence, 63)
    one = features[63:], tokens[63:], torch.tensor([63]), torch.tensor([0, 1])
    alone.extend(*one)
    want = alone.draft(1).log_probs.clone()
    for sequence in (0, 1):
        pair.extend(*one, torch.tensor([sequence]))
        assert torch.equal(pair.draft(1).log_probs, want)


# ---- quantised, sharded and wrapped targets


def test_quantisation_of_target_and_drafter(load, refuse):  # vllm 26590
    refuse(tensors({"fc.weight_scale": random(1)}), told=["fc.weight_scale"])
    refuse(tensors({"lm_head.weight": torch.zeros(12, 8, dtype=torch.int8)}), told=["lm_head.weight", "I8"])
    refuse(quantization_config={"quant_method": "fp8"}, told=["quantization_config"])
    quantised = target(quantization_config={"quant_method": "fp8"})  # its layers are; its embedding is not
    assert Drafter.from_checkpoint(load(), quantised, dtype=torch.float32).dtype == torch.float32


class Wrapped(SimpleNamespace):
    """A module under an adapter, as PEFT wraps it."""


@pytest.mark.parametrize("module, told", [
    (SimpleNamespace(weight=torch.zeros(16, 8)), r"embed_tokens.weight.*\[32, 8\].*\[16, 8\]"),  # vllm 50158: a shard
    (SimpleNamespace(weight=torch.zeros(32, 8, dtype=torch.int8)), "embed_tokens.weight.*quantised"),
    (SimpleNamespace(weight=torch.zeros(32, 8, device="meta")), "embed_tokens.weight.*device_map"),
    (Wrapped(base_layer=SimpleNamespace(weight=torch.zeros(32, 8)), weight=torch.zeros(32, 8)),
     "embed_tokens.weight.*PEFT adapter.*merge"),
])
def test_tables_that_cannot_be_shared(load, module, told):
    model = target()
    model.get_input_embeddings = lambda: module
    with pytest.raises(CheckpointError, match=told):
        Drafter.from_checkpoint(load(), model, dtype=torch.float32)


def test_tables_under_a_merged_adapter_or_padding_are_shared(load):
    model = target(rows=40)
    table = torch.randn(40, 8)
    model.get_input_embeddings = lambda: Wrapped(base_layer=SimpleNamespace(weight=table), weight=table, merged=True)
    assert Drafter.from_checkpoint(load(), model) is not None


def test_token_rows_and_feature_rows_disagree(load):  # vllm-ascend 5825
    drafter = Drafter.from_checkpoint(load(), target(), dtype=torch.float32)
    with pytest.raises(ValueError, match="8 rows.*64"):
        drafter.extend(torch.zeros(8, 24), torch.zeros(64, dtype=torch.int64), torch.arange(64), torch.tensor([0, 8]))
    with pytest.raises(ValueError, match="8 rows.*64"):
        oracle(load()).extend(torch.zeros(8, 24), [0] * 64, range(64))


def test_a_llama4_target_warns_of_its_rope(load):  # TensorRT-LLM 19036
    with pytest.warns(UserWarning, match="Llama 4.*interleaved"):
        Drafter.from_checkpoint(load(), target(model_type="llama4_text"))
    assert load(rope_interleave=True).config.rope.interleaved

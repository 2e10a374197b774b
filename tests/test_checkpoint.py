"""Checkpoint files: what is read, under which names, and that every defect is named before anything is loaded."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import families
import pytest
import torch
from safetensors.torch import save_file

from eagle3_ext.checkpoint import Layer, load_checkpoint
from eagle3_ext.errors import CheckpointError

H, HEADS, KV_HEADS, DIM, INTER, V, VD = 16, 4, 2, 8, 24, 40, 12
TARGET_IDS = torch.arange(VD) * 3 + 1


def config(**changes) -> dict:
    """A config.json of the SafeAILab kind; head_dim differs from hidden_size / heads on purpose."""
    base = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": H,
        "intermediate_size": INTER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": DIM,
        "vocab_size": V,
        "draft_vocab_size": VD,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5000.0,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]},
    }
    return {key: value for key, value in (base | changes).items() if value is not ...}


def tensors(**changes) -> dict[str, torch.Tensor]:
    """The tensors of `config()`; a value of None removes one. Keyword names use __ for a dot."""
    attention, mlp = "midlayer.self_attn.", "midlayer.mlp."
    shapes = {
        "fc.weight": (H, 3 * H),
        "midlayer.input_layernorm.weight": (H,),
        "midlayer.hidden_norm.weight": (H,),
        "midlayer.post_attention_layernorm.weight": (H,),
        f"{attention}q_proj.weight": (HEADS * DIM, 2 * H),
        f"{attention}k_proj.weight": (KV_HEADS * DIM, 2 * H),
        f"{attention}v_proj.weight": (KV_HEADS * DIM, 2 * H),
        f"{attention}o_proj.weight": (H, HEADS * DIM),
        f"{mlp}gate_proj.weight": (INTER, H),
        f"{mlp}up_proj.weight": (INTER, H),
        f"{mlp}down_proj.weight": (H, INTER),
        "norm.weight": (H,),
        "lm_head.weight": (VD, H),
    }
    made = {name: torch.ones(shape) for name, shape in shapes.items()}
    made["d2t"] = TARGET_IDS - torch.arange(VD)
    made["t2d"] = torch.zeros(V, dtype=torch.bool).index_fill(0, TARGET_IDS, True)
    made |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
    return {name: tensor for name, tensor in made.items() if tensor is not None}


def write(folder: Path, stored: dict[str, torch.Tensor] | None = None, **config_changes) -> Path:
    (folder / "config.json").write_text(json.dumps(config(**config_changes)))
    save_file(tensors() if stored is None else stored, folder / "model.safetensors")
    return folder


def test_reads_canonical_form(tmp_path):
    checkpoint = load_checkpoint(write(tmp_path))
    got = checkpoint.config
    assert (got.hidden_size, got.target_hidden_size, got.num_states, got.fusion) == (H, H, 3, "fc")
    assert (got.num_q_heads, got.num_kv_heads, got.head_dim, got.intermediate_size) == (HEADS, KV_HEADS, DIM, INTER)
    assert (got.vocab_size, got.draft_vocab_size, got.eps, got.rope_theta) == (V, VD, 1e-5, 5000.0)
    assert got.own_head and not got.own_embedding
    assert got.boundaries == (2, 6, 9), "the output of layer i is boundary i + 1"
    assert torch.equal(checkpoint.weights["target_ids"], TARGET_IDS)
    assert "layers.0.self_attn.q_proj.weight" in checkpoint.weights
    assert not {"d2t", "t2d"} & checkpoint.weights.keys()
    assert checkpoint.report == ()


def test_no_layer_ids_leaves_boundaries_open(tmp_path):
    assert load_checkpoint(write(tmp_path, eagle_config=...)).config.boundaries is None


@pytest.mark.parametrize("nested", [True, False])
def test_empty_layer_ids_read_as_none(tmp_path, nested):
    ids = {"eagle_aux_hidden_state_layer_ids": []}
    checkpoint = load_checkpoint(write(tmp_path, **({"eagle_config": ids} if nested else {"eagle_config": ...} | ids)))
    assert checkpoint.config.boundaries is None and checkpoint.provenance.layer_ids is None
    assert checkpoint.report == (f"config.json: {next(iter(ids))} is empty: read as if it were not there",)


@pytest.mark.parametrize("said, told", [(..., "missing"), (None, "missing"),
                                        (["LlamaForCausalLM"], "LlamaForCausalLM")])
def test_a_midlayer_with_a_draft_vocabulary_needs_no_architecture(tmp_path, said, told):
    truth = load_checkpoint(write(tmp_path, eagle_config=...))
    checkpoint = load_checkpoint(write(tmp_path, eagle_config=..., architectures=said))
    assert checkpoint.config == truth.config and checkpoint.provenance.family.name == "SafeAILab"
    note = (f"config.json: architectures is {told}; read as LlamaForCausalLMEagle3, because the file holds midlayer.* "
            "and d2t and t2d")
    assert checkpoint.report == (note,)


@pytest.mark.parametrize("said", [..., ["LlamaForCausalLM"]])
def test_a_drafter_that_nothing_else_gives_away_is_told_what_to_write(tmp_path, said):
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors().items()}
    with pytest.raises(CheckpointError, match="write LlamaForCausalLMEagle3 there"):
        load_checkpoint(write(tmp_path, renamed, architectures=said))
    with pytest.raises(CheckpointError, match="write LlamaForCausalLMEagle3 there"):
        load_checkpoint(write(tmp_path, tensors(d2t=None, t2d=None), architectures=said))


def test_aliases_and_prefix(tmp_path):
    stored = {f"model.{name.replace('midlayer.', 'layers.0.')}": tensor for name, tensor in tensors().items()}
    stored |= {f"aux_norm_{name}.weight": torch.full((H,), float(j)) for j, name in enumerate(("low", "mid", "high"))}
    stored["model.rotary_emb.inv_freq"] = torch.ones(4)
    checkpoint = load_checkpoint(write(tmp_path, stored))
    assert checkpoint.config.feature_norm == "per_state"
    assert [float(checkpoint.weights[f"fc_norm.{j}.weight"][0]) for j in range(3)] == [0.0, 1.0, 2.0]
    assert any("inv_freq" in note for note in checkpoint.report)


@pytest.mark.parametrize("use_index", [True, False])
def test_shards(tmp_path, use_index):
    stored, names = tensors(), sorted(tensors())
    shards = {"a.safetensors": names[:7], "b.safetensors": names[7:]}
    for file, part in shards.items():
        save_file({name: stored[name] for name in part}, tmp_path / file)
    if use_index:
        index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
        (tmp_path / "model.safetensors.index.json").write_text("\ufeff" + json.dumps(index), encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps(config()))
    assert load_checkpoint(tmp_path).weights["fc.weight"].shape == (H, 3 * H)
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match="b.safetensors" if use_index else "missing"):
        load_checkpoint(tmp_path)


def test_shapes_win_over_the_config(tmp_path):
    lies = {"head_dim": 4, "num_key_value_heads": 4, "intermediate_size": 999, "vocab_size": V + 8}
    checkpoint = load_checkpoint(write(tmp_path, **lies))
    got = checkpoint.config
    assert (got.head_dim, got.num_kv_heads, got.intermediate_size, got.vocab_size) == (DIM, KV_HEADS, INTER, V)
    told = "\n".join(checkpoint.report)
    for key in lies:
        assert key in told


COUNTS = ["hidden_size", "target_hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads", "head_dim", "vocab_size", "draft_vocab_size", "num_aux_hidden_states",
          "max_position_embeddings", "original_max_position_embeddings", "sliding_window", "rotary_dim", "kv_lora_rank",
          "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"]
NO_COUNTS = [0, -3, 1.5, 40.0, "forty", "40", True, [], 2**70]


@pytest.mark.parametrize("place", [None, "eagle_config", "transformer_layer_config"])
@pytest.mark.parametrize("key", COUNTS)
def test_a_count_that_is_none_is_refused_by_its_key_wherever_it_stands(tmp_path, key, place):
    folder = write(tmp_path)
    for value in NO_COUNTS:
        nested = config().get(place) or {}
        changes = {key: value} if place is None else {key: ..., place: nested | {key: value}}
        (tmp_path / "config.json").write_text(json.dumps(config(**changes)))
        with pytest.raises(CheckpointError) as error:
            load_checkpoint(folder)
        assert f"config.json: {key} is {value!r}; it must be a positive integer" in str(error.value)


def test_a_count_is_checked_where_another_place_has_a_good_one(tmp_path):
    with pytest.raises(CheckpointError, match="head_dim is 8.0; it must be a positive integer"):
        load_checkpoint(write(tmp_path, eagle_config={"head_dim": 8.0}))


@pytest.mark.parametrize("key", ["speculative_tokens", "verifier_accept_k"])
def test_counts_of_a_proposal_are_checked(tmp_path, key):
    def methods(**changes):
        return {"speculators_config": {"algorithm": "eagle3", "proposal_methods": [{"speculative_tokens": 3} | changes]},
                "norm_before_residual": False}

    assert load_checkpoint(write(tmp_path, **methods())).provenance.speculative_tokens == 3
    for value in NO_COUNTS:
        with pytest.raises(CheckpointError) as error:
            load_checkpoint(write(tmp_path, **methods(**{key: value})))
        assert f"proposal_methods[0].{key} is {value!r}; it must be a positive integer" in str(error.value)


@pytest.mark.parametrize("value", [-1, 2.0, "x"])
def test_the_layer_where_windows_start_may_be_0_but_no_less(tmp_path, value):
    window = {"sliding_window": 5, "use_sliding_window": True}
    assert load_checkpoint(write(tmp_path, max_window_layers=0, **window)).config.layers == (Layer(window=5),)
    with pytest.raises(CheckpointError, match="max_window_layers is .*an integer of at least 0"):
        load_checkpoint(write(tmp_path, max_window_layers=value, **window))
    with pytest.raises(CheckpointError, match="max_window_layers is .*an integer of at least 0"):
        load_checkpoint(write(tmp_path, max_window_layers=value))


@pytest.mark.parametrize("depth", [1, 40])
def test_a_depth_that_differs_from_the_stored_layers_is_told(tmp_path, depth):
    told = ("config.json: num_hidden_layers is 40, but 1 layer is stored: took 1",)
    assert load_checkpoint(write(tmp_path, num_hidden_layers=depth)).report == (told if depth == 40 else ())


def test_numbers_of_states_that_differ_are_told(tmp_path):
    checkpoint = load_checkpoint(write(tmp_path, num_aux_hidden_states=5))
    assert checkpoint.config.num_states == 3
    assert checkpoint.report == ("config.json: num_aux_hidden_states is 5, but 3 layer ids are listed: took 3",)
    stored = tensors(**{f"fc_norm__{j}__weight": torch.ones(H) for j in range(3)})
    checkpoint = load_checkpoint(write(tmp_path, stored, target_hidden_size=20, fc_norm=True))
    assert checkpoint.report == ("config.json: target_hidden_size is 20, but fc_norm.0.weight is [16]: took 16",)


@pytest.mark.parametrize(("changes", "told"), [
    ({"rope_theta": ...}, "rope_theta is missing: took 10000,"),
    ({"rope_theta": None}, "rope_theta is missing: took 10000,"),
    ({"rms_norm_eps": ...}, "rms_norm_eps is missing: took 1e-06,"),
    ({"rms_norm_eps": None}, "rms_norm_eps is missing: took 1e-06,"),
])
def test_a_default_that_was_taken_is_told(tmp_path, changes, told):
    checkpoint = load_checkpoint(write(tmp_path, **changes))
    assert (checkpoint.config.rope_theta, checkpoint.config.eps) == (1e4 if "theta" in told else 5e3,
                                                                     1e-6 if "eps" in told else 1e-5)
    assert len(checkpoint.report) == 1 and told in checkpoint.report[0]


@pytest.mark.parametrize("place", [{}, {"rope_parameters": {"rope_type": "default", "rope_theta": 7e3}}])
def test_a_theta_that_is_not_needed_or_nested_is_not_missed(tmp_path, place):
    assert load_checkpoint(write(tmp_path, rope_theta=..., **(place or {"use_rope": False}))).report == ()


@pytest.mark.parametrize("key, neutral", [
    ("embedding_multiplier", 1.0), ("residual_multiplier", 1.0), ("logits_scaling", 1.0),
    ("final_logit_softcapping", 0.0), ("attn_logit_softcapping", 0.0),
])
def test_factors_and_caps_that_are_not_computed_are_refused(tmp_path, key, neutral):
    for value in (None, neutral, int(neutral)):
        assert load_checkpoint(write(tmp_path, **{key: value})).report == ()
    for value in (12.0, 0.22, 1.0 - neutral, "x", []):
        with pytest.raises(CheckpointError, match=rf"config.json: {key} is .*{value!r}".replace("[]", r"\[\]")):
            load_checkpoint(write(tmp_path, **{key: value}))


@pytest.mark.parametrize("key, neutral", [("attention_multiplier", DIM**-0.5), ("query_pre_attn_scalar", DIM)])
def test_another_softmax_scale_is_refused(tmp_path, key, neutral):
    for value in (None, neutral):
        assert load_checkpoint(write(tmp_path, **{key: value})).report == ()
    for value in (0.015625, 1, 144, "x"):
        with pytest.raises(CheckpointError, match=rf"config.json: {key} is .*{value}"):
            load_checkpoint(write(tmp_path, **{key: value}))


def test_wider_target_with_own_embedding(tmp_path):
    stored = tensors(fc__weight=torch.zeros(H, 3 * 32), embed_tokens__weight=torch.zeros(V, H))
    got = load_checkpoint(write(tmp_path, stored, target_hidden_size=32)).config
    assert (got.hidden_size, got.target_hidden_size, got.num_states, got.own_embedding) == (H, 32, 3, True)


def test_number_of_states_is_not_assumed(tmp_path):
    ids = {"eagle_aux_hidden_state_layer_ids": [0, 3, 5, 8]}
    got = load_checkpoint(write(tmp_path, tensors(fc__weight=torch.zeros(H, 4 * H)), eagle_config=ids)).config
    assert (got.num_states, got.boundaries) == (4, (1, 4, 6, 9))


def test_layer_ids_that_make_states_of_another_width_are_told(tmp_path):
    """48 columns over 2 ids are states of 24: a target that wide may exist, or an id is missing."""
    checkpoint = load_checkpoint(write(tmp_path, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3]}))
    assert (checkpoint.config.num_states, checkpoint.config.target_hidden_size) == (2, 24)
    assert len(checkpoint.report) == 1
    for part in ("2 layer ids", "fc.weight [16, 48]", "2 states of 24", "own width 16 they would be 3"):
        assert part in checkpoint.report[0]


def test_fc_beside_a_config_without_one_says_why_it_clashes(tmp_path):
    with pytest.raises(CheckpointError, match=r"use_aux_hidden_state is False.*fc\.weight \[16, 48\].*wrong"):
        load_checkpoint(write(tmp_path, eagle_config={"use_aux_hidden_state": False}))


def test_without_fc(tmp_path):
    stored = tensors(fc__weight=None, midlayer__hidden_norm__weight=None)
    got = load_checkpoint(write(tmp_path, stored, eagle_config={"use_aux_hidden_state": False})).config
    assert (got.fusion, got.num_states, got.target_hidden_size, got.has_hidden_norm) == ("none", 1, H, False)


def test_switches(tmp_path):
    stored = tensors(fc__bias=torch.zeros(H), input_norm__weight=torch.ones(3 * H))
    got = load_checkpoint(write(tmp_path, stored, norm_before_residual=True, norm_output=True)).config
    assert (got.fc_bias, got.feature_norm, got.norm_before_residual, got.norm_output) == (True, "whole", True, True)


def test_full_vocabulary_needs_no_tables(tmp_path):
    stored = tensors(d2t=torch.zeros(V, dtype=torch.int64), t2d=None, lm_head__weight=torch.zeros(V, H))
    checkpoint = load_checkpoint(write(tmp_path, stored, draft_vocab_size=V))
    assert "target_ids" not in checkpoint.weights and checkpoint.config.draft_vocab_size == V


def test_head_may_be_the_targets(tmp_path):
    stored = tensors(d2t=None, t2d=None, lm_head__weight=None)
    assert not load_checkpoint(write(tmp_path, stored, draft_vocab_size=...)).config.own_head


@pytest.mark.parametrize("joins", [True, False])
def test_a_second_latent_layer(tmp_path, joins):
    """Which of its norms is the pre-norm is told by the projection that latent attention has, not by q_proj."""
    second = Layer(joins_embedding=joins)
    truth = dataclasses.replace(families.variant("latent attention"), layers=(Layer(), second))
    weights, form = families.make_weights(truth), families.FORMATS["ModelOpt MLA"]
    assert load_checkpoint(families.write(tmp_path / "plain", form, truth, weights)).config == truth
    renamed = dataclasses.replace(form, rename=families.megatron)
    if not joins:
        assert load_checkpoint(families.write(tmp_path / "megatron", renamed, truth, weights)).config == truth


def test_every_defect_is_named_at_once(tmp_path):
    stored = tensors(
        norm__weight=None,
        midlayer__self_attn__v_proj__weight=torch.zeros(3, 3),
        surprise__weight=torch.zeros(2),
        model__norm__weight=torch.zeros(H),
    )
    stored["layers.0.hidden_norm.weight"] = torch.zeros(H)
    del stored["midlayer.mlp.up_proj.weight"]
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(write(tmp_path, stored))
    message = str(error.value)
    for part in (
        "missing: layers.0.mlp.up_proj.weight [24, 16]",
        "misshapen: midlayer.self_attn.v_proj.weight (as layers.0.self_attn.v_proj.weight) is [3, 3], expected [16, 32",
        "unknown: surprise.weight [2]",
        "duplicate: ",
        "layers.0.hidden_norm.weight",
    ):
        assert part in message
    assert "norm.weight [16]" not in message.replace("_norm.weight", ""), "model.norm.weight is norm.weight"


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "Eagle3DeepseekV2ForCausalLM"),
        ({"architectures": ["GPT2LMHeadModel"]}, "architectures is 'GPT2LMHeadModel'"),
        ({"architectures": []}, "architectures is []"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "llama3"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "yarn"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "q_proj"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 1, 3]}}, "[1, 1, 3]"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3]}, "target_hidden_size": H}, "fc.weight"),
    ],
)
def test_unsupported_configs_are_refused_by_name(tmp_path, changes, part):
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(write(tmp_path, **changes))
    assert part in str(error.value)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"d2t": torch.zeros(VD, dtype=torch.int64)}, "t2d marks"),
        ({"d2t": torch.zeros(VD, dtype=torch.int64), "t2d": None}, "never mapped"),
        ({"d2t": TARGET_IDS + V, "t2d": None}, "outside the vocabulary"),
        ({"d2t": -torch.arange(VD), "t2d": None}, "two draft ids"),
        ({"d2t": None}, "missing: d2t"),
        ({"d2t": torch.zeros(VD)}, "wrong dtype: d2t"),
        ({"d2t": torch.zeros(VD + 1, dtype=torch.int64)}, "misshapen: d2t"),
        ({"t2d": torch.ones(V, dtype=torch.bool)}, "t2d marks 40 tokens"),
        ({"fc__weight": torch.zeros(H, 3 * H, dtype=torch.int8)}, "wrong dtype: fc.weight"),
        ({"fc__weight": torch.zeros(H, 3 * H + 1)}, "fc.weight"),
        ({"fc__weight": None}, "missing: fc.weight"),
        ({"lm_head__weight": None}, "missing: lm_head.weight"),
        ({"midlayer__hidden_norm__weight": None}, "missing: layers.0.hidden_norm.weight"),
        ({"layers__1__mlp__up_proj__weight": torch.zeros(2, 2)}, "unknown: layers.1.mlp.up_proj.weight"),
    ],
)
def test_bad_tensors_are_refused_by_name(tmp_path, changes, part):
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(write(tmp_path, tensors(**changes)))
    assert part in str(error.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, dtype, value):
    fc, norm = torch.ones(H, 3 * H, dtype=dtype), torch.ones(H, dtype=dtype)
    fc[2, 5] = fc[7, 0] = fc[H - 1, 3 * H - 1] = norm[3] = value
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(write(tmp_path, tensors(fc__weight=fc, norm__weight=norm)))
    told = [line.strip() for line in str(error.value).splitlines()[1:]]
    kind = f"values that are nan or inf, the first {value} at"
    assert told == [f"not finite: fc.weight holds 3 of {3 * H * H} {kind} [2, 5]",
                    f"not finite: norm.weight holds 1 of {H} {kind} [3]"]


def test_weights_whose_sum_leaves_float32_are_loaded(tmp_path):
    fc = torch.full((H, 3 * H), 3e38)
    assert torch.equal(load_checkpoint(write(tmp_path, tensors(fc__weight=fc))).weights["fc.weight"], fc)


def test_a_matrix_of_zeros_is_noted_by_its_stored_name(tmp_path):
    o_proj, bias = torch.zeros(H, HEADS * DIM), torch.zeros(H)
    report = load_checkpoint(write(tmp_path, tensors(midlayer__self_attn__o_proj__weight=o_proj, fc__bias=bias))).report
    assert report == ("midlayer.self_attn.o_proj.weight [16, 32] holds nothing but zeros",), "a bias may well be zero"


def test_paths_that_are_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="no config.json"):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not JSON"):
        load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="is a file"):
        load_checkpoint(tmp_path / "config.json")
    (tmp_path / "config.json").write_text(json.dumps(config()))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin.*convert"):
        load_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not one")
    with pytest.raises(CheckpointError, match="no safetensors file"):
        load_checkpoint(tmp_path)

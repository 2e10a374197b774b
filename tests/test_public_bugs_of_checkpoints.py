"""Public bug reports about a drafter's files, each a test: vocabulary, names, weights, layouts, and what is no EAGLE-3.

The reports are named by repository and number.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_drafter import CONFIG, SHAPES, full, oracle, random, target, tensors, zeros

from eagle3_ext import ops, reference
from eagle3_ext.checkpoint import coverage, load_checkpoint
from eagle3_ext.drafter import Drafter
from eagle3_ext.errors import CheckpointError
from eagle3_ext.sharing import shared_table

# ---- vocabulary


@pytest.mark.parametrize("stored, size", [(full(), 32), (full({"d2t": torch.zeros(32, dtype=torch.int64)}), 32),
                                          (full(), ...)])
def test_a_full_vocabulary_is_the_identity(load, stored, size):  # EAGLE 222
    checkpoint = load(stored, draft_vocab_size=size)
    assert "target_ids" not in checkpoint.weights
    logits = torch.eye(32)
    assert reference.argmax_tokens(logits, checkpoint.weights.get("target_ids"))[0].tolist() == list(range(32))


def test_a_reduced_vocabulary_needs_its_map(refuse):  # Automodel 2447
    refuse(tensors({"d2t": None}), told=["d2t", "12", "32"])


@pytest.mark.parametrize("offsets, told", [
    ([0, 1, 5, 5], ["d2t[3]", "8"]), ([0, -2, 0, 0], ["-1"]), ([0, 0, -1, 0], ["to one target id, 1"]),
])
def test_offsets_out_of_range_or_repeated(refuse, offsets, told):  # llama.cpp 18039
    stored = tensors({"d2t": torch.tensor(offsets), "t2d": None, "lm_head.weight": random(4, 8)})
    refuse(stored, vocab_size=8, draft_vocab_size=4, told=["d2t", *told])


@pytest.mark.parametrize("name", ["d2t", "model.d2t", "draft_id_to_target_id"])
def test_offsets_under_any_name(load, name):  # vllm 18909
    stored = tensors({"d2t": None, "t2d": None, "lm_head.weight": random(4, 8), name: torch.tensor([0, 0, 1, 4])})
    ids = load(stored, vocab_size=8, draft_vocab_size=4).weights["target_ids"]
    assert ids.tolist() == [0, 1, 3, 7]
    assert reference.argmax_tokens(torch.tensor([[0.5, 2, 1, -1]]), ids)[0].tolist() == [1]


def test_a_map_shorter_than_the_head(refuse):  # SpecForge 76
    stored = tensors({"d2t": torch.tensor([0, 0, 1]), "t2d": None, "lm_head.weight": random(4, 8)})
    refuse(stored, draft_vocab_size=4, told=["d2t is [3], expected [4]"])


def test_a_map_is_built_for_the_size_that_is_asked_for(tmp_path, monkeypatch):  # SpecForge 76, 602
    """Three distinct tokens: other ids fill up the map, and a second size gets a second map."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "tools"))
    from training.data import VALIDATION_ROWS, ShardSet

    text = torch.tensor([[7, 2, 7, 5]], dtype=torch.int32).repeat(VALIDATION_ROWS + 1, 1)
    save_file({"tokens": text, "greedy": text.clone(), "answer": torch.ones_like(text, dtype=torch.uint8)},
              tmp_path / "0.safetensors")
    shards = ShardSet(tmp_path)
    for size in (3, 5, 4, 6):
        ids = shards.frequent_tokens(size, 8).tolist()
        assert len(set(ids)) == size and ids == sorted(ids) and {2, 5, 7} <= set(ids)


def test_two_maps_in_one_file(refuse):  # SpecForge 534, speculators 1081: the map the head was trained with is replaced
    other = tensors({"draft_id_to_target_id": torch.arange(12) + 8})
    refuse(other, told=["duplicate", "draft_id_to_target_id", "both d2t"])


def test_logits_that_are_not_as_wide_as_the_map():  # SpecForge 146: joined twice over four ranks
    with pytest.raises(ValueError, match=r"target_ids has shape \[32\].*\[128\]"):
        ops.argmax_tokens(torch.zeros(5, 128), torch.arange(32))


@pytest.mark.parametrize("size", [0, -1, 4.0, "12", 33])
def test_nonsense_sizes(refuse, size):  # Automodel 2260
    refuse(draft_vocab_size=size, told=["draft_vocab_size", repr(size)])


def test_coverage_of_a_text(load):  # vllm 50158
    ids = torch.arange(12)
    stored = tensors({"d2t": torch.zeros(12, dtype=torch.int64),
                      "t2d": torch.zeros(32, dtype=torch.bool).index_fill(0, ids, True)})
    checkpoint = load(stored)
    assert coverage(checkpoint.config, checkpoint.weights, torch.tensor([3, 11, 12, 20, 5])) == 0.6


# ---- names and weights


def test_both_prefixes_are_one_drafter(load):  # speculators 1114, 360
    renamed = {name.replace("midlayer.", "layers.0."): value for name, value in tensors().items()}
    first, second = load(), load(renamed)
    assert first.config == second.config
    assert all(torch.equal(first.weights[name], weight) for name, weight in second.weights.items())
    assert first.weights.keys() == second.weights.keys()


def test_no_tensor_keeps_its_initial_value(load, refuse):
    for name in SHAPES:
        told = name.replace("midlayer.", "layers.0.")
        if name != "lm_head.weight":
            refuse(tensors({name: None}), told=[told])
    refuse(tensors({"midlayer.extra.weight": random(8)}), told=["midlayer.extra.weight"])


def test_a_head_that_is_not_there(load, refuse):  # sglang 27829
    checkpoint = load(full({"lm_head.weight": None}), draft_vocab_size=32)
    model = target()
    native = Drafter.from_checkpoint(checkpoint, model)
    assert not checkpoint.config.own_head
    lent = model.get_output_embeddings()
    assert shared_table(lent, "lm_head.weight", 32, 8).data_ptr() == lent.weight.data_ptr(), "the same storage"
    lent.weight.zero_()  # the head's log-probabilities are now those of equal logits
    native.extend(torch.ones(1, 24), torch.tensor([0]), torch.tensor([0]), torch.tensor([0, 1]))
    assert float(native.draft(1).log_probs) == pytest.approx(-math.log(32))
    model.get_output_embeddings = lambda: None
    with pytest.raises(CheckpointError, match="lm_head.weight.*is missing"):
        Drafter.from_checkpoint(checkpoint, model)
    with pytest.raises(ValueError, match="lm_head.weight"):
        reference.Drafter(checkpoint.config, checkpoint.weights, torch.ones(32, 8))
    refuse(tensors({"lm_head.weight": None}), told=["missing: lm_head.weight"])


def test_own_embedding_is_kept(load):  # vllm 28549
    checkpoint = load(tensors({"embed_tokens.weight": torch.full((32, 8), 2.0)}))
    assert checkpoint.config.own_embedding
    assert oracle(checkpoint).weights["embed_tokens.weight"].unique().tolist() == [2.0]
    drafts = []
    for value in (1.0, 5.0):  # whatever the target's embedding holds
        native = Drafter.from_checkpoint(checkpoint, target(value=value), dtype=torch.float32)
        native.extend(random(1, 24, dtype=torch.float32), torch.tensor([0]), torch.tensor([0]), torch.tensor([0, 1]))
        drafts.append(native.draft(1).log_probs.clone())
    assert torch.equal(*drafts)


def test_absent_embedding_is_the_targets(load):  # vllm 17326, TensorRT-LLM 3176
    checkpoint = load()
    assert not checkpoint.config.own_embedding
    with pytest.raises(ValueError, match="embed_tokens.weight"):
        reference.Drafter(checkpoint.config, checkpoint.weights)


@pytest.mark.parametrize("norm_output, expected", [(None, [3, 4]), (False, [3, 4]), (True, [0.84853, 1.13137])])
def test_which_state_feeds_the_next_step(load, refuse, norm_output, expected):  # vllm 46488
    stored = {name: random(*shape) for name, shape in {
        "fc.weight": (2, 6), "lm_head.weight": (32, 2), "midlayer.self_attn.q_proj.weight": (4, 4),
        "midlayer.self_attn.k_proj.weight": (2, 4), "midlayer.self_attn.v_proj.weight": (2, 4),
        "midlayer.self_attn.o_proj.weight": (2, 4), "midlayer.mlp.gate_proj.weight": (3, 2),
        "midlayer.mlp.up_proj.weight": (3, 2), "midlayer.mlp.down_proj.weight": (2, 3),
        **{f"midlayer.{n}.weight": (2,) for n in ("hidden_norm", "input_layernorm", "post_attention_layernorm")},
        "norm.weight": (2,)}.items()}
    stored["norm.weight"] = torch.ones(2)
    changes = {} if norm_output is None else {"norm_output": norm_output}
    checkpoint = load(stored, hidden_size=2, intermediate_size=3, head_dim=2, draft_vocab_size=32, rms_norm_eps=1e-12,
                      **changes)
    one = oracle(checkpoint)
    one.s = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    one.y = one._norm(one.s, "norm")
    recurrent = one.y if checkpoint.config.norm_output else one.s
    assert recurrent[0].tolist() == pytest.approx(expected, abs=1e-5)
    assert one.y[0].tolist() == pytest.approx([0.84853, 1.13137], abs=1e-5)
    refuse(told=["norm_surprise"], norm_surprise=True)


@pytest.mark.parametrize("before, expected", [(False, [3, 4]), (True, [0.84853, 1.13137])])
def test_norm_before_residual(load, before, expected):  # speculators 52, 53
    checkpoint = load(norm_before_residual=before, rms_norm_eps=1e-12)
    silent = zeros(checkpoint, "layers.0.self_attn.o_proj.weight", "layers.0.mlp.down_proj.weight", "fc.weight")
    ones = {"layers.0.hidden_norm.weight": torch.ones(8, dtype=torch.float64)}
    one = oracle(checkpoint, **silent, **ones, **{"fc.bias": torch.tensor([3.0, 4] * 4, dtype=torch.float64)})
    one.extend(torch.zeros(1, 24), [0], [0])
    assert one.s[0, :2].tolist() == pytest.approx(expected, abs=1e-5)


def test_speculators_without_norm_before_residual_asks(write):  # vllm reads True, speculators False
    folder = write(speculators_config={"algorithm": "eagle3"})
    with pytest.raises(CheckpointError, match="norm_before_residual is missing"):
        load_checkpoint(folder)
    for choice in (False, True):
        assert load_checkpoint(folder, norm_before_residual=choice).config.norm_before_residual is choice


# ---- files and dtypes


def test_every_layout_of_files_is_one_drafter(tmp_path):  # ssd 4, AngelSlim 173, sglang 30775, EAGLE 60
    stored = tensors()
    halves = [{k: v for i, (k, v) in enumerate(sorted(stored.items())) if i % 2 == part} for part in (0, 1)]
    assert "fc.weight" in halves[1]

    def index(suffix, files):
        return {"weight_map": {name: file for file, half in zip(files, halves, strict=True) for name in half}}

    loaded = []
    for layout in ("single", "shards", "bin", "bin shards", "both"):
        folder = tmp_path / layout.replace(" ", "")
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(CONFIG))
        if layout in ("single", "both"):
            save_file(stored, folder / "model.safetensors")
        if layout in ("bin", "both"):
            torch.save(stored if layout == "bin" else {}, folder / "pytorch_model.bin")
        if "shards" in layout:
            base, end, save = ("pytorch_model", "bin", torch.save) if "bin" in layout else (
                "model", "safetensors", save_file)
            files = [f"{base}-0000{i}-of-00002.{end}" for i in (1, 2)]
            for file, half in zip(files, halves, strict=True):
                save(half, folder / file)
            (folder / f"{base}.{end}.index.json").write_text(json.dumps(index(end, files)))
        loaded.append(load_checkpoint(folder))
    for other in loaded[1:]:
        assert other.config == loaded[0].config
        assert all(torch.equal(other.weights[name], weight) for name, weight in loaded[0].weights.items())
    assert any("not read: pytorch_model.bin" in note for note in loaded[-1].report)


def test_no_tensors_at_all(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(CheckpointError, match=r"\*\.safetensors nor \*\.bin"):
        load_checkpoint(tmp_path)


def test_dtypes_are_kept_and_tables_never_cast(load):  # speculators 136, alpamayo 37
    stored = tensors({"d2t": torch.arange(12) + 95_990, "t2d": None})  # up to 96001, which bf16 rounds to 96256
    weights = load(stored, vocab_size=100_000).weights
    assert weights["fc.weight"].dtype == torch.bfloat16
    ids = oracle(load(stored, vocab_size=100_000)).to(torch.bfloat16).weights["target_ids"]
    assert ids.dtype == torch.int64 and int(ids[-1]) == 96_001 + 11


@pytest.mark.parametrize("keys, expected", [
    ({"dtype": "float16"}, torch.float16), ({"torch_dtype": "float16"}, torch.float16),
    ({"dtype": None}, None), ({}, None), ({"dtype": "torch.bfloat16"}, torch.bfloat16),
])
def test_the_declared_dtype(load, keys, expected):  # unsloth 3352
    checkpoint = load(**{"torch_dtype": ...} | keys)
    assert checkpoint.provenance.declared_dtype == expected and checkpoint.provenance.dtypes == ("BF16",)
    assert any("took that" in note for note in checkpoint.report) == (expected == torch.float16)


def test_dtypes_that_disagree_or_are_none(refuse):
    refuse(torch_dtype="float16", dtype="bfloat16", told=["torch_dtype", "dtype", "float16", "bfloat16"])
    refuse(torch_dtype="int8", told=["torch_dtype", "int8"])


def test_features_of_another_dtype(load):  # AngelSlim 147
    drafter = Drafter.from_checkpoint(load(), target(), dtype=torch.float16)
    with pytest.raises(ValueError, match="features is BFloat16, the drafter is .*[Hh]alf"):
        drafter.extend(torch.zeros(1, 24, dtype=torch.bfloat16), torch.tensor([0]), torch.tensor([0]),
                       torch.tensor([0, 1]))


# ---- drafters that are no EAGLE-3 drafters


@pytest.mark.parametrize("config, stored, told", [
    ({"architectures": ["PEagleDraftModel"]}, {}, "P-EAGLE"),
    ({"mask_token_id": 5}, {}, "mask_token_id"),
    ({}, {"mask_hidden": random(1, 1, 24)}, "mask_hidden"),
    ({"architectures": ["LlamaForCausalLMEagle4"]}, {}, "EAGLE-4"),
    ({}, {"efficient_lm_head.weight": random(32, 2)}, "efficient_lm_head.weight"),
    ({"eagle_config": {"eh_proj_before_attn": True}}, {}, "eh_proj_before_attn"),
    ({"architectures": ["LlamaForCausalLMEagle"]}, {}, "EAGLE-1"),
    ({"architectures": ["DFlashDraftModel"]}, {}, "DFlash"),
    ({"speculators_model_type": "dflash"}, {}, "speculators_model_type"),
    ({"use_moe": True}, {}, "use_moe"),
    ({}, {"midlayer.mlp.experts.0.gate_proj.weight": random(4, 8)}, "mixture-of-experts"),
    ({}, {"markov_head.weight": random(4, 8)}, "markov_head.weight"),
    ({}, {"parallel_draft_heads.0.weight": random(4, 8)}, "parallel_draft_heads.0.weight"),
    ({}, {"midlayer.self_attn.q_proj.lora_A.weight": random(4, 8)}, "lora_A"),
])
def test_what_stays_out_is_refused_by_name(refuse, config, stored, told):
    refuse(tensors(stored), told=[told], **config)

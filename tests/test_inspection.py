"""What `inspect` says of every family's fixture in every variant it can carry: each line, and the same as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from families import CELLS, FORMATS, LAYERS, make_weights, variant, write
from test_families import READINGS
from typer.testing import CliRunner

from eagle3_ext.cli import app
from eagle3_ext.errors import CheckpointError
from eagle3_ext.inspection import inspect_checkpoint, read_target

SIGNS = {
    "SafeAILab": "tensors named midlayer.*, no eagle_config in config.json",
    "SpecForge": "tensors named midlayer.*, layer ids in config.json",
    "speculators": "architectures Eagle3DraftModel, speculators_model_type eagle3, speculators_version 0.9.0",
    "speculators converted": "architectures Eagle3Speculator, speculators_model_type eagle3, speculators_version 0.9.0",
    "ModelOpt": "tensors named layers.0.*, architectures LlamaForCausalLMEagle3",
    "ModelOpt Megatron": "tensors named midlayer.0.*",
    "AngelSlim": "architectures Eagle3LlamaForCausalLM",
    "TorchSpec": "_torchspec_version 0.2.0, architectures LlamaForCausalLMEagle3",
    "NeMo Automodel": "tensors named model.*",
    "DeepSpec": "tensors named layers.* and model.layers.*",
    "ModelOpt MLA": "architectures Eagle3DeepseekV2ForCausalLM, tensors named layers.0.*",
    "TorchSpec MLA": "architectures Eagle3DeepseekV2ForCausalLM, tensors named midlayer.*",
    "TorchSpec MLA for vLLM": "_torchspec_version 0.2.0, architectures Eagle3DeepseekV2ForCausalLM",
}
NEOX, ADJACENT = "dimensions in pairs of halves (NeoX)", "dimensions in adjacent pairs (interleaved)"
PLAIN_LINES = {
    "width": "drafter width h 16, MLP 24, stored as BF16",
    "features": "features 48 wide: 3 states of the target's hidden size H 16",
    "cache": "cache 64 bytes per token in BF16, 0.2 MiB per sequence of 4096 tokens",
    "fusion": "fc 48 -> 16",
    "attention": "attention with 4 query and 2 key and value heads of 8",
    "layer 0": "layer 0 reads embedding and hidden side by side, sees every token before it",
    "residual": "the residual of layer 0 is the hidden, before its norm",
    "eps": "RMSNorm eps 1e-05",
    "rope": f"default, theta 5000, 8 of a head's 8 {NEOX}",
    "recurrent": "a draft step hands the next one s, before the final norm",
    "tables": "head: its own; embedding: the target's",
    "vocabulary": "drafts 12 of 40 tokens (30.0%)",
}
LATENT_LINES = {
    "cache": "cache 28 bytes per token in BF16, 0.1 MiB per sequence of 4096 tokens",
    "attention": "latent attention (MLA) with 4 heads of 6 plain and 4 rotated dimensions, values of 5; q from a "
                 "latent of 12, k and v from one of 10",
    "rope": f"default, theta 5000, 4 of a head's 10 {ADJACENT}",
}
TWO_LAYERS = {"cache": "cache 128 bytes per token in BF16, 0.5 MiB per sequence of 4096 tokens"}
ALL_TOKENS = "drafts 40 of 40 tokens (100.0%)"
# What a variant's screen says in place of the plain one's line, or beside it.
LINES = {
    "plain": {},
    "K = 5": {"features": "features 80 wide: 5 states of the target's hidden size H 16", "fusion": "fc 80 -> 16"},
    "H != h": {"features": "features 60 wide: 3 states of the target's hidden size H 20", "fusion": "fc 60 -> 16",
               "tables": "head: its own; embedding: its own"},
    "input_norm": {"fusion": "input_norm over the whole row, then fc 48 -> 16"},
    "fc_norm, norm_output": {"fusion": "fc_norm over each state, then fc 48 -> 16",
                             "recurrent": "a draft step hands the next one y, after the final norm"},
    "no fc": {"features": "features 16 wide: 1 state of the target's hidden size H 16",
              "fusion": "none: one state, after the target's final norm, is the drafter's input",
              "residual": "the residual of layer 0 is the hidden, which has no norm (no hidden_norm)"},
    "norm_before_residual": {
        "residual": "the residual of layer 0 is the hidden, after its norm (norm_before_residual)"},
    "no final norm": {"recurrent": "a draft step hands the next one the last layer's output; there is no final norm"},
    "fc bias": {"fusion": "fc 48 -> 16, with bias"},
    "attention bias": {"bias": "biases on q, k and v, o"},
    "MLP bias": {"bias": "biases on MLP"},
    "q/k norm": {"attention": PLAIN_LINES["attention"] + ", q and k normed per head"},
    "two layers": {"layer 1": "layer 1 reads the hidden alone, sees every token before it"} | TWO_LAYERS,
    "next_layer_regular false": {
        "layer 1": "layer 1 reads embedding and hidden side by side, sees every token before it"} | TWO_LAYERS,
    "sliding window": {
        "layer 0": "layer 0 reads embedding and hidden side by side, sees the last 5 tokens"} | TWO_LAYERS,
    "own embedding": {"tables": "head: its own; embedding: its own"},
    "tied head": {"tables": "head: its own embedding (tied); embedding: its own", "vocabulary": ALL_TOKENS},
    "target's head": {"tables": "head: the target's; embedding: the target's", "vocabulary": ALL_TOKENS},
    "full vocabulary": {"vocabulary": ALL_TOKENS},
    "logit_scale": {"tables": "head: its own, logits times 0.5; embedding: the target's"},
    "no layer ids": {},
    "rope linear": {"rope": f"linear, theta 5000, 8 of a head's 8 {NEOX}, factor 4"},
    "rope dynamic": {"rope": f"dynamic, theta 5000, 8 of a head's 8 {NEOX}, factor 4, over 2048 positions"},
    "rope llama3": {"rope": f"llama3, theta 5000, 8 of a head's 8 {NEOX}, factor 8, over 64 positions"},
    "rope yarn": {"rope": f"yarn, theta 5000, 8 of a head's 8 {NEOX}, factor 32, over 2048 positions, cosines and "
                          "sines times 1.34657"},
    "rope mrope": {"rope": f"default, theta 5000, 8 of a head's 8 {NEOX}, trained with mrope: equal rows only"},
    "rope partial": {"rope": f"default, theta 5000, 4 of a head's 8 {NEOX}"},
    "rope interleaved": {"rope": f"default, theta 5000, 8 of a head's 8 {ADJACENT}"},
    "NoPE": {"rope": "none: positions turn nothing (NoPE)"},
    "latent attention": LATENT_LINES,
    "latent, no q_lora": LATENT_LINES | {"attention": LATENT_LINES["attention"].replace("q from a latent of 12",
                                                                                        "q without a latent")},
    "latent, yarn": LATENT_LINES | {
        "attention": LATENT_LINES["attention"] + "; softmax scale times 1.291 squared",
        "rope": f"yarn, theta 5000, 4 of a head's 10 {ADJACENT}, factor 64, over 4096 positions, cosines and sines "
                "times 1.09663"},
}


def inspected(folder, family: str, name: str):
    write(folder / "drafter", FORMATS[family], variant(name), make_weights(variant(name)))
    facts = {"num_hidden_layers": LAYERS, "hidden_size": variant(name).target_hidden_size, "vocab_size": 40,
             "model_type": "llama"}
    (folder / "target.json").write_text(json.dumps(facts))
    return inspect_checkpoint(folder / "drafter", folder / "target.json")


@pytest.mark.parametrize("family, name", CELLS)
def test_inspect_explains_every_fixture(tmp_path, family, name):
    inspection = inspected(tmp_path, family, name)
    sections = dict(inspection.sections())
    silent = variant(name).boundaries is None  # without layer ids there is less to tell a stack by, and no ambiguity
    assert sections["family"][0] == f"{FORMATS[family].family}: {SIGNS[family]}" or silent
    lines = [line for part in sections.values() for line in part]
    for line in (PLAIN_LINES | LINES[name]).values():
        assert line in lines
    boundaries = "\n".join(sections["boundaries"])
    ambiguous = READINGS[family][0] == "ambiguous" and not silent
    expected = ["can be read two ways", "probe_boundaries measures"] if ambiguous else [str(inspection.plan.describe())]
    engines = ("vLLM", "SGLang", "TensorRT-LLM") if name == "no fc" else (
        "vLLM", "SGLang", "TensorRT-LLM", "llama.cpp", "SafeAILab")
    for part in (*expected, *(f"{engine} captures bound" for engine in engines)):
        assert part in boundaries


@pytest.mark.parametrize("family", FORMATS)
def test_inspect_speaks_words_and_json(tmp_path, family):
    inspection = inspected(tmp_path, family, "latent attention" if FORMATS[family].latent else "plain")
    text = "\n".join(line for _, part in inspection.sections() for line in part)
    assert not re.search(r"None|True|False|torch\.|<|\(\d+, \d", text.replace("boundaries=(", ""))
    told = json.loads(json.dumps(inspection.to_dict()))
    assert told["provenance"]["declared_dtype"] == "bfloat16" and told["provenance"]["dtypes"] == ["BF16"]
    assert told["target"] == {"num_layers": 12, "hidden_size": 16, "vocab_size": 40, "model_type": "llama"}
    assert told["config"]["layers"] == [{"joins_embedding": True, "window": None}]
    assert [engine["boundaries"] for engine in told["engines"]][3:] == [[2, 6, 9], [2, 6, 9]]
    if told["plan"] is None:
        assert "two ways" in told["plan_problem"]
    else:
        assert told["plan"]["boundaries"] == list(READINGS[family][1]) and told["plan"]["width"] == 48
        assert told["plan"]["final_norm"] is False and told["plan_problem"] is None


@pytest.mark.parametrize("layers", [1, 2, 4, 6, 7])
@pytest.mark.parametrize("family, name", [("SafeAILab", "no layer ids"), ("SpecForge", "no layer ids"),
                                          ("SpecForge", "plain"), ("speculators", "plain")])
def test_a_shallow_target_shows_no_boundary_below_the_embedding(tmp_path, family, name, layers):
    folder = write(tmp_path / "drafter", FORMATS[family], variant(name), make_weights(variant(name)))
    (tmp_path / "target.json").write_text(json.dumps({"num_hidden_layers": layers, "hidden_size": 16}))
    inspection = inspect_checkpoint(folder, tmp_path / "target.json")
    shown = "\n".join(dict(inspection.sections())["boundaries"])
    assert not re.search(r"(?<![\w)])-\d", shown), shown
    assert all(min(engine["boundaries"]) >= 0 for engine in inspection.to_dict()["engines"])
    safeailab = inspection.engines[-1]
    expected = sorted({b for b in (2, layers // 2, layers - 3) if b >= 0})
    assert list(safeailab.boundaries) == expected
    assert (f"only {len(expected)} of 3" in safeailab.rule) == (layers < 7)


def test_a_shallow_target_is_told_that_it_has_no_published_default(tmp_path):
    folder = write(tmp_path / "drafter", FORMATS["SpecForge"], variant("plain"), make_weights(variant("plain")))
    (tmp_path / "target.json").write_text(json.dumps({"num_hidden_layers": 6, "hidden_size": 16}))
    boundaries = inspect_checkpoint(folder, tmp_path / "target.json", boundaries=(1, 2, 3)).sections()[6][1]
    assert "a target of 6 layers is too shallow for the published default (2, n//2, n-3)" in boundaries


@pytest.mark.parametrize("content, told", [
    (None, "holds no config.json"),
    ("no json", "config.json is not JSON"),
    ("[" * 5000, "nested too deeply"),
    ("[]", "holds a list where a target's config is expected"),
    ('{"text_config": 3}', "holds a int where a target's config is expected"),
    ('{"hidden_size": 16}', "num_hidden_layers is missing; expected a positive integer"),
    ('{"num_hidden_layers": 4, "hidden_size": "16"}', "hidden_size is '16'; expected a positive integer"),
    ('{"num_hidden_layers": -4, "hidden_size": 16}', "num_hidden_layers is -4; expected a positive integer"),
    ('{"num_hidden_layers": 4, "hidden_size": 16, "vocab_size": "many"}', "vocab_size is 'many'"),
])
def test_a_target_that_is_none_is_refused_in_a_sentence(tmp_path, content, told):
    (tmp_path / "target").mkdir()
    if content is not None:
        (tmp_path / "target" / "config.json").write_text(content)
    with pytest.raises(CheckpointError) as error:
        read_target(tmp_path / "target")
    assert told in str(error.value) and "Error(" not in str(error.value)


def test_a_target_that_is_not_there_and_a_hub_id(tmp_path):
    with pytest.raises(CheckpointError, match="not exist; expected a local folder with config.json, or that file$"):
        read_target(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="SomeOrg/some-1.0.*does not exist; .*local folder.*hub id is not looked"):
        read_target(Path("SomeOrg/some-1.0"))
    (tmp_path / "config.json").write_text('\ufeff{"num_hidden_layers": 4, "hidden_size": 16}', encoding="utf-8")
    assert read_target(tmp_path).num_layers == read_target(tmp_path / "config.json").num_layers == 4


def test_the_command_line_inspects_and_refuses(tmp_path):
    folder = write(tmp_path / "drafter", FORMATS["SpecForge"], variant("plain"), make_weights(variant("plain")))
    command = ["inspect", str(folder), "--json", str(tmp_path / "out.json")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0 and result.stdout.startswith("family                  SpecForge or TorchSpec: ")
    assert json.loads((tmp_path / "out.json").read_text())["config"]["num_states"] == 3
    (folder / "config.json").write_text("{}")
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1 and "is no usable drafter" in result.stdout

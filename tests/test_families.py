"""Every training stack's files, in every variant they can carry: the loader gives back what was written, all bits."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import families
import pytest
import torch
from families import CELLS, FORMATS, LAYERS, make_weights, variant, write
from test_drafter import BOUNDS, assert_same_draft, extend, make_rows, rounded_reference
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from eagle3_ext import reference
from eagle3_ext.checkpoint import load_checkpoint
from eagle3_ext.drafter import Drafter
from eagle3_ext.errors import BoundaryError
from eagle3_ext.plan import resolve_plan


def load(folder, family: str, name: str, dtype: torch.dtype = torch.bfloat16):
    config = variant(name)
    weights = make_weights(config, dtype=dtype)
    return load_checkpoint(write(folder, FORMATS[family], config, weights)), weights


@pytest.mark.parametrize("family, name", CELLS)
def test_what_a_stack_writes_is_what_is_loaded(tmp_path, family, name):
    form = FORMATS[family]
    checkpoint, weights = load(tmp_path, family, name)
    truth, ids = form.truth(name), checkpoint.provenance.layer_ids
    if ids is not None and ids.reading == "ambiguous":
        truth = dataclasses.replace(truth, boundaries=None)
    assert checkpoint.config == truth
    assert checkpoint.provenance.family.name == form.family
    expected = dict(weights)
    assert checkpoint.weights.keys() == expected.keys()
    for key, weight in expected.items():
        assert torch.equal(checkpoint.weights[key], weight) and checkpoint.weights[key].dtype == weight.dtype, key


def target(config, dtype):
    """A model in name only: its embedding and head are what a drafter may borrow."""
    generator = torch.Generator().manual_seed(9)
    width = config.target_hidden_size
    tables = [SimpleNamespace(weight=torch.randn(config.vocab_size, width, generator=generator).to(dtype))
              for _ in range(2)]
    text = SimpleNamespace(num_hidden_layers=LAYERS, hidden_size=width, max_position_embeddings=2048)
    return SimpleNamespace(config=SimpleNamespace(get_text_config=lambda decoder: text),
                           get_input_embeddings=lambda: tables[0], get_output_embeddings=lambda: tables[1])


def agrees(family: str, name: str, folder, dtype: torch.dtype) -> None:
    """The native drafter against the float64 reference, draft by draft."""
    checkpoint, _ = load(folder, family, name, dtype)
    config, model = checkpoint.config, target(checkpoint.config, dtype)
    ids = checkpoint.provenance.layer_ids
    chosen = ids.as_boundaries() if ids and ids.reading == "ambiguous" else None
    native = Drafter.from_checkpoint(checkpoint, model, boundaries=chosen, max_length=256)
    tables = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    rounded = rounded_reference(config, checkpoint.weights, *tables)
    exact = rounded.to(torch.float64)
    # A prefill, then a round that accepted two drafts and one that accepted none.
    start = 0
    for count, steps in ((33, 1), (3, 7), (1, 4)):
        rows = make_rows(config, count, start, dtype=dtype)
        extend(native, rows)
        for one in (rounded, exact):
            one.extend(**rows)
        start += count
        assert_same_draft(native, exact, steps, BOUNDS[dtype], None if dtype == torch.float32 else rounded)


WRITTEN = [(family, name) for family, name in CELLS if name in FORMATS[family].writes]


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@DTYPES
@pytest.mark.parametrize("family, name", WRITTEN)
def test_what_a_stack_writes_computes(tmp_path, family, name, dtype):
    agrees(family, name, tmp_path, dtype)


@pytest.mark.slow
@DTYPES
@pytest.mark.parametrize("family, name", [cell for cell in CELLS if cell not in WRITTEN])
def test_what_a_format_can_carry_computes(tmp_path, family, name, dtype):
    agrees(family, name, tmp_path, dtype)


# Published yarn forms of kimi drafters, as transformers' own config class reads them.
KIMI_YARN = {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
             "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}


@pytest.mark.parametrize("scaling", [None, KIMI_YARN, KIMI_YARN | {"mscale_all_dim": 0.7},
                                     {k: v for k, v in KIMI_YARN.items() if not k.startswith("mscale")}])
@pytest.mark.parametrize("name", ["latent attention", "latent, no q_lora"])
def test_a_latent_file_attends_as_transformers_reads_it(tmp_path, name, scaling):
    """From config.json to numbers by another route: DeepseekV3Config and DeepseekV3Attention on the file's own keys."""
    form, weights = FORMATS["ModelOpt MLA"], make_weights(variant(name), dtype=torch.float32)
    # Their latent norms take 1e-6 whatever rms_norm_eps says; engines take rms_norm_eps.
    raw = form.config_json(variant(name)) | {"rope_scaling": scaling, "rope_theta": 5e4, "rms_norm_eps": 1e-6}
    folder = write(tmp_path, dataclasses.replace(form, config_json=lambda _: raw), variant(name), weights)
    checkpoint, prefix = load_checkpoint(folder), "layers.0.self_attn."
    keys = {key: value for key, value in raw.items() if key not in ("architectures", "model_type", "torch_dtype")}
    theirs = DeepseekV3Config(**keys, attn_implementation="eager")
    attention = DeepseekV3Attention(theirs, 0).double().requires_grad_(False)
    names = [key for key, _ in attention.named_parameters()]
    assert sorted(names) == sorted(key.removeprefix(prefix) for key in weights if key.startswith(prefix))
    for key, parameter in attention.named_parameters():
        parameter.data = weights[prefix + key].double()
    ours = reference.Drafter(checkpoint.config, checkpoint.weights, torch.ones(40, 16)).to(torch.float64)
    torch.manual_seed(0)
    x, count = torch.randn(50, 32, dtype=torch.float64), 50
    mask = torch.full((count, count), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    # Their angles are float32: at position p they are off by p x 2^-24 radians, 0.004 at the last one of the second.
    for stride, bound in ((1, 1e-5), (1500, 5e-3)):
        positions = stride * torch.arange(count)
        angles = DeepseekV3RotaryEmbedding(theirs)(x[None].float(), positions[None])
        angles = tuple(part.double() for part in angles)
        expected = attention(x[None], position_embeddings=angles, attention_mask=mask)[0][0]
        ours.reset()
        got = ours._linear(ours._latent_attention(0, x, ours._angles(positions)), f"{prefix}o_proj")
        assert (got - expected).norm() <= bound * expected.norm()


# ---- boundaries, family by family

READINGS = {
    "SafeAILab": (None, (2, 6, 9)),
    "SpecForge": ("outputs", (2, 5, 9)),
    "speculators": ("boundaries", (2, 5, 9)),
    "speculators converted": ("ambiguous", None),
    "ModelOpt": ("outputs", (2, 5, 9)),
    "ModelOpt Megatron": ("outputs", (2, 5, 9)),
    "AngelSlim": ("outputs", (2, 5, 9)),
    "TorchSpec": ("outputs", (2, 5, 9)),
    "NeMo Automodel": ("outputs", (2, 5, 9)),
    "DeepSpec": ("outputs", (2, 5, 9)),
    "ModelOpt MLA": ("outputs", (2, 5, 9)),
    "TorchSpec MLA": ("outputs", (2, 5, 9)),
    "TorchSpec MLA for vLLM": ("boundaries", (2, 5, 9)),
}


@pytest.mark.parametrize("family", FORMATS)
def test_layer_ids_are_read_as_their_stack_means_them(tmp_path, family):
    checkpoint, _ = load(tmp_path, family, "latent attention" if FORMATS[family].latent else "plain")
    reading, boundaries = READINGS[family]
    ids, config = checkpoint.provenance.layer_ids, checkpoint.config
    assert (ids and ids.reading) == reading
    if reading == "ambiguous":
        with pytest.raises(BoundaryError, match=r"two ways.*boundaries=\(2, 5, 9\).*boundaries=\(3, 6, 10\)"):
            resolve_plan(config, LAYERS, 16, provenance=checkpoint.provenance)
        return
    plan = resolve_plan(config, LAYERS, 16, provenance=checkpoint.provenance)
    assert plan.boundaries == boundaries
    assert "outputs of layers 1, " in str(plan) and plan.decided_by in str(plan)
    if reading is not None:
        other = {"outputs": "read as boundaries", "boundaries": "read as layer outputs"}[reading]
        assert other in str(plan)


def test_the_support_matrix_in_the_docs_is_current():
    text = families.DOCS.read_text()
    table = text.partition(families.BEGIN)[2].partition(families.END)[0].strip()
    assert table == families.support_matrix(), "run: python tests/families.py"

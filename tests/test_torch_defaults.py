"""torch's own defaults, changed by whoever calls: loading a checkpoint and building a drafter give what they always do."""

from __future__ import annotations

import contextlib

import pytest
import torch
from families import FORMATS, make_weights, variant, write
from test_drafter import extend, make_rows
from test_families import target

from eagle3_ext.checkpoint import coverage, load_checkpoint
from eagle3_ext.checkpoint.rotation import for_rotated_target
from eagle3_ext.drafter import Drafter
from eagle3_ext.native_form import native_weights


@contextlib.contextmanager
def default_device():
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


DEFAULTS = {
    "meta as a context": lambda: torch.device("meta"),
    "meta by default": default_device,
    "float64 by default": lambda: default_dtype(torch.float64),
    "bfloat16 by default": lambda: default_dtype(torch.bfloat16),
}
# Between them: target_ids, every kind of RoPE table, heads put in another order, a .bin, latent attention.
CELLS = [("SafeAILab", "plain"), ("SpecForge", "rope dynamic"), ("SpecForge", "rope llama3"), ("ModelOpt", "rope yarn"),
         ("speculators", "rope partial"), ("ModelOpt", "rope interleaved"), ("ModelOpt MLA", "latent, yarn"),
         ("ModelOpt", "NoPE")]


@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.parametrize("family, variant_name", CELLS)
def test_a_drafter_is_the_same_under_any_default(tmp_path, family, variant_name, name):
    config = variant(variant_name)
    folder = write(tmp_path, FORMATS[family], config, make_weights(config))
    plain, model = load_checkpoint(folder), target(config, torch.bfloat16)
    drafters = [Drafter.from_checkpoint(plain, model)]
    with DEFAULTS[name]():
        loaded = load_checkpoint(folder)
        drafters.append(Drafter.from_pretrained(folder, model))
        tables = native_weights(loaded.config, loaded.weights, 40)
    assert (loaded.config, loaded.report) == (plain.config, plain.report)
    expected = native_weights(plain.config, plain.weights, 40)
    assert tables.keys() == expected.keys()
    for key, weight in expected.items():
        assert tables[key].dtype == weight.dtype and torch.equal(tables[key], weight), key
    rows, drafts = make_rows(config, 20, 0, dtype=torch.bfloat16), []
    for drafter in drafters:
        extend(drafter, rows)
        drafts.append([part.clone() for part in vars(drafter.draft(4)).values()])
    assert all(torch.equal(*pair) for pair in zip(*drafts, strict=True))


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_drafter_drafts_the_same_under_any_default(tmp_path, name):
    config = variant("plain")
    checkpoint = load_checkpoint(write(tmp_path, FORMATS["SpecForge"], config, make_weights(config)))
    rows, model = make_rows(config, 20, 0, dtype=torch.bfloat16), target(config, torch.bfloat16)
    drafts = []
    for default in (contextlib.nullcontext, DEFAULTS[name]):
        offsets, drafter = torch.tensor([0, 20]), Drafter.from_checkpoint(checkpoint, model)
        with default():
            drafter.extend(rows["features"], rows["tokens"], rows["positions"], offsets)
            drafts.append([part.clone() for part in vars(drafter.draft(4)).values()])
    assert all(torch.equal(*pair) for pair in zip(*drafts, strict=True))


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_else_reads_a_checkpoint_is_the_same_under_any_default(tmp_path, name):
    config, tokens = variant("full vocabulary"), torch.arange(50)
    checkpoint = load_checkpoint(write(tmp_path, FORMATS["SpecForge"], config, make_weights(config)))
    rotation, table = torch.eye(16).flip(0), make_weights(config, 3)["lm_head.weight"]
    expected = for_rotated_target(checkpoint, rotation, table).weights
    with DEFAULTS[name]():
        assert coverage(checkpoint.config, checkpoint.weights, tokens) == 0.8
        weights = for_rotated_target(checkpoint, rotation, table).weights
    assert all(torch.equal(weights[key], weight) for key, weight in expected.items())

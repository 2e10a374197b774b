"""Capture: exact tensors, explicit boundaries, and errors for everything stale, missing or misshapen."""

from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eagle3_ext.errors import BoundaryError, FeatureWidthError
from eagle3_ext.features import CaptureHooks, CapturePlan, Features, capture
from eagle3_ext.plan import resolve_plan

H, LAYERS, VOCAB = 32, 8, 61


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=H,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def ids(batch, length, seed=0):
    return torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def drafter_config(boundaries=None, num_states=3, fusion="fc", target_hidden_size=7168):
    return SimpleNamespace(
        boundaries=boundaries, num_states=num_states, fusion=fusion, target_hidden_size=target_hidden_size
    )


def captured(model, tokens, boundaries, **options):
    with capture(model, CapturePlan(boundaries, H, **options)) as features, torch.no_grad():
        output = model(tokens, output_hidden_states=True)
    return features, output


# ---- the plan


@pytest.mark.parametrize(
    "plan, text",
    [
        (
            CapturePlan((3, 31, 59), 7168),
            "captures the outputs of layers 2, 30, 58 (boundaries 3, 31, 59) -> 3 x 7168 = 21504",
        ),
        (CapturePlan((4,), 8), "captures the output of layer 3 (boundary 4) -> 1 x 8 = 8"),
        (CapturePlan((0,), 8), "captures the embedding output (boundary 0) -> 1 x 8 = 8"),
        (
            CapturePlan((0, 2, 5), 8),
            "captures the embedding output and the outputs of layers 1, 4 (boundaries 0, 2, 5) -> 3 x 8 = 24",
        ),
        (CapturePlan((61,), 8, final_norm=True), "captures the final norm's output (boundary 61) -> 1 x 8 = 8"),
    ],
)
def test_a_plan_prints_as_a_sentence(plan, text):
    assert str(plan) == plan.describe() == text


@pytest.mark.parametrize("boundaries", [(), (3, 2), (2, 2), (-1, 2)])
def test_a_plan_refuses_disorder(boundaries):
    with pytest.raises(BoundaryError):
        CapturePlan(boundaries, 8)


def test_resolve_uses_argument_then_file_then_default():
    assert resolve_plan(drafter_config((3, 31, 59)), 61, 7168, (1, 2, 3)).boundaries == (1, 2, 3)
    assert resolve_plan(drafter_config((3, 31, 59)), 61, 7168).boundaries == (3, 31, 59)
    plan = resolve_plan(drafter_config(), 61, 7168)
    assert (plan.boundaries, plan.width, plan.final_norm) == ((2, 30, 58), 21504, False)


def test_resolve_without_fc_takes_the_state_after_the_final_norm():
    plan = resolve_plan(drafter_config(num_states=1, fusion="none"), 61, 7168)
    assert plan == CapturePlan((61,), 7168, final_norm=True)


def test_resolve_sorts_with_a_warning():
    with pytest.warns(UserWarning, match=r"\(1, 28, 15\) are not ascending; captured and fused as \(1, 15, 28\)"):
        assert resolve_plan(drafter_config((1, 28, 15)), 32, 7168).boundaries == (1, 15, 28)


@pytest.mark.parametrize(
    "config, layers, boundaries, match",
    [
        (drafter_config((3, 31, 62)), 61, None, r"\[62\].*outside \[0, 61\]"),
        (drafter_config(), 61, (-1, 2, 3), r"\[-1\]"),
        (drafter_config((3, 3, 5)), 61, None, "repeat"),
        (drafter_config(), 4, None, "ascending only from n = 7"),  # 2 == n//2: too few layers for the default
        (drafter_config(), 61, (2, 3), "fuses 3 states"),
        (drafter_config(num_states=4), 61, None, "fuses 4 states"),
    ],
)
def test_resolve_refuses_bad_boundaries(config, layers, boundaries, match):
    with pytest.raises(BoundaryError, match=match):
        resolve_plan(config, layers, 7168, boundaries)


def test_resolve_refuses_another_targets_width():
    with pytest.raises(FeatureWidthError, match="3 x 7168 = 21504.*4096"):
        resolve_plan(drafter_config(), 61, 4096)


# ---- capture on a model


@pytest.mark.parametrize("batch, length", [(1, 1), (1, 7), (3, 5)])
def test_captured_states_are_bit_equal_to_hidden_states(model, batch, length):
    boundaries = tuple(range(LAYERS + 1))
    last = []
    handle = model.model.layers[-1].register_forward_hook(lambda _m, _a, output: last.append(output))
    features, output = captured(model, ids(batch, length), boundaries)
    handle.remove()
    states = features.tensor.view(batch, length, LAYERS + 1, H)
    for boundary in boundaries[:-1]:
        assert torch.equal(states[:, :, boundary], output.hidden_states[boundary])
    assert torch.equal(states[:, :, LAYERS], last[0])  # transformers' own last state is after the final norm
    assert not torch.equal(states[:, :, LAYERS], output.hidden_states[LAYERS])


def test_final_norm_captures_after_the_norm(model):
    features, output = captured(model, ids(2, 4), (LAYERS,), final_norm=True)
    assert torch.equal(features.tensor.view(2, 4, H), output.hidden_states[-1])


def test_capture_leaves_the_logits_and_the_model_alone(model):
    def hooks():
        return [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()]

    tokens, before = ids(1, 6), hooks()
    with torch.no_grad():
        plain = model(tokens).logits
        with capture(model, CapturePlan((0, 2, LAYERS), H)):
            assert torch.equal(model(tokens).logits, plain)
            assert hooks() != before
    assert hooks() == before


def test_every_forward_is_a_generation_and_forgets_the_one_before(model):
    with capture(model, CapturePlan((2, 4), H)) as features, torch.no_grad():
        model(ids(1, 6))
        assert (features.generation, features.rows) == (1, 6)
        features.gather(torch.tensor([5]))
        model(ids(1, 2, seed=1))
        assert (features.generation, features.rows, features.tensor.shape) == (2, 2, (2, 2 * H))
        with pytest.raises(IndexError, match="row 5 was not written.*generation 2 holds rows 0 to 1"):
            features.gather(torch.tensor([0, 5]))


def test_append_mode_keeps_the_rows_of_every_chunk(model):
    plan, chunks = CapturePlan((2, LAYERS), H), []
    with capture(model, plan, append=True) as whole, capture(model, plan) as single, torch.no_grad():
        for chunk in ids(1, 9).split(4, dim=1):
            model(chunk)
            chunks.append(single.tensor.clone())
    assert (whole.rows, single.rows) == (9, 1)
    assert torch.equal(whole.tensor, torch.cat(chunks))
    whole.reset()
    assert whole.rows == 0


def test_gather_picks_rows_and_pads_with_zeros(model):
    features, _ = captured(model, ids(1, 5), (1, 3, 5))
    for dtype in (torch.int32, torch.int64):
        gathered = features.gather(torch.tensor([4, -1, 0], dtype=dtype))
        assert torch.equal(gathered[[0, 2]], features.tensor[[4, 0]])
        assert not gathered[1].any()
    assert features.gather(torch.empty(0, dtype=torch.int64)).shape == (0, 3 * H)


@pytest.mark.parametrize("row", [-2, 5])
def test_gather_refuses_rows_outside(model, row):
    features, _ = captured(model, ids(1, 5), (1, 3))
    with pytest.raises(IndexError, match=f"row {row} was not written"):
        features.gather(torch.tensor([0, row]))


def test_buffers_born_in_inference_mode_stay_writable(model):
    with capture(model, CapturePlan((2,), H)) as features:
        with torch.inference_mode():
            model(ids(1, 4))
        with torch.no_grad():
            model(ids(1, 4))
        model(ids(1, 4))  # with autograd on: captured states are detached
    assert not features.tensor.requires_grad


# ---- errors


def test_reading_before_any_forward_is_an_error():
    with pytest.raises(BoundaryError, match="hold no forward yet"):
        _ = Features(CapturePlan((1, 2), H)).tensor


def test_a_missing_state_is_named():
    features = Features(CapturePlan((0, 3, 5), 4))
    features.begin_forward()
    features.write(1, torch.ones(1, 2, 4))
    with pytest.raises(BoundaryError, match=r"boundary 0 \(the embedding output\), boundary 5 \(the output of layer 4"):
        _ = features.tensor


def test_a_state_of_the_wrong_width_or_rows_is_named():
    features = Features(CapturePlan((1, 2), 4))
    features.begin_forward()
    with pytest.raises(FeatureWidthError, match="the output of layer 0 has width 8; the plan expects 4"):
        features.write(0, torch.ones(3, 8))
    features.write(0, torch.ones(3, 4))
    with pytest.raises(FeatureWidthError, match="the output of layer 1 has 2 rows; the first state.* had 3"):
        features.write(1, torch.ones(2, 4))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_check_finite_names_row_and_boundary(value):
    features = Features(CapturePlan((1, 3), 4))
    features.begin_forward()
    state = torch.ones(5, 4)
    features.write(0, state)
    features.write(1, state)
    features.check_finite()
    features.begin_forward()
    features.write(0, state)
    features.write(1, state.index_fill(0, torch.tensor([2]), value))
    with pytest.raises(ValueError, match=r"row 2 is not finite at boundary 3 \(the output of layer 2\); 1 of 10"):
        features.check_finite()


def test_a_plan_beyond_the_model_is_refused(model):
    with pytest.raises(BoundaryError, match="boundary 9 is beyond the target's 8 layers"):
        CaptureHooks(model, CapturePlan((2, 9), H))
    with pytest.raises(BoundaryError, match=r"final_norm needs boundaries \(8,\)"):
        CaptureHooks(model, CapturePlan((4,), H, final_norm=True))


def test_hooks_that_would_attach_to_nothing_are_an_error(model):
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.config = model.config
            self.blocks = torch.nn.ModuleList([torch.nn.Linear(2, 2)])

    with pytest.raises(BoundaryError, match=r"Odd has no ModuleList of 8 layers.*blocks \(1\)"):
        CaptureHooks(Odd(), CapturePlan((1,), H))

"""Public bug reports about where a state comes from, on a target whose states say it themselves.

Layer k adds 2^k to every element of a zero embedding, so boundary b holds 2^b - 1.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eagle3_ext import ops
from eagle3_ext.checkpoint import DrafterConfig
from eagle3_ext.doctor.witness import watch_states
from eagle3_ext.errors import FeatureWidthError
from eagle3_ext.features import Features, capture
from eagle3_ext.plan import CapturePlan, resolve_plan

H = 4


@functools.cache
def counter(layers: int) -> LlamaForCausalLM:
    """Every weight is zero but the biases of down_proj and the gain and head at the end."""
    config = LlamaConfig(vocab_size=16, hidden_size=H, intermediate_size=8, num_hidden_layers=layers, mlp_bias=True,
                         num_attention_heads=1, num_key_value_heads=1, rms_norm_eps=1e-12)
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.zero_()
    for k, layer in enumerate(model.model.layers):
        layer.mlp.down_proj.bias.fill_(2.0**k)
    model.model.norm.weight.copy_(torch.tensor([1.0, 2, 3, 4]))
    model.lm_head.weight.copy_(torch.randn(16, H, generator=torch.Generator().manual_seed(0)))
    return model


def run(model, plan):
    with capture(model, plan) as features, torch.no_grad():
        output = model(torch.zeros(1, 5, dtype=torch.int64), output_hidden_states=True)
    return features, output


def captured(model, boundaries):
    features, _ = run(model, CapturePlan(boundaries, H))
    rows = features.tensor.unflatten(1, (-1, H))
    assert torch.equal(rows, rows[:1, :, :1].expand_as(rows)), "one number per boundary"
    return rows[0, :, 0].tolist()


@pytest.mark.parametrize("layers, boundaries, expected", [
    (8, (2, 4, 5), [3, 15, 31]),  # sglang 25454: the ids as boundaries
    (8, (3, 5, 6), [7, 31, 63]),  # the same ids as layer outputs
    (12, (1, 5, 10), [1, 31, 1023]),  # tokenspeed 526: the config's
    (12, (2, 6, 9), [3, 63, 511]),  # the default's
    (8, (0, 8), [0, 255]),  # vllm 46788: the last layer's output is reachable
])
def test_a_value_tells_where_it_was_captured(layers, boundaries, expected):
    assert captured(counter(layers), boundaries) == expected


def test_a_transformers_tuple_starts_with_the_embedding():  # BaldEagle 18, EAGLE 239
    features, output = run(counter(8), CapturePlan((2, 4, 5), H))
    assert len(output.hidden_states) == 9
    assert torch.equal(features.tensor, torch.cat([output.hidden_states[b][0] for b in (2, 4, 5)], dim=-1))


def test_ids_out_of_order_are_captured_ascending():  # vllm 50514
    sizes = {"hidden_size": H, "target_hidden_size": H, "intermediate_size": 8, "num_q_heads": 1, "num_kv_heads": 1}
    config = DrafterConfig(**sizes, head_dim=4, vocab_size=16, draft_vocab_size=16, boundaries=(5, 2, 4))
    with pytest.warns(UserWarning, match="not ascending"):
        plan = resolve_plan(config, 8, H)
    assert captured(counter(8), plan.boundaries) == [3, 15, 31]


def test_the_last_state_is_normed_exactly_once():  # speculators 313, hipfire 258
    model = counter(6)
    raw, output = run(model, CapturePlan((6,), H))
    normed, _ = run(model, CapturePlan((6,), H, final_norm=True))
    gain = model.model.norm.weight
    assert torch.equal(raw.tensor, torch.full((5, H), 63.0))
    torch.testing.assert_close(normed.tensor, gain.expand(5, H))  # 1.0 times the gain
    assert torch.equal(normed.tensor, output.hidden_states[6][0]), "transformers' last entry is after the norm"
    norm, head, logits = model.model.norm, model.lm_head, output.logits[0]
    assert torch.equal(head(norm(raw.tensor)), logits) and torch.equal(head(normed.tensor), logits)
    assert not torch.allclose(head(raw.tensor), logits) and not torch.allclose(head(norm(normed.tensor)), logits)


# ---- layers that return more or less than one whole state


class Returns(torch.nn.Module):
    """A target whose layers return what they are told to."""

    def __init__(self, *outputs):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Identity() for _ in outputs])
        for layer, output in zip(self.layers, outputs, strict=True):
            layer.forward = lambda _, output=output: output
        text = SimpleNamespace(num_hidden_layers=len(outputs))
        self.config = SimpleNamespace(get_text_config=lambda decoder: text)

    def forward(self, x):
        for layer in self.layers:
            layer(x)
        return x


def test_hidden_and_residual_are_added():  # vllm 46788, 26164
    hidden, residual = torch.tensor([[1.0, 2, 3, 4]]), torch.tensor([[10.0, 20, 30, 40]])
    model = Returns((hidden, residual), (hidden, torch.ones(1, 1, 1, 1)), (hidden, None), (hidden,))
    with capture(model, CapturePlan((1, 2, 3, 4), H)) as features:
        model(hidden)
    assert features.tensor.tolist() == [[11, 22, 33, 44] + 3 * [1, 2, 3, 4]]
    seen = {}
    with watch_states(model, model.layers, (1,), lambda names, states, _: seen.update(zip(names, states[0].tolist()))):
        model(hidden)
    assert seen["1"] == [11, 22, 33, 44] and seen["2"] == seen["4"] == [1, 2, 3, 4], "the doctor agrees"
    assert hidden.tolist() == [[1, 2, 3, 4]] and residual.tolist() == [[10, 20, 30, 40]]


def test_slices_of_tensor_parallel_ranks():  # vllm-ascend 8433: gather each state, then join
    states = [torch.tensor([[10.0 * layer + 2 * rank + offset for rank in (0, 1) for offset in (0, 1)]])
              for layer in range(3)]
    model = Returns(*states)
    with capture(model, CapturePlan((1, 2, 3), H)) as features:
        model(states[0])
    expected = [[0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]]
    assert features.tensor.tolist() == expected == ops.gather_concat(states, torch.tensor([0])).tolist()
    model = Returns(*(state[:, :2] for state in states))
    with capture(model, CapturePlan((1, 2, 3), H)), pytest.raises(FeatureWidthError, match="width 2.*expects 4"):
        model(states[0])


def test_buffers_are_as_wide_as_the_targets_states():  # sglang 7011, 8163: h 6, H 8
    plan = CapturePlan((1, 2, 3), 8)
    features = Features(plan)
    features.begin_forward()
    for slot in range(3):
        features.write(slot, torch.ones(7, 8))
    assert features.tensor.shape == (7, 24)
    with pytest.raises(ValueError, match=r"out has shape \[7, 18\].*\[7, 24\]"):
        ops.gather_concat(3 * [torch.ones(7, 8)], torch.arange(7), out=torch.empty(7, 18))

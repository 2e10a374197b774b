"""Against speculators' own Eagle3DraftModel: its files are loaded, and its training-time test gives our logits.

Run by `make test-peers`, in an environment of its own.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

from eagle3_ext import reference
from eagle3_ext.checkpoint import load_checkpoint

H, V, VD, ROWS, STEPS = 32, 60, 24, 19, 4
SIZES = {"hidden_size": H, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
         "vocab_size": V, "num_hidden_layers": 1, "rms_norm_eps": 1e-5, "max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e4}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64, "rope_theta": 1e4}
# (keys of the nested transformers config, keys of the speculators config)
VARIANTS = {
    "llama": (LlamaConfig, {}, {}),
    "norm_before_residual": (LlamaConfig, {}, {"norm_before_residual": True}),
    "input_norm": (LlamaConfig, {}, {"norm_before_fc": True}),
    "fc_norm, norm_output": (LlamaConfig, {}, {"fc_norm": True, "norm_output": True}),
    "all norms": (Qwen3Config, {}, {"fc_norm": True, "norm_output": True, "norm_before_residual": True}),
    "q/k norm": (Qwen3Config, {}, {}),
    "biases": (LlamaConfig, {"attention_bias": True, "mlp_bias": True}, {}),
    "two layers": (LlamaConfig, {"num_hidden_layers": 2}, {}),
    "five states": (LlamaConfig, {}, {"eagle_aux_hidden_state_layer_ids": [1, 3, 5, 7, 9]}),
    "one state": (LlamaConfig, {}, {"eagle_aux_hidden_state_layer_ids": [7]}),
    "windows": (Qwen3Config, {"num_hidden_layers": 2, "sliding_window": 6, "use_sliding_window": True,
                              "layer_types": ["sliding_attention", "full_attention"]}, {}),
    "full vocabulary": (LlamaConfig, {}, {"draft_vocab_size": V}),
    "yarn": (LlamaConfig, {"rope_parameters": YARN}, {}),
    "llama3": (LlamaConfig, {"rope_parameters": LLAMA3}, {}),
    "linear": (LlamaConfig, {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}}, {}),
}


def make_model(name: str) -> Eagle3DraftModel:
    kind, inner, outer = VARIANTS[name]
    torch.manual_seed(0)
    nested = kind(**SIZES | inner)
    nested._attn_implementation = "eager"
    outer = {"draft_vocab_size": VD, "eagle_aux_hidden_state_layer_ids": [2, 5, 9]} | outer
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=nested,
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **outer,
    )
    model = Eagle3DraftModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.3 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5
            parameter.copy_(torch.randn_like(parameter) * scale)
            if parameter.dim() == 1:
                parameter.add_(1)
    if model.use_draft_vocab:
        ids = torch.randperm(V)[:VD].sort().values
        model.t2d.copy_(torch.zeros(V, dtype=torch.bool).index_fill(0, ids, True))
        model.d2t.copy_(ids - torch.arange(VD))
    return model


def training_time_test(model, features, tokens) -> list[torch.Tensor]:
    """Their logits of every step, [rows, Vd] each."""
    steps: list[torch.Tensor] = []
    handle = model.lm_head.register_forward_hook(lambda _module, _inputs, output: steps.append(output[0]))
    with torch.no_grad():
        model(features[None], tokens[None], torch.zeros(1, len(tokens), dtype=torch.long), ttt_steps=STEPS)
    handle.remove()
    return steps


@pytest.mark.parametrize("name", VARIANTS)
def test_its_files_and_its_training_time_test(tmp_path, name):
    model = make_model(name)
    model.save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    config = checkpoint.config
    assert checkpoint.provenance.family.name == "speculators" and checkpoint.provenance.speculative_tokens == STEPS
    assert config.boundaries == tuple(model.config.eagle_aux_hidden_state_layer_ids)
    stored = {key: value for key, value in model.state_dict().items()
              if not key.startswith("verifier") and key not in ("d2t", "t2d")}
    assert stored.keys() == checkpoint.weights.keys() - {"target_ids"}
    assert all(torch.equal(checkpoint.weights[key], value) for key, value in stored.items())

    features = torch.randn(ROWS, config.features_width)
    tokens = torch.randint(V, (ROWS,))
    theirs = training_time_test(model, features, tokens)
    exact = reference.Drafter(config, checkpoint.weights).to(torch.float64)
    # Step k of row t sees the first step's keys up to t and its own later ones: rows 0..t extended, then k draft steps
    # fed with the true tokens t + 1 .. t + k. Their positions start at 1.
    for row in (0, 7, ROWS - STEPS):
        exact.config = config
        exact.reset()
        exact.extend(features[: row + 1], tokens[: row + 1], torch.arange(1, row + 2))
        for step in range(STEPS):
            # Their window stays where row t's was: W keys of the first step, and the chain. Serving slides it, as here.
            exact.config = dataclasses.replace(config, layers=tuple(
                dataclasses.replace(layer, window=layer.window and layer.window + step) for layer in config.layers))
            if step > 0:
                recurrent = (exact.y if config.norm_output else exact.s)[-1:]
                exact._forward(recurrent, tokens[row + step : row + step + 1], torch.tensor([row + 1 + step]))
            ours, want = exact.head(exact.y[-1:])[0], theirs[step][row].double()
            assert (ours - want).norm() <= 1e-5 * want.norm(), f"row {row}, step {step}"

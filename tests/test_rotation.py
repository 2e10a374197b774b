"""A rotated target: the changed drafter computes from its states what the plain drafter did from the plain ones."""

from __future__ import annotations

import pytest
import torch
from families import make_weights, variant

from eagle3_ext import reference
from eagle3_ext.checkpoint import Checkpoint
from eagle3_ext.checkpoint.rotation import for_rotated_target
from eagle3_ext.errors import CheckpointError


def orthogonal(size: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(1))).Q


def checkpoint_of(name: str) -> Checkpoint:
    return Checkpoint(variant(name), make_weights(variant(name), dtype=torch.float32), ())


def test_fc_follows_the_rotation():  # vllm-ascend 6914: fc times blockdiag(Q, Q, Q)
    plain, rotation = checkpoint_of("plain"), orthogonal(16)
    rotated = for_rotated_target(plain, rotation, torch.zeros(40, 16))
    expected = plain.weights["fc.weight"] @ torch.block_diag(rotation, rotation, rotation)
    torch.testing.assert_close(rotated.weights["fc.weight"], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["plain", "K = 5", "H != h", "input_norm", "fc_norm, norm_output", "tied head"])
def test_the_drafts_are_those_of_the_plain_target(name):  # vllm-ascend 7038: the shared embedding, too
    torch.manual_seed(0)
    plain = checkpoint_of(name)
    config = plain.config
    rotation, table = orthogonal(config.target_hidden_size), torch.randn(config.vocab_size, config.hidden_size)
    rotated_table = table @ rotation if config.hidden_size == config.target_hidden_size else None
    rotated = for_rotated_target(plain, rotation, None if config.own_embedding else rotated_table)
    states = torch.randn(9, config.num_states, config.target_hidden_size)
    tokens, drafters = torch.randint(config.vocab_size, (9,)), []
    for checkpoint, features, embedding in ((plain, states, table), (rotated, states @ rotation, None)):
        drafter = reference.Drafter(checkpoint.config, checkpoint.weights, embedding)
        drafter.extend(features.flatten(1), tokens, torch.arange(9))
        drafters.append((drafter.draft(4), drafter.logits))
    (first, logits), (second, rotated_logits) = drafters
    assert first == second
    assert (rotated_logits - logits).norm() <= 1e-5 * logits.norm()


@pytest.mark.parametrize("name, rotation, embedding, told", [
    ("plain", torch.eye(8), torch.zeros(40, 16), r"\[8, 8\].*\[16, 16\]"),
    ("plain", 2 * torch.eye(16), torch.zeros(40, 16), "not orthogonal"),
    ("plain", torch.eye(16), None, "embed_tokens.weight.*missing"),
    ("plain", torch.eye(16), torch.zeros(20, 16), r"embed_tokens.weight.*\[20, 16\].*\[40, 16\]"),
    ("target's head", torch.eye(16), torch.zeros(40, 16), "lm_head.weight"),
    ("no fc", torch.eye(16), torch.zeros(40, 16), "has no fc"),
])
def test_what_cannot_follow_is_refused(name, rotation, embedding, told):
    with pytest.raises(CheckpointError, match=told):
        for_rotated_target(checkpoint_of(name), rotation, embedding)

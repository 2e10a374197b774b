"""The training script: its drafter is the package's, its vocabulary grows without loss, and it steps aside."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from eagle3_ext import demo, load_checkpoint, reference

TOOLS = Path(__file__).parents[1] / "tools"
CONFIG = SimpleNamespace(
    hidden_size=48,
    intermediate_size=80,
    num_attention_heads=6,
    num_key_value_heads=2,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_theta": 1e4},
    max_position_embeddings=256,
    vocab_size=97,
)


@pytest.fixture(scope="module")
def training():
    """tools/training, importable for these tests alone."""
    sys.path.insert(0, str(TOOLS))
    try:
        from training import data, generate, model, progress, train

        yield SimpleNamespace(data=data, generate=generate, model=model, progress=progress, train=train)
    finally:
        sys.path.remove(str(TOOLS))
        for name in [name for name in sys.modules if name.partition(".")[0] == "training"]:
            del sys.modules[name]


def make_target() -> SimpleNamespace:
    torch.manual_seed(0)
    norm = SimpleNamespace(weight=1 + 0.1 * torch.randn(48))
    return SimpleNamespace(lm_head=torch.nn.Linear(48, 97, bias=False), model=SimpleNamespace(norm=norm))


def make_drafter(training, target_ids: torch.Tensor):
    drafter = training.model.TrainableDrafter(CONFIG, len(target_ids))
    drafter.initialize(make_target(), target_ids)
    return drafter


@torch.no_grad()
def test_its_chains_are_the_packages_drafter(training, tmp_path):
    """Three draft steps from the last row: hidden states, cache and head as in the reference, through the saved file."""
    drafter = make_drafter(training, torch.arange(3, 97, 2))
    drafter.save(tmp_path)
    checkpoint, embedding = load_checkpoint(tmp_path), torch.randn(97, 48)
    plain = reference.Drafter(checkpoint.config, checkpoint.weights, embedding).to(torch.float32)
    drafter = training.model.TrainableDrafter.from_checkpoint(CONFIG, tmp_path)  # rounded to bf16, as the file is
    rows, features, tokens = 9, torch.randn(1, 9, 144), torch.randint(0, 97, (9,))
    plain.extend(features[0], tokens, torch.arange(rows))
    expected = plain.draft(3)
    assert len(expected) == 3
    hidden, cache, drafted, embeddings = drafter.fc(features), [], [], embedding[tokens][None]
    for step in range(3):
        hidden = drafter.step(embeddings, hidden, cache)
        logits = drafter.logits(hidden[:, -1])
        torch.testing.assert_close(logits[0], plain.logits[step], rtol=1e-4, atol=1e-4)
        drafted.append(int(drafter.target_ids[logits.argmax()]))
        embeddings = torch.cat([embeddings[:, 1:], embedding[drafted[-1]][None, None]], 1)
    assert drafted == expected


@torch.no_grad()
def test_draft_steps_may_leave_out_the_first_rows(training):
    """What is left comes out as with them."""
    drafter = make_drafter(training, torch.arange(3, 97, 2))
    features, embeddings = torch.randn(2, 9, 144), torch.randn(2, 9, 48)
    whole_cache, cut_cache = [], []
    whole = drafter.step(embeddings, drafter.fc(features), whole_cache)
    cut = drafter.step(embeddings, drafter.fc(features), cut_cache)[:, 4:]
    for _ in range(2):
        whole = drafter.step(embeddings, whole, whole_cache)
        cut = drafter.step(embeddings[:, 4:], cut, cut_cache)
        torch.testing.assert_close(cut, whole[:, 4:])


def test_a_batch_holds_chats_of_one_length(training, tmp_path):
    """Every chat once an epoch, but for those that fill no batch and the validation's."""
    for index, (rows, length) in enumerate(((30, 8), (7, 12), (2, 10))):
        training.generate.Chats.empty(rows, length, 48).save(tmp_path / f"{index:02d}-0000.safetensors")
    shards = training.data.ShardSet(tmp_path)
    batches = shards.batches(3, random.Random(0))
    assert batches != shards.batches(3, random.Random(1))
    shapes = sorted(tuple(shards.batch(rows).tokens.shape) for rows in batches)
    assert shapes == [(2, 10), (3, 8), (3, 8), (3, 12), (3, 12)]
    seen = [row for rows in batches for row in rows]
    assert len(set(seen)) == len(seen) == 14 and min(seen) >= training.data.VALIDATION_ROWS


def test_validation_chats_stay_the_same_when_training_goes_on(training, tmp_path):
    """Also when a shard that sorts before theirs has come meanwhile, and when there are less than usual."""

    def write(name: str, rows: int) -> None:
        chats = training.generate.Chats.empty(rows, 8, 48)
        chats.tokens[:] = int(name[:2])
        chats.save(tmp_path / name)

    write("01-0000.safetensors", 9)
    with pytest.raises(FileNotFoundError, match="has 9 chats"):
        training.data.ShardSet(tmp_path)
    write("02-0000.safetensors", 5)
    shards = training.data.ShardSet(tmp_path)
    before = shards.batch(shards.validation_rows).tokens
    assert len(before) == 9
    write("00-0000.safetensors", 30)
    resumed = training.data.ShardSet(tmp_path)
    resumed.validate_on(shards.validation_shard)
    assert torch.equal(resumed.batch(resumed.validation_rows).tokens, before)
    seen = torch.cat([resumed.batch(rows).tokens for rows in resumed.batches(5, random.Random(0))])
    assert len(seen) == 35 and not (seen == before[0, 0]).any()
    with pytest.raises(FileNotFoundError, match="03-0000.safetensors is missing"):
        resumed.validate_on("03-0000.safetensors")


def test_a_wider_vocabulary_keeps_what_was_learned(training):
    narrow = torch.arange(3, 97, 2)
    drafter, target = make_drafter(training, narrow), make_target()
    learned = drafter.lm_head.weight.data.normal_().clone()
    wide = torch.cat([narrow, torch.tensor([0, 50, 96])]).sort().values
    drafter.widen(target, wide)
    assert torch.equal(drafter.target_ids, wide) and drafter.t2d.nonzero()[:, 0].tolist() == wide.tolist()
    for row, token in enumerate(wide.tolist()):
        known = (narrow == token).nonzero()
        expected = learned[known[0, 0]] if len(known) else target.lm_head.weight[token]
        assert torch.equal(drafter.lm_head.weight[row], expected)
    with pytest.raises(AssertionError, match="keeps the tokens"):
        drafter.widen(target, wide[1:])


def test_a_narrower_vocabulary_drafts_what_is_left_of_it(training):
    wide, narrow = torch.arange(3, 97, 2), torch.tensor([3, 21, 95])
    drafter = make_drafter(training, wide)
    drafter.lm_head.weight.data.normal_()
    hidden = torch.randn(5, 48)
    expected = drafter.logits(hidden)[:, torch.searchsorted(wide, narrow)]
    drafter.narrow(narrow)
    assert torch.equal(drafter.target_ids, narrow) and drafter.t2d.nonzero()[:, 0].tolist() == narrow.tolist()
    torch.testing.assert_close(drafter.logits(hidden), expected)
    with pytest.raises(AssertionError, match="no tokens of its own"):
        drafter.narrow(torch.tensor([3, 4]))


def test_a_blend_lies_between_two_drafters_of_one_vocabulary(training):
    one, two = (make_drafter(training, torch.arange(3, 97, 2)) for _ in range(2))
    for parameter in one.parameters():
        parameter.data.normal_()
    expected = {name: 0.75 * p + 0.25 * q for (name, p), q in zip(one.named_parameters(), two.parameters())}
    one.blend(two, 0.25)
    for name, parameter in one.named_parameters():
        torch.testing.assert_close(parameter, expected[name])
    with pytest.raises(ValueError, match="different draft vocabularies"):
        one.blend(make_drafter(training, torch.arange(2, 96, 2)), 0.25)


def test_sampled_columns_estimate_the_whole_softmax(training):
    """The sum over a step's columns, corrected, is that over the vocabulary: exactly if all are taken, else on average."""

    def columns_of(count: int):
        settings = SimpleNamespace(head_columns=count)
        return training.train.Trainer._columns(SimpleNamespace(settings=settings), logits)

    logits = 3 * torch.randn(6, 400, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    columns, offset = columns_of(400)
    assert columns.tolist() == list(range(400)) and not offset.any()
    whole, sums = logits.double().exp().sum(-1), []
    for _ in range(3000):
        columns, offset = columns_of(100)
        assert len(columns.unique()) == 100 and (columns.diff() > 0).all()
        assert int((offset > 0).sum()) == 25
        sums.append((logits[:, columns] + offset).double().exp().sum(-1))
    mean, spread = torch.stack(sums).mean(0), torch.stack(sums).std(0) / 3000**0.5
    assert ((mean - whole).abs() < 5 * spread + 1e-9 * whole).all()


def test_training_steps_aside_while_something_is_timed(training, tmp_path):
    """And only then: a lock file that a killed benchmark left behind pauses nobody."""
    (tmp_path / "setup.py").touch()
    lock = tmp_path / ".benchmark.lock"
    assert not training.progress.is_held(lock)
    with demo.benchmark_lock(tmp_path):
        assert training.progress.is_held(lock)
        with demo.benchmark_lock(tmp_path):
            pass
        assert training.progress.is_held(lock)
    assert lock.exists() and not training.progress.is_held(lock)


@pytest.mark.slow
def test_the_three_stages_and_a_resumed_training(tmp_path):
    """Real model, a few chats: text, two steps, two more in a second process, and a checkpoint that loads."""

    def run(*arguments: str) -> str:
        command = [sys.executable, str(TOOLS / "train_demo_drafter.py"), *arguments, "--state", str(tmp_path)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert "26 chats" in run("generate", "--shards", "1", "--rows", "26", "--length", "64")
    options = ("--batch-rows", "2", "--draft-vocab", "512", "--draft-steps", "2")
    assert "step 2 of 2" in run("train", "--steps", "2", *options)
    before = load_checkpoint(tmp_path / "drafter").weights["fc.weight"]
    resumed = run("train", "--steps", "4", *options)
    assert "step 2 of 4" in resumed and "step 4 of 4" in resumed
    after = load_checkpoint(tmp_path / "drafter").weights["fc.weight"]
    assert not torch.equal(before, after) and torch.allclose(before, after, atol=0.1)
    assert "512 tokens became 300" in run("narrow", "--draft-vocab", "300")
    assert load_checkpoint(tmp_path / "drafter").config.draft_vocab_size == 300
    assert "accept length 1." in run("evaluate", "--answer-tokens", "8")

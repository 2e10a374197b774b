"""The command line as a user meets it: the demo's table and JSON, a streamed reply, and refusals before any work."""

from __future__ import annotations

import json

import pytest
from embedded import needs_target
from typer.testing import CliRunner

from eagle3_ext import demo
from eagle3_ext.cli import app
from eagle3_ext.decoder import SpeculativeDecoder

KEYS = {
    "rounds",
    "drafted",
    "accepted",
    "emitted",
    "accept_length",
    "acceptance_per_position",
    "conditional_acceptance_per_position",
    "tokens_per_s",
}


@needs_target
def test_demo_three_modes(tmp_path):
    path = tmp_path / "demo.json"
    arguments = ["demo", "--prompts", "3", "--max-new-tokens", "24", "--threads", "1", "--json", str(path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(path.read_text())
    assert report["outputs_equal"] is True
    assert set(report["modes"]) == {"plain", "eagle3", "fault"}
    assert all(set(mode) == KEYS for mode in report["modes"].values())
    plain, eagle3, fault = (report["modes"][mode] for mode in ("plain", "eagle3", "fault"))
    assert plain["drafted"] == 0 and plain["accept_length"] == 1.0 and plain["acceptance_per_position"] == []
    assert eagle3["accept_length"] > 1.3
    assert fault["accept_length"] < 1.1
    assert plain["emitted"] == eagle3["emitted"] == fault["emitted"]


@needs_target
def test_generate_streams_the_reply(tmp_path):
    path = tmp_path / "reply.json"
    result = CliRunner().invoke(app, ["generate", "Hello", "--max-new-tokens", "8", "--threads", "1", "--json", str(path)])
    assert result.exit_code == 0, result.output
    report = json.loads(path.read_text())
    assert report["text"] in result.output and report["stats"]["emitted"] == len(report["tokens"]) <= 8


@needs_target
def test_one_token_has_no_round_and_still_a_report(tmp_path):
    """The prefill gives it: rates without a round are shown as `-` and written as null."""
    path = tmp_path / "report.json"
    end = ["--max-new-tokens", "1", "--threads", "1", "--json", str(path)]
    result = CliRunner().invoke(app, ["generate", "Hello", *end])
    assert result.exit_code == 0, result.output
    assert json.loads(path.read_text())["stats"]["accept_length"] is None
    result = CliRunner().invoke(app, ["demo", "--prompts", "1", *end])
    assert result.exit_code == 0, result.output
    assert json.loads(path.read_text())["modes"]["eagle3"]["accept_length"] is None


@needs_target
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--max-new-tokens", "9000"], "--max-new-tokens"),
        (["generate", "Hello", "--max-new-tokens", "9000"], "--max-new-tokens"),
        (["demo", "--drafter", "{folder}"], "--drafter"),
        (["generate", "Hello", "--drafter", "{folder}"], "--drafter"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_before_decoding(arguments, words, write, monkeypatch):
    """More tokens than it has positions; a drafter of another target."""

    def no_decoding(*_, **__):
        raise AssertionError("decoding began")

    monkeypatch.setattr(demo, "run", no_decoding)
    monkeypatch.setattr(SpeculativeDecoder, "stream", no_decoding)
    arguments = [argument.format(folder=write()) for argument in arguments]
    result = CliRunner().invoke(app, [*arguments, "--threads", "1"])
    assert result.exit_code == 2 and words in result.output, result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--json", "missing/folder/out.json"], "cannot be written"),
        (["demo", "--prompts", "1000"], "1000"),
        (["demo", "--num-speculative-tokens", "0"], "--num-speculative-tokens"),
    ],
)
def test_bad_arguments_are_refused_before_work(arguments, words, monkeypatch):
    def no_work(*_):
        raise AssertionError("work began")

    monkeypatch.setattr(demo.EmbeddedSetup, "load", no_work)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and words in result.output

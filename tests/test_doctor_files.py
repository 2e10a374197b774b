"""`eagle3-ext doctor` on files: what logs, traces and checkpoints say, what they cannot, and what is no input."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import subprocess
import sys
import tracemalloc

import pytest
import torch
from faults import FAULTS
from loops import small_loop
from tiny_drafter import random, tensors
from typer.testing import CliRunner
from verdicts import accusations, ids

from eagle3_ext import demo
from eagle3_ext.cli import app
from eagle3_ext.doctor import diagnose, trace
from eagle3_ext.doctor.findings import CATALOGUE
from eagle3_ext.doctor.trace_rules import diagnose_trace


def start_line(algorithm: str, drafter: str = "lightseekorg/kimi-k2.5-eagle3") -> str:
    return f"server_args=ServerArgs(speculative_algorithm='{algorithm}', speculative_draft_model_path='{drafter}')\n"


def decode_line(length: float, rate: float | None) -> str:
    shown = "" if rate is None else f"accept rate: {rate:.2f}, "
    return (
        f"[2026-02-01 10:01:00 TP0] Decode batch, #running-req: 1, #token: 400, token usage: 0.01, accept len: "
        f"{length:.2f}, {shown}cuda graph: True, gen throughput (token/s): 54.80, #queue-req: 0,\n"
    )


def vllm_line(*positions: float) -> str:
    drafted, accepted = 100 * len(positions), round(100 * sum(positions))
    shown = ", ".join(f"{position:.3f}" for position in positions)
    return (
        f"INFO [metrics.py:100] SpecDecoding metrics: Mean acceptance length: {1 + sum(positions):.2f}, Accepted "
        f"throughput: 9.00 tokens/s, Drafted throughput: 20.00 tokens/s, Accepted: {accepted} tokens, "
        f"Drafted: {drafted} tokens, Per-position acceptance rate: {shown}, "
        f"Avg Draft acceptance rate: {100 * accepted / drafted:.1f}%\n"
    )


def debug_line(rows: int, width: int, step: int, rank: int = 0, embedding: float = 1.0) -> str:
    return (
        f"[2026-02-01 10:00:00 TP{rank}] EAGLE3_DEBUG[eagle3] input: hs_shape=torch.Size([{rows}, {width}]), "
        f"embed_shape=torch.Size([{rows}, 7168]), hs_norm={100 + step}.5000, "
        f"hs_first5=[0.0{step}, -1.5, 0.5, 0.25, 1.0], "
        f"embed_norm={embedding + step / 100:.4f}\n"
    )


def founding_story(ranks: int = 4) -> str:
    lines = [start_line("EAGLE3")]
    lines += [debug_line(37, 21504, 0, rank) for rank in range(ranks)]
    lines += [debug_line(1, 7168, step, rank) for step in range(1, 10) for rank in range(ranks)]
    return "".join(lines + [decode_line(1.57, 0.19)] * 4)


HEALTHY_INPUTS = [(37, 21504), *([(1, 7168)] * 2 + [(4, 21504)]) * 6]
LOGS = {
    "healthy SGLang": ("".join(decode_line(length, (length - 1) / 3) for length in (2.6, 2.8, 2.7)), []),
    "healthy vLLM": (vllm_line(0.73, 0.521, 0.355) * 3, []),
    "healthy drafter inputs": ("".join(debug_line(*shape, step) for step, shape in enumerate(HEALTHY_INPUTS)), []),
    "the founding story": (founding_story(), ["features-only-in-prefill", "low-acceptance", "identical-steps"]),
    "EAGLE": (start_line("EAGLE") + decode_line(1.0, 0.0) * 3, ["eagle-algorithm", "drafts-useless"]),
    "EAGLE with an EAGLE drafter": (start_line("EAGLE", "some/eagle-2") + decode_line(2.7, None), []),
    "the bonus counted": ("".join(decode_line(x, x / 9) for x in (3.6, 3.9, 4.2)), ["bonus-counted"]),
    "the bonus counted, nothing accepted": (decode_line(1.0, 1 / 9) * 3, ["bonus-counted", "drafts-useless"]),
    "a rate above 1": (decode_line(2.7, 1.25), ["impossible-numbers"]),
    "useless drafts in vLLM": (vllm_line(0.022, 0.0, 0.0) * 3, ["drafts-useless"]),
    "NaN": (debug_line(4, 21504, 1).replace("101.5000", "nan"), ["not-finite"]),
    "draft steps only": ("".join(debug_line(1, 7168, step) for step in range(12)), ["no-features-seen"]),
    "a stale buffer": (
        "".join(debug_line(4, 21504, 0, 0, embedding) for embedding in (1.0, 1.1, 1.2)),
        ["identical-steps"],
    ),
    "a useless length beside good positions": (
        vllm_line(0.73, 0.521).replace("2.25", "1.00") * 3,
        ["impossible-numbers"],
    ),
    "useless positions beside a good length": (
        vllm_line(0.01, 0.0).replace("1.01", "9.90") * 3,
        ["impossible-numbers"],
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_logs(tmp_path, name):
    text, expected = LOGS[name]
    path = tmp_path / "server.log"
    path.write_text(text)
    diagnosis = diagnose([path])
    assert sorted(ids(diagnosis.findings)) == sorted(expected)
    order = [finding.severity for finding in diagnosis.findings]
    assert order == sorted(order, key=["fault", "suspect", "note"].index), "worst first"
    assert diagnosis.read[str(path)], "also a healthy log is told what it proves"


def test_a_contradictory_line_adds_nothing(tmp_path):
    """One spoiled line of many is a note; what the other lines say stays the same to the last digit."""
    path = tmp_path / "server.log"
    path.write_text(vllm_line(0.73, 0.521, 0.355) * 20)
    clean = diagnose([path])
    path.write_text(vllm_line(0.73, 0.521, 0.355) * 20 + vllm_line(0.01, 0.0, 0.0).replace("1.01", "9.90"))
    spoiled = diagnose([path])
    assert spoiled.healthy and ids(spoiled.findings) == ["impossible-numbers"]
    assert "1 of 21 lines; the first is line 21: accept length 9.9" in spoiled.findings[0].evidence[0]
    assert spoiled.read[str(path)][1:] == clean.read[str(path)][1:], "the first counts the lines"
    assert "20 understood, 1 contradictory" in spoiled.read[str(path)][0]
    path.write_text(vllm_line(0.73, 0.521, 0.355).replace("2.61", "9.90"))
    (only_contradictions,) = diagnose([path]).read.values()
    assert not any("proves" in line or "accept length" in line for line in only_contradictions), only_contradictions


def test_the_founding_story_is_not_overclaimed(tmp_path):
    """Lines without a phase are a suspicion: width h is right in a draft step. Ranks are told from a stale buffer."""
    path = tmp_path / "server.log"
    path.write_text(founding_story())
    result = CliRunner().invoke(app, ["doctor", str(path), "--json", str(tmp_path / "out.json")])
    assert result.exit_code == 1, result.output
    report = json.loads((tmp_path / "out.json").read_text())
    by_id = {finding["id"]: finding for finding in report["findings"]}
    assert by_id["features-only-in-prefill"]["severity"] == "suspect"
    assert by_id["identical-steps"]["severity"] == "note" and "10 runs of 4" in by_id["identical-steps"]["evidence"][0]
    for words in (
        "Cannot prove",
        "EAGLE3_TRACE=run.jsonl",
        "SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH=1",
        "right in a draft step",
    ):
        assert words in result.output


def test_a_finding_is_only_pointed_at_where_there_is_one(tmp_path):
    path = tmp_path / "server.log"
    for narrow, words in ((2, "2 lines after the last full-width one are too few"), (3, "see the finding's check")):
        path.write_text(debug_line(37, 21504, 0) + "".join(debug_line(1, 7168, step) for step in range(1, narrow + 1)))
        diagnosis = diagnose([path])
        assert ids(diagnosis.findings) == (["features-only-in-prefill"] if narrow == 3 else [])
        said = " ".join(diagnosis.read[str(path)])
        assert words in said and ("see the finding's check" in said) == bool(diagnosis.findings)


# As the deployment's users pasted it: the same line three times, no rank, no phase, no last newline.
EXCERPT = "\n".join(
    ["EAGLE3_DEBUG[eagle3] input: hs_shape=torch.Size([1, 7168]), embed_shape=torch.Size([1, 7168]), hs_norm=43.6299, "
     "hs_first5=[-0.578125, -0.37890625, 0.734375, -0.5078125, -0.6328125], embed_norm=0.3738"] * 3
)  # fmt: skip
PREFILLS = debug_line(21, 21504, 1) + debug_line(6, 21504, 2) + debug_line(6, 21504, 3)


@pytest.mark.parametrize("before", ["", PREFILLS])
@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_the_founding_excerpt_is_a_suspicion(tmp_path, write, before, with_checkpoint):
    """Three lines are what a person needs: equal to the last digit, and one state wide."""
    log = tmp_path / "excerpt.log"
    log.write_text(before + EXCERPT)
    wide = {"target_hidden_size": 7168}
    folders = [write(tensors({"fc.weight": random(8, 21504)}), **wide)] if with_checkpoint else []
    status, output, report = run_doctor(tmp_path, log, *folders)
    by_id = {finding["id"]: finding for finding in report["findings"]}
    assert status == 1 and "fault" not in {finding["severity"] for finding in report["findings"]}
    assert by_id["identical-steps"]["severity"] == "suspect" and "Nothing is wrong" not in output
    assert "equal the line before to the last digit, embedding included" in output
    assert "one line per tensor-parallel rank, or a step that repeats" in output
    width = by_id["features-only-in-prefill" if before else "no-features-seen"]["evidence"][1]
    assert "7168 is the width of one hidden state" in width and "right in a draft step" in width
    assert ("a third of 21504" in width) == bool(before or with_checkpoint)
    assert "log the phase (forward_mode) and the rows" in output


def test_a_step_that_repeats_is_told_from_ranks(tmp_path):
    """Ranks print every value equally often, whether or not the lines name them."""
    log = tmp_path / "server.log"
    shapes = [(37, 21504), (1, 7168), (1, 7168), (4, 21504), (1, 7168), (4, 21504)]

    def severity(lines):
        log.write_text("".join(lines))
        return [finding.severity for finding in diagnose([log]).findings if finding.id == "identical-steps"]

    named = [debug_line(*shape, step, rank) for step, shape in enumerate(shapes) for rank in range(2)]
    unnamed = [line.replace(" TP0", "").replace(" TP1", "") for line in named]
    assert severity(named) == severity(unnamed) == ["note"]
    assert severity(unnamed[:-1]) == ["note"], "a log may be cut between two ranks"
    again = debug_line(4, 21504, 5).replace(" TP0", "")
    assert severity(unnamed + [again] * 3) == ["suspect"]
    assert severity(named + [debug_line(4, 21504, 5, rank) for rank in (0, 1)]) == ["suspect"], "four times, two ranks"


def test_a_start_line_alone_is_told_what_is_missing(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(start_line("EAGLE3"))
    (words,) = diagnose([path]).read.values()
    assert "started with algorithm EAGLE3, drafter lightseekorg/kimi-k2.5-eagle3" in words[1]
    assert "no acceptance line" in words[2]


def test_an_open_rate_is_called_open(tmp_path):
    """accept len 2.50 and rate 0.50 read as 1.5/3 and as 2.5/5: more lines decide, one does not."""
    path = tmp_path / "server.log"
    path.write_text(decode_line(2.5, 0.5))
    diagnosis = diagnose([path])
    assert diagnosis.healthy and any("stays open" in line for line in diagnosis.read[str(path)])


def test_few_lines_decide_where_no_draft_count_fits(tmp_path):
    """0.02 accepted per round is no rate of 0.26, however many drafts there are: two lines are enough for that."""
    path = tmp_path / "server.log"
    path.write_text(decode_line(1.02, 0.26) + decode_line(1.04, 0.26))
    diagnosis = diagnose([path])
    assert sorted(ids(diagnosis.findings)) == ["bonus-counted", "drafts-useless"]
    assert any(line.endswith("as (accepted + 1) / 4") for line in diagnosis.read[str(path)])
    (useless,) = (finding for finding in diagnosis.findings if finding.id == "drafts-useless")
    assert "rate without the bonus 0.010" in useless.evidence[0], "(1.03 - 1) / 3"


def test_an_open_rate_is_never_called_one_without_the_bonus(tmp_path):
    """2.50 and 0.50 stay open, 1.09 and 0.03 too: as 0.09/3 and as 1.09/36. So low is low, under either meaning."""
    path = tmp_path / "server.log"
    for length, rate, expected in ((1.09, 0.03, "drafts-useless"), (1.5, 0.125, "low-acceptance")):
        path.write_text(decode_line(length, rate) * 4)
        status, output, report = run_doctor(tmp_path, path)
        assert status == 1 and [finding["id"] for finding in report["findings"]] == [expected]
        assert "stays open" in output and f"printed rate {rate:.2f}" in output, output
        assert "without the bonus" not in output


def test_a_draft_count_is_named_only_where_the_lines_determine_it(tmp_path):
    path = tmp_path / "server.log"
    for lines, words in (
        (decode_line(2.6, 0.53) * 3, "as accepted / 3"),
        (decode_line(1.0, 0.0) * 3, "as accepted / drafts"),
        (decode_line(3.6, 0.4) + decode_line(3.9, 0.43) + decode_line(4.2, 0.47), "as (accepted + 1) / 9"),
        (decode_line(1.0, 0.02) * 3, "as (accepted + 1) / draft tokens"),
    ):
        path.write_text(lines)
        assert any(line.endswith(words) for line in diagnose([path]).read[str(path)]), words


def test_a_checkpoint_sharpens_a_log(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(start_line("EAGLE", "some/drafter") + debug_line(5, 14336, 1) * 2)
    assert accusations(diagnose([path]).findings) == []
    assert sorted(accusations(diagnose([path, demo.DRAFTER_PATH]).findings)) == ["eagle-algorithm", "width-mismatch"]


def test_checkpoints(tmp_path):
    result = CliRunner().invoke(app, ["doctor", str(demo.DRAFTER_PATH)])
    assert result.exit_code == 0 and "boundaries 2, 15, 27" in result.output and "Nothing is wrong" in result.output
    (tmp_path / "config.json").write_text("{}")
    result = CliRunner().invoke(app, ["doctor", str(tmp_path)])
    assert result.exit_code == 1 and "broken-checkpoint" in result.output


def test_a_trace_file_on_the_command_line(tmp_path):
    loop = small_loop(0, 3)
    path = tmp_path / "run.jsonl"
    for name, status in ((None, 0), ("states in reverse order", 1)):
        loop.run(None if name is None else FAULTS[name].build, path=path)
        result = CliRunner().invoke(app, ["doctor", str(path)])
        assert result.exit_code == status, result.output
        assert "captures the outputs of layers 1, 3, 5" in result.output
    assert "wrong-order" in result.output and "\x1b[" not in result.output, "no colours into a pipe"


NOTHING = {
    "empty.log": (b"", "the file is empty"),
    "access.log": (b"INFO: 200 OK\n" * 5, "none of its 5 lines is an acceptance line of SGLang"),
    "cut.log": (vllm_line(0.5, 0.2).encode()[:-20] + b"\n", "algorithm (1 would be, but cut off or altered)"),
    "picture.png": (bytes(range(256)) * 9, "none of its 10 lines is"),
    "only_plan.jsonl": (b'{"phase":"plan","description":"d"}\n', "none of its 1 events is a prefill extend, extend"),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_file_in_which_nothing_is_recognised_is_not_healthy(tmp_path, name):
    content, words = NOTHING[name]
    path = tmp_path / name
    path.write_bytes(content)
    status, output, report = run_doctor(tmp_path, path)
    assert status == 2 and "nothing was recognised" in output and "Nothing is wrong" not in output
    assert "EAGLE3_TRACE=run.jsonl COMMAND" in output, "the next command"
    assert words in report["unrecognised"][str(path)] and not report["healthy"] and not report["findings"]


def test_a_folder_that_is_no_checkpoint(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    status, output, _ = run_doctor(tmp_path, folder)
    assert status == 2 and "the folder is empty; expected a drafter's config.json" in output
    for name in ("a.log", "b.log", "c.log", "d.log"):
        (folder / name).write_text("INFO\n")
    status, output, report = run_doctor(tmp_path, folder)
    assert status == 2 and f"eagle3-ext doctor {folder}/*" in output
    assert "holds a.log, b.log, c.log and 1 more" in report["unrecognised"][str(folder)]


def test_what_is_wrong_weighs_more_than_what_is_unknown(tmp_path):
    """A healthy checkpoint beside an empty log is no clean bill; a finding in one file is not hidden by the other."""
    empty, bad = tmp_path / "empty.log", tmp_path / "bad.log"
    empty.write_text("")
    bad.write_text(decode_line(1.0, 0.0) * 3)
    assert run_doctor(tmp_path, demo.DRAFTER_PATH, empty)[0] == 2
    assert run_doctor(tmp_path, bad, empty)[0] == 1


def run_doctor(tmp_path, *paths) -> tuple[int, str, dict]:
    """(exit status, output, --json) of the command."""
    json_file = tmp_path / "out.json"
    result = CliRunner().invoke(app, ["doctor", *map(str, paths), "--json", str(json_file)])
    return result.exit_code, result.output, json.loads(json_file.read_text())


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_trace_in_another_encoding(tmp_path, encoding):
    path = tmp_path / "run.jsonl"
    with trace.recording(path):
        for phase, width in (("prefill extend", 24), ("extend", 8), ("extend", 8)):
            trace.record(phase, torch.ones(2, width), state_width=8, expected_width=24)
    path.write_text(path.read_text(), encoding=encoding)
    assert ids(diagnose([path]).findings)[0] == "one-state-in-extend"


def write_narrow_trace(path) -> None:
    """A trace with the finding one-state-in-extend."""
    with trace.recording(path):
        for phase, width in (("prefill extend", 24), ("extend", 8), ("extend", 8)):
            trace.record(phase, torch.ones(2, width), state_width=8, expected_width=24)


def test_a_trace_whose_last_line_is_cut(tmp_path):
    """A killed process leaves half a line: the whole ones are diagnosed. Half a line elsewhere is no trace."""
    path = tmp_path / "run.jsonl"
    write_narrow_trace(path)
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    for end in (1, 30, len(lines[0]) - 2):
        path.write_text(whole + lines[0][:end])
        status, output, report = run_doctor(tmp_path, path)
        assert status == 1 and report["findings"][0]["id"] == "one-state-in-extend"
        assert "1 x cut last line" in output and "line 4, the last, is cut off and left out" in output
    path.write_text(whole + lines[0][:-1])
    (words,) = diagnose([path]).read.values()
    assert not any("cut" in line for line in words), "whole, though without its newline"
    path.write_text(lines[0] + lines[1][:30] + "\n" + lines[2])
    result = CliRunner().invoke(app, ["doctor", str(path)])
    assert result.exit_code == 2 and "line 2 is no trace event" in unframed(result.output)


def test_gzipped_files_read_like_plain_ones(tmp_path):
    """Known by their first bytes, whatever their name is."""
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    write_narrow_trace(plain)
    utf16 = founding_story().encode("utf-16")
    for content in (plain.read_bytes(), founding_story().encode(), utf16, b""):
        plain.write_bytes(content)
        packed.write_bytes(gzip.compress(content))
        a, b = diagnose([plain]), diagnose([packed])
        assert ids(a.findings) == ids(b.findings) and bool(content) == bool(a.findings)
        assert list(a.read.values()) == list(b.read.values()) and a.exit_status == b.exit_status


def test_a_damaged_gzip_file_is_named(tmp_path):
    path = tmp_path / "server.log.gz"
    whole = gzip.compress(founding_story().encode())
    for content in (whole[:-20], whole[:5], whole[:40] + b"\xff" * 40 + whole[80:]):
        path.write_bytes(content)
        result = CliRunner().invoke(app, ["doctor", str(path)])
        assert result.exit_code == 2 and "damaged gzip file" in unframed(result.output), result.output


def test_an_unpacked_gzip_file_is_never_in_memory(tmp_path):
    """64 MiB without a newline and 3 MiB of lines, packed into a few hundred kilobytes."""
    path = tmp_path / "server.log.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(64):
            file.write(b"x" * (1 << 20))
        file.write(b"\n" + b"INFO: 200 OK\n" * (1 << 18))
        file.write(decode_line(1.0, 0.0).encode() * 3)
    tracemalloc.start()
    diagnosis = diagnose([path])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert ids(diagnosis.findings) == ["drafts-useless"] and peak < 2 << 20


def test_pipes_and_devices_are_refused_before_reading(tmp_path):
    """The first in a process of its own, with a limit: reading such a pipe never ends."""
    command = f"{sys.executable} -m eagle3_ext.cli doctor <(cat /dev/zero)"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2 and "is a pipe; save it to a file first" in unframed(result.stderr), result
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, words in ((pipe, "is a pipe; save it to a file first"), (os.devnull, "is a device; save it to a file")):
        result = CliRunner().invoke(app, ["doctor", str(path)])
        assert result.exit_code == 2 and words in unframed(result.output), result.output


def unframed(output: str) -> str:
    """An error's words without the frame and the line breaks that the terminal's width puts in."""
    return " ".join(output.replace("\u2502", " ").split())


def test_bad_arguments_are_named(tmp_path):
    result = CliRunner().invoke(app, ["doctor", str(tmp_path / "missing.log")])
    assert result.exit_code == 2 and "missing.log" in result.output


def test_a_trace_of_76_drafts_of_which_none_was_accepted(tmp_path):
    """Right features and useless drafts accuse the drafter or its target; without a witness nothing is called right."""
    loop, path = dataclasses.replace(small_loop(5, 4), lucky=None, new_tokens=20), tmp_path / "run.jsonl"
    loop.run(path=path, witness=False)
    status, output, report = run_doctor(tmp_path, path)
    (finding,) = (finding for finding in report["findings"] if finding["severity"] != "note")
    assert status == 1 and (finding["id"], finding["severity"]) == ("weak-drafter", "suspect")
    assert "capture is right: suspect the drafter or its target" in finding["title"]
    assert "0 of 76 drafts accepted" in output and "capture is right: the features are the plan's states" in output
    events = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(event) + "\n" for event in events if event["phase"] != "witness"))
    status, output, report = run_doctor(tmp_path, path)
    assert status == 1 and [finding["id"] for finding in report["findings"]] == ["drafts-useless"]
    assert "what the features hold is unchecked" in output and "capture is right" not in output


@pytest.mark.parametrize(("rounds", "accepting", "useless"), [(19, 0, True), (8, 0, True), (7, 0, False),
                                                              (12, 1, True), (11, 1, False), (200, 19, True),
                                                              (200, 20, False), (0, 0, False)])  # fmt: skip
def test_when_drafts_are_called_useless(rounds, accepting, useless):
    events = [{"phase": "round", "round": i, "drafted": 4, "accepted": int(i < accepting)} for i in range(rounds)]
    assert ("drafts-useless" in ids(diagnose_trace(events))) == useless


# ---- completeness


def test_every_finding_has_a_test():
    """The catalogue's ids, each made by a fault, a log or a test above."""
    from_faults = {fault.finding for fault in FAULTS.values()} | {"wrong-rows"}
    from_logs = {id for _, expected in LOGS.values() for id in expected}
    by_hand = {"weak-drafter", "falls-after-first-round", "width-mismatch", "broken-checkpoint", *CHECKPOINT_NOTES}
    assert from_faults | from_logs | by_hand | {"unknown-states"} == set(CATALOGUE)


CHECKPOINT_NOTES = ("untold-boundaries", "unusual-switches", "loader-notes")


def test_notes_about_a_checkpoint(tmp_path):
    """A file that names no layers, sets switches engines ignore, and contradicts its own tensors."""
    config = json.loads((demo.DRAFTER_PATH / "config.json").read_text())
    del config["eagle_config"]
    config |= {"norm_before_residual": True, "draft_vocab_size": 8000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(demo.DRAFTER_PATH / "model.safetensors")
    diagnosis = diagnose([tmp_path])
    assert sorted(ids(diagnosis.findings)) == sorted(CHECKPOINT_NOTES) and diagnosis.healthy

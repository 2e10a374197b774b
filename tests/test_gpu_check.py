"""tools/gpu_check: its arguments, its table, how it reads the end of a step, and its checks on the emulator.

Every check must see a planted fault. What only a GPU can tell is not told here.
"""

from __future__ import annotations

import argparse
import inspect
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from eagle3_ext import ops

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from gpu_check import __main__ as command
from gpu_check import cupy, devices, graphs, large, steps, workload


@pytest.fixture
def options(tmp_path) -> argparse.Namespace:
    return argparse.Namespace(backend="cuda", out=tmp_path, tests="")


@pytest.fixture
def emulated():
    with devices.on("simt") as device:
        yield device


def python(code: str) -> steps.Command:
    return steps.Command([sys.executable, "-c", code])


def run_step(options, monkeypatch, *commands: steps.Command, limit: int = 60) -> steps.Result:
    monkeypatch.setitem(steps.STEPS, "planted", (lambda *_: list(commands), limit))
    return steps.run("planted", options, io.StringIO())


def test_all_steps_by_default_and_always_in_their_order():
    assert command.parse([]).steps == list(steps.STEPS)
    assert command.parse(["bench", "build", "--backend", "simt"]).steps == ["build", "bench"]


@pytest.mark.parametrize("arguments, words", [(["paint"], "no step named paint"), (["--backend", "tpu"], "'tpu'")])
def test_bad_arguments(arguments, words, capsys):
    with pytest.raises(SystemExit) as end:
        command.parse(arguments)
    assert end.value.code == 2 and words in capsys.readouterr().err


def test_table():
    results = [steps.Result("build", "passed", 61.4), steps.Result("large", "FAILED", 3.0, "wrong row")]
    assert command.table(results).splitlines() == [
        "step   result  seconds  note",
        "build  passed       61",
        "large  FAILED        3  wrong row",
    ]


def test_how_a_step_ends(options, monkeypatch):
    result = run_step(options, monkeypatch, python("print('fine')"))
    assert (result.result, result.note) == ("passed", "fine")
    result = run_step(options, monkeypatch, python("print('no cupy'); raise SystemExit(77)"))
    assert (result.result, result.note) == ("skipped", "no cupy")
    result = run_step(options, monkeypatch, python("raise SystemExit('FAILED: x')"), python("print('not reached')"))
    assert (result.result, result.note) == ("FAILED", "FAILED: x")
    result = run_step(options, monkeypatch, python("import time; time.sleep(60)"), limit=1)
    assert (result.result, result.note) == ("FAILED", "stopped after its 1 s") and result.seconds < 30


def test_a_failed_step_fails_the_whole_and_stops_nothing(tmp_path, monkeypatch, capsys):
    planted = {"bad": (lambda *_: [python("raise SystemExit(1)")], 60), "good": (lambda *_: [python("print(1)")], 60)}
    monkeypatch.setattr(steps, "STEPS", planted)
    assert command.main(["--out", str(tmp_path)]) == 1
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [step["result"] for step in summary["steps"]] == ["FAILED", "passed"]
    assert "good" in capsys.readouterr().out.splitlines()[-1] and "SystemExit(1)" in (tmp_path / "log.txt").read_text()
    assert command.main(["good", "--out", str(tmp_path)]) == 0


def test_build_is_for_the_card_that_is_there(options, monkeypatch, tmp_path):
    monkeypatch.setattr(steps, "compute_capability", lambda: "9.0")
    (built,) = steps.build(options, tmp_path)
    assert built.environment == {"EAGLE3_CUDA": "ON", "TORCH_CUDA_ARCH_LIST": "9.0"}
    options.backend = "simt"
    (built,) = steps.build(options, tmp_path)
    assert built.environment == {"CMAKE_ARGS": "-DEAGLE3_BUILD_TESTS=ON"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_build_without_a_card_says_so(options):
    result = steps.run("build", options, io.StringIO())
    assert result.result == "FAILED" and "no CUDA device" in result.note


def test_tests_step_selects_a_backend_and_wants_some_to_pass(options, tmp_path, monkeypatch):
    options.tests = "capture"
    (chosen,) = steps.tests(options, tmp_path)
    assert "(cuda or graphs) and (capture)" in chosen.line and any(arg.endswith("test_ops.py") for arg in chosen.line)
    for counts, note, ended in (
        ('tests="5" failures="1" errors="0" skipped="1"', "3 passed, 1 failed, 1 skipped", "passed"),
        ('tests="4" failures="0" errors="0" skipped="4"', "0 passed, 0 failed, 4 skipped", "FAILED"),
    ):
        (tmp_path / "tests.xml").write_text(f"<testsuites><testsuite {counts}/></testsuites>")
        result = steps.Result("tests", "passed", 0.0)  # what pytest's own status made it
        steps._count_tests(result, tmp_path / "tests.xml")
        assert (result.note, result.result) == (note, ended)


def test_sanitizer_runs_the_workload_under_each_tool(options, tmp_path, monkeypatch):
    program = tmp_path / "compute-sanitizer"
    program.write_text(
        '#!/bin/sh\ncase "$* " in *racecheck*) echo a race; exit 1;; *plant*) exit 1;; esac\necho "$1"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    planted, *commands = steps.sanitizer(options, tmp_path)
    assert planted.must_fail and planted.line[-2:] == ["gpu_check.workload", "plant"]
    assert [line.line[1] for line in commands] == [f"--tool={tool}" for tool in steps.SANITIZER_TOOLS]
    assert all(line.line[-3:] == ["gpu_check.workload", "--backend", "cuda"] for line in commands)
    result = steps.run("sanitizer", options, io.StringIO())
    assert (result.result, result.note) == ("FAILED", "a race")
    program.write_text("#!/bin/sh\n")  # one that sees nothing
    result = steps.run("sanitizer", options, io.StringIO())
    assert (result.result, result.note) == ("FAILED", "a planted fault was not seen")


def test_a_tensor_past_the_end_has_its_address_and_another_size():
    whole = torch.arange(16.0)
    longer = workload.past_the_end(whole[2:4], 10)
    assert longer.data_ptr() == whole[2:].data_ptr() and longer.tolist() == whole[2:12].tolist()


def test_sanitizer_without_the_program_says_so(options, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    assert "compute-sanitizer" in steps.run("sanitizer", options, io.StringIO()).note


def test_the_workload_has_every_op_and_dtype(emulated):
    chosen = workload.chosen()
    assert {case.op.partition(".")[0] for case in chosen} == set(ops_of_the_package())
    assert {case.dtype for case in chosen if case.op == "skinny_linear"} == {
        torch.float32,
        torch.bfloat16,
        torch.float16,
    }
    assert workload.run("simt", emulated)["ops"] == len(chosen)


def ops_of_the_package() -> list[str]:
    names = (
        name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if name.startswith("eagle3_ext::")
    )
    return [name.partition(".")[0] for name in names]


def test_array_oracle_agrees_and_sees_the_last_of_two_equals(emulated, monkeypatch):
    assert "numpy" in cupy.check("simt", emulated)["oracle"]

    def last_best(logits, target_ids):
        flipped = logits.nan_to_num(-torch.inf, torch.inf, -torch.inf).flip(1).argmax(1)
        return target_ids[logits.shape[1] - 1 - flipped], None, None

    monkeypatch.setattr(ops, "argmax_tokens", last_best)
    with pytest.raises(SystemExit, match="argmax_tokens .* differs from numpy"):
        cupy.check("simt", emulated)


def test_array_oracle_sees_a_wrong_row(emulated, monkeypatch):
    right = ops.gather_concat
    monkeypatch.setattr(ops, "gather_concat", lambda states, rows: right(states, rows.clamp(min=0)))  # padding read
    with pytest.raises(SystemExit, match="gather_concat .* differs from numpy"):
        cupy.check("simt", emulated)


# What an index that wraps would hit: the tensors past the limit, which are written, or read.
LARGEST = {
    "gather_concat, source": ["states"],
    "gather_concat, result": ["out"],
    "capture_": ["features"],
    "add_rms_norm_": ["hidden", "residual"],
    "add_rms_norm_capture_": ["hidden", "residual", "features"],
    "head_rms_norm_": ["qkv"],
    "silu_mul": ["gate_up", "result"],
    "skinny_linear": ["weight"],
    "argmax_tokens": ["logits"],
    "draft_input": ["embed_weight"],
    "rope_append_": ["k_cache", "v_cache"],
    "mla_append_": ["cache"],
    "draft_attention": ["k_cache", "v_cache"],
    "draft_attention, latent": ["k_cache", "v_cache"],
}
ONLY_READ = ("states", "logits", "embed_weight", "gate_up", "weight")


@pytest.mark.parametrize("name, largest", [(name, each) for name in large.CHECKS for each in LARGEST[name]])
def test_large_offsets_run_small_and_see_an_index_that_wraps(name: str, largest: str, emulated, monkeypatch):
    limit, (check, widths), op = 1 << 12, large.CHECKS[name], name.partition(",")[0]
    width = widths["simt"]
    assert check(emulated, limit, width)
    written = largest not in ONLY_READ and op != "draft_attention"
    monkeypatch.setattr(ops, op, wrapping(getattr(ops, op), limit, largest, written))
    with pytest.raises(SystemExit, match=op):
        check(emulated, limit, width)


@pytest.mark.parametrize("largest", ["hidden", "residual", "qkv"])
def test_large_offsets_see_a_wrong_read_of_what_is_written_too(largest: str, emulated, monkeypatch):
    for name in ("add_rms_norm_", "add_rms_norm_capture_", "head_rms_norm_"):
        if largest in LARGEST[name]:
            monkeypatch.setattr(ops, name, wrapping(getattr(ops, name), 1 << 12, largest, written=False))
            with pytest.raises(SystemExit, match=f"{name}, .*: a wrong row"):
                large.CHECKS[name][0](emulated, 1 << 12, 32)


def test_large_offsets_see_an_int32_index_alone_that_wraps(emulated, monkeypatch):
    right, wrong = ops.gather_concat, wrapping(ops.gather_concat, 1 << 12, "states", written=False)

    def gather_concat(states, rows):
        return (wrong if rows.dtype == torch.int32 else right)(states, rows)

    monkeypatch.setattr(ops, "gather_concat", gather_concat)
    with pytest.raises(SystemExit, match="torch.int32"):
        large.check_gather_reads(emulated, 1 << 12, 32)


def wrapping(right, limit: int, largest: str, written: bool):
    """The op with an index that wraps at `limit` elements of the argument `largest`, or of the result."""

    def wrong(*args, **kwargs):
        bound = inspect.signature(right).bind(*args, **kwargs)
        if largest == "result":
            result = right(*bound.args, **bound.kwargs)
            result.view(-1)[limit:] = 0
            return result
        tensor = bound.arguments[largest]
        whole = elements(tensor)
        before, seen = whole[limit:].clone(), whole.clone()
        if not written:
            seen[limit:] = whole[: len(before)]
            bound.arguments[largest] = seen.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        result = right(*bound.args, **bound.kwargs)
        if written:
            whole[limit:] = before
        elif right.__name__.endswith("_"):
            whole.copy_(seen)
        return result

    return wrong


def elements(tensor: torch.Tensor) -> torch.Tensor:
    """All that its storage holds, in one dimension: a view's may lie in a tensor of wider rows."""
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)


def test_graphs_follow_new_inputs_and_a_stale_replay_is_seen(emulated):
    assert graphs.check("simt", emulated)["ops"]

    def stale(call):
        call()
        return lambda: None

    with pytest.raises(SystemExit, match="replay 0: .* do not follow"):
        graphs.check_ops(emulated, stale)


@pytest.mark.parametrize("check", [graphs.check_ops_stream, graphs.check_drafter_stream])
def test_what_runs_before_its_inputs_are_there_is_seen(check, emulated):
    assert check(emulated, graphs.at_once)

    def another_stream(produce, consume):
        consume()
        produce()

    with pytest.raises(SystemExit, match="did not wait for"):
        check(emulated, another_stream)


@pytest.mark.slow
def test_the_script_runs_on_the_emulator(tmp_path):
    chosen = ["tests", "cupy", "sanitizer", "graphs", "large", "bench"]
    line = ["bash", str(ROOT / "tools" / "gpu_check.sh"), "--backend", "simt", "--out", str(tmp_path)]
    environment = os.environ | {"PYTHON": sys.executable}
    ended = subprocess.run(
        [*line, "--tests", "verify_greedy", *chosen], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert [line.split()[:2] for line in ended.stdout.splitlines()[-len(chosen) :]] == [[s, "passed"] for s in chosen]
    assert {path.name for path in tmp_path.iterdir()} == {"summary.json", "bench.json", "log.txt"}
    report = json.loads((tmp_path / "bench.json").read_text())
    assert report["machine"]["dry"] is True and report["rows"]

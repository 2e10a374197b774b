"""tools/gpu_check: its arguments, its table, how it runs its steps and reads their end."""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from gpu_check import __main__ as command
from gpu_check import machine, steps


@pytest.fixture
def options(tmp_path) -> argparse.Namespace:
    return argparse.Namespace(backend="cuda", out=tmp_path, tests="")


def python(code: str) -> steps.Command:
    return steps.Command([sys.executable, "-c", code])


def step(*commands: steps.Command, limit: int = 60) -> steps.Step:
    return steps.Step(lambda *_: list(commands), limit)


def run_step(options, monkeypatch, *commands: steps.Command, limit: int = 60, **more: object) -> steps.Result:
    monkeypatch.setitem(steps.STEPS, "planted", step(*commands, limit=limit))
    return steps.run("planted", options, io.StringIO(), **more)


def test_all_steps_by_default_and_always_in_their_order():
    assert command.parse([]).steps == list(steps.STEPS)
    assert command.parse(["sanitizer", "bench", "build", "--backend", "simt"]).steps == ["build", "bench", "sanitizer"]


def test_help_says_what_steps_do_and_need():
    environment = os.environ | {"PYTHON": sys.executable}
    line = ["bash", str(ROOT / "tools" / "gpu_check.sh"), "--help"]
    ended = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    for name, described in steps.STEPS.items():
        assert f"  {name:<10}{described.limit:>4} s  {described.does}\n" in ended.stdout and described.does
    for words in ("add up to 15.5 minutes", "nvcc", "Python.h", "triton", "compute-sanitizer of", "torch 2.11"):
        assert words in ended.stdout
    assert sum(described.limit for described in steps.STEPS.values()) == 15.5 * 60


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["paint"], "no step named paint"),
        (["--backend", "tpu"], "'tpu'"),
        (["--minutes", "0"], "--minutes is 0; it must be above 0"),
    ],
)
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


# Prints its own process id, then that of a child which would outlive it, holds the pipe and hears no SIGTERM.
PARENT = """
import os, subprocess, sys, time
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
print(os.getpid(), subprocess.Popen([sys.executable, "-c", child]).pid, flush=True)
"""


def lives(pid: int) -> bool:
    """Whether it runs: one that ended and that nobody asked about is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids: list[int]) -> bool:
    """Whether they end within some seconds: SIGKILL is not at once."""
    for _ in range(100):
        if not any(map(lives, pids)):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="no /proc")
@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "ended"])
def test_nothing_that_a_step_started_lives_on(stopped, options, monkeypatch):
    log = io.StringIO()
    monkeypatch.setitem(steps.STEPS, "planted", step(python(PARENT + "time.sleep(60)" * stopped), limit=3))
    result = steps.run("planted", options, log)
    assert (result.result, result.seconds < 30) == ("FAILED" if stopped else "passed", True)
    parent, child = map(int, log.getvalue().splitlines()[-1].split())
    assert gone([parent, child])


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="no /proc")
def test_ending_the_run_ends_what_its_step_started(tmp_path):
    """By SIGTERM to the process that runs the steps; they are in sessions of their own."""
    code = f"""
import runpy, sys
from gpu_check import steps
steps.STEPS = {{"planted": steps.Step(lambda *_: [steps.Command([sys.executable, "-c", {PARENT + "time.sleep(60)"!r}])], 50)}}
sys.argv = ["gpu_check", "--out", {str(tmp_path)!r}]
runpy.run_module("gpu_check", run_name="__main__")
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tools")])}
    running = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        for line in running.stdout:
            if line.split() and all(word.isdigit() for word in line.split()):
                break
        pids = [int(word) for word in line.split()]
        assert all(map(lives, pids)) and len(pids) == 2
        running.terminate()
        running.communicate(timeout=30)
    finally:
        running.kill()
    assert running.returncode == 128 + signal.SIGTERM and gone(pids)


def test_output_comes_while_the_step_runs(options, monkeypatch, tmp_path, capfd):
    """It waits for its own words in the log; a character is split between two of its writes."""
    file = tmp_path / "log.txt"
    code = f"""
import os, time
os.write(1, b"half \\xc3")
for _ in range(300):
    if "half" in open({str(file)!r}).read():
        break
    time.sleep(0.1)
else:
    raise SystemExit("not in the log")
os.write(1, b"\\xa9 seen")
"""
    with file.open("w", encoding="utf-8") as log:
        monkeypatch.setitem(steps.STEPS, "planted", step(python(code)))
        result = steps.run("planted", options, log)
    assert (result.result, result.note) == ("passed", "half \u00e9 seen")
    assert "half \u00e9 seen" in file.read_text(encoding="utf-8") and "half \u00e9 seen" in capfd.readouterr().out


def test_a_planted_fault_must_be_seen_and_nothing_else(options, monkeypatch):
    def ended(code: str) -> tuple[str, str]:
        planted = dataclasses.replace(python(code), planted="Invalid __global__ read")
        result = run_step(options, monkeypatch, planted)
        return result.result, result.note

    seen = "print('===== Invalid __global__ read of size 16 bytes'); print('===== 1 error')"
    assert ended(f"{seen}; raise SystemExit(1)") == ("passed", "")
    assert ended(seen) == ended("") == ("FAILED", "a planted fault was not seen")
    result, note = ended("import module_of_nobody")
    assert result == "FAILED" and "before its planted fault" in note and "module_of_nobody" in note


@pytest.fixture
def no_machine(monkeypatch):
    monkeypatch.setattr(command, "describe", lambda backend: {"chip": backend})


def test_a_failed_step_fails_the_whole_and_stops_nothing(tmp_path, monkeypatch, capsys, no_machine):
    planted = {"bad": step(python("raise SystemExit(1)")), "good": step(python("print(1)"))}
    monkeypatch.setattr(steps, "STEPS", planted)
    assert command.main(["--out", str(tmp_path)]) == 1
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [step["result"] for step in summary["steps"]] == ["FAILED", "passed"]
    assert summary["machine"] == {"chip": "cuda"}
    assert "good" in capsys.readouterr().out.splitlines()[-1] and "SystemExit(1)" in (tmp_path / "log.txt").read_text()
    assert command.main(["good", "--out", str(tmp_path)]) == 0


def test_when_the_minutes_are_over_a_step_is_stopped_and_the_others_are_not_run(
    tmp_path, monkeypatch, capsys, no_machine
):
    planted = {
        "quick": step(python("print('fine')")),
        "long": step(python("import time; time.sleep(60)"), python("print('not reached')")),
        "late": step(python(f"open({str(tmp_path / 'ran')!r}, 'w')")),
    }
    monkeypatch.setattr(steps, "STEPS", planted)
    assert command.main(["--out", str(tmp_path), "--minutes", "0.05"]) == 1
    quick, long, late = json.loads((tmp_path / "summary.json").read_text())["steps"]
    assert (quick["result"], quick["note"]) == ("passed", "fine")
    assert long["result"] == "FAILED" and "the minutes of the whole run were over" in long["note"]
    assert (late["result"], late["note"]) == ("FAILED", "not run: the 0.05 minutes of the whole run were over")
    assert not (tmp_path / "ran").exists() and late["note"] in capsys.readouterr().out.splitlines()[-1]


def test_the_machine_is_described_as_soon_as_it_can_be(monkeypatch, tmp_path):
    """After the build, before what may use up the time, and again if that failed."""
    answers = [{"error": "no answer"}, {"chip": "H200"}]
    monkeypatch.setattr(steps, "STEPS", {name: step(python("")) for name in ("build", "tests", "cupy", "bench")})
    monkeypatch.setattr(command, "describe", lambda _: answers.pop(0))
    for arguments, left, described in ((["build"], 2, None), ([], 0, "H200")):
        assert command.main([*arguments, "--out", str(tmp_path)]) == 0 and len(answers) == left
        found = json.loads((tmp_path / "summary.json").read_text())["machine"]
        assert found.get("chip") == described and ("error" in found) == (described is None)


def test_what_the_machine_is(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tools")]))
    found = machine.describe("simt")
    assert "error" not in found and found["torch"] == torch.__version__ and found["cpu"] and found["gpu"] is None
    assert found["date"].startswith("20") and found["commit"] == machine.commit()
    (tmp_path / "eagle3_ext.py").write_text("raise ImportError('it is not built')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT / "tools")]))
    monkeypatch.setattr(machine, "ROOT", tmp_path)  # which is no repository
    found = machine.describe("simt")
    assert "it is not built" in found["error"] and found["commit"] is None and found["date"]


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
        '#!/bin/sh\ncase "$* " in *racecheck*) echo a race; exit 1;;\n'
        '*plant*) echo "= Invalid __global__ read of size 16 bytes"; exit 1;; esac\necho "$1"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    planted, *commands = steps.sanitizer(options, tmp_path)
    assert planted.planted and planted.line[-2:] == ["gpu_check.workload", "plant"]
    assert [line.line[1] for line in commands] == [f"--tool={tool}" for tool in steps.SANITIZER_TOOLS]
    assert all(line.line[-3:] == ["gpu_check.workload", "--backend", "cuda"] for line in commands)
    filtered = {line.line[1].partition("=")[2]: "kns=eagle3" in line.line for line in commands}
    assert filtered == {"memcheck": True, "racecheck": True, "initcheck": False, "synccheck": True}
    result = steps.run("sanitizer", options, io.StringIO())
    assert (result.result, result.note) == ("FAILED", "a race")
    program.write_text("#!/bin/sh\n")  # one that sees nothing
    result = steps.run("sanitizer", options, io.StringIO())
    assert (result.result, result.note) == ("FAILED", "a planted fault was not seen")


def test_sanitizer_without_the_program_says_so(options, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    assert "compute-sanitizer" in steps.run("sanitizer", options, io.StringIO()).note


def test_the_report_of_another_run_is_no_result_of_this_one(options, monkeypatch, tmp_path):
    report = tmp_path / "bench.json"
    report.write_text("{}")
    run_step(options, monkeypatch, dataclasses.replace(python("raise SystemExit(1)"), report=report))
    assert not report.exists()


@pytest.mark.slow
def test_the_script_runs_on_the_emulator(tmp_path):
    chosen = [name for name in steps.STEPS if name != "build"]
    line = ["bash", str(ROOT / "tools" / "gpu_check.sh"), "--backend", "simt", "--out", str(tmp_path)]
    environment = os.environ | {"PYTHON": sys.executable}
    ended = subprocess.run(
        [*line, "--tests", "verify_greedy", *chosen], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert [line.split()[:2] for line in ended.stdout.splitlines()[-len(chosen) :]] == [[s, "passed"] for s in chosen]
    assert {path.name for path in tmp_path.iterdir()} == {"summary.json", "bench.json", "log.txt"}
    report = json.loads((tmp_path / "bench.json").read_text())
    assert report["machine"]["dry"] is True and report["rows"] and "not_measured" not in report
    assert json.loads((tmp_path / "summary.json").read_text())["machine"]["torch"] == torch.__version__

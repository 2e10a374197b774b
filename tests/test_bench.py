"""The benchmark harness: its rows, its counting, and the GPU's rows tried at tiny sizes on the CPU."""

from __future__ import annotations

import json

import pytest
import torch
from cases import CASES as table_of_ops
from loops import small_loop
from typer.testing import CliRunner

from eagle3_ext import SpeculativeDecoder, bench
from eagle3_ext.bench import gpu, measure, trace_cost
from eagle3_ext.bench.gpu_cases import CASES, DRY, Sizes
from eagle3_ext.cli import app

PROMISED = {"name", "case", "dtype", "device", "ours_us", "peer", "peer_us", "ratio", "bytes", "percent_of_copy"}


def test_a_row_has_the_promised_keys():
    measured = bench.paired(lambda: None, lambda: None, repeats=3)
    assert PROMISED <= set(bench.row("op", "case", "bfloat16", measured, "peer", 10, 50.0))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"only": "nothing"}, "no benchmark named like 'nothing'"),
        ({"only": "nothing", "device": "cuda", "dry": True}, "draft_step"),
        ({"device": "tpu"}, "'tpu'; expected cpu or cuda"),
        ({"dry": True}, "dry is for device cuda"),
    ],
)
def test_bad_arguments_are_refused_before_work(arguments, words):
    with pytest.raises(ValueError, match=words):
        bench.run(**arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_command_says_so():
    result = CliRunner().invoke(app, ["bench", "--device", "cuda"])
    assert result.exit_code == 2 and "no CUDA device" in result.output


@pytest.mark.parametrize("name", [*CASES, "draft_step"])
def test_gpu_rows_run_dry(name: str):
    rows = gpu.groups(dry=True)[name](3)
    assert rows and all(PROMISED <= set(line) for line in rows)
    assert all(line["ours_us"] > 0 or name == "draft_step" for line in rows)
    json.dumps(rows)


def test_every_op_is_timed_on_a_gpu():
    timed = set(CASES) - {"hidden_path"} | {"accepted_rows"}  # which hidden_path begins with
    assert timed == {case.op.partition(".")[0] for case in table_of_ops}


@pytest.mark.parametrize("name", CASES)
def test_ours_and_the_peer_compute_the_same(name: str):
    """Each on its own copy of the inputs, which some write to. hidden_path's peer leaves the padding out."""
    sides = []
    for side in ("ours", "peer"):
        torch.manual_seed(0)
        results = [getattr(case, side)() for case in CASES[name](Sizes(**DRY))]
        sides.append([t for result in results for t in (result if isinstance(result, tuple) else (result,))])
    for ours, theirs in zip(*sides, strict=True):
        ours = ours[: len(theirs)].reshape(theirs.reshape(len(theirs), -1).shape)
        torch.testing.assert_close(ours, theirs.reshape(ours.shape), rtol=2e-2, atol=2e-2, check_dtype=False)


def test_events_are_counted_by_what_they_are():
    events = [
        ("aten::add", False),
        ("cudaLaunchKernel", False),
        ("void eagle3::capture_kernel", True),
        ("cuLaunchKernelEx", False),
        ("cudaGraphLaunch", False),
        ("cudaMemcpyAsync", False),
        ("Memcpy DtoH", True),
        ("cudaStreamSynchronize", False),
        ("cudaEventRecord", False),
    ]
    assert measure.count_events(events) == measure.Counts(launches=4, kernels=2, waits=1)
    assert measure.Counts(4, 2, 1) - measure.Counts(1, 0, 1) == measure.Counts(3, 2, 0)


def test_a_draft_step_reads_the_published_number_of_bytes():
    """749 MB for Llama-3.1-8B's drafter, 156 us at 4.8 TB/s; Kimi-K2.5's by hand, matrix by matrix."""
    assert gpu.step_bytes(gpu.DRAFTERS["Llama-3.1-8B"]) == pytest.approx(749e6, rel=1e-3)
    h, i, heads, head_dim, vocab = 7168, 18432, 64, 128, 32000
    by_hand = 3 * heads * head_dim * 2 * h + h * heads * head_dim + 3 * h * i + vocab * h
    assert gpu.step_bytes(gpu.DRAFTERS["Kimi-K2.5"]) == 2 * by_hand


def test_the_checks_of_a_trace_that_is_off_are_counted():
    """Five in a round that drafts and is not the last: its begin, the draft, the capture, its end, the extend."""
    loop = small_loop(0, 3)
    decoder = SpeculativeDecoder(*loop.parts(), 3)
    with trace_cost.counted_checks() as counter:
        rounds = decoder.generate(loop.prompts[0], 16, ()).stats.rounds
    prefill, last = 4, 4  # the text, its capture, the reset and the extend; a last round has no extend
    assert counter.reads == prefill + 5 * (rounds - 1) + last
    reads = counter.reads
    decoder.generate(loop.prompts[0], 16, ())
    assert counter.reads == reads, "the real module is back"
    assert 0 <= trace_cost.check_seconds() < 1e-5

"""tools/gpu_check: what its steps check, on the emulator.

Every check must see a planted fault. What only a GPU can tell is not told here.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path

import pytest
import torch

from eagle3_ext import ops
from eagle3_ext.bench import gpu

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from gpu_check import bench, cupy, devices, graphs, large, workload


@pytest.fixture
def emulated():
    with devices.on("simt") as device:
        yield device


def test_a_tensor_past_the_end_has_its_address_and_another_size():
    whole = torch.arange(16.0)
    longer = workload.past_the_end(whole[2:4], 10)
    assert longer.data_ptr() == whole[2:].data_ptr() and longer.tolist() == whole[2:12].tolist()


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


def test_a_bench_that_is_stopped_keeps_its_rows(emulated, monkeypatch, tmp_path):
    def never(repeats: int) -> list:
        kept.append(json.loads(file.read_text()))
        raise KeyboardInterrupt

    kept: list[dict] = []
    file = tmp_path / "bench.json"
    groups = {"first": lambda repeats: [{"name": "first", "repeats": repeats}], "second": never, "third": never}
    monkeypatch.setattr(gpu, "groups", lambda dry: groups)
    with pytest.raises(KeyboardInterrupt):
        bench.run("simt", emulated, file)
    report = json.loads(file.read_text())
    assert report["rows"] == [{"name": "first", "repeats": 3}] and report["not_measured"] == ["second", "third"]
    assert kept == [report] and report["machine"]["dry"] is True and list(tmp_path.iterdir()) == [file]

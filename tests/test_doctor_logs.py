"""The log readers: the published formats give the values written down for them, and no mutation invents a number."""

from __future__ import annotations

import math
import random
import re
import resource

import pytest

from eagle3_ext.doctor.logs import (
    Acceptance,
    DamagedLine,
    DrafterInput,
    LineCounts,
    ServerArguments,
    parse_line,
    read_lines,
    read_log,
)

VLLM_NOW = (
    "(EngineCore_DP1 pid=7) INFO 01-08 23:07:23 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: 2.80, "
    "Accepted throughput: 9.00 tokens/s, Drafted throughput: 20.00 tokens/s, Accepted: 90 tokens, Drafted: 200 tokens, "
    "Per-position acceptance rate: 0.800, 0.600, 0.300, 0.100, Avg Draft acceptance rate: 45.0%\n"
)
VLLM_BETWEEN = (
    "INFO 06-08 23:07:23 [metrics.py:86] SpecDecoding metrics: Draft acceptance rate: 45.0%, Mean acceptance length: "
    "2.80, Accepted: 90 tokens, Drafted: 200 tokens, Per-position acceptance rate: 0.800, 0.600, 0.300, 0.100\n"
)
VLLM_EARLIER = (
    "INFO 04-08 SpecDecoding metrics: Draft acceptance rate: 50.0%, Accepted: 30 tokens, Drafted: 60 tokens\n"
)
VLLM_FIRST = (
    "INFO 10-16 19:05:47 metrics.py:367] Speculative metrics: Draft acceptance rate: 0.500, System efficiency: 0.600, "
    "Number of speculative tokens: 3, Number of accepted tokens: 30, Number of draft tokens: 60, "
    "Number of emitted tokens: 48.\n"
)
SGLANG = (
    "[2025-11-11 04:06:27 DP0 TP0] Decode batch. #running-req: 2, #token: 40, token usage: 0.01, accept len: 2.50, "
    "accept rate: 0.50, cuda graph: True, gen throughput (token/s): 123.45, #queue-req: 0,\n"
)
LLAMA = (
    "slot print_timing: id  0 | task 42 | draft acceptance = 0.50847 (   60 accepted /   118 generated), mean "
    "acceptance length =  2.50, acceptance rate per position = (0.750, 0.500, 0.250)\n"
)
DEBUG = (
    "[2026-02-01 10:00:00 TP3] EAGLE3_DEBUG[eagle3] input: hs_shape=torch.Size([1, 7168]), "
    "embed_shape=torch.Size([1, 7168]), hs_norm=131.0000, hs_first5=[0.0123, -1.5, 2e-05, 0.25, -0.0625], "
    "embed_norm=1.2422\n"
)
WHOLE = (VLLM_NOW, VLLM_BETWEEN, VLLM_EARLIER, VLLM_FIRST, SGLANG, LLAMA, DEBUG)


def test_vllm_now():
    found = parse_line(VLLM_NOW)
    assert found == Acceptance("vllm", "EngineCore_DP1 pid=7", 2.8, 0.45, 90, 200, None, (0.8, 0.6, 0.3, 0.1))
    assert found.rounds == 50  # 90 / 1.8
    one = parse_line(VLLM_NOW.replace("0.800, 0.600, 0.300, 0.100", "0.800"))
    assert one.per_position == (0.8,)
    unmeasured = parse_line(VLLM_NOW.replace("45.0%", "nan%"))
    assert unmeasured.rate is None and unmeasured.accept_length == 2.8


def test_vllm_earlier():
    for line, emitted in ((VLLM_EARLIER, None), (VLLM_FIRST, 48)):
        found = parse_line(line)
        assert (found.rate, found.accepted, found.drafted, found.emitted) == (0.5, 30, 60, emitted)
        assert found.accept_length is None and found.rounds is None, "absent is None, not 0"
    between = parse_line(VLLM_BETWEEN)
    assert between.per_position == (0.8, 0.6, 0.3, 0.1) and between.accept_length == 2.8
    with pytest.raises(DamagedLine):
        parse_line(VLLM_BETWEEN.replace(", 0.100", ""))


def test_sglang():
    found = parse_line(SGLANG)
    assert (found.accept_length, found.rate, found.accepted_per_round, found.graph) == (2.5, 0.5, 1.5, True)
    assert found.label == "DP0 TP0" and found.tokens_per_s == 123.45
    assert parse_line(SGLANG.replace("accept rate: 0.50, ", "")).rate is None
    assert parse_line(SGLANG.replace("cuda graph: True", "cpu graph: True")).graph is True
    assert parse_line(SGLANG.replace("cuda graph: True", "cuda graph: False")).graph is False
    assert parse_line(SGLANG.replace("Decode batch.", "Prefill batch,")) is None
    assert parse_line(SGLANG.replace("accept len: 2.50, accept rate: 0.50, ", "")) is None, "no speculation"
    assert parse_line(SGLANG.replace("0.50", "1.25")).rate == 1.25  # the findings flag it


def test_llama_cpp():
    found = parse_line(LLAMA)
    assert (found.accepted, found.drafted, found.accept_length) == (60, 118, 2.5)
    assert found.per_position == (0.75, 0.5, 0.25) and found.rounds == 40
    earlier = parse_line("draft acceptance rate = 0.57576 (  171 accepted /   297 generated)\n")
    assert (earlier.rate, earlier.accepted, earlier.drafted, earlier.accept_length) == (0.57576, 171, 297, None)


def test_drafter_input():
    found = parse_line(DEBUG)
    first5 = (0.0123, -1.5, 2e-05, 0.25, -0.0625)
    assert found == DrafterInput("TP3", 1, 7168, 7168, 131.0, first5, 1.2422) and found.finite
    assert not parse_line(DEBUG.replace("131.0000", "nan")).finite
    assert not parse_line(DEBUG.replace("-1.5", "-inf")).finite


def test_server_arguments():
    printed = parse_line(
        "server_args=ServerArgs(speculative_algorithm='EAGLE', speculative_draft_model_path='a/b-eagle3')"
    )
    assert printed == ServerArguments("EAGLE", "a/b-eagle3")
    typed = parse_line(
        "python -m sglang.launch_server --speculative-algorithm EAGLE3 --speculative-draft-model-path c/d --tp 8"
    )
    assert typed == ServerArguments("EAGLE3", "c/d")


def test_damaged_and_foreign_lines_are_counted():
    lines = [SGLANG, "INFO: 200 OK\n", VLLM_NOW[:150] + "\n", "\n", LLAMA, DEBUG[:-1]]
    counts = LineCounts()
    found = list(read_lines([line.encode() for line in lines], counts))
    assert [number for number, _ in found] == [1, 5]
    assert (counts.read, counts.damaged, counts.foreign) == (2, 2, 2)


@pytest.mark.parametrize("line", WHOLE, ids=lambda line: line[:24])
def test_no_cut_line_is_read_differently(line):
    """Whatever the cut leaves, it gives the whole line's numbers or nothing."""
    whole = parse_line(line)
    for end in range(len(line.rstrip()) - 1):
        for _, value in read_lines([line[:end].encode()], LineCounts()):
            assert value == whole, line[:end]


def numbers_of(found) -> list[float]:
    if isinstance(found, DrafterInput):
        return [found.rows, found.width, found.embedding_width, found.norm, *found.first5, found.embedding_norm]
    if isinstance(found, ServerArguments):
        return []
    values = [
        found.accept_length,
        found.accepted,
        found.drafted,
        found.emitted,
        found.tokens_per_s,
        *found.per_position,
    ]
    return [value for value in (*values, found.rate) if value is not None]


def mutate(line: str, generator: random.Random) -> str:
    """One to three edits: characters changed, removed, doubled or inserted, a cut, a piece of another line."""
    for _ in range(generator.randint(1, 3)):
        at = generator.randrange(len(line) + 1)
        kind = generator.randrange(6)
        if kind == 0:
            line = line[:at] + generator.choice("0123456789.,%-:()[] =enaif\x00\xff") + line[at + 1 :]
        elif kind == 1:
            line = line[:at] + line[at + generator.randint(1, 6) :]
        elif kind == 2:
            line = line[:at] + line[max(0, at - generator.randint(1, 6)) :]
        elif kind == 3:
            line = line[:at] + generator.choice(["nan", "inf", "1e999", "-", "  ", "\t", "9" * 40]) + line[at:]
        elif kind == 4:
            line = line[:at]
        else:
            other = generator.choice(WHOLE)
            line = line[:at] + other[generator.randrange(len(other)) :]
    return line


def test_eight_thousand_mutated_lines_neither_crash_nor_invent():
    generator = random.Random(0)
    lines = [mutate(generator.choice(WHOLE), generator) for _ in range(8000)]
    counts = LineCounts()
    found = dict(read_lines([line.encode("utf-8", errors="surrogatepass") for line in lines], counts))
    assert counts.read + counts.damaged + counts.foreign == 8000
    assert counts.read > 500 and counts.damaged > 2000, "the mutations must leave some lines whole and break many"
    for number, value in found.items():
        printed = {float(text) for text in re.findall(r"(?<![\d.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", lines[number - 1])}
        printed |= {value / 100 for value in printed}
        for one in numbers_of(value):
            assert one in printed or not math.isfinite(one), (one, lines[number - 1])


def test_a_large_log_streams_in_constant_memory(tmp_path):
    """60 MB, one line of it 20 MB long, read with less than 20 MB of new peak memory."""
    path = tmp_path / "server.log"
    with path.open("w") as file:
        for _ in range(100):
            file.write(SGLANG + ("INFO: 127.0.0.1 - POST /v1/chat/completions 200 OK\n" * 40) * 190)
        file.write("x" * 20_000_000 + SGLANG + SGLANG)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    counts = LineCounts()
    assert sum(1 for _ in read_log(path, counts)) == 101
    assert counts.read == 101 and counts.foreign == 100 * 7600 + 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kB

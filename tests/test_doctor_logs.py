"""The log readers: the published formats give the values written down for them, and no mutation invents a number."""

from __future__ import annotations

import codecs
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
# Numbers that engines printed: they look odd and are honest.
HONEST = (
    "Speculative metrics: Draft acceptance rate: 0.675, System efficiency: 0.531, Number of speculative tokens: 4, "
    # Fewer emitted than accepted.
    "Number of accepted tokens: 8485, Number of draft tokens: 12564, Number of emitted tokens: 8347.\n",
    "draft acceptance = 0.62008 ( 1797 accepted /  2898 generated), mean acceptance length =  2.24, acceptance rate "
    "per position = (0.727, 0.513)\n",
    "draft acceptance = 0.64479 (  167 accepted /   259 generated), mean acceptance length =  2.92, acceptance rate "
    "per position = (0.805, 0.632, 0.483)\n",  # 259 drafted in 87 rounds of up to 3
)
WHOLE = (VLLM_NOW, VLLM_BETWEEN, VLLM_EARLIER, VLLM_FIRST, SGLANG, LLAMA, DEBUG)


def test_vllm_now():
    found = parse_line(VLLM_NOW)
    assert found == Acceptance("vllm", "EngineCore_DP1 pid=7", 2.8, 0.45, 90, 200, None, (0.8, 0.6, 0.3, 0.1))
    assert found.rounds == 50  # 90 / 1.8
    one = VLLM_NOW.replace("0.800, 0.600, 0.300, 0.100", "0.800").replace("2.80", "1.80").replace("45.0", "80.0")
    one = parse_line(one.replace("90 tokens", "40 tokens").replace("200 tokens", "50 tokens"))
    assert one.per_position == (0.8,) and one.rounds == 50 and not one.contradiction
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
    without_bonus = parse_line(VLLM_BETWEEN.replace("2.80", "1.80"))  # as releases before 0.9 print it
    assert without_bonus.accept_length is None and without_bonus.per_position == between.per_position


def test_sglang():
    found = parse_line(SGLANG)
    assert (found.accept_length, found.rate, found.accepted_per_round, found.graph) == (2.5, 0.5, 1.5, True)
    assert found.label == "DP0 TP0" and found.tokens_per_s == 123.45
    assert parse_line(SGLANG.replace("accept rate: 0.50, ", "")).rate is None
    assert parse_line(SGLANG.replace("cuda graph: True", "cpu graph: True")).graph is True
    assert parse_line(SGLANG.replace("cuda graph: True", "cuda graph: False")).graph is False
    assert parse_line(SGLANG.replace("Decode batch.", "Prefill batch,")) is None
    assert parse_line(SGLANG.replace("accept len: 2.50, accept rate: 0.50, ", "")) is None, "no speculation"
    assert parse_line(SGLANG.replace("0.50", "1.25")).rate == 1.25  # and contradictory, see below
    assert parse_line(SGLANG.replace("2.50", "0.00").replace("0.50", "0.00")) is None, "no round since the last line"


def test_llama_cpp():
    found = parse_line(LLAMA)
    assert (found.accepted, found.drafted, found.accept_length) == (60, 118, 2.5)
    assert found.per_position == (0.75, 0.5, 0.25) and found.rounds == 40
    earlier = parse_line("draft acceptance rate = 0.57576 (  171 accepted /   297 generated)\n")
    assert (earlier.rate, earlier.accepted, earlier.drafted, earlier.accept_length) == (0.57576, 171, 297, None)
    newest = parse_line("draft acceptance = 0.64479 (  167 accepted /   259 generated), mean len =  2.92\n")
    assert (newest.accept_length, newest.per_position, newest.rounds) == (2.92, (), 87)


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


def test_lines_are_counted_by_what_they_are():
    lines = [SGLANG, "INFO: 200 OK\n", VLLM_NOW[:150] + "\n", "\n", LLAMA, LLAMA.replace("2.50", "9.90"), DEBUG[:-2]]
    counts = LineCounts()
    found = list(read_lines([line.encode() for line in lines], counts))
    assert [(number, bool(line.contradiction)) for number, line in found] == [(1, False), (5, False), (6, True)]
    assert counts == LineCounts(read=2, contradictory=1, damaged=2, foreign=2) and counts.total == 7


# ---- encodings


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
def test_a_log_in_the_encoding_a_shell_wrote_it_in(tmp_path, encoding):
    text = f"\ufeff{DEBUG}" if encoding == "utf-16-be" else DEBUG  # which Python writes without its mark
    path = tmp_path / "server.log"
    path.write_bytes((text + "caf\u00e9 \u010a\U0001f600\n" + SGLANG + VLLM_NOW).replace("\n", "\r\n").encode(encoding))
    counts = LineCounts()
    found = list(read_log(path, counts))
    assert found == [(1, parse_line(DEBUG)), (3, parse_line(SGLANG)), (4, parse_line(VLLM_NOW))]
    assert counts == LineCounts(read=3, foreign=1)


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE])
def test_bytes_that_are_no_text_never_crash(tmp_path, mark):
    """Random bytes, a lone surrogate, half a character at the end; whole lines among them are found all the same."""
    encode = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}.get(mark, "utf-8")
    newline = "\n".encode(encode)
    noise = random.Random(0).randbytes(20_000) + "\ud800".encode(encode, "surrogatepass")
    path = tmp_path / "server.log"
    path.write_bytes(
        mark + noise + newline + SGLANG.encode(encode) + noise + newline + VLLM_NOW.encode(encode) + b"\xd8"
    )
    counts = LineCounts()
    found = [line for _, line in read_log(path, counts)]
    assert found == [parse_line(SGLANG), parse_line(VLLM_NOW)] and counts.contradictory == counts.damaged == 0


@pytest.mark.parametrize("line", WHOLE, ids=lambda line: line[:24])
def test_no_cut_line_is_read_differently(line):
    """Whatever the cut leaves, it gives the whole line's numbers or nothing."""
    whole = parse_line(line)
    for end in range(len(line.rstrip()) - 1):
        for _, value in read_lines([line[:end].encode()], LineCounts()):
            assert value == whole, line[:end]


def test_a_pasted_excerpt_has_no_last_newline():
    ((_, found),) = read_lines([DEBUG[:-1].encode()], LineCounts())
    assert found == parse_line(DEBUG)


# ---- numbers that contradict each other


@pytest.mark.parametrize("line", (*WHOLE, *HONEST), ids=lambda line: line[-40:].strip())
def test_honest_lines_are_believed(line):
    assert not getattr(parse_line(line), "contradiction", "")


CONTRADICTIONS = (
    (VLLM_NOW.replace("2.80", "9.90"), "accept length 9.9, but the positions' rates sum to 1.8"),
    (VLLM_NOW.replace("2.80", "2.81").replace("0.800", "0.805"), None),  # 1.810 against 1.805: rounding can do that
    (VLLM_NOW.replace("2.80", "2.82").replace("0.800", "0.813"), None),  # 0.005 + 4 * 0.0005 apart, the very edge
    (VLLM_NOW.replace("2.80", "2.82").replace("0.800", "0.812"), "accept length 2.82, but the positions"),
    (VLLM_NOW.replace("2.80", "2.82"), "accept length 2.82, but the positions' rates sum to 1.8"),
    (VLLM_NOW.replace("0.800", "1.800"), "rate of position 1 is 1.8, above 1"),
    (VLLM_NOW.replace("45.0%", "145.0%"), "accept rate is 1.45, above 1"),
    (VLLM_NOW.replace("90 tokens", "900 tokens"), "900 accepted of 200 drafted"),
    (VLLM_NOW.replace("45.0%", "45.1%"), "accept rate 0.451, but 90 of 200 make 0.45"),
    (VLLM_NOW.replace("2.80", "0.80"), "accept length is 0.8, below 1"),
    (VLLM_NOW.replace("0.600, 0.300", "0.300, 0.600"), "position 3 is accepted more often (0.6) than position 2 (0.3)"),
    (VLLM_FIRST.replace("0.500", "0.700"), "accept rate 0.7, but 30 of 60 make 0.5"),
    (VLLM_EARLIER.replace("30", "70"), "70 accepted of 60 drafted"),
    (LLAMA.replace("0.50847", "0.50849"), "accept rate 0.50849, but 60 of 118 make 0.50847"),
    (LLAMA.replace("2.50", "9.90"), "accept length 9.9, but the positions' rates sum to 1.5"),
    ("draft acceptance = 0.50000 (    2 accepted /     4 generated), mean len =  9.90\n", "9.9, but 2 accepted in all"),
    ("draft acceptance = 0.50000 (   50 accepted /   100 generated), mean len =  1.20\n", "takes more than 100 rounds"),
    (SGLANG.replace("0.50", "1.25"), "accept rate is 1.25, above 1"),
    (SGLANG.replace("2.50", "0.70"), "accept length is 0.7, below 1"),
    (SGLANG.replace("2.50", "1.20").replace("0.50", "0.90"), "1.2 and accept rate 0.9 fit no number of drafts"),
    (SGLANG.replace("2.50", "9.90").replace("0.50", "0.00"), "9.9 and accept rate 0 fit no number of drafts"),
)


@pytest.mark.parametrize(("line", "words"), CONTRADICTIONS, ids=[words or "rounding" for _, words in CONTRADICTIONS])
def test_contradictory_lines(line, words):
    contradiction = parse_line(line).contradiction
    assert contradiction == "" if words is None else words in contradiction, contradiction


def random_round_counts(generator: random.Random, depth: int) -> list[int]:
    quality = generator.random()
    return [sum(generator.random() < quality for _ in range(depth)) for _ in range(generator.choice((1, 3, 87, 400)))]


def test_no_run_that_an_engine_can_print_is_called_contradictory():
    """Two thousand random runs, printed by the engines' own formulas from their counts, in every format."""
    generator = random.Random(1)
    for _ in range(2000):
        depth = generator.choice((1, 3, 7, 15))
        accepted_by_round = random_round_counts(generator, depth)
        rounds, accepted = len(accepted_by_round), sum(accepted_by_round)
        drafted, length = rounds * depth, 1 + accepted / rounds
        listed = ", ".join(f"{sum(a > i for a in accepted_by_round) / rounds:.3f}" for i in range(depth))
        vllm = f"Accepted: {accepted} tokens, Drafted: {drafted} tokens"
        llama = f"{accepted / drafted:0.5f} ({accepted:5d} accepted / {drafted:5d} generated)"
        lines = [
            f"SpecDecoding metrics: Mean acceptance length: {length:.2f}, Accepted throughput: 1.00 tokens/s, Drafted "
            f"throughput: 2.00 tokens/s, {vllm}, Per-position acceptance rate: {listed}, Avg Draft acceptance rate: "
            f"{accepted / drafted * 100:.1f}%",
            f"SpecDecoding metrics: Draft acceptance rate: {accepted / drafted * 100:.1f}%, {vllm}",
            f"draft acceptance = {llama}, mean acceptance length = {length:5.2f}, acceptance rate per position = "
            f"({listed})",
            f"draft acceptance = {llama}, mean len = {length:5.2f}",
            *(SGLANG.replace("2.50", f"{length:.2f}").replace("0.50", f"{rate:.2f}")
              for rate in (accepted / drafted, (accepted + rounds) / (rounds * (depth + 1)))),
        ]  # fmt: skip
        lines += [
            f"SpecDecoding metrics: Draft acceptance rate: {accepted / drafted * 100:.1f}%, Mean acceptance length: "
            f"{mean:.2f}, {vllm}, Per-position acceptance rate: {listed}"
            for mean in (length, length - 1)
        ]
        for line in lines:
            found = parse_line(line)
            assert found.contradiction == "", (line, found.contradiction)


# ---- damage


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
    assert counts.total == 8000
    assert counts.read > 500 and counts.damaged > 2000, "the mutations must leave some lines whole and break many"
    assert counts.contradictory > 20, "and turn some numbers into others"
    for number, value in found.items():
        printed = {float(text) for text in re.findall(r"(?<![\d.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", lines[number - 1])}
        printed |= {value / 100 for value in printed}
        for one in numbers_of(value):
            assert one in printed or not math.isfinite(one), (one, lines[number - 1])


@pytest.mark.parametrize(("encoding", "blocks"), [("utf-8", 100), ("utf-16", 40)])
def test_a_large_log_streams_in_constant_memory(tmp_path, encoding, blocks):
    """60 MB, one line of it 20 MB long, read with less than 20 MB of new peak memory."""
    path = tmp_path / "server.log"
    with path.open("w", encoding=encoding) as file:
        for _ in range(blocks):
            file.write(SGLANG + ("INFO: 127.0.0.1 - POST /v1/chat/completions 200 OK\n" * 40) * 190)
        file.write("x" * 20_000_000 + SGLANG + SGLANG)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    counts = LineCounts()
    assert sum(1 for _ in read_log(path, counts)) == blocks + 1
    assert counts.read == blocks + 1 and counts.foreign == blocks * 7600 + 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kB

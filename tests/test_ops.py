"""Every native op against `reference`: copies, sums and decisions bit for bit, the rest within bounds of float64.

A bound is a number of roundings: u is half a unit in the last place of the dtype, E one of float32. Each rounding to
the dtype costs u, float32 arithmetic a few E, and results near zero one step of the smallest subnormal.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from backends import Backend, whole_memory
from cases import EPS, Case, Inputs, cases_of
from torch import Tensor

from eagle3_ext import ops, reference
from eagle3_ext.rope import rope_table

E = torch.finfo(torch.float32).eps


def u(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


def smallest(dtype: torch.dtype) -> float:
    """Below this, relative bounds end: float16 has subnormals, and float32 arithmetic may flush its own to zero."""
    info = torch.finfo(dtype)
    return info.smallest_normal * info.eps if dtype == torch.float16 else info.smallest_normal


def in_float64(inputs: Inputs) -> Inputs:
    def cast(value: object) -> object:
        if isinstance(value, list):
            return [cast(item) for item in value]
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    return {name: cast(value) for name, value in inputs.items()}


def assert_same_bits(actual: Tensor, expected: Tensor) -> None:
    """Equal including the sign of zero and NaN payloads."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    if actual.is_floating_point():
        integer = {2: torch.int16, 4: torch.int32}[actual.element_size()]
        actual, expected = actual.contiguous().view(integer), expected.contiguous().view(integer)
    assert torch.equal(actual, expected)


def assert_within(actual: Tensor, expected: Tensor, bound: Tensor | float) -> None:
    """|actual - expected| <= bound (+ the smallest step), elementwise; `expected` is float64."""
    assert actual.shape == expected.shape
    error = (actual.double() - expected).abs()
    bad = ~(error <= bound + smallest(actual.dtype))
    if bad.any():
        excess = (error / (bound + smallest(actual.dtype))).nan_to_num(torch.inf).max().item()
        where = bad.nonzero()[0].tolist()
        pytest.fail(
            f"{int(bad.sum())} of {bad.numel()} elements are out of bounds, by a factor of {excess:.3g}; at {where} "
            f"{actual[tuple(where)].item()} instead of {expected[tuple(where)].item()}"
        )


def norm_bound(expected: Tensor, dtype: torch.dtype) -> Tensor:
    """Two roundings, before the gain and after it, and a float32 mean of squares in blocks."""
    return (2.1 * u(dtype) + 16 * E) * expected.abs()


def each_case(*op_names: str):
    return pytest.mark.parametrize("case", cases_of(*op_names), ids=lambda case: case.name)


@each_case("capture_")
def test_capture(case: Case, run: Backend):
    ours, theirs = case.inputs(), case.inputs()
    run("capture_", ours)
    reference.capture_(**theirs)
    assert_same_bits(ours["features"], theirs["features"])


@each_case("add_rms_norm_", "add_rms_norm_capture_")
def test_add_rms_norm(case: Case, run: Backend):
    ours, theirs = case.inputs(), case.inputs()
    run(case.op, ours)
    getattr(reference, case.op)(**theirs)
    assert_same_bits(ours["residual"], theirs["residual"])
    if "features" in ours:
        assert_same_bits(ours["features"], theirs["features"])
    # The norm is that of the rounded sum.
    expected = reference.rms_norm(ours["residual"].double(), ours["weight"].double(), EPS)
    assert_within(ours["hidden"], expected, norm_bound(expected, case.dtype))


@each_case("gather_concat", "gather_concat.out")
def test_gather_concat(case: Case, run: Backend):
    inputs = case.inputs()
    out = run("gather_concat", inputs)
    assert out.dtype == case.dtype and ("out" not in inputs or out is inputs["out"])
    if inputs.get("norm_weights"):
        inputs.pop("out", None)
        expected = reference.gather_concat(**in_float64(inputs))
        assert_within(out, expected, norm_bound(expected, case.dtype))
        assert (out[inputs["rows"] == -1] == 0).all()
    else:
        assert_same_bits(out, reference.gather_concat(**case.inputs()))


def test_gather_concat_takes_a_packed_tensor(run: Backend):
    packed, rows = torch.randn(5, 12), torch.tensor([4, -1, 0])
    joined, split = {"states": packed, "rows": rows}, {"states": list(packed.split(4, dim=1)), "rows": rows}
    assert_same_bits(run("gather_concat", joined), run("gather_concat", split))
    whole = {"norm_weights": [torch.rand(12)]}
    expected = run("gather_concat", split | whole)  # its mean of squares is summed in another order
    torch.testing.assert_close(run("gather_concat", joined | whole), expected, rtol=4 * E, atol=0)


def test_gather_concat_checks_rows_unless_told_not_to(run: Backend):
    inputs = {"states": torch.ones(2, 3), "rows": torch.tensor([0, 2, -2])}
    with pytest.raises(IndexError, match=r"rows\[1\] is 2"):
        run("gather_concat", inputs | {"check": True})
    assert run("gather_concat", inputs | {"check": False}).tolist() == [[1, 1, 1], [0, 0, 0], [0, 0, 0]]


def test_gather_concat_checks_rows_by_default_on_the_cpu():
    with pytest.raises(IndexError, match=r"rows\[0\] is 2"):
        ops.gather_concat(torch.ones(2, 3), torch.tensor([2]))


def test_gather_concat_on_the_cpu_writes_around_the_cache_what_is_larger_than_it():
    states = [torch.randn(700, 7168).bfloat16() for _ in range(3)]
    rows = torch.randint(-1, 700, (1600,))
    index, padding = rows.clamp(min=0), (rows == -1)[:, None]
    expected = torch.cat([state[index].masked_fill(padding, 0) for state in states], dim=1)
    assert expected.nbytes > 64 << 20
    assert_same_bits(ops.gather_concat(states, rows), expected)


@each_case("accepted_rows")
def test_accepted_rows(case: Case, run: Backend):
    inputs = case.inputs()
    for ours, theirs in zip(run("accepted_rows", inputs), reference.accepted_rows(**inputs), strict=True):
        assert_same_bits(ours, theirs)


def test_accepted_rows_by_hand(run: Backend):
    inputs = {"accept_lengths": torch.tensor([2, 0, 3]), "width": 3}
    rows, offsets = run("accepted_rows", inputs)
    assert (rows.tolist(), offsets.tolist()) == ([0, 1, 6, 7, 8, -1, -1, -1, -1], [0, 2, 2, 5])
    rows, offsets = run("accepted_rows", inputs | {"block_front": True})
    assert (rows.tolist(), offsets.tolist()) == ([0, 1, -1, -1, -1, -1, 6, 7, 8], [0, 3, 6, 9])


@each_case("draft_input")
def test_draft_input(case: Case, run: Backend):
    inputs = case.inputs()
    x = run("draft_input", inputs)
    expected = reference.draft_input(**in_float64(inputs))
    assert_within(x, expected, norm_bound(expected, case.dtype))
    assert (x[inputs["tokens"] == -1] == 0).all()
    if inputs["hidden_norm"] is None:
        kept, width = inputs["tokens"] != -1, inputs["hidden"].shape[1]
        assert_same_bits(x[kept, width:], inputs["hidden"][kept])


@each_case("head_rms_norm_")
def test_head_rms_norm(case: Case, run: Backend):
    ours, before = case.inputs(), case.inputs()
    run("head_rms_norm_", ours)
    exact = in_float64(before)
    reference.head_rms_norm_(**exact)
    assert_within(ours["qkv"], exact["qkv"], norm_bound(exact["qkv"], case.dtype))
    values = ours["num_kv_heads"] * ours["q_weight"].shape[0]
    assert_same_bits(ours["qkv"][:, -values:], before["qkv"][:, -values:])


def rotation_bound(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """One rounding of a*cos - b*sin; where the two terms cancel, the error is that of the terms."""
    largest = exact.abs().amax() if exact.numel() else 0.0
    return 1.01 * u(dtype) * exact.abs() + 2 * E * largest


@each_case("rope_append_")
def test_rope_append(case: Case, run: Backend):
    ours, before = case.inputs(), case.inputs()
    exact = in_float64(before)
    run("rope_append_", ours)
    reference.rope_append_(**exact)
    assert_within(ours["qkv"], exact["qkv"], rotation_bound(exact["qkv"], case.dtype))

    num_q, num_kv = ours["num_q_heads"], ours["num_kv_heads"]
    heads, original = (x["qkv"].unflatten(1, (num_q + 2 * num_kv, -1)) for x in (ours, before))
    rotary = ours["cos_sin"].shape[1]
    assert_same_bits(heads[..., rotary:], original[..., rotary:])
    _, k, v = heads.split([num_q, num_kv, num_kv], dim=1)
    assert_same_bits(v, original[:, num_q + num_kv :])
    slots = ours["slots"].long()
    for cache, rows in (("k_cache", k), ("v_cache", v)):
        expected = before[cache]
        expected[slots[slots != -1]] = rows[slots != -1]  # everything else is untouched
        assert_same_bits(ours[cache], expected)


@each_case("mla_append_")
def test_mla_append(case: Case, run: Backend):
    ours, before = case.inputs(), case.inputs()
    exact = in_float64(before)
    run("mla_append_", ours)
    reference.mla_append_(**exact)
    assert_within(ours["q_pe"], exact["q_pe"], rotation_bound(exact["q_pe"], case.dtype))
    before["q_pe"].copy_(ours["q_pe"])
    assert_same_bits(whole_memory(ours["q_pe"]), whole_memory(before["q_pe"]))  # nothing around it was written

    latent, slots = ours["kv_weight"].shape[0], ours["slots"].long()
    written = slots[slots != -1]
    rows, expected = ours["cache"][written], exact["cache"][written]
    assert_within(rows[:, :latent], expected[:, :latent], norm_bound(expected[:, :latent], case.dtype))
    assert_within(rows[:, latent:], expected[:, latent:], rotation_bound(expected[:, latent:], case.dtype))
    before["cache"][written] = rows
    assert_same_bits(ours["cache"], before["cache"])


def test_absorbed_latent_attention_is_the_plain_one(run: Backend):
    """`mla_append_` and `draft_attention` over latents, against attention to every head's own keys and values: float64,
    rotated as complex numbers."""
    rows, heads, nope, rope, latent, width, eps = 6, 4, 16, 8, 24, 12, 1e-5
    make = partial(torch.randn, generator=torch.Generator().manual_seed(5))
    q_nope, q_pe, kv = make(rows, heads, nope), make(rows, heads, rope), make(rows, latent + rope)
    to_key, to_value, gain = make(heads, nope, latent) / 5, make(heads, width, latent) / 5, 1 + make(latent) / 3
    table, positions = rope_table(10000.0, rope, 40), torch.tensor([7, 8, 9, 10, 11, 12])

    q = torch.cat([torch.einsum("nhp,hpl->nhl", q_nope, to_key), q_pe], dim=-1)
    cache = torch.zeros(rows + 2, latent + rope)
    append = {"q_pe": q[..., latent:], "kv": kv, "kv_weight": gain, "eps": eps, "positions": positions}
    run("mla_append_", append | {"slots": torch.arange(2, rows + 2), "cos_sin": table, "cache": cache})
    keys, scale = cache[:, None, :], (nope + rope) ** -0.5
    span = {"row_offsets": [0, rows], "cache_starts": [2], "cache_lengths": [rows]}
    span = {name: torch.tensor(values) for name, values in span.items()}
    caches = {"k_cache": keys, "v_cache": keys[..., :latent]}
    attended = run("draft_attention", {"q": q, **caches, **span, "scale": scale}).unflatten(1, (heads, latent))
    actual = torch.einsum("nhl,hvl->nhv", attended, to_value)

    def rotated(x: Tensor) -> Tensor:
        first, second = x.double().chunk(2, dim=-1)
        frequencies = 10000.0 ** (-torch.arange(0, rope, 2, dtype=torch.float64) / rope)
        turned = torch.complex(first, second) * torch.exp(1j * positions[:, None] * frequencies)[:, None]
        return torch.cat([turned.real, turned.imag], dim=-1)

    c = kv[:, :latent].double()
    c = c / (c.square().mean(-1, keepdim=True) + eps).sqrt() * gain
    k_pe = rotated(kv[:, None, latent:]).expand(-1, heads, -1)
    k = torch.cat([torch.einsum("nl,hpl->nhp", c, to_key.double()), k_pe], dim=-1)
    v = torch.einsum("nl,hvl->nhv", c, to_value.double())
    scores = torch.einsum("qhd,khd->hqk", torch.cat([q_nope.double(), rotated(q_pe)], dim=-1), k) * scale
    future = torch.arange(rows) > torch.arange(rows)[:, None]
    expected = torch.einsum("hqk,khv->qhv", scores.masked_fill(future, -torch.inf).softmax(-1), v)
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=40 * E * v.abs().max().item())


@each_case("draft_attention")
def test_draft_attention(case: Case, run: Backend):
    inputs = case.inputs()
    out = run("draft_attention", inputs)
    expected = reference.draft_attention(**in_float64(inputs))
    # One rounding. A float32 score of size t moves its probability by t*E, and so the mean of the values.
    largest = inputs["v_cache"].abs().amax().item()
    score = (inputs["scale"] * inputs["q"].double().norm(dim=-1).amax(0).max() if case.rows else torch.zeros(())).item()
    score *= inputs["k_cache"].double().norm(dim=-1).amax().item()
    assert_within(out, expected, 1.01 * u(case.dtype) * expected.abs() + (8 + 2 * score) * E * largest)
    assert (out[int(inputs["row_offsets"][-1]) :] == 0).all()


def test_draft_attention_is_causal(run: Backend):
    """A row's result does not change with the keys and values of the rows after it."""
    (case,) = (c for c in cases_of("draft_attention") if c.name == "one-query-each-long-caches")
    inputs = case.inputs() | {"row_offsets": torch.tensor([0, 3]), "cache_starts": torch.tensor([0])}
    inputs["cache_lengths"] = torch.tensor([10])
    first = run("draft_attention", inputs)
    inputs["k_cache"][8:], inputs["v_cache"][8:] = 1e3, float("nan")
    second = run("draft_attention", inputs)
    assert_same_bits(first[0], second[0])
    assert second[1].isnan().all()


def test_draft_attention_of_a_row_that_scores_minus_infinity_everywhere(run: Backend):
    """Its softmax is 0/0, and NaN says so: zeros would look like a result. A single finite score is all there is."""
    (case,) = (c for c in cases_of("draft_attention") if c.name == "one-query-each-long-caches")
    inputs = case.inputs() | {"row_offsets": torch.tensor([0, 3]), "cache_starts": torch.tensor([0])}
    inputs["cache_lengths"] = torch.tensor([10])
    inputs["q"] = torch.ones_like(inputs["q"])
    inputs["k_cache"][:9] = -torch.inf
    out, expected = run("draft_attention", inputs), reference.draft_attention(**in_float64(inputs))
    assert out[:2].isnan().all() and expected[:2].isnan().all()
    assert_within(out[2], expected[2], 1.01 * u(case.dtype) * expected[2].abs())


@pytest.mark.parametrize(
    "name",
    ["latent-16x512+64-bfloat16", "latent-4x46+6-bfloat16", "window-over-several-parts", "keys-of-6-values-of-10"],
)
def test_draft_attention_of_a_row_alone_is_the_same_bits(name: str, run: Backend):
    (case,) = (c for c in cases_of("draft_attention") if c.name == name)
    inputs = case.inputs()
    together, offsets = run("draft_attention", inputs), inputs["row_offsets"].tolist()
    for b, start in enumerate(inputs["cache_starts"].tolist()):
        for row in range(offsets[b], offsets[b + 1]):
            length = int(inputs["cache_lengths"][b]) - (offsets[b + 1] - row) + 1
            span = {"cache_starts": torch.tensor([start]), "cache_lengths": torch.tensor([length])}
            alone = inputs | {"q": inputs["q"][row : row + 1], "row_offsets": torch.tensor([0, 1]), **span}
            assert_same_bits(run("draft_attention", alone)[0], together[row])


def test_draft_attention_never_reads_what_the_window_has_passed(run: Backend):
    (case,) = (c for c in cases_of("draft_attention") if c.name == "window-over-several-parts")
    inputs = case.inputs()
    first = run("draft_attention", inputs)
    start, length = int(inputs["cache_starts"][0]), int(inputs["cache_lengths"][0])
    passed = slice(start, start + length - 1 - inputs["window"])  # the first of two rows sees one key more to the left
    inputs["k_cache"][passed], inputs["v_cache"][passed] = float("nan"), float("nan")
    assert_same_bits(run("draft_attention", inputs), first)
    inputs["v_cache"][passed.stop] = float("nan")
    second = run("draft_attention", inputs)
    assert second[0].isnan().all() and not second[1].isnan().any()


@each_case("silu_mul")
def test_silu_mul(case: Case, run: Backend):
    gate_up = case.inputs()["gate_up"]
    expected = reference.silu_mul(gate_up.double())
    up = gate_up.double().chunk(2, dim=-1)[1].abs()
    bound = (2.1 * u(case.dtype) + 8 * E) * expected.abs() + smallest(case.dtype) * up
    assert_within(run("silu_mul", {"gate_up": gate_up}), expected, bound)


@each_case("skinny_linear")
def test_skinny_linear(case: Case, run: Backend):
    inputs = case.inputs()
    exact = in_float64(inputs)
    expected = reference.skinny_linear(**exact)
    # One rounding, and float32 sums in a few parallel lanes: far better than one long chain's k roundings.
    magnitude = reference.skinny_linear(**{name: t if t is None else t.abs() for name, t in exact.items()})
    assert_within(run("skinny_linear", inputs), expected, 1.01 * u(case.dtype) * expected.abs() + 4 * E * magnitude)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("inputs, outputs", [(1, 3), (46, 130), (1027, 67), (3420, 33)])
def test_skinny_linear_is_row_invariant(dtype: torch.dtype, inputs: int, outputs: int, run: Backend):
    x, weight, bias = (torch.randn(size).to(dtype) for size in ((8, inputs), (outputs, inputs), (outputs,)))
    parameters = {"weight": weight, "bias": bias}
    together = run("skinny_linear", {"x": x} | parameters)
    torch.set_num_threads(2)
    for rows in range(1, 9):
        for begin in (0, 8 - rows):
            part = x[begin : begin + rows]
            assert_same_bits(run("skinny_linear", {"x": part} | parameters), together[begin : begin + rows])


@each_case("argmax_tokens")
def test_argmax_tokens(case: Case, run: Backend):
    inputs = case.inputs()
    tokens, valid, log_probs = run("argmax_tokens", inputs)
    expected_tokens, expected_valid, _ = reference.argmax_tokens(**inputs)
    assert_same_bits(tokens, expected_tokens)
    assert_same_bits(valid, expected_valid)
    assert log_probs.dtype == torch.float32
    expected = reference.argmax_tokens(**in_float64(inputs))[2]
    log_probs, expected = (of[valid] if len(of) else of for of in (log_probs, expected))  # NaN where nothing won
    assert_within(log_probs, expected, 16 * E * (1 + expected.abs()))


def test_argmax_tokens_by_hand(run: Backend):
    (case,) = (c for c in cases_of("argmax_tokens") if c.name == "nan-and-ties")
    tokens, valid, _ = run("argmax_tokens", case.inputs())
    assert tokens.tolist() == [30, 30, 40, 40, 40, 20, 30, 40]
    assert valid.tolist() == [True, True, False, False, False, True, True, True]


def test_argmax_tokens_without_a_winner(run: Backend):
    """All -inf, all NaN, or a mix of the two over many blocks of a row: no token is a choice there."""
    (case,) = (c for c in cases_of("argmax_tokens") if c.name == "no-winner-in-many-blocks")
    tokens, valid, log_probs = run("argmax_tokens", case.inputs())
    assert tokens.tolist() == [0, 0, 0, 0, 20001]
    assert valid.tolist() == [False, False, False, False, True]
    assert log_probs[:4].isnan().all() and log_probs[4] == 0


@each_case("verify_greedy")
def test_verify_greedy(case: Case, run: Backend):
    inputs = case.inputs()
    for ours, theirs in zip(run("verify_greedy", inputs), reference.verify_greedy(**inputs), strict=True):
        assert_same_bits(ours, theirs)


def test_verify_greedy_by_hand(run: Backend):
    (case,) = (c for c in cases_of("verify_greedy") if c.name == "mixed-index-dtypes")
    lengths, bonus = run("verify_greedy", case.inputs())
    assert (lengths.tolist(), bonus.tolist()) == ([3, 2, 1], [3, 2, -1])

"""What an op writes must not lie in what it reads: refused by name, whichever way two views of a buffer overlap."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_ext import ops

BUFFER = 64


def view(shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> torch.Tensor:
    return torch.arange(float(BUFFER)).as_strided(shape, strides, offset)


def addresses(tensor: torch.Tensor) -> set[int]:
    places = torch.arange(BUFFER).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return set(places.flatten().tolist())


@st.composite
def views(draw) -> tuple[torch.Tensor, torch.Tensor]:
    """`features` [rows, width] and `hidden` [rows, H], H <= width, in one buffer."""
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    stride = draw(st.integers(width, 10))
    size = draw(st.integers(1, width))
    other_stride = draw(st.sampled_from([stride, stride, size, size + 3, 0]))
    buffer = torch.arange(float(BUFFER))
    features = buffer.as_strided((rows, width), (stride, 1), draw(st.integers(0, 12)))
    hidden = buffer.as_strided((rows, size), (other_stride, 1), draw(st.integers(0, 25)))
    return features, hidden


@given(views())
@settings(max_examples=400, deadline=None)
def test_capture_writes_into_nothing_that_it_reads(pair):
    """Against the sets of addresses; only views of different strides may be refused although they interleave."""
    features, hidden = pair
    before, expected = features.clone(), hidden.clone()
    overlap = bool(addresses(features) & addresses(hidden))
    try:
        ops.capture_(features, 0, hidden)
    except ValueError as error:
        assert "capture_: features and hidden share memory" in str(error)
        assert torch.equal(features, before)
        assert overlap or (features.stride(0) != hidden.stride(0) and features.shape[0] > 1)
        return
    assert not overlap
    assert torch.equal(features[:, : hidden.shape[1]], expected) and torch.equal(hidden, expected)


WEIGHT = torch.ones(4)


@pytest.mark.parametrize(
    "call, named",
    [
        (lambda: ops.add_rms_norm_(view((2, 4), (4, 1), 0), view((2, 4), (4, 1), 4), WEIGHT, 1e-6), None),
        (lambda: share(lambda a, b: ops.add_rms_norm_(a, b, WEIGHT, 1e-6), 0, 4), "residual and hidden"),
        (lambda: share(lambda a, b: ops.capture_(torch.zeros(2, 4), 0, a, b), 0, 1), None),
        (lambda: share(lambda a, b: ops.capture_(a, 0, torch.zeros(2, 4), b), 0, 1), "features and residual"),
        (lambda: share(lambda a, b: ops.gather_concat([a], torch.tensor([1, 0]), out=b), 0, 4), "out and states[0]"),
        (lambda: share(lambda a, b: ops.gather_concat([a], torch.tensor([1, 0]), out=b), 0, 8), None),
        (lambda: share(lambda a, b: ops.add_rms_norm_capture_(a, torch.zeros(2, 4), WEIGHT, 1e-6, b, 0), 0, 2),
         "features and hidden"),
        (lambda: share(lambda a, b: rope(a.view(2, 1, 4), b.view(2, 1, 4)), 0, 4), "k_cache and v_cache"),
        (lambda: share(lambda a, b: rope(a.view(2, 1, 4), b.view(2, 1, 4)), 0, 8), None),
    ],
)  # fmt: skip
def test_each_pair_is_named(call, named):
    if named is None:
        call()
    else:
        with pytest.raises(ValueError, match="share memory") as caught:
            call()
        assert named in str(caught.value)


def share(call, first: int, second: int) -> None:
    """Calls with two [2, 4] views of one buffer that start at these elements."""
    buffer = torch.arange(float(BUFFER))
    call(buffer[first : first + 8].view(2, 4), buffer[second : second + 8].view(2, 4))


def rope(k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    index = torch.tensor([0, 1])
    ops.rope_append_(torch.ones(2, 12), index, index, torch.ones(4, 4), 1, 1, k_cache, v_cache)


@pytest.mark.parametrize("eps", [-1e-6, float("nan")])
def test_eps_without_a_meaning(eps: float):
    with pytest.raises(ValueError, match="add_rms_norm_: eps is"):
        ops.add_rms_norm_(torch.ones(2, 4), torch.ones(2, 4), WEIGHT, eps)
    with pytest.raises(ValueError, match="gather_concat: eps is"):
        ops.gather_concat(torch.ones(2, 4), torch.tensor([0]), [WEIGHT], eps)

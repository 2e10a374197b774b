"""Every CPU level against float64. The level is chosen once per process, so each gets its own, with EAGLE3_CPU set.

Run as a script, this file checks one level and prints nothing but failures.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

# What a CPU must report in /proc/cpuinfo to run a level.
FLAGS = {
    "plain": set(),
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq"},
    "avx512_bf16": {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16"},
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Two roundings to the dtype, plus what fp32 sums lose.
TOLERANCE = {torch.float32: 4e-6, torch.bfloat16: 1.2e-2, torch.float16: 1.5e-3}
# Around the chunks of every level: 8, 16 and 32 elements.
WIDTHS = (1, 7, 16, 31, 33, 100, 576)


def cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split(":", 1)[1].split())
    return set()


def run_level(level: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "EAGLE3_CPU": level}
    return subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("level", FLAGS)
def test_level_agrees_with_float64(level: str):
    missing = FLAGS[level] - cpu_flags()
    if missing:
        pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}")
    done = run_level(level)
    assert done.returncode == 0, done.stderr


def test_unknown_level_is_refused():
    done = run_level("sse9")
    assert done.returncode != 0
    assert "EAGLE3_CPU=sse9 is no CPU level; this CPU runs plain" in done.stderr


@pytest.mark.parametrize("level", [name for name in FLAGS if FLAGS[name]])
def test_missing_level_is_refused(level: str):
    if FLAGS[level] <= cpu_flags():
        pytest.skip(f"this CPU has {level}")
    done = run_level(level)
    assert done.returncode != 0
    assert f"EAGLE3_CPU={level}: this CPU lacks that level" in done.stderr


# ---- what each level's process checks


def close(actual: Tensor, expected: Tensor, what: str, scale: float = 1.0) -> None:
    """|actual - expected| <= tolerance * (scale + |expected|), for `scale` the size of the terms that were summed."""
    error = (actual.double() - expected).abs() / (scale + expected.abs())
    assert error.numel() == 0 or error.max() <= TOLERANCE[actual.dtype], f"{what}: error {error.max():.2e}"


def check_skinny_linear(dtype: torch.dtype, k: int) -> None:
    for n in (1, 5, 19):
        x, weight = torch.randn(8, k).to(dtype), torch.randn(n, k).to(dtype)
        bias = torch.randn(n).to(dtype)
        y = torch.ops.eagle3_ext.skinny_linear(x, weight, bias)
        close(y, x.double() @ weight.double().T + bias.double(), f"skinny_linear {dtype} {n}x{k}", scale=k**0.5)
        for m in range(1, 8):
            alone = torch.ops.eagle3_ext.skinny_linear(x[8 - m :], weight, bias)
            assert torch.equal(alone, y[8 - m :]), f"skinny_linear {dtype} {n}x{k}: {m} rows differ from 8"


def check_add_rms_norm(dtype: torch.dtype, width: int) -> None:
    hidden, residual = torch.randn(3, width).to(dtype), torch.randn(3, width).to(dtype)
    weight = (1 + 0.2 * torch.randn(width)).to(dtype)
    total = (hidden.double() + residual.double()).to(dtype)
    z = total.double()
    normed = z * (z.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
    torch.ops.eagle3_ext.add_rms_norm_(hidden, residual, weight, 1e-5)
    assert torch.equal(residual, total), f"add_rms_norm_ {dtype} {width}: residual"
    close(hidden, normed, f"add_rms_norm_ {dtype} {width}")


def check_silu_mul(dtype: torch.dtype, width: int) -> None:
    gate_up = (4 * torch.randn(3, 2 * width)).to(dtype)
    gate_up[0, 0], gate_up[1, 0] = -200.0, 200.0  # where exp under- and overflows
    gate, up = gate_up.double().chunk(2, dim=-1)
    close(torch.ops.eagle3_ext.silu_mul(gate_up), gate * gate.sigmoid() * up, f"silu_mul {dtype} {width}")


def check_argmax_tokens(dtype: torch.dtype, width: int) -> None:
    logits = torch.randn(7, width).to(dtype)
    logits[1, width // 2 :] = logits[1].max()  # ties
    logits[2, ::2] = torch.nan
    logits[3] = torch.nan
    logits[4] = -3e4  # a tail's padding with zeros would win
    logits[5] = -torch.inf
    logits[6] = -torch.inf
    logits[6, ::2] = torch.nan
    keys = logits.double().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    best = keys.max(-1, keepdim=True).values
    winners = (keys == best).int().argmax(-1)  # the first of equals
    tokens, valid, log_probs = torch.ops.eagle3_ext.argmax_tokens(logits, None, True)
    what = f"argmax_tokens {dtype} {width}"
    assert tokens.tolist() == winners.tolist(), what
    assert valid.tolist() == (keys > -torch.inf).any(-1).tolist(), what
    expected = keys.log_softmax(-1).gather(1, winners[:, None])[:, 0]
    torch.testing.assert_close(log_probs.double(), expected, rtol=1e-5, atol=1e-5, equal_nan=True, msg=what)


def check_draft_attention(dtype: torch.dtype, head_dim: int) -> None:
    query_heads, kv_heads, length, rows, value_dim = 10, 2, 150, 3, head_dim // 2 + 3
    q = torch.randn(rows, query_heads, head_dim).to(dtype)
    k, v = (torch.randn(length, kv_heads, dim).to(dtype) for dim in (head_dim, value_dim))
    scale = head_dim**-0.5

    def attend(first: int) -> Tensor:
        """The query rows from `first` on, as one call."""
        count = torch.tensor([0, rows - first])
        start, end = torch.tensor([0]), torch.tensor([length])
        return torch.ops.eagle3_ext.draft_attention(q[first:], k, v, count, start, end, scale)

    keys, values = (t.double().repeat_interleave(query_heads // kv_heads, dim=1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), keys) * scale
    future = torch.arange(length) > torch.arange(length - rows, length)[:, None]
    weights = scores.masked_fill(future, -torch.inf).softmax(-1)
    out = attend(0)
    close(out, torch.einsum("hqk,khd->qhd", weights, values).flatten(1), f"draft_attention {dtype} {head_dim}")
    for first in range(1, rows):
        assert torch.equal(attend(first), out[first:]), f"draft_attention {dtype} {head_dim}: rows are not independent"


def check_level() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for dtype in DTYPES:
        for width in WIDTHS:
            check_skinny_linear(dtype, width)
            check_add_rms_norm(dtype, width)
            check_silu_mul(dtype, width)
            check_argmax_tokens(dtype, width)
        for head_dim in (16, 20, 64, 128):
            check_draft_attention(dtype, head_dim)


if __name__ == "__main__":
    import eagle3_ext  # noqa: F401  registers torch.ops.eagle3_ext

    check_level()

"""Offsets past 2^31 elements, where a 32-bit index would wrap; smaller tensors on the emulator, to try the code."""

from __future__ import annotations

import torch

from eagle3_ext import ops

from .devices import Findings, Skip, main, require

LIMIT = {"cuda": 1 << 31, "simt": 1 << 14}
WIDTH = {"cuda": 7168, "simt": 32}
VOCABULARY = {"cuda": 128256, "simt": 257}
STATES = 3
BF16 = torch.bfloat16


def check_gather_reads(device: str, limit: int, width: int) -> str:
    """A packed source of more than `limit` elements; the rows read lie on both sides of it."""
    packed_width = STATES * width
    rows = limit // packed_width + 9
    packed = torch.empty(rows, packed_width, device=device, dtype=BF16).normal_()
    index = torch.tensor([0, rows - 1, limit // packed_width, -1, rows // 2, rows - 2], device=device)
    out = ops.gather_concat(packed, index)
    expected = torch.cat([packed[i : i + 1] if i >= 0 else torch.zeros_like(packed[:1]) for i in index.tolist()])
    require(torch.equal(out, expected), "gather_concat reads a wrong row past the limit")
    return f"reads of {packed.numel():,} elements"


def check_gather_writes(device: str, limit: int, width: int) -> str:
    """A result of more than `limit` elements, from three small states."""
    rows = limit // (STATES * width) + 9
    states = [torch.randn(64, width, device=device, dtype=BF16) for _ in range(STATES)]
    index = torch.arange(rows, device=device) % 64
    out = torch.full((rows, STATES * width), torch.nan, device=device, dtype=BF16)
    ops.gather_concat(states, index, out=out)
    joined = torch.cat(states, dim=1)
    for begin in range(0, rows, 4096):  # in parts, to compare without a second copy of the whole
        part = slice(begin, min(rows, begin + 4096))
        require(
            torch.equal(out[part], joined[index[part]]), f"gather_concat wrote wrong rows {part.start}..{part.stop}"
        )
    return f"writes of {out.numel():,} elements"


def check_capture(device: str, limit: int, width: int) -> str:
    """Features of more than `limit` elements: the last slot filled, the others untouched."""
    rows = limit // (STATES * width) + 9
    features = torch.ones(rows, STATES * width, device=device, dtype=BF16)
    hidden = torch.empty(rows, width, device=device, dtype=BF16).normal_()
    ops.capture_(features, STATES - 1, hidden)
    require(torch.equal(features[:, -width:], hidden), "capture_ wrote a wrong row past the limit")
    require(bool((features[:, :-width] == 1).all()), "capture_ wrote beside its slot")
    return f"features of {features.numel():,} elements"


def check_argmax(device: str, limit: int, vocabulary: int) -> str:
    """Logits of more than `limit` elements, whose best column is known for every row."""
    rows = limit // vocabulary + 9
    logits = torch.zeros(rows, vocabulary, device=device, dtype=BF16)
    best = torch.arange(rows, device=device) * 7919 % vocabulary
    logits.scatter_(1, best[:, None], 1.0)
    tokens, valid, _ = ops.argmax_tokens(logits)
    require(torch.equal(tokens, best), "argmax_tokens finds a wrong column past the limit")
    require(bool(valid.all()), "argmax_tokens calls a row invalid past the limit")
    return f"logits of {logits.numel():,} elements"


CHECKS = {
    "gather_concat, source": check_gather_reads,
    "gather_concat, result": check_gather_writes,
    "capture_": check_capture,
    "argmax_tokens": check_argmax,
}


def check(backend: str, device: str) -> Findings:
    limit = LIMIT[backend]
    needed = 4 * 2 * limit  # features, a third of that, and what comparing and torch's pool take besides
    if backend == "cuda":
        free, _ = torch.cuda.mem_get_info()
        if free < needed:
            raise Skip(f"needs {needed / 2**30:.0f} GiB of free GPU memory, there are {free / 2**30:.0f}")
    findings: Findings = {}
    for name, run in CHECKS.items():
        findings[name] = run(device, limit, VOCABULARY[backend] if name == "argmax_tokens" else WIDTH[backend])
        if backend == "cuda":
            torch.cuda.empty_cache()
    return findings


if __name__ == "__main__":
    main(check, __doc__)

"""Offsets past 2^31 elements, where a 32-bit index would wrap; smaller tensors on the emulator, to try the code."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3_ext import ops
from eagle3_ext.rope import rope_table

from .devices import Findings, Skip, main, require

LIMIT = {"cuda": 1 << 31, "simt": 1 << 14}
WIDTH = {"cuda": 7168, "simt": 32}
VOCABULARY = {"cuda": 128256, "simt": 257}
STATES = 3
BF16 = torch.bfloat16


def check_gather_reads(device: str, limit: int, width: int) -> str:
    """A packed source of more than `limit` elements; the rows read lie on both sides of it.

    By either kind of index: a product with an int32 one is what overflowed elsewhere.
    """
    packed_width = STATES * width
    rows = limit // packed_width + 9
    packed = torch.empty(rows, packed_width, device=device, dtype=BF16).normal_()
    index = torch.tensor([0, rows - 1, limit // packed_width, -1, rows // 2, rows - 2], device=device)
    expected = torch.cat([packed[i : i + 1] if i >= 0 else torch.zeros_like(packed[:1]) for i in index.tolist()])
    for dtype in (torch.int64, torch.int32):
        out = ops.gather_concat(packed, index.to(dtype))
        require(torch.equal(out, expected), f"gather_concat reads a wrong row past the limit by an index of {dtype}")
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


def check_lookup(device: str, limit: int, width: int) -> str:
    """An embedding of more than `limit` elements, whose rows are ones and minus ones: each is its own norm."""
    vocabulary = limit // width + 9
    table = torch.zeros(vocabulary, width, device=device, dtype=BF16)
    tokens = torch.tensor([vocabulary - 1, 0, limit // width, vocabulary - 2], device=device, dtype=torch.int32)
    signs = torch.randn(len(tokens), width, device=device).sign().to(BF16)
    table[tokens] = signs
    hidden = torch.randn(len(tokens), width, device=device, dtype=BF16)
    x = ops.draft_input(tokens, hidden, table, torch.ones(width, device=device, dtype=BF16), None, 0.0)
    require(torch.equal(x, torch.cat([signs, hidden], dim=1)), "draft_input looks up a wrong row past the limit")
    return f"an embedding of {table.numel():,} elements"


def cache_of(device: str, limit: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two caches of more than `limit` elements each, of zeros, and slots on both sides of it; `width` of all heads."""
    heads, dim = (width // 128, 128) if width >= 128 else (2, width // 2)
    slots = limit // width + 9
    k_cache, v_cache = (torch.zeros(slots, heads, dim, device=device, dtype=BF16) for _ in range(2))
    return k_cache, v_cache, torch.tensor([slots - 1, 5, limit // width], device=device, dtype=torch.int32)


def check_append(device: str, limit: int, width: int) -> str:
    """At position 0, where a rotation changes nothing."""
    k_cache, v_cache, slots = cache_of(device, limit, width)
    _, heads, dim = k_cache.shape
    qkv = torch.randn(len(slots), 3 * width, device=device, dtype=BF16)
    _, k, v = (part.unflatten(1, (heads, dim)).clone() for part in qkv.split(width, dim=1))
    table = rope_table(10000.0, dim, 1).to(device)
    ops.rope_append_(qkv, torch.zeros_like(slots), slots, table, heads, heads, k_cache, v_cache)
    for name, cache, rows in (("k", k_cache, k), ("v", v_cache, v)):
        require(torch.equal(cache[slots], rows), f"rope_append_ wrote a wrong row of {name}_cache past the limit")
        written = cache.flatten(1).any(dim=1).nonzero()[:, 0]
        require(torch.equal(written, slots.long().sort().values), f"rope_append_ wrote {name}_cache beside its slots")
    return f"caches of {k_cache.numel():,} elements"


def check_attention(device: str, limit: int, width: int) -> str:
    """To two keys each, the first the query itself and the second its opposite: the result is the first's value."""
    k_cache, v_cache, last = cache_of(device, limit, width)
    first = last - 1
    q = torch.randn(len(last), *k_cache.shape[1:], device=device, dtype=BF16)
    k_cache[first], k_cache[last] = q, -q
    v_cache[first], v_cache[last] = (torch.randn_like(q) for _ in range(2))
    offsets = torch.arange(len(last) + 1, device=device, dtype=torch.int32)
    out = ops.draft_attention(q, k_cache, v_cache, offsets, first, torch.full_like(last, 2), scale=100.0)
    require(torch.equal(out, v_cache[first].flatten(1)), "draft_attention reads a wrong row past the limit")
    return f"caches of {k_cache.numel():,} elements"


CHECKS = {
    "gather_concat, source": check_gather_reads,
    "gather_concat, result": check_gather_writes,
    "capture_": check_capture,
    "argmax_tokens": check_argmax,
    "draft_input": check_lookup,
    "rope_append_": check_append,
    "draft_attention": check_attention,
}


def check(backend: str, device: str) -> Findings:
    limit = LIMIT[backend]
    needed = 5 * 2 * limit  # two caches, or features and a third of that, and what comparing and torch's pool take
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

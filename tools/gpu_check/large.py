"""Offsets past 2^31 elements, where a 32-bit index would wrap; smaller tensors on the emulator, to try the code."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from eagle3_ext import ops
from eagle3_ext.rope import rope_table

from .devices import Findings, Skip, main, require

LIMIT = {"cuda": 1 << 31, "simt": 1 << 14}
WIDTH = {"cuda": 7168, "simt": 32}
VOCABULARY = {"cuda": 128256, "simt": 257}
LATENT_WIDTH = {"cuda": 576, "simt": 36}  # 8 parts latent to one part rotated key, as DeepSeek's 512 and 64
STATES = 3
BF16 = torch.bfloat16
EPS = 1e-6


def sparse(count: int, width: int, rows: Tensor) -> Tensor:
    """[count, width], zeros but for random `rows`."""
    tensor = torch.zeros(count, width, device=rows.device, dtype=BF16)
    tensor[rows] = torch.randn(len(rows), width, device=rows.device, dtype=BF16)
    return tensor


def require_rows(tensor: Tensor, rows: Tensor, expected: Tensor, what: str) -> None:
    """That `tensor` is `expected` in its `rows` and zeros elsewhere."""
    require(torch.equal(tensor[rows], expected), f"{what}: a wrong row past the limit")
    filled = tensor.flatten(1).any(dim=1).nonzero()[:, 0]
    require(torch.equal(filled, rows.sort().values), f"{what}: not zeros beside the rows expected")


def require_rows_as_alone(op: str, call: Callable[..., object], rows: Tensor, **mutated: Tensor) -> None:
    """That a call on tensors larger than the limit leaves in `rows` what one on those rows alone does.

    Rows are computed each by itself, and rows of zeros stay zeros.
    """
    alone = {name: tensor[rows] for name, tensor in mutated.items()}
    call(**alone)
    call(**mutated)
    for name, tensor in mutated.items():
        require_rows(tensor, rows, alone[name], f"{op}, {name}")


def rows_around(limit: int, width: int, device: str) -> tuple[int, Tensor]:
    """How many rows of `width` elements are some more than `limit`, and three of them on both sides of it."""
    count = limit // width + 9
    return count, torch.tensor([count - 1, 5, limit // width], device=device)


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


def check_add_norm(device: str, limit: int, width: int) -> str:
    """Hidden and residual of more than `limit` elements each."""
    count, rows = rows_around(limit, width, device)
    weight = torch.randn(width, device=device, dtype=BF16)

    def call(hidden: Tensor, residual: Tensor) -> None:
        ops.add_rms_norm_(hidden, residual, weight, EPS)

    hidden, residual = (sparse(count, width, rows) for _ in range(2))
    require_rows_as_alone("add_rms_norm_", call, rows, hidden=hidden, residual=residual)
    return f"hidden and residual of {hidden.numel():,} elements each"


def check_add_norm_capture(device: str, limit: int, width: int) -> str:
    """The same into the second slot of features twice as large."""
    count, rows = rows_around(limit, width, device)
    weight = torch.randn(width, device=device, dtype=BF16)

    def call(hidden: Tensor, residual: Tensor, features: Tensor) -> None:
        ops.add_rms_norm_capture_(hidden, residual, weight, EPS, features, 1)

    hidden, residual = (sparse(count, width, rows) for _ in range(2))
    features = torch.zeros(count, 2 * width, device=device, dtype=BF16)
    require_rows_as_alone("add_rms_norm_capture_", call, rows, hidden=hidden, residual=residual, features=features)
    return f"hidden and residual of {hidden.numel():,} elements each, features of {features.numel():,}"


def check_head_norm(device: str, limit: int, width: int) -> str:
    """Heads of more than `limit` elements; half of them are those of q."""
    count, rows = rows_around(limit, width, device)
    dim = 128 if width >= 128 else 8
    kv_heads = width // dim // 4
    gains = torch.randn(2, dim, device=device, dtype=BF16)

    def call(qkv: Tensor) -> None:
        ops.head_rms_norm_(qkv, *gains, EPS, width // dim - 2 * kv_heads, kv_heads)

    qkv = sparse(count, width, rows)
    require_rows_as_alone("head_rms_norm_", call, rows, qkv=qkv)
    return f"heads of {qkv.numel():,} elements"


def check_silu_mul(device: str, limit: int, width: int) -> str:
    """A result of more than `limit` elements, from twice as many."""
    count, rows = rows_around(limit, width, device)
    rows = torch.cat([rows, rows[-1:] // 2])  # where gate_up passes the limit, too
    gate_up = sparse(count, 2 * width, rows)
    out = ops.silu_mul(gate_up)
    require_rows(out, rows, ops.silu_mul(gate_up[rows]), "silu_mul")
    return f"{gate_up.numel():,} elements to {out.numel():,}"


def check_linear(device: str, limit: int, width: int) -> str:
    """A weight of more than `limit` elements, few of its rows multiples of x, whose elements are 1 and -1."""
    count, rows = rows_around(limit, width, device)
    x = torch.randn(width, device=device, dtype=BF16).sign()
    times = torch.arange(1, len(rows) + 1, device=device, dtype=BF16)
    weight = torch.zeros(count, width, device=device, dtype=BF16)
    weight[rows] = times[:, None] * x
    sums = width * times  # exact in BF16: at most 3 * 7168 = 21 * 1024
    require_rows(
        ops.skinny_linear(torch.stack([x, -x]), weight).t(), rows, torch.stack([sums, -sums], dim=1), "skinny_linear"
    )
    return f"a weight of {weight.numel():,} elements"


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
    for name, cache, rows in (("k_cache", k_cache, k), ("v_cache", v_cache, v)):
        require_rows(cache, slots.long(), rows, f"rope_append_, {name}")
    return f"caches of {k_cache.numel():,} elements"


def check_latent_append(device: str, limit: int, width: int) -> str:
    """At position 0 again, and latents of ones and minus ones, each its own norm: the cache gets kv as it is."""
    count, slots = rows_around(limit, width, device)
    latent = width * 8 // 9
    cache = torch.zeros(count, width, device=device, dtype=BF16)
    kv = torch.randn(len(slots), width, device=device, dtype=BF16)
    kv[:, :latent] = kv[:, :latent].float().sign()
    q_pe = torch.randn(len(slots), 2, width - latent, device=device, dtype=BF16)
    gain = torch.ones(latent, device=device, dtype=BF16)
    table = rope_table(10000.0, width - latent, 1).to(device)
    ops.mla_append_(q_pe, kv, gain, 0.0, torch.zeros_like(slots), slots, table, cache)
    require_rows(cache, slots, kv, "mla_append_, cache")
    return f"a cache of {cache.numel():,} elements"


def check_attention(device: str, limit: int, width: int) -> str:
    k_cache, v_cache, last = cache_of(device, limit, width)
    v_cache[last - 1], v_cache[last] = (torch.randn(len(last), *v_cache.shape[1:]).to(v_cache) for _ in range(2))
    return attend(k_cache, v_cache, last, 1)


def check_latent_attention(device: str, limit: int, width: int) -> str:
    """Values that are the first columns of the keys, one key for all heads of a query."""
    count, last = rows_around(limit, width, device)
    cache = torch.zeros(count, 1, width, device=device, dtype=BF16)
    return attend(cache, cache[..., : width * 8 // 9], last.int(), 16)


def attend(k_cache: Tensor, v_cache: Tensor, last: Tensor, heads_per_key: int) -> str:
    """To two keys each, the first the query itself and the second its opposite: the result is the first's value."""
    first = last - 1
    key = torch.randn(len(last), *k_cache.shape[1:]).to(k_cache)
    k_cache[first], k_cache[last] = key, -key
    q = key.repeat_interleave(heads_per_key, dim=1)
    offsets = torch.arange(len(last) + 1, device=last.device, dtype=torch.int32)
    out = ops.draft_attention(q, k_cache, v_cache, offsets, first, torch.full_like(last, 2), scale=100.0)
    expected = v_cache[first].repeat_interleave(heads_per_key, dim=1).flatten(1)
    require(torch.equal(out, expected), "draft_attention reads a wrong row past the limit")
    return f"a cache of {k_cache.numel():,} elements"


# Name -> the check, and the width of its rows on each backend.
CHECKS: dict[str, tuple[Callable[[str, int, int], str], dict[str, int]]] = {
    "gather_concat, source": (check_gather_reads, WIDTH),
    "gather_concat, result": (check_gather_writes, WIDTH),
    "capture_": (check_capture, WIDTH),
    "add_rms_norm_": (check_add_norm, WIDTH),
    "add_rms_norm_capture_": (check_add_norm_capture, WIDTH),
    "head_rms_norm_": (check_head_norm, WIDTH),
    "silu_mul": (check_silu_mul, WIDTH),
    "skinny_linear": (check_linear, WIDTH),
    "argmax_tokens": (check_argmax, VOCABULARY),
    "draft_input": (check_lookup, WIDTH),
    "rope_append_": (check_append, WIDTH),
    "mla_append_": (check_latent_append, LATENT_WIDTH),
    "draft_attention": (check_attention, WIDTH),
    "draft_attention, latent": (check_latent_attention, LATENT_WIDTH),
}


def check(backend: str, device: str) -> Findings:
    limit = LIMIT[backend]
    needed = 5 * 2 * limit  # hidden, residual and features of two slots, and what comparing and torch's pool take
    if backend == "cuda":
        free, _ = torch.cuda.mem_get_info()
        if free < needed:
            raise Skip(f"needs {needed / 2**30:.0f} GiB of free GPU memory, there are {free / 2**30:.0f}")
    findings: Findings = {}
    for name, (run, widths) in CHECKS.items():
        findings[name] = run(device, limit, widths[backend])
        if backend == "cuda":
            torch.cuda.empty_cache()
    return findings


if __name__ == "__main__":
    main(check, __doc__)

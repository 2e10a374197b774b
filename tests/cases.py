"""One table of seeded inputs per op, for the comparisons with the reference, for opcheck and for the bad-input tests.

Rows, widths, dtypes, index dtypes and layouts are not crossed in full: `grid` walks through them so that every width
meets every dtype and every layout, and every dtype every number of rows.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from eagle3_ext.rope import rope_table

ROWS = (0, 1, 2, 7, 83)
WIDTHS = (1, 3, 46, 576, 3420, 7168)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LAYOUTS = ("contiguous", "strided", "misaligned")
INDEX_DTYPES = (torch.int64, torch.int32)
EPS = 1e-5

Inputs = dict[str, object]


@dataclass(frozen=True)
class Maker:
    """Makes tensors of one case: of its dtypes, in its layout, from its seed."""

    dtype: torch.dtype
    index_dtype: torch.dtype
    layout: str
    generator: torch.Generator

    def floats(self, *shape: int, scale: float = 1.0, layout: str | None = None) -> Tensor:
        values = torch.randn(shape, generator=self.generator) * scale
        return placed(values.to(self.dtype), layout or self.layout)

    def gain(self, size: int) -> Tensor:
        return placed((1 + 0.3 * torch.randn(size, generator=self.generator)).to(self.dtype), self.vector_layout)

    def cache(self, *shape: int) -> Tensor:
        return self.floats(*shape, layout=self.vector_layout)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Uniform in [low, high)."""
        values = torch.randint(low, high, shape, generator=self.generator, dtype=self.index_dtype)
        return placed(values, self.vector_layout)

    def indices(self, values: list[int]) -> Tensor:
        return placed(torch.tensor(values, dtype=self.index_dtype), self.vector_layout)

    @property
    def vector_layout(self) -> str:
        """For what has no rows to stride, or must be contiguous: strided becomes contiguous."""
        return "misaligned" if self.layout == "misaligned" else "contiguous"


def placed(values: Tensor, layout: str) -> Tensor:
    """The same values in memory of another layout: rows apart, or one element past an aligned address."""
    if layout == "contiguous":
        return values
    if layout == "misaligned":
        longer = torch.full((values.numel() + 1,), 77, dtype=values.dtype)
        return longer[1:].copy_(values.flatten()).view(values.shape)
    rows, width = values.shape[0], math.prod(values.shape[1:])
    wider = torch.full((rows, width + 5), 77, dtype=values.dtype)
    return wider[:, :width].copy_(values.reshape(rows, width)).view(values.shape)


@dataclass(frozen=True)
class Case:
    """`inputs()` gives fresh tensors each time, by argument name; `op` is the name in the schema, overload included."""

    op: str
    name: str
    dtype: torch.dtype
    index_dtype: torch.dtype
    layout: str
    rows: int
    build: Callable[[Maker], Inputs]

    def inputs(self) -> Inputs:
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.op} {self.name}".encode()))
        return self.build(Maker(self.dtype, self.index_dtype, self.layout, generator))

    def __str__(self) -> str:
        return f"{self.op}-{self.name}"


def grid() -> Iterator[tuple[int, int, int, torch.dtype, torch.dtype, str]]:
    """(step, rows, width, dtype, index dtype, layout); the step lets an op vary its own switches."""
    for d, dtype in enumerate(DTYPES):
        for w, width in enumerate(WIDTHS):
            rows, layout = ROWS[(w + 2 * d) % len(ROWS)], LAYOUTS[(w + d) % len(LAYOUTS)]
            yield w + 3 * d, rows, width, dtype, INDEX_DTYPES[(w + d) % 2], layout


CASES: list[Case] = []


def over_grid(op: str):
    """Adds a case per grid point. The decorated function takes (maker, step, rows, width) and returns the inputs."""

    def add(build: Callable[[Maker, int, int, int], Inputs]):
        for step, rows, width, dtype, index_dtype, layout in grid():
            name = f"{rows}x{width}-{str(dtype)[6:]}-{str(index_dtype)[6:]}-{layout}"
            arguments = {"step": step, "rows": rows, "width": width}
            CASES.append(Case(op, name, dtype, index_dtype, layout, rows, partial(build, **arguments)))
        return build

    return add


def single(op: str, name: str, *, rows: int = 3, dtype: torch.dtype = torch.float32, layout: str = "contiguous"):
    """Adds one case that the grid does not reach."""

    def add(build: Callable[[Maker], Inputs]):
        CASES.append(Case(op, name, dtype, torch.int64, layout, rows, build))
        return build

    return add


def cases_of(*ops: str) -> list[Case]:
    found = [case for case in CASES if case.op in ops]
    assert {case.op for case in found} == set(ops), f"no cases for some of {ops}"
    return found


@over_grid("capture_")
def _(m: Maker, step: int, rows: int, width: int) -> Inputs:
    hidden, residual = m.floats(rows, width), m.floats(rows, width) if step % 2 else None
    return {"features": m.floats(rows, 3 * width), "slot": step % 3, "hidden": hidden, "residual": residual}


@single("capture_", "nan-and-inf", rows=1, dtype=torch.bfloat16)
def _(m: Maker) -> Inputs:
    hidden = torch.tensor([[math.nan, math.inf, -math.inf, -0.0]], dtype=m.dtype)
    return {"features": m.floats(1, 8), "slot": 1, "hidden": hidden}


@single("capture_", "hidden-transposed")
def _(m: Maker) -> Inputs:
    return {"features": m.floats(3, 10), "slot": 1, "hidden": m.floats(5, 3).t()}


@over_grid("add_rms_norm_")
def _(m: Maker, step: int, rows: int, width: int) -> Inputs:
    hidden, residual = m.floats(rows, width), m.floats(rows, width, scale=3)
    return {"hidden": hidden, "residual": residual, "weight": m.gain(width), "eps": EPS}


@single("add_rms_norm_", "longer-than-a-block-keeps", rows=2)
def _(m: Maker) -> Inputs:
    hidden, residual = m.floats(2, 20004), m.floats(2, 20004, scale=3)
    return {"hidden": hidden, "residual": residual, "weight": m.gain(20004), "eps": EPS}


@over_grid("add_rms_norm_capture_")
def _(m: Maker, step: int, rows: int, width: int) -> Inputs:
    return {
        "hidden": m.floats(rows, width),
        "residual": m.floats(rows, width, scale=3),
        "weight": m.gain(width),
        "eps": EPS,
        "features": m.floats(rows, 3 * width),
        "slot": step % 3,
    }


def _gather_inputs(m: Maker, step: int, rows: int, width: int) -> Inputs:
    source = rows + 2
    norms = [[], [m.gain(3 * width)], [m.gain(width) for _ in range(3)]][step // 2 % 3]
    states = [m.floats(source, width) for _ in range(3)]
    return {"states": states, "rows": m.integers(-1, source, rows), "norm_weights": norms, "eps": EPS, "check": True}


over_grid("gather_concat")(_gather_inputs)


@over_grid("gather_concat.out")
def _(m: Maker, step: int, rows: int, width: int) -> Inputs:
    return _gather_inputs(m, step, rows, width) | {"out": m.floats(rows, 3 * width)}


@single("gather_concat", "sixteen-states")
def _(m: Maker) -> Inputs:
    return {"states": [m.floats(4, 5) for _ in range(16)], "rows": m.indices([3, -1, 0])}


@single("gather_concat", "packed")
def _(m: Maker) -> Inputs:
    return {"states": [m.floats(4, 21)], "rows": m.indices([3, -1, 0])}


@single("gather_concat", "packed-with-a-norm-per-state", dtype=torch.bfloat16, layout="strided")
def _(m: Maker) -> Inputs:
    return {"states": [m.floats(4, 21)], "rows": m.indices([3, -1, 0]), "norm_weights": [m.gain(7) for _ in range(3)]}


@single("gather_concat", "padding-from-an-empty-source")
def _(m: Maker) -> Inputs:
    return {"states": [m.floats(0, 4), m.floats(0, 4)], "rows": m.indices([-1, -1, -1])}


@single("gather_concat", "unchecked-rows-outside-give-zeros")
def _(m: Maker) -> Inputs:
    return {"states": [m.floats(2, 4)], "rows": m.indices([1, 2, -1, -9, 0]), "check": False}


@single("gather_concat", "one-norm-longer-than-a-block-keeps", layout="strided")
def _(m: Maker) -> Inputs:
    states = [m.floats(4, 6000) for _ in range(3)]
    return {"states": states, "rows": m.indices([3, -1, 0]), "norm_weights": [m.gain(18000)], "eps": EPS}


@over_grid("accepted_rows")
def _(m: Maker, step: int, rows: int, width: int) -> Inputs:
    block = 1 + step % 5
    return {"accept_lengths": m.integers(0, block + 1, rows), "width": block, "block_front": step % 2 == 1}


@single("accepted_rows", "all-finished")
def _(m: Maker) -> Inputs:
    return {"accept_lengths": m.indices([0, 0, 0]), "width": 4}


@single("accepted_rows", "as-many-sequences-as-threads", rows=512)
def _(m: Maker) -> Inputs:
    return {"accept_lengths": m.integers(0, 4, 512), "width": 3, "block_front": True}


@single("accepted_rows", "a-second-chunk-of-sequences", rows=520)
def _(m: Maker) -> Inputs:
    return {"accept_lengths": m.integers(0, 3, 520), "width": 2}


@single("accepted_rows", "more-sequences-than-threads", rows=1300)
def _(m: Maker) -> Inputs:
    return {"accept_lengths": m.integers(0, 4, 1300), "width": 3}


@single("accepted_rows", "more-blocks-than-threads", rows=1300)
def _(m: Maker) -> Inputs:
    return {"accept_lengths": m.integers(0, 4, 1300), "width": 3, "block_front": True}


@over_grid("draft_input")
def _(m: Maker, step: int, rows: int, width: int) -> Inputs:
    vocabulary = 50
    return {
        "tokens": m.integers(-1, vocabulary, rows),
        "hidden": m.floats(rows, width, scale=4),
        "embed_weight": m.cache(vocabulary, width),
        "embed_norm": m.gain(width),
        "hidden_norm": m.gain(width) if step % 2 else None,
        "eps": EPS,
    }


@single("draft_input", "token-embeddings", dtype=torch.bfloat16, layout="strided")
def _(m: Maker) -> Inputs:
    return {
        "tokens": m.indices([10**9, -1, -7]),  # not looked up, so any id but -1 will do
        "hidden": m.floats(3, 6),
        "embed_weight": None,
        "embed_norm": m.gain(6),
        "hidden_norm": m.gain(6),
        "eps": EPS,
        "token_embeddings": m.floats(3, 6),
    }


# (q heads, kv heads, head dim, rotary dim), one per width of the grid
HEADS = ((1, 1, 2, 2), (3, 1, 6, 6), (4, 2, 46, 46), (8, 8, 64, 64), (6, 3, 128, 64), (32, 8, 128, 128))


@over_grid("rope_append_")
def _(m: Maker, step: int, rows: int, width: int) -> Inputs:
    num_q, num_kv, dim, rotary = HEADS[WIDTHS.index(width)]
    num_slots, max_position = rows + 3, 200
    slots = torch.randperm(num_slots, generator=m.generator)[:rows].masked_fill(torch.arange(rows) % 5 == 4, -1)
    return {
        "qkv": m.floats(rows, (num_q + 2 * num_kv) * dim),
        "positions": m.integers(0, max_position, rows),
        "slots": m.indices(slots.tolist()),
        "cos_sin": rope_table(10000.0, rotary, max_position),
        "num_q_heads": num_q,
        "num_kv_heads": num_kv,
        "k_cache": m.cache(num_slots, num_kv, dim),
        "v_cache": m.cache(num_slots, num_kv, dim),
    }


@single("rope_append_", "padding-at-any-position", dtype=torch.bfloat16)
def _(m: Maker) -> Inputs:
    return {
        "qkv": m.floats(3, 4 * 8),
        "positions": m.indices([-7, 4, 10**6]),
        "slots": m.indices([-1, 1, -1]),
        "cos_sin": rope_table(10000.0, 8, 5),
        "num_q_heads": 2,
        "num_kv_heads": 1,
        "k_cache": m.cache(2, 1, 8),
        "v_cache": m.cache(2, 1, 8),
    }


@over_grid("head_rms_norm_")
def _(m: Maker, step: int, rows: int, width: int) -> Inputs:
    num_q, num_kv, _, _ = HEADS[WIDTHS.index(width)]
    dim = (1, 3, 46, 64, 128, 192)[(WIDTHS.index(width) + step // len(WIDTHS)) % 6]
    qkv = m.floats(rows, (num_q + 2 * num_kv) * dim, scale=3)
    gains = {"q_weight": m.gain(dim), "k_weight": m.gain(dim)}
    return {"qkv": qkv, **gains, "eps": EPS, "num_q_heads": num_q, "num_kv_heads": num_kv}


@single("head_rms_norm_", "longer-than-a-warp-reads-at-once", rows=2, dtype=torch.bfloat16)
def _(m: Maker) -> Inputs:
    gains = {"q_weight": m.gain(328), "k_weight": m.gain(328)}
    return {"qkv": m.floats(2, 5 * 328), **gains, "eps": EPS, "num_q_heads": 3, "num_kv_heads": 1}


# (heads, latent, r), one per width of the grid
LATENTS = ((1, 1, 2), (3, 5, 6), (2, 46, 46), (5, 128, 16), (16, 512, 64), (64, 512, 64))


def _mla_inputs(m: Maker, heads: int, latent: int, rope: int, rows: int, before: int) -> Inputs:
    """q_pe are the columns past `before` of each head."""
    num_slots, max_position = rows + 3, 200
    slots = torch.randperm(num_slots, generator=m.generator)[:rows].masked_fill(torch.arange(rows) % 5 == 4, -1)
    return {
        "q_pe": m.floats(rows, heads, before + rope)[..., before:],
        "kv": m.floats(rows, latent + rope, scale=3),
        "kv_weight": m.gain(latent),
        "eps": EPS,
        "positions": m.integers(0, max_position, rows),
        "slots": m.indices(slots.tolist()),
        "cos_sin": rope_table(10000.0, rope, max_position),
        "cache": m.cache(num_slots, latent + rope),
    }


@over_grid("mla_append_")
def _(m: Maker, step: int, rows: int, width: int) -> Inputs:
    heads, latent, rope = LATENTS[WIDTHS.index(width)]
    # opcheck cannot clone an empty tensor with gaps between its heads.
    return _mla_inputs(m, heads, latent, rope, rows, before=latent * (step % 2) if rows else 0)


@single("mla_append_", "heads-before-rows")
def _(m: Maker) -> Inputs:
    inputs = _mla_inputs(m, heads=4, latent=16, rope=8, rows=3, before=0)
    return inputs | {"q_pe": m.floats(4, 3, 8).transpose(0, 1)}


@single("mla_append_", "contiguous-float32")  # the grid's are columns of q in this dtype
def _(m: Maker) -> Inputs:
    return _mla_inputs(m, heads=4, latent=48, rope=16, rows=3, before=0)


@single("mla_append_", "nothing-to-rotate", dtype=torch.bfloat16)
def _(m: Maker) -> Inputs:
    return _mla_inputs(m, heads=2, latent=16, rope=0, rows=3, before=0)


@single("mla_append_", "padding-at-any-position", dtype=torch.bfloat16)
def _(m: Maker) -> Inputs:
    inputs = _mla_inputs(m, heads=2, latent=16, rope=8, rows=3, before=0)
    return inputs | {"positions": m.indices([-7, 4, 10**6]), "slots": m.indices([-1, 1, -1])}


def _attention_inputs(
    m: Maker, heads: tuple[int, int, int], own: list[int], past: list[int], padding: int, values: int | None = None
) -> Inputs:
    """Sequences of own[b] query rows after past[b] cache rows, their cache rows apart and the first not at 0.

    values: width of a value, if it is not that of a key.
    """
    num_q, num_kv, dim = heads
    lengths = [p + o for p, o in zip(past, own)]
    starts = [2 + sum(lengths[:b]) + b for b in range(len(own))]
    num_slots = 3 + sum(lengths) + len(own)
    return {
        "q": m.floats(sum(own) + padding, num_q, dim),
        "k_cache": m.cache(num_slots, num_kv, dim),
        "v_cache": m.cache(num_slots, num_kv, dim if values is None else values),
        "row_offsets": m.indices([sum(own[:b]) for b in range(len(own) + 1)]),
        "cache_starts": m.indices(starts),
        "cache_lengths": m.indices(lengths),
        "scale": dim**-0.5,
    }


@over_grid("draft_attention")
def _(m: Maker, step: int, rows: int, width: int) -> Inputs:
    num_q, num_kv, dim, _ = HEADS[WIDTHS.index(width)]
    own = [rows // 2, 0, rows - rows // 2]
    inputs = _attention_inputs(m, (num_q, num_kv, dim), own, past=[0, 4, 1 + 13 * (step % 4)], padding=step % 2)
    return inputs | {"window": (None, 1, None, 2, 9, 10**6)[(step + step // 6) % 6]}


@single("draft_attention", "one-query-each-long-caches", dtype=torch.bfloat16, layout="strided")
def _(m: Maker) -> Inputs:
    return _attention_inputs(m, (8, 2, 64), own=[1, 1, 1], past=[0, 700, 33], padding=0)


@single("draft_attention", "longer-parts", dtype=torch.float16)
def _(m: Maker) -> Inputs:
    return _attention_inputs(m, (4, 1, 8), own=[2, 1], past=[2100, 1023], padding=1)


@single("draft_attention", "wide-heads", rows=2)
def _(m: Maker) -> Inputs:
    return _attention_inputs(m, (5, 1, 250), own=[1, 1], past=[70, 3], padding=0)


@single("draft_attention", "scores-far-apart", rows=2)
def _(m: Maker) -> Inputs:
    inputs = _attention_inputs(m, (2, 1, 16), own=[2], past=[40], padding=0)
    return inputs | {"q": m.floats(2, 2, 16, scale=60)}


@single("draft_attention", "padding-alone", rows=2)
def _(m: Maker) -> Inputs:
    return _attention_inputs(m, (2, 1, 8), own=[], past=[], padding=2)


@single("draft_attention", "window-over-several-parts", dtype=torch.float16)
def _(m: Maker) -> Inputs:
    return _attention_inputs(m, (4, 1, 64), own=[2, 1], past=[400, 90], padding=1) | {"window": 130}


# (q heads, kv heads, width of a key, width of a value)
VALUE_WIDTHS = ((4, 4, 192, 128), (2, 1, 320, 288), (2, 2, 1, 1), (4, 1, 3, 1), (4, 2, 46, 3), (3, 1, 6, 10))


def _value_width_case(num_q: int, num_kv: int, dim: int, values: int, **options) -> None:
    @single("draft_attention", f"keys-of-{dim}-values-of-{values}", **options)
    def _(m: Maker) -> Inputs:
        return _attention_inputs(m, (num_q, num_kv, dim), own=[1, 2], past=[5, 90], padding=1, values=values)


for i, (num_q, num_kv, dim, values) in enumerate(VALUE_WIDTHS):
    _value_width_case(num_q, num_kv, dim, values, dtype=DTYPES[i % 3], layout=LAYOUTS[i // 2])


def _latent_case(heads: int, latent: int, rope: int, own: list[int], past: list[int], **options) -> None:
    """Absorbed MLA: the values are the first numbers of the keys, in the same memory."""

    @single("draft_attention", f"latent-{heads}x{latent}+{rope}-{str(options['dtype'])[6:]}", **options)
    def _(m: Maker) -> Inputs:
        inputs = _attention_inputs(m, (heads, 1, latent + rope), own, past, padding=0)
        window = 3 if rope == 6 else None
        return inputs | {"v_cache": inputs["k_cache"][..., :latent], "window": window}


_latent_case(16, 512, 64, own=[1, 2], past=[0, 200], dtype=torch.bfloat16)
_latent_case(16, 512, 64, own=[2], past=[70], dtype=torch.float16, layout="strided")
_latent_case(4, 512, 64, own=[2], past=[9], dtype=torch.float32)
_latent_case(4, 512, 64, own=[1], past=[30], dtype=torch.float16)
_latent_case(3, 512, 64, own=[1], past=[9], dtype=torch.bfloat16, layout="misaligned")
_latent_case(64, 512, 64, own=[8], past=[1], dtype=torch.bfloat16, rows=8)  # more rows than a launch takes
_latent_case(4, 46, 6, own=[1, 2], past=[3, 30], dtype=torch.bfloat16)
_latent_case(8, 1, 2, own=[3], past=[4], dtype=torch.float32)


@over_grid("silu_mul")
def _(m: Maker, step: int, rows: int, width: int) -> Inputs:
    return {"gate_up": m.floats(rows, 2 * width, scale=4)}


@single("silu_mul", "extremes", rows=1)
def _(m: Maker) -> Inputs:
    gate = [-math.inf, -1000.0, -100.0, -88.0, -0.0, 88.0, 1000.0]
    return {"gate_up": torch.tensor([gate[1:] + [1.0] * 6], dtype=m.dtype)}


@over_grid("skinny_linear")
def _(m: Maker, step: int, rows: int, width: int) -> Inputs:
    outputs = (1, 5, 33, 64, 17, 130)[step % 6]
    bias = m.cache(outputs) if step % 2 else None
    return {"x": m.floats(rows, width), "weight": m.cache(outputs, width), "bias": bias}


@single("skinny_linear", "eight-rows", rows=8, dtype=torch.bfloat16, layout="misaligned")
def _(m: Maker) -> Inputs:
    return {"x": m.floats(8, 1027), "weight": m.cache(19, 1027), "bias": m.cache(19)}


@single("skinny_linear", "five-rows", rows=5, dtype=torch.bfloat16)
def _(m: Maker) -> Inputs:
    return {"x": m.floats(5, 5136), "weight": m.cache(10, 5136), "bias": None}


@single("skinny_linear", "nine-rows-are-a-gemm", rows=9, dtype=torch.bfloat16, layout="strided")
def _(m: Maker) -> Inputs:
    return {"x": m.floats(9, 160), "weight": m.cache(1500, 160), "bias": m.cache(1500)}


@single("skinny_linear", "no-inputs", rows=2)
def _(m: Maker) -> Inputs:
    return {"x": m.floats(2, 0), "weight": m.floats(3, 0), "bias": m.cache(3)}


@over_grid("argmax_tokens")
def _(m: Maker, step: int, rows: int, width: int) -> Inputs:
    ids = torch.randperm(2 * width, generator=m.generator)[:width] if step % 2 else None
    logits = m.floats(rows, width, scale=8)
    if step % 3 == 0:  # whole numbers: many ties
        logits.round_()
    return {"logits": logits, "target_ids": ids, "with_log_probs": step % 4 < 2}


@single("argmax_tokens", "nan-and-ties", rows=8)
def _(m: Maker) -> Inputs:
    nan, inf = math.nan, math.inf
    logits = [
        [1.0, 3.0, 3.0, 2.0],
        [nan, 1.0, nan, 1.0],
        [nan, -inf, nan, nan],
        [nan, nan, nan, nan],
        [-inf, -inf, -inf, -inf],
        [nan, nan, -5.0, nan],
        [2.0, inf, inf, nan],
        [-0.0, 0.0, -1.0, -2.0],
    ]
    return {"logits": torch.tensor(logits, dtype=m.dtype), "target_ids": torch.tensor([40, 30, 20, 10])}


@single("argmax_tokens", "no-winner-in-many-blocks", rows=5, dtype=torch.bfloat16)
def _(m: Maker) -> Inputs:
    logits = torch.full((5, 20002), -math.inf, dtype=m.dtype)
    logits[1] = math.nan
    logits[2, ::3] = math.nan
    logits[3, 9000:] = math.nan
    logits[4, 1:] = math.nan
    logits[4, 20001] = torch.finfo(m.dtype).min  # a winner, if a poor one
    return {"logits": logits, "with_log_probs": True}


@single("argmax_tokens", "nan-log-probs", rows=2, dtype=torch.bfloat16)
def _(m: Maker) -> Inputs:
    logits = m.floats(2, 3000)
    logits[:, ::7] = math.nan
    return {"logits": logits, "with_log_probs": True}


@single("argmax_tokens", "vocabulary-of-many-blocks", rows=3)
def _(m: Maker) -> Inputs:
    logits = m.floats(3, 20002)
    logits[0, [19999, 12000, 4097]] = 9.0  # the same winner in three blocks
    logits[1, :9000] = math.nan
    logits[2, :-1] = math.nan
    return {"logits": logits, "with_log_probs": True}


@single("verify_greedy", "more-sequences-than-threads", rows=300)
def _(m: Maker) -> Inputs:
    return {"draft_tokens": m.integers(-1, 2, 300, 4), "target_tokens": m.integers(-1, 2, 300, 5)}


@over_grid("verify_greedy")
def _(m: Maker, step: int, rows: int, width: int) -> Inputs:
    drafted = step % 6
    # Two possible tokens, so that prefixes of every length are accepted; -1 is drawn on both sides.
    return {"draft_tokens": m.integers(-1, 2, rows, drafted), "target_tokens": m.integers(-1, 2, rows, drafted + 1)}


@single("verify_greedy", "mixed-index-dtypes")
def _(m: Maker) -> Inputs:
    draft = torch.tensor([[1, 2], [1, 9], [-1, 2]], dtype=torch.int32)
    return {"draft_tokens": draft, "target_tokens": torch.tensor([[1, 2, 3], [1, 2, 3], [-1, 2, 3]])}

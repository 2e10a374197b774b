"""The native drafter against the float64 reference, in every variant; batches; and inputs it must refuse."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from eagle3_ext import reference
from eagle3_ext.checkpoint import Checkpoint, DrafterConfig, Layer, Mla, expected_shapes
from eagle3_ext.drafter import Drafter
from eagle3_ext.errors import CheckpointError, FeatureWidthError
from eagle3_ext.rope import Rope

LAYERS = 30
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
LATENT = {"kv_lora_rank": 32, "nope_head_dim": 16, "rope_head_dim": 8, "v_head_dim": 12, "mscale": 1.2}
VARIANTS = {
    "published": {},
    "fc-bias": {"fc_bias": True},
    "whole-norm": {"feature_norm": "whole"},
    "per-state-norm": {"feature_norm": "per_state"},
    "norm-before-residual": {"norm_before_residual": True},
    "norm-before-residual-and-output": {"norm_before_residual": True, "norm_output": True},
    "norm-output": {"norm_output": True},
    "no-hidden-norm": {"has_hidden_norm": False},
    "no-final-norm": {"has_final_norm": False, "logit_scale": 0.5},
    "no-fc": {"fusion": "none", "num_states": 1, "target_hidden_size": 576, "boundaries": None},
    "four-states": {"num_states": 4, "boundaries": (1, 9, 15, 27)},
    "wider-target": {"target_hidden_size": 640, "own_embedding": True},
    "full-vocabulary": {"draft_vocab_size": 2048},
    "shared-head": {"draft_vocab_size": 2048, "own_head": False},
    "mha": {"num_kv_heads": 9},
    "two-layers": {"layers": (Layer(), Layer(joins_embedding=False))},
    "second-layer-joins": {"layers": (Layer(), Layer()), "norm_before_residual": True},
    "window": {"layers": (Layer(window=5), Layer(joins_embedding=False, window=9))},
    "qk-norm": {"qk_norm": True, "rope": Rope(rotary_dim=8, interleaved=True)},
    "biases": {"qkv_bias": True, "o_bias": True, "mlp_bias": True, "rope": Rope(interleaved=True)},
    "latent": {"mla": Mla(q_lora_rank=40, **LATENT), "head_dim": 24, "rope": Rope(interleaved=True)},
    "latent-plain-q": {"mla": Mla(q_lora_rank=None, **LATENT), "head_dim": 24, "qkv_bias": True},
}


def make_config(**changes) -> DrafterConfig:
    """SmolLM2's widths, with a small vocabulary to spare time."""
    sizes = {"hidden_size": 576, "target_hidden_size": 576, "intermediate_size": 1536, "num_q_heads": 9}
    rest = {"num_kv_heads": 3, "head_dim": 64, "draft_vocab_size": 512, "vocab_size": 2048, "eps": 1e-5}
    fixed = {"rope_theta": 1e5, "boundaries": (2, 15, 27), "max_position_embeddings": 2048}
    return DrafterConfig(**sizes | rest | fixed | changes)


def make_model(config: DrafterConfig, dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    """What a Drafter asks of a transformers model: sizes, an embedding and a head."""
    generator = torch.Generator().manual_seed(5)
    shape = (config.vocab_size, config.target_hidden_size)
    tables = [SimpleNamespace(weight=torch.randn(shape, generator=generator).to(dtype)) for _ in range(2)]
    text = SimpleNamespace(
        num_hidden_layers=LAYERS, hidden_size=config.target_hidden_size, max_position_embeddings=2048
    )
    return SimpleNamespace(
        config=SimpleNamespace(get_text_config=lambda decoder: text),
        get_input_embeddings=lambda: tables[0],
        get_output_embeddings=lambda: tables[1],
    )


def make_checkpoint(config: DrafterConfig, dtype: torch.dtype = torch.float32) -> Checkpoint:
    """Random weights under which every part of the forward matters: gains near 1, matrices that keep the variance."""
    generator = torch.Generator().manual_seed(3)
    weights = {}
    for name, shape in expected_shapes(config).items():
        if name == "target_ids":
            weights[name] = torch.randperm(config.vocab_size, generator=generator)[: shape[0]].sort().values
        elif len(shape) == 1:
            weights[name] = (1 + 0.2 * torch.randn(shape, generator=generator)).to(dtype)
        else:
            weights[name] = (torch.randn(shape, generator=generator) * shape[1] ** -0.5).to(dtype)
    return Checkpoint(config, weights, report=())


def make_rows(config: DrafterConfig, count: int, start: int = 0, seed: int = 0, dtype=torch.float32) -> dict:
    generator = torch.Generator().manual_seed(1000 * seed + start)
    return {
        "features": torch.randn(count, config.features_width, generator=generator).to(dtype),
        "tokens": torch.randint(config.vocab_size, (count,), generator=generator),
        "positions": torch.arange(start, start + count),
    }


def make_drafter(config: DrafterConfig, dtype: torch.dtype = torch.float32, **options) -> Drafter:
    return Drafter.from_checkpoint(make_checkpoint(config, dtype), make_model(config, dtype), **options)


def extend(drafter: Drafter, rows: dict, offsets: list[int] | None = None, **more) -> None:
    offsets = offsets or [0, len(rows["tokens"])]
    drafter.extend(row_offsets=torch.tensor(offsets, device=rows["tokens"].device), **rows, **more)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).norm() / want.norm())


class AbsorbedReference(reference.Drafter):
    """The reference with kv_b_proj absorbed into queries and outputs, as in the native drafter: it rounds elsewhere."""

    def _attend_latents(self, i, q_nope, q_rope, latents, rotated):
        up = self.weights[f"layers.{i}.self_attn.kv_b_proj.weight"].unflatten(0, (self.config.num_q_heads, -1))
        k_up, v_up = up.split([self.config.mla.nope_head_dim, self.config.mla.v_head_dim], dim=1)
        absorbed = torch.bmm(q_nope.transpose(0, 1), k_up).transpose(0, 1)
        keys = torch.cat([latents[:, None], rotated], dim=-1)
        mixed = self._attend(i, torch.cat([absorbed, q_rope], dim=-1), keys, latents[:, None])
        mixed = mixed.unflatten(-1, (self.config.num_q_heads, -1)).transpose(0, 1)
        return torch.bmm(mixed, v_up.transpose(1, 2)).transpose(0, 1).flatten(1)


def rounded_reference(config: DrafterConfig, *weights_and_tables) -> reference.Drafter:
    """The reference in the weights' dtype, rounding where the native drafter rounds."""
    return (AbsorbedReference if config.mla else reference.Drafter)(config, *weights_and_tables)


def last_step(one: reference.Drafter) -> dict[str, torch.Tensor]:
    return {"s": one.s[-1:], "y": one.y[-1:], "logits": one.logits[-1:]}


def assert_same_draft(
    drafter: Drafter, oracle: reference.Drafter, steps: int, bound: float, rounded: reference.Drafter | None = None
) -> None:
    """The same tokens where the reference's winner leads by more than the bound; then s, y, logits of the last step.

    `rounded`, the reference in the drafter's dtype, shows what rounding alone does where a chain of deep steps makes
    more of it than the bound allows.
    """
    draft = drafter.draft(steps)
    assert draft.tokens.shape == draft.log_probs.shape == (1, steps) and draft.lengths.tolist() == [steps]
    want = oracle.draft(steps)
    bounds = dict.fromkeys(("s", "y", "logits"), bound)
    if rounded is not None:
        rounded.draft(steps)
        same = zip(last_step(rounded).values(), last_step(oracle).values(), strict=True)
        errors = [1.25 * relative_error(value, exact) for value, exact in same]
        bounds = {name: max(bound, error) for name, error in zip(bounds, errors, strict=True)}
    for step in range(steps):
        logits = oracle.logits[step]
        if int(draft.tokens[0, step]) != want[step]:
            first, second = logits.topk(2).values
            tie = 4 * bounds["logits"] * logits.abs().max()
            assert first - second <= tie, f"step {step}: another token without a tie"
            return  # from here on the two drafted different texts
        log_prob = float(logits.log_softmax(-1).max())
        assert abs(float(draft.log_probs[0, step]) - log_prob) <= 8 * bounds["logits"] * float(logits.abs().max())
    native = drafter._native
    got = {"s": native.last_s, "y": native.last_y, "logits": native.last_logits}
    for name, exact in last_step(oracle).items():
        assert relative_error(got[name], exact) <= bounds[name], name


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_agrees_with_the_reference(variant, dtype):
    config, bound = make_config(**VARIANTS[variant]), BOUNDS[dtype]
    checkpoint, model = make_checkpoint(config, dtype), make_model(config, dtype)
    drafter = Drafter.from_checkpoint(checkpoint, model)
    tables = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    rounded = rounded_reference(config, checkpoint.weights, *tables)
    oracle = rounded.to(torch.float64)

    # A prefill, then a round that accepted two drafts and one that accepted none. Each draft leaves cache entries
    # behind that the next extend must overwrite.
    start = 0
    for count, steps in ((33, 1), (3, 7), (1, 4)):
        rows = make_rows(config, count, start, dtype=dtype)
        extend(drafter, rows)
        oracle.extend(**rows)
        rounded.extend(**rows)
        start += count
        assert drafter.lengths.tolist() == [start]
        assert_same_draft(drafter, oracle, steps, bound, None if dtype == torch.float32 else rounded)
    assert drafter.lengths.tolist() == [start], "a draft commits nothing"


def test_absorbing_changes_the_rounding_only():
    config = make_config(**VARIANTS["latent"])
    weights = make_checkpoint(config, torch.float64).weights | {"embed_tokens.weight": torch.randn(2048, 576).double()}
    plain, absorbed = reference.Drafter(config, weights), AbsorbedReference(config, weights)
    for one in (plain, absorbed):
        one.extend(**make_rows(config, 9, dtype=torch.float64))
        one.draft(3)
    torch.testing.assert_close(absorbed.logits, plain.logits, rtol=1e-9, atol=1e-9)


def test_truncate_and_reset_forget():
    config = make_config()
    drafter, fresh = make_drafter(config), make_drafter(config)
    extend(drafter, make_rows(config, 9, seed=1))
    drafter.draft(4)
    drafter.truncate(0, 5)
    assert drafter.lengths.tolist() == [5]
    with pytest.raises(ValueError, match="extend"):
        drafter.draft(1)
    first_five = {name: value[:5] for name, value in make_rows(config, 9, seed=1).items()}
    extend(fresh, first_five)
    for other in (drafter, fresh):
        extend(other, make_rows(config, 2, start=5))
    assert torch.equal(drafter.draft(3).tokens, fresh.draft(3).tokens)
    with pytest.raises(IndexError, match="it has 7"):
        drafter.truncate(0, 8)
    drafter.reset()
    assert drafter.lengths.tolist() == [0]
    with pytest.raises(ValueError, match="extend"):
        drafter.draft(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_batch_equals_its_sequences(dtype):
    config = make_config()
    batched = make_drafter(config, dtype, max_batch=4)
    counts, sequences, steps = (5, 17, 9), (2, 0, 3), 4
    rows = [make_rows(config, count, seed=seed, dtype=dtype) for seed, count in enumerate(counts)]
    joined = {name: torch.cat([part[name] for part in rows]) for name in rows[0]}
    padding = make_rows(config, 3, dtype=dtype)
    padding["tokens"] = torch.full((3,), -1)
    joined = {name: torch.cat([joined[name], padding[name]]) for name in joined}
    for _ in range(2):  # the second time over the first's draft entries
        extend(batched, joined, [0, 5, 22, 31], sequences=torch.tensor(sequences, dtype=torch.int32))
        draft = batched.draft(steps)
    assert batched.lengths.tolist() == [34, 0, 10, 18]
    for b, part in enumerate(rows):
        single = make_drafter(config, dtype)
        for _ in range(2):
            extend(single, part)
            alone = single.draft(steps)
        assert torch.equal(draft.tokens[b], alone.tokens[0])
        assert torch.allclose(draft.log_probs[b], alone.log_probs[0], atol=BOUNDS[dtype])


def test_a_sequence_without_rows_is_left_alone():
    config = make_config()
    drafter = make_drafter(config, max_batch=3)
    extend(drafter, make_rows(config, 6), [0, 4, 4, 6])
    draft = drafter.draft(3)
    assert drafter.lengths.tolist() == [4, 0, 2]
    assert draft.lengths.tolist() == [3, 0, 3] and draft.tokens[1].tolist() == [-1, -1, -1]
    assert (draft.tokens[[0, 2]] >= 0).all()


def test_long_prompts_run_in_chunks_and_grow_the_cache():
    config = make_config()
    whole, parts = make_drafter(config), make_drafter(config)
    rows = make_rows(config, 700)
    extend(whole, rows)
    for begin in range(0, 700, 100):
        extend(parts, {name: value[begin : begin + 100] for name, value in rows.items()})
    assert whole.lengths.tolist() == parts.lengths.tolist() == [700]
    a, b = whole.draft(2), parts.draft(2)
    assert torch.equal(a.tokens, b.tokens) and torch.allclose(a.log_probs, b.log_probs, atol=1e-4)


def test_sequences_cut_across_a_chunk_equal_single_ones():
    config = make_config()
    together, counts = make_drafter(config, max_batch=2), (300, 400)  # chunks have 512 rows
    rows = [make_rows(config, count, seed=seed) for seed, count in enumerate(counts)]
    extend(together, {name: torch.cat([part[name] for part in rows]) for name in rows[0]}, [0, 300, 700])
    draft = together.draft(2)
    assert together.lengths.tolist() == list(counts)
    for b, part in enumerate(rows):
        single = make_drafter(config)
        extend(single, part)
        alone = single.draft(2)
        assert torch.equal(draft.tokens[b], alone.tokens[0])
        assert torch.allclose(draft.log_probs[b], alone.log_probs[0], atol=1e-4)


def test_token_embeddings_replace_the_lookup():
    config = make_config()
    looked_up, given = make_drafter(config), make_drafter(config)
    rows = make_rows(config, 4)
    embeddings = make_model(config).get_input_embeddings().weight[rows["tokens"]]
    extend(looked_up, rows)
    # What stands in for tokens then means nothing, not even padding; in the specification neither.
    extend(given, rows | {"tokens": torch.tensor([-7, -1, 0, 2**40])}, token_embeddings=embeddings)
    draft = given.draft(3)
    assert torch.equal(looked_up.draft(3).tokens, draft.tokens)
    model = make_model(config)
    tables = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    plain = reference.Drafter(config, make_checkpoint(config).weights, *tables)
    plain.extend(rows["features"], torch.tensor([-7, -1, 0, 2]), rows["positions"], embeddings)
    assert plain.draft(3) == draft.tokens[0].tolist()


def test_a_drafter_made_in_inference_mode_lives_on_outside_of_it():
    """And the other way round: its buffers outlive the block they were made in."""
    config = make_config()
    rows, later = make_rows(config, 300), make_rows(config, 5, 300)  # the cache grows past its first 256 rows
    expected = make_drafter(config)
    for part in (rows, later):
        extend(expected, part)
        tokens = expected.draft(3).tokens
    with torch.inference_mode():
        drafter = make_drafter(config)
    extend(drafter, rows)
    drafter.draft(2)
    with torch.inference_mode():
        drafter.reset()
        extend(drafter, rows)
        drafter.draft(4)
    drafter.reset([0])
    extend(drafter, rows)
    extend(drafter, later)
    assert torch.equal(drafter.draft(3).tokens, tokens)
    drafter.truncate(0, 300)
    assert drafter.lengths.tolist() == [300]


def test_more_states_than_a_kernel_takes_are_refused():
    """Normed one by one: sixteen are right, and the seventeenth has no place."""
    most, more = (
        make_config(num_states=count, feature_norm="per_state", boundaries=tuple(range(1, 1 + count)))
        for count in (16, 17)
    )
    drafter, rows = make_drafter(most), make_rows(most, 3)
    extend(drafter, rows)
    model, weights = make_model(most), make_checkpoint(most).weights
    tables = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    plain = reference.Drafter(most, weights, *tables)
    plain.extend(rows["features"], rows["tokens"], rows["positions"])
    assert plain.draft(2) == drafter.draft(2).tokens[0].tolist()
    with pytest.raises(ValueError, match="17 states are normed one by one, expected at most 16"):
        make_drafter(more)


def test_nan_features_end_the_draft_without_an_id():
    config = make_config()
    drafter = make_drafter(config)
    rows = make_rows(config, 3)
    rows["features"][-1] = float("nan")
    extend(drafter, rows)
    draft = drafter.draft(4)
    assert draft.lengths.tolist() == [0] and draft.tokens.tolist() == [[-1] * 4]


@pytest.mark.parametrize(
    ("width", "cause"),
    [(576, "capture is off"), (2 * 576, "is 2 hidden states"), (1000, "no multiple"), (0, "expected|fuses")],
)
def test_other_widths_are_refused(width, cause):
    config = make_config()
    drafter = make_drafter(config)
    rows = make_rows(config, 2) | {"features": torch.zeros(2, width)}
    with pytest.raises(FeatureWidthError, match=cause) as error:
        extend(drafter, rows)
    for part in (f"width {width}", "3 x 576 = 1728", "fc.weight [576, 1728]", "boundaries 2, 15, 27"):
        assert part in str(error.value)
    with pytest.raises(ValueError, match="1728"):  # the native door checks for itself
        drafter._native.extend(rows["features"], rows["tokens"], rows["positions"], torch.tensor([0, 2]), None, None)


@pytest.mark.parametrize(
    ("changes", "error", "part"),
    [
        ({"features": torch.zeros(1728)}, ValueError, "features"),
        ({"features": torch.zeros(3, 1728, dtype=torch.float64)}, ValueError, "features is .*drafter is"),
        ({"features": torch.zeros(1728, 3).T}, ValueError, "contiguous"),
        ({"features": torch.zeros(2, 1728)}, ValueError, "features have 2 rows, but tokens has 3"),
        ({"tokens": torch.tensor([0, -1, 2])}, IndexError, r"tokens\[1\] is -1"),
        ({"tokens": torch.tensor([0, 1, 2048])}, IndexError, r"tokens\[2\] is 2048"),
        ({"tokens": torch.zeros(3)}, ValueError, "tokens must be int64 or int32"),
        ({"tokens": torch.zeros(3, 1, dtype=torch.int64)}, ValueError, "tokens must have one dimension"),
        ({"positions": torch.tensor([0, 1, 64])}, IndexError, r"positions\[2\] is 64"),
        ({"positions": torch.tensor([-1, 0, 1])}, IndexError, r"positions\[0\] is -1"),
        ({"row_offsets": torch.tensor([0, 4])}, IndexError, "row_offsets ends at 4"),
        ({"row_offsets": torch.tensor([1, 3])}, ValueError, "row_offsets must start at 0"),
        ({"row_offsets": torch.tensor([0, 2, 1])}, ValueError, "never fall"),
        ({"row_offsets": torch.tensor([0, 1, 2, 3])}, ValueError, "delimits 3 sequences.*max_batch=2"),
        ({"sequences": torch.tensor([0, 1])}, ValueError, "sequences names 2"),
        ({"sequences": torch.tensor([2])}, IndexError, "max_batch=2"),
        ({"token_embeddings": torch.zeros(3, 5)}, ValueError, "token_embeddings"),
        ({"row_offsets": torch.tensor([0, 1, 3]), "sequences": torch.tensor([1, 1])}, ValueError, "twice"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(changes, error, part):
    config = make_config()
    drafter = make_drafter(config, max_batch=2, max_length=64)
    arguments = make_rows(config, 3) | {"row_offsets": torch.tensor([0, 3])} | changes
    with pytest.raises(error, match=part):
        drafter.extend(**arguments)
    assert drafter.lengths.tolist() == [0, 0]
    with pytest.raises(ValueError, match="extend"):
        drafter.draft(1)


def test_max_length_is_a_limit_of_extend_and_draft():
    config = make_config()
    drafter = make_drafter(config, max_length=8)
    with pytest.raises(ValueError, match="max_length=8"):
        extend(drafter, make_rows(config, 9) | {"positions": torch.zeros(9, dtype=torch.int64)})
    extend(drafter, make_rows(config, 6))
    with pytest.raises(ValueError, match="to 9 rows"):
        drafter.draft(4)
    assert drafter.draft(3).lengths.tolist() == [3]
    with pytest.raises(ValueError, match="one draft per extend"):
        drafter.draft(1)
    with pytest.raises(ValueError, match="num_tokens is 0"):
        drafter.draft(0)


def test_construction_checks_what_it_shares():
    config = make_config()
    checkpoint = make_checkpoint(config)
    with pytest.raises(CheckpointError, match="no embedding of its own"):
        Drafter.from_checkpoint(checkpoint, make_model(make_config(vocab_size=1024)))
    with pytest.raises(ValueError, match="float64"):
        Drafter.from_checkpoint(checkpoint, make_model(config), dtype=torch.float64)
    with pytest.raises(ValueError, match="cuda"):
        Drafter.from_checkpoint(checkpoint, make_model(config), device="cuda")
    with pytest.raises(ValueError, match="max_batch is 0"):
        Drafter.from_checkpoint(checkpoint, make_model(config), max_batch=0)
    with pytest.warns(UserWarning, match="max_position_embeddings 2048"):
        Drafter.from_checkpoint(checkpoint, make_model(config), max_length=4096)
    for missing in ("norm.weight", "layers.0.hidden_norm.weight", "layers.0.mlp.up_proj.weight", "target_ids"):
        without = {name: weight for name, weight in checkpoint.weights.items() if name != missing}
        with pytest.raises(ValueError, match=f"{missing}.*missing"):
            Drafter.from_checkpoint(Checkpoint(config, without, ()), make_model(config))


def test_embedding_is_shared_not_copied_and_boundaries_can_be_overridden():
    config = make_config()
    model = make_model(config)
    drafter = Drafter.from_checkpoint(make_checkpoint(config), model, boundaries=(1, 2, 30))
    assert drafter.plan.boundaries == (1, 2, 30) and drafter.plan.width == 1728
    extend(drafter, make_rows(config, 2))
    before = drafter.draft(1).log_probs.clone()  # the next draft reuses the tensor
    model.get_input_embeddings().weight.neg_()
    drafter.reset()
    extend(drafter, make_rows(config, 2))
    assert not torch.equal(before, drafter.draft(1).log_probs)

"""The round loop: its text is the target's own, whatever the drafter proposes, and it feeds the drafter right."""

import functools
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from eagle3_ext.decoder import SpeculativeDecoder, _Run, first_divergence, greedy_decode
from eagle3_ext.features import CapturePlan, capture
from eagle3_ext.native_linear import MAX_INVARIANT_ROWS, NativeLinears, native_linear
from eagle3_ext.target import TransformersTarget

H, LAYERS, VOCAB, MAX_LENGTH = 32, 3, 67, 64
PLAN = CapturePlan((0, 2, LAYERS), H)
NO_EOS = ()


@functools.cache  # not module fixtures: those run before conftest's one_thread
def make_model(dtype=torch.float32):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=H,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.5,  # large enough for texts that wander instead of repeating one token
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval().to(dtype)


@pytest.fixture
def model():
    return make_model()


def prompts(count):
    generator = torch.Generator().manual_seed(7)
    lengths = torch.randint(1, 12, (count,), generator=generator)
    return [torch.randint(0, VOCAB, (int(n),), generator=generator).tolist() for n in lengths]


class Draft:
    def __init__(self, tokens):
        self.tokens = torch.tensor([tokens], dtype=torch.int64).view(1, -1)


class ScriptedDrafter:
    """Proposes a scripted number of right tokens per round and wrong ones after, and records every extend.

    `text` is the target's greedy text (prompt included) that the proposals are taken from; `right` is called once per
    draft and says how many of its tokens shall be right. `pad` proposes the pad value -1 instead of a wrong token.
    """

    def __init__(self, text, right, *, pad=False, max_length=None):
        self.plan, self.text, self.right, self.pad = PLAN, text, right, pad
        self.rows = []  # (position, token, features row) of every committed row
        self.extends, self.widths = [], []
        if max_length is not None:
            self.max_length = max_length

    def reset(self):
        self.rows, self.extends, self.widths = [], [], []

    def extend(self, features, tokens, positions, row_offsets):
        count = int(row_offsets[-1])
        assert row_offsets.tolist() == [0, count] and row_offsets.dtype == torch.int64
        assert tokens.dtype == positions.dtype == torch.int64
        assert features.shape == (tokens.shape[0], PLAN.width) and count == tokens.shape[0]
        self.rows += list(zip(positions.tolist(), tokens.tolist(), features.clone(), strict=True))
        self.extends.append(count)

    def draft(self, num_tokens):
        known = len(self.rows) + 1  # the tokens of positions 0 .. rows
        right = min(self.right(), num_tokens)
        proposal = self.text[known : known + num_tokens]
        proposal += [0] * (num_tokens - len(proposal))
        wrong = [-1 if self.pad else (token + 1) % VOCAB for token in proposal[right:]]
        self.widths.append(num_tokens)
        return Draft(proposal[:right] + wrong)


@functools.cache
def plain_texts(cache):
    """20 prompts with their plain greedy continuations of 12 + 7 tokens: drafts reach beyond the end."""
    target = TransformersTarget(make_model(), cache=cache, max_length=MAX_LENGTH)
    return [(prompt, greedy_decode(target, prompt, 19, NO_EOS).tokens) for prompt in prompts(20)]


@functools.cache
def told():
    prompt = prompts(3)[2]
    return prompt, greedy_decode(TransformersTarget(make_model(), max_length=MAX_LENGTH), prompt, 30, NO_EOS).tokens


@pytest.fixture
def story():
    """A prompt of several tokens and its plain greedy continuation of 30."""
    return told()


def random_right(seed, most):
    generator = torch.Generator().manual_seed(seed)
    return lambda: int(torch.randint(0, most + 1, (1,), generator=generator))


class RandomDrafter(ScriptedDrafter):
    """Right only by accident."""

    def __init__(self, seed):
        super().__init__([], lambda: 0)
        self.generator = torch.Generator().manual_seed(seed)

    def draft(self, num_tokens):
        return Draft(torch.randint(0, VOCAB, (num_tokens,), generator=self.generator).tolist())


# ---- losslessness


@pytest.mark.parametrize("depth", [1, 3, 7])
@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_twenty_prompts_are_token_identical_to_plain_decoding(model, cache, depth):
    texts = plain_texts(cache)
    target = TransformersTarget(model, PLAN, cache=cache, max_length=MAX_LENGTH)
    accepted = set()
    for index, (prompt, text) in enumerate(texts):
        oracle = ScriptedDrafter(prompt + text, random_right(index, depth))
        assert SpeculativeDecoder(target, oracle, depth).generate(prompt, 12, NO_EOS).tokens == text[:12]
        accepted |= {count - 1 for count in oracle.extends[1:]}
        assert SpeculativeDecoder(target, RandomDrafter(index), depth).generate(prompt, 12, NO_EOS).tokens == text[:12]
    assert accepted == set(range(depth + 1)), "every acceptance from 0 to D must have happened"
    assert len({token for _, text in texts for token in text}) > 20, "the texts must be worth comparing"


@pytest.mark.parametrize("depth", [1, 4, 9])
def test_bf16_is_lossless_bit_by_bit_in_bit_stable_mode(depth):
    model = make_model(torch.bfloat16)
    plain = TransformersTarget(model, max_length=MAX_LENGTH)
    target = TransformersTarget(model, PLAN, max_length=MAX_LENGTH)
    for index, prompt in enumerate(prompts(3)):
        text = greedy_decode(plain, prompt, 20 + depth, NO_EOS).tokens
        oracle = ScriptedDrafter(prompt + text, random_right(index, depth))
        assert SpeculativeDecoder(target, oracle, depth).generate(prompt, 20, NO_EOS).tokens == text[:20]


def test_pads_in_a_draft_are_never_accepted(model, story):
    prompt, text = story
    target = TransformersTarget(model, PLAN, max_length=MAX_LENGTH)
    drafter = ScriptedDrafter(prompt + text, lambda: 1, pad=True)
    result = SpeculativeDecoder(target, drafter, 3).generate(prompt, 20, NO_EOS)
    assert result.tokens == text[:20]
    assert result.stats.acceptance_per_position == [1.0, 0.0, 0.0]


# ---- what the drafter is fed


def test_the_drafter_gets_the_targets_features_with_tokens_shifted_by_one(model, story):
    prompt, continuation = story
    target, text = TransformersTarget(model, PLAN, max_length=MAX_LENGTH), prompt + continuation
    drafter = ScriptedDrafter(text, random_right(3, 4))
    SpeculativeDecoder(target, drafter, 4).generate(prompt, 24, NO_EOS)
    positions, tokens, states = zip(*drafter.rows, strict=True)
    count = len(positions)
    assert drafter.extends[0] == len(prompt)
    assert list(positions) == list(range(count))
    assert list(tokens) == text[1 : count + 1]
    with capture(model, PLAN) as features, torch.no_grad():
        model(torch.tensor([text[:count]]))
    torch.testing.assert_close(torch.stack(states), features.tensor, rtol=1e-3, atol=1e-3)


def test_a_finished_text_gets_no_extend(model, story):
    prompt, text = story
    target = TransformersTarget(model, PLAN, max_length=MAX_LENGTH)
    drafter = ScriptedDrafter(prompt + text, lambda: 3)
    SpeculativeDecoder(target, drafter, 3).generate(prompt, 9, NO_EOS)
    assert drafter.extends == [len(prompt), 4]  # 1 + 4 + 4 tokens: the second round ends the text


# ---- where a text ends


def test_eos_inside_an_accepted_run_ends_the_text_there(model, story):
    prompt, text = story
    target = TransformersTarget(model, PLAN, max_length=MAX_LENGTH)
    for position in range(12):
        eos = text[position]
        expected = text[: text.index(eos) + 1]
        drafter = ScriptedDrafter(prompt + text, lambda: 5)
        result = SpeculativeDecoder(target, drafter, 5).generate(prompt, 24, eos)
        plain = greedy_decode(target, prompt, 24, [eos])
        assert result.tokens == plain.tokens == expected
        assert result.finish_reason == plain.finish_reason == "eos"
        assert result.stats.emitted == len(expected)
        assert result.stats.accepted == 5 * result.stats.rounds, "acceptance is counted before truncation"


def test_an_eos_that_is_drafted_and_rejected_ends_nothing(model, story):  # openvino.genai 3293
    prompt, text = story
    target = TransformersTarget(model, PLAN, max_length=MAX_LENGTH)
    eos = next(token for token in range(VOCAB) if token not in text)
    drafter = ScriptedDrafter(prompt + text, lambda: 1)
    right = drafter.draft
    drafter.draft = lambda count: Draft(right(count).tokens[0, :1].tolist() + [eos] * (count - 1))
    result = SpeculativeDecoder(target, drafter, 3).generate(prompt, 20, eos)
    assert (result.tokens, result.finish_reason) == (text[:20], "length")
    assert result.stats.acceptance_per_position == [1.0, 0.0, 0.0]


def test_a_cache_that_cannot_be_rolled_back_is_refused(model, monkeypatch):  # mlx-lm 1423
    """Rejected drafts would stay in it, and the text would no longer be the target's."""
    from transformers.cache_utils import DynamicLayer

    monkeypatch.setattr(DynamicLayer, "is_croppable", False)
    decoder = SpeculativeDecoder(TransformersTarget(model, PLAN, cache="dynamic"), RandomDrafter(0), 3)
    with pytest.raises(ValueError, match=r"dynamic cache of LlamaForCausalLM cannot be rolled back \(DynamicLayer\)"):
        decoder.generate([1, 2, 3], 4, NO_EOS)


def test_eos_defaults_to_the_models(model, story):
    prompt, text = story
    assert greedy_decode(model, prompt, 8).tokens == text[:8], "this model names no eos token"
    model.generation_config.eos_token_id = [text[3], VOCAB - 1]
    try:
        assert greedy_decode(model, prompt, 8).tokens == text[: text.index(text[3]) + 1]
    finally:
        model.generation_config.eos_token_id = None


@pytest.mark.parametrize("max_new_tokens, rounds", [(1, 0), (2, 1), (6, 1), (7, 2)])
def test_max_new_tokens_cuts_exactly(model, story, max_new_tokens, rounds):
    prompt, text = story
    target = TransformersTarget(model, PLAN, max_length=MAX_LENGTH)
    decoder = SpeculativeDecoder(target, ScriptedDrafter(prompt + text, lambda: 4), 4)
    result = decoder.generate(prompt, max_new_tokens, NO_EOS)
    assert (result.tokens, result.finish_reason) == (text[:max_new_tokens], "length")
    assert (result.stats.rounds, result.stats.emitted) == (rounds, max_new_tokens)
    assert result.stats.accept_length == (5.0 if rounds else None)
    assert list(decoder.stream(prompt, max_new_tokens, NO_EOS)) == result.tokens
    assert decoder.stats.emitted == max_new_tokens


@pytest.mark.parametrize("cache", ["static", "dynamic"])
@pytest.mark.parametrize("room", [0, 1, 2, 5, 9])
def test_the_end_of_the_cache_shrinks_the_last_rounds(model, story, cache, room):
    prompt, text = story
    limit = len(prompt) + room
    plain = greedy_decode(TransformersTarget(model, cache=cache, max_length=limit), prompt, 24, NO_EOS)
    drafter = ScriptedDrafter(prompt + text, random_right(room, 3))
    target = TransformersTarget(model, PLAN, cache=cache, max_length=limit)
    result = SpeculativeDecoder(target, drafter, 3).generate(prompt, 24, NO_EOS)
    assert result.tokens == plain.tokens == text[: room + 1]
    assert result.finish_reason == plain.finish_reason == "cache"
    assert target.length == limit


def test_a_full_drafter_leaves_plain_rounds(model, story):
    prompt, text = story
    target = TransformersTarget(model, PLAN, max_length=MAX_LENGTH)
    drafter = ScriptedDrafter(prompt + text, lambda: 3, max_length=len(prompt) + 6)
    result = SpeculativeDecoder(target, drafter, 3).generate(prompt, 20, NO_EOS)
    assert result.tokens == text[:20]
    assert drafter.widths == [3, 1] and len(drafter.rows) <= len(prompt) + 6
    assert result.stats.drafted == 4 and result.stats.rounds == 2 + 13


@pytest.mark.parametrize("next_position, drafted", [(10, 5), (62, 2), (63, 1), (64, 0)])
def test_drafts_end_at_the_drafters_limit(model, next_position, drafted):  # vllm 48894: max_length 64, D = 5
    prompt = [token % VOCAB for token in range(next_position - 1)]  # then the newest token, then drafts
    drafter = ScriptedDrafter([], lambda: 0, max_length=64)
    target = TransformersTarget(model, PLAN, max_length=96)
    result = SpeculativeDecoder(target, drafter, 5).generate(prompt, 4, NO_EOS)
    assert result.tokens == greedy_decode(target, prompt, 4, NO_EOS).tokens
    assert (drafter.widths or [0])[0] == drafted


# ---- stats, streaming, misuse


def test_plain_stats(model):
    stats = greedy_decode(model, [1, 2, 3], 10, NO_EOS).stats
    assert (stats.rounds, stats.drafted, stats.emitted, stats.accept_length) == (9, 0, 10, 1.0)
    assert stats.acceptance_per_position == [] and stats.tokens_per_s > 0


def test_a_stream_yields_the_tokens_of_generate(model, story):
    prompt, text = story
    target = TransformersTarget(model, PLAN, max_length=MAX_LENGTH)
    decoder = SpeculativeDecoder(target, ScriptedDrafter(prompt + text, random_right(0, 3)), 3)
    stream = decoder.stream(prompt, 16, NO_EOS)
    assert next(stream) == text[0] and decoder.stats.rounds == 0
    assert [text[0], *stream] == text[:16]


def test_a_model_is_wrapped_with_the_drafters_plan(model):
    drafter = RandomDrafter(0)
    decoder = SpeculativeDecoder(model, drafter, 2)
    assert decoder.target.features.plan == drafter.plan
    assert decoder.generate(torch.tensor([[1, 2]]), 4, NO_EOS).tokens == greedy_decode(model, [1, 2], 4, NO_EOS).tokens


def test_a_target_with_another_plan_is_refused(model):
    with pytest.raises(ValueError, match="captures nothing"):
        SpeculativeDecoder(TransformersTarget(model), RandomDrafter(0))
    with pytest.raises(ValueError, match=r"boundaries 1, 2\).*but the drafter needs"):
        SpeculativeDecoder(TransformersTarget(model, CapturePlan((1, 2), H)), RandomDrafter(0))


@pytest.mark.parametrize("input_ids", [[], [[1, 2], [3, 4]]])
def test_a_prompt_is_one_sequence_of_at_least_one_token(model, input_ids):
    with pytest.raises(ValueError, match="one sequence"):
        greedy_decode(model, input_ids, 2)


def test_misuse_is_named(model):
    with pytest.raises(ValueError, match="max_new_tokens"):
        greedy_decode(model, [1], 0)
    with pytest.raises(ValueError, match="num_speculative_tokens"):
        SpeculativeDecoder(model, RandomDrafter(0), 0)
    with pytest.raises(ValueError, match="max_length must be at least 1"):
        TransformersTarget(model, max_length=129)
    target = TransformersTarget(model, max_length=4)
    with pytest.raises(ValueError, match="verify before prefill"):
        target.verify(torch.tensor([1]))
    with pytest.raises(ValueError, match="5 tokens after 0 do not fit"):
        target.prefill(torch.arange(5))
    target.prefill(torch.arange(3))
    with pytest.raises(ValueError, match=r"rollback\(4\)"):
        target.rollback(4)


@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_rollback_leaves_no_trace(model, cache):
    target = TransformersTarget(model, cache=cache, max_length=MAX_LENGTH)
    tokens = torch.tensor(prompts(3)[2])
    target.prefill(tokens)
    expected = target.verify(torch.tensor([5, 6, 7]))
    target.prefill(tokens)
    target.verify(torch.tensor([5, 9, 9, 9]))
    target.rollback(3)
    assert target.length == len(tokens) + 1
    torch.testing.assert_close(target.verify(torch.tensor([6, 7])), expected[1:], rtol=1e-4, atol=1e-4)


def test_first_divergence_reports_position_and_gap(model, story):
    prompt, text = story
    target = TransformersTarget(model, max_length=MAX_LENGTH)
    assert first_divergence(target, prompt, text, text) is None
    wrong = [*text[:5], (text[5] + 1) % VOCAB, *text[6:]]
    where = first_divergence(target, prompt, text, wrong)
    assert where.position == 5 and where.tokens == (text[5], wrong[5])
    assert where.top_tokens[0] == text[5] and where.top_logits[0] == pytest.approx(where.logits[0])
    assert where.gap == where.top_logits[0] - where.top_logits[1] > 0
    assert f"part at token 5 ({text[5]} against {wrong[5]})" in str(where)
    assert first_divergence(target, prompt, text, text[:3]).tokens == (text[3], None)


# ---- row-invariant linears


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("bias", [False, True])
def test_native_linear_rows_do_not_depend_on_their_number(dtype, bias):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(MAX_INVARIANT_ROWS, 80, generator=generator).to(dtype)
    weight = torch.randn(48, 80, generator=generator).to(dtype)
    offset = torch.randn(48, generator=generator).to(dtype) if bias else None
    alone = torch.cat([native_linear(row[None], weight, offset) for row in x])
    for rows in (2, 5, 8, 9, 17, MAX_INVARIANT_ROWS):
        assert torch.equal(native_linear(x[None, :rows], weight, offset)[0], alone[:rows])
    exact = torch.nn.functional.linear(x.double(), weight.double(), None if offset is None else offset.double())
    torch.testing.assert_close(alone.double(), exact, rtol=1e-2, atol=1e-1 if dtype == torch.bfloat16 else 1e-4)


def test_native_linears_are_reversible_and_leave_weights_untouched(model):
    def state():
        linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
        return [("forward" in vars(module), module.weight.data_ptr()) for module in linears]

    before, tokens = state(), torch.tensor([[1, 2, 3]])
    linears = NativeLinears(model)
    with torch.no_grad():
        plain = model(tokens).logits
        with linears, linears:
            assert all(switched for switched, _ in state())
            native = model(tokens).logits
        assert state() == before
        assert torch.equal(model(tokens).logits, plain)
    torch.testing.assert_close(native, plain, rtol=1e-3, atol=1e-3)


def test_native_linears_need_something_to_replace():
    with pytest.raises(ValueError, match="no torch.nn.Linear"):
        NativeLinears(torch.nn.LayerNorm(4))


def test_weights_that_are_no_linears_have_no_row_invariance():
    """GPT-2's Conv1D, a mixture's experts: they would round as they like, and bf16 texts would part without a word."""
    config = GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=VOCAB, n_positions=64)
    model = GPT2LMHeadModel(config).eval().bfloat16()
    with pytest.raises(ValueError, match=r"h\.0\.attn\.c_attn\.weight belongs to a Conv1D.*row_invariant=False"):
        TransformersTarget(model)
    assert len(greedy_decode(TransformersTarget(model, row_invariant=False), [1, 2], 5, NO_EOS).tokens) == 5


def test_values_may_be_narrower_than_keys():
    """DeepSeek's keys carry a RoPE part that its values do not have; speculation is lossless there in bf16 as well."""
    torch.manual_seed(0)
    config = DeepseekV3Config(
        vocab_size=VOCAB, hidden_size=H, intermediate_size=48, num_hidden_layers=LAYERS, first_k_dense_replace=LAYERS,
        num_attention_heads=4, num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=16,
        qk_rope_head_dim=8, v_head_dim=16, max_position_embeddings=128, initializer_range=0.5,
    )
    model = DeepseekV3ForCausalLM(config).eval().bfloat16()
    target = TransformersTarget(model, PLAN, max_length=MAX_LENGTH)
    for index, prompt in enumerate(prompts(4)):
        text = greedy_decode(target, prompt, 19, NO_EOS).tokens
        oracle = ScriptedDrafter(prompt + text, random_right(index, 3))
        assert SpeculativeDecoder(target, oracle, 3).generate(prompt, 12, NO_EOS).tokens == text[:12]


def test_a_stream_is_not_resumed_in_another_text(model):
    decoder = SpeculativeDecoder(model, RandomDrafter(0), 2)
    stream = decoder.stream([1, 2, 3], 12, NO_EOS)
    next(stream)
    next(decoder.stream([4, 5], 4, NO_EOS))
    with pytest.raises(RuntimeError, match="another text"):
        list(stream)


def test_a_stream_notices_a_text_of_others_on_its_target(model):
    """Another decoder's, and plain decoding's."""
    target = TransformersTarget(model, PLAN, max_length=MAX_LENGTH)
    one, two = (SpeculativeDecoder(target, RandomDrafter(seed), 2) for seed in (0, 1))
    for other in (lambda: two.generate([4, 5], 4, NO_EOS), lambda: greedy_decode(target, [4, 5], 4, NO_EOS)):
        stream = one.stream([1, 2, 3], 12, NO_EOS)
        next(stream)
        other()
        with pytest.raises(RuntimeError, match="another text was started on this decoder, its target"):
            list(stream)


def test_a_stream_notices_that_its_drafter_was_reset(model):
    drafter = RandomDrafter(0)
    drafter.resets = 0
    stream = SpeculativeDecoder(model, drafter, 2).stream([1, 2, 3], 12, NO_EOS)
    for _ in range(2):
        next(stream)
    drafter.resets += 1
    with pytest.raises(RuntimeError, match="or its drafter"):
        list(stream)


def test_no_more_drafts_than_verify_row_by_row():
    """More rows than that are computed as a prefill is, and would round differently from plain decoding."""
    half = make_model(torch.bfloat16)
    most = MAX_INVARIANT_ROWS - 1
    assert SpeculativeDecoder(half, RandomDrafter(0), most).num_speculative_tokens == most
    with pytest.raises(ValueError, match=f"num_speculative_tokens is {most + 1}.*at most {most} drafts"):
        SpeculativeDecoder(half, RandomDrafter(0), most + 1)
    target = TransformersTarget(half, PLAN, row_invariant=False)
    SpeculativeDecoder(target, RandomDrafter(0), most + 1)


@pytest.mark.parametrize("eos", [torch.tensor([7]), [torch.tensor(7)], 7], ids=["tensor", "list", "int"])
def test_eos_tokens_are_numbers_whatever_holds_them(eos):
    target = SimpleNamespace(eos_token_ids=frozenset())
    assert _Run(target, 4, eos).eos_token_ids == {7}


def test_token_ids_are_not_rounded(model):
    with pytest.raises(ValueError, match="token ids, got torch.float32"):
        greedy_decode(model, [1.7, 2.2], 3)


def refusing_target():
    """A target whose forward must never run: what is refused is refused before."""
    target = TransformersTarget(make_model(), PLAN, max_length=MAX_LENGTH)
    target.model = SimpleNamespace(get_input_embeddings=target.model.get_input_embeddings)
    return target


def test_a_prompt_past_the_drafters_length_is_refused_before_the_prefill():
    decoder = SpeculativeDecoder(refusing_target(), ScriptedDrafter([], lambda: 0, max_length=5))
    with pytest.raises(ValueError, match="the prompt has 6 tokens, the drafter's max_length is 5"):
        decoder.generate([1] * 6)


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_a_token_outside_the_vocabulary_is_refused_before_the_prefill(token):
    decoder = SpeculativeDecoder(refusing_target(), ScriptedDrafter([], lambda: 0))
    with pytest.raises(IndexError, match=rf"token 2 of the prompt is {token}, the target's vocabulary is \[0, {VOCAB}\)"):
        decoder.generate([1, 2, token, 3])
    with pytest.raises(IndexError, match=f"token 0 of the prompt is {token}"):
        greedy_decode(refusing_target(), [token])


@pytest.mark.parametrize("name, theirs", [("dtype", torch.bfloat16), ("device", torch.device("meta"))])
def test_a_drafter_of_another_dtype_or_device_is_refused(name, theirs):
    drafter = ScriptedDrafter([], lambda: 0)
    setattr(drafter, name, theirs)
    with pytest.raises(ValueError, match=f"the target's {name} is .*, the drafter's {theirs}"):
        SpeculativeDecoder(refusing_target(), drafter)

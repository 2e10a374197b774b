"""The target: a protocol of three verbs (prefill, verify, rollback) and its adapter for transformers causal LMs."""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from typing import Literal, Protocol

import torch

from .features import CaptureHooks, Features
from .inputs import configured_stop_ids
from .native_linear import MAX_INVARIANT_ROWS, NativeLinears
from .plan import CapturePlan
from .row_invariant_attention import RowInvariantAttention
from .text_config import default_max_length, max_positions, text_config_of
from .turns import Turn, model_turn, served_alone
from .vocabulary import vocab_size_of


class Target(Protocol):
    """What the round loop needs from a model. Batch 1; tokens are int64 [n] or [1, n].

    Attributes:
        features: the buffer each forward fills; None when nothing is captured (plain decoding).
        prefills: how many sequences were begun, by which a text notices that the cache has become another's.
        length: tokens in the cache.
        max_length: tokens the cache can hold.
        eos_token_ids: tokens that end a text.
        device: where tokens live.

    A target may have `vocab_size`, the V that its logits and its tokens are within, which is then compared with the
    drafter's; and a `turn` (turns.Turn), held for each text by the thread that it serves.
    """

    features: Features | None
    prefills: int
    length: int
    max_length: int
    eos_token_ids: frozenset[int]
    device: torch.device

    def prefill(self, tokens: torch.Tensor) -> torch.Tensor:
        """Starts a new sequence with `tokens`; returns the logits of the last one, [1, V]."""

    def verify(self, tokens: torch.Tensor) -> torch.Tensor:
        """Appends `tokens` and returns their logits, [n, V]."""

    def rollback(self, n: int) -> None:
        """Forgets the last n tokens. Called after every verify, also with n = 0."""


class TransformersTarget:
    """A transformers (>=5.19, <6) causal LM as a `Target`.

    Bit-stable mode is what makes plain and speculative decoding agree token by token in bf16: `row_invariant` linears
    and attention, over `cache="static"` of the same `max_length` in both modes. Without row invariance a static cache
    still fixes the attended length, which removes one of the reasons for a row to round differently.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        plan: CapturePlan | None = None,
        *,
        cache: Literal["static", "dynamic"] = "static",
        max_length: int | None = None,
        row_invariant: bool | None = None,
    ):
        """
        Args:
            model: a causal LM in eval mode; dropout would make verification meaningless.
            plan: the drafter's capture plan; None captures nothing.
            max_length: tokens the cache holds; None: min(max_position_embeddings, 4096).
            row_invariant: compute a row alike whatever rows share its forward: linears through `skinny_linear`,
                attention through `draft_attention`. None: on the CPU in half precision. Raises ValueError when the
                model's attention is not plain causal attention.
        """
        if cache not in ("static", "dynamic"):
            raise ValueError(f'cache must be "static" or "dynamic", got {cache!r}')
        config = text_config_of(model)
        self.max_length = default_max_length(config) if max_length is None else max_length
        limit = max_positions(config)
        if self.max_length < 1 or (limit is not None and self.max_length > limit):
            most = "" if limit is None else f" and at most {limit}, the target's positions"
            raise ValueError(f"max_length must be at least 1{most}, got {max_length}")
        self.model = model
        self.length = self.prefills = 0
        self.eos_token_ids, self.vocab_size = eos_token_ids_of(model), vocab_size_of(model)
        self.turn = Turn("target")
        self._model_turn = model_turn(model)
        self._hooks = None if plan is None else CaptureHooks(model, plan)
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        # A sharded model's states lie on several devices; the drafter is where the embedding is.
        self.features = None if plan is None else Features(plan, device=self.device)
        if row_invariant is None:
            row_invariant = self.device.type == "cpu" and self.dtype in (torch.bfloat16, torch.float16)
        self._linears = NativeLinears(model) if row_invariant else None
        self._attention = RowInvariantAttention(model, self.max_length) if row_invariant else None
        self.max_verify_rows = MAX_INVARIANT_ROWS if row_invariant else None
        self._cache_kind = cache
        self._cache = None
        # transformers renamed past_key_values to cache within the supported range; 5.40 drops the old name.
        names = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"
        self._keeps_logits = "logits_to_keep" in names

    @served_alone
    def prefill(self, tokens: torch.Tensor) -> torch.Tensor:
        """Starts a new sequence; returns the last token's logits, [1, V].

        Raises ValueError when it does not fit, IndexError for a token outside the vocabulary.
        """
        outside = ((tokens < 0) | (tokens >= self.vocab_size)).nonzero()
        if len(outside):
            position = int(outside[0, -1])
            token = int(tokens[..., position])
            known = f"the target's vocabulary is [0, {self.vocab_size})"
            raise IndexError(f"token {position} of the prompt is {token}, {known}")
        self._start_sequence()
        self.prefills += 1
        return self._forward(tokens, last_only=True)

    @served_alone
    def verify(self, tokens: torch.Tensor) -> torch.Tensor:
        """Appends n tokens; returns their logits, [n, V]. Raises ValueError past max_length or before a prefill.

        Row-invariant up to `max_verify_rows` tokens; more are computed as a prefill is.
        """
        if not self.length:
            raise ValueError("verify before prefill: there is no sequence to append to")
        return self._forward(tokens, last_only=False)

    @served_alone
    def rollback(self, n: int) -> None:
        """Forgets the last n tokens, 0 <= n <= length."""
        if not 0 <= n <= self.length:
            raise ValueError(f"rollback({n}) of a sequence of {self.length} tokens")
        # Also with 0: sliding layers keep what a verification pushed out of the window until they are told to drop it.
        self._cache.crop(-n)
        self.length -= n

    def _start_sequence(self) -> None:
        from transformers import DynamicCache, StaticCache

        if self._cache is not None and self._cache_kind == "static":
            self._cache.reset()
        else:
            config = self.model.config
            if self._cache_kind == "static":
                self._cache = StaticCache(config=config, max_cache_len=self.max_length)
            else:
                self._cache = DynamicCache(config=config)
            if not self._cache.is_croppable:
                kinds = sorted({type(layer).__name__ for layer in self._cache.layers if not layer.is_croppable})
                raise ValueError(
                    f"the {self._cache_kind} cache of {type(self.model).__name__} cannot be rolled back "
                    f"({', '.join(kinds)}): rejected drafts would stay in it. Try the other cache kind"
                )
            self._cache.activate_past_recording()
        self.length = 0
        if self.features is not None:
            self.features.reset()

    def _forward(self, tokens: torch.Tensor, *, last_only: bool) -> torch.Tensor:
        row = tokens.to(self.device).reshape(1, -1)
        count = row.shape[1]
        if not count or self.length + count > self.max_length:
            raise ValueError(
                f"{count} tokens after {self.length} do not fit: need 1 to {self.max_length - self.length} (max_length "
                f"{self.max_length})"
            )
        options = {self._cache_argument: self._cache}
        if last_only and self._keeps_logits:
            options["logits_to_keep"] = 1
        with ExitStack() as stack:
            stack.enter_context(self._model_turn.forward(self.model))
            stack.enter_context(torch.no_grad())
            if self._linears is not None:
                stack.enter_context(self._linears)
                stack.enter_context(self._attention.over(self.length + count, count))
            if self._hooks is not None:
                stack.enter_context(self._hooks.attach(self.features))
            logits = self.model(input_ids=row, use_cache=True, **options).logits[0, :, : self.vocab_size]
        self.length += count
        return logits[-1:] if last_only else logits


def eos_token_ids_of(model: torch.nn.Module) -> frozenset[int]:
    """The model's end-of-text tokens: its generation_config's, else its config's, else none."""
    for name in ("generation_config", "config"):
        config = getattr(model, name, None) if name == "generation_config" else text_config_of(model)
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return configured_stop_ids(ids, f"{name}.eos_token_id")
    return frozenset()

"""The drafter as Python sees it: two doors, `extend` for features and `draft` for tokens, over `_C.Drafter`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from . import _C
from ._build import build_info
from .checkpoint import Checkpoint, DrafterConfig, load_checkpoint
from .doctor import trace
from .draft_graphs import DraftGraphs
from .errors import FeatureWidthError
from .native_form import native_weights
from .plan import CapturePlan, resolve_plan
from .rope import flat_positions
from .text_config import DEFAULT_MAX_LENGTH, default_max_length, text_config_of
from .turns import Turn, served_alone
from .vocabulary import fit_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class DraftTokens:
    """What `Drafter.draft` proposes, one row per sequence of the last extend, in its order.

    Attributes:
        tokens: int64 [B, D] target ids; -1 where nothing was drafted.
        lengths: int64 [B], how many tokens each row holds: 0 for a sequence whose last extend was empty, less than D
            where the logits turned to NaN or, on a GPU, the sequence is full.
        log_probs: float32 [B, D], the log-probability of each token among the draft vocabulary; 0 where nothing was.
    """

    tokens: torch.Tensor
    lengths: torch.Tensor
    log_probs: torch.Tensor


class Drafter:
    """An EAGLE-3 drafter next to its target, in float32, bfloat16 or float16, on the CPU or one GPU.

    Not for two CUDA streams at once. Two threads take turns in a `SpeculativeDecoder`; a call while another thread is
    served raises RuntimeError.

    Attributes:
        config: the drafter's shape and switches, its vocabulary fitted to the target's (`vocabulary.fit_vocabulary`).
        plan: which hidden states of the target it is fed with.
        max_batch, max_length: how many sequences, of how many rows each, it can hold.
        dtype, device: of its weights, and of everything it is given and gives.
        turn: held by the thread that is served, a decoder's for a whole text.
    """

    def __init__(
        self,
        config: DrafterConfig,
        weights: dict[str, torch.Tensor],
        plan: CapturePlan,
        *,
        max_batch: int = 1,
        max_length: int = DEFAULT_MAX_LENGTH,
        cuda_graphs: bool = False,
    ) -> None:
        """Takes canonical `weights` of one floating dtype and device, embed_tokens.weight and lm_head.weight included.

        cuda_graphs: on a GPU, capture the draft loop once per (batch, D) and replay it: one launch instead of some
        fifteen per draft step.

        Raises ValueError for sizes below 1, for weights that are missing, misshapen or of mixed dtypes or devices, and
        for cuda_graphs on the CPU.
        """
        if max_batch < 1 or max_length < 1:
            raise ValueError(f"max_batch is {max_batch} and max_length is {max_length}; both must be at least 1")
        if max_length > config.max_position_embeddings:
            warnings.warn(
                f"max_length is {max_length}, but the drafter's file says max_position_embeddings "
                f"{config.max_position_embeddings}: it may not have been trained on positions past that",
                stacklevel=2,
            )
        self.config, self.plan = config, plan
        self.max_batch, self.max_length = max_batch, max_length
        self.dtype = weights["embed_tokens.weight"].dtype
        self.device = weights["embed_tokens.weight"].device
        if cuda_graphs and self.device.type != "cuda":
            raise ValueError(f"cuda_graphs is for a drafter on a GPU; this one is on {self.device}")
        native = native_weights(config, weights, max_length)
        native["cos_sin"] = native["cos_sin"].to(self.device)
        self._native = _C.Drafter(config, native, max_batch, max_length)
        self.resets = 0
        self.turn = Turn("drafter")
        self._graphs = DraftGraphs(self._native.run_draft, self.device) if cuda_graphs else None

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        model: PreTrainedModel,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        boundaries: Sequence[int] | None = None,
        max_batch: int = 1,
        max_length: int | None = None,
        cuda_graphs: bool = False,
        norm_before_residual: bool | None = None,
    ) -> Drafter:
        """Loads the checkpoint folder `path`; see `from_checkpoint` and, for norm_before_residual, `load_checkpoint`.

        Raises what `load_checkpoint` raises, too.
        """
        return cls.from_checkpoint(
            load_checkpoint(path, norm_before_residual=norm_before_residual),
            model,
            dtype=dtype,
            device=device,
            boundaries=boundaries,
            max_batch=max_batch,
            max_length=max_length,
            cuda_graphs=cuda_graphs,
        )

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        model: PreTrainedModel,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        boundaries: Sequence[int] | None = None,
        max_batch: int = 1,
        max_length: int | None = None,
        cuda_graphs: bool = False,
    ) -> Drafter:
        """A drafter for the causal LM `model`, whose embedding and head it shares where the checkpoint has none.

        `dtype` and `device` are those of the model's embedding by default, `boundaries` the file's, `max_length` the
        model's max_position_embeddings or 4096, whichever is less. Where the two vocabularies differ, the drafter gets
        the model's: see `vocabulary.fit_vocabulary`.

        Raises:
            BoundaryError, FeatureWidthError: the plan does not fit the model, see `features.resolve_plan`.
            CheckpointError: the checkpoint needs the model's embedding or head, which is of another size, quantised,
                offloaded or under an adapter, see `sharing.shared_table`; or the two share no token that it drafts.
            ValueError: a device or dtype the kernels do not have.
        """
        config = checkpoint.config
        target = text_config_of(model)
        plan = resolve_plan(
            config, target.num_hidden_layers, target.hidden_size, boundaries, checkpoint.provenance
        )
        if str(getattr(target, "model_type", "")).startswith("llama4") and not config.rope.interleaved:
            warnings.warn(
                "the target is a Llama 4, whose RoPE is interleaved; drafters trained beside it usually are too, but "
                "this file does not say so (config key rope_interleave)",
                stacklevel=2,
            )
        embedding = model.get_input_embeddings()
        dtype = dtype or embedding.weight.dtype
        if dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype}; the drafter runs in {', '.join(map(str, DTYPES))}")
        config, weights = fit_vocabulary(checkpoint, model)
        device = embedding.weight.device if device is None else torch.device(device)
        if device.type != "cpu" and not (device.type == "cuda" and build_info()["cuda"] and torch.cuda.is_available()):
            why = "torch sees no CUDA device" if build_info()["cuda"] else "eagle3_ext was built without CUDA kernels"
            raise ValueError(f"device is {device}; here the drafter runs on the CPU only: {why}")
        weights = {
            name: weight.to(device) if name == "target_ids" else weight.to(device, dtype)
            for name, weight in weights.items()
        }
        if max_length is None:
            max_length = default_max_length(target)
        return cls(config, weights, plan, max_batch=max_batch, max_length=max_length, cuda_graphs=cuda_graphs)

    @served_alone
    def extend(
        self,
        features: torch.Tensor,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        row_offsets: torch.Tensor,
        sequences: torch.Tensor | None = None,
        token_embeddings: torch.Tensor | None = None,
    ) -> None:
        """Runs the drafter over rows the target has verified, and appends them to the cache at the committed lengths.

        Row t pairs the features of position t with the token of position t + 1. Entries that draft steps left behind
        are overwritten. A refused call changes nothing. On a GPU index values are not read, because that would wait for
        the stream: bad ones write nothing outside their sequence, and one that would outgrow max_length stays as it was.

        Args:
            features: [m, K*H], in the drafter's dtype. Nothing else is ever fused.
            tokens: int64 or int32 [m], in [0, V).
            positions: int64 or int32 [m], those of the features' rows, in [0, max_length); or mrope's [3, m], equal.
            row_offsets: int64 or int32 [B + 1]; sequence b owns rows row_offsets[b] .. row_offsets[b + 1]. Rows past
                row_offsets[B] are padding and write nothing; a sequence without rows is not extended.
            sequences: [B], which sequences these are; 0 .. B-1 if absent.
            token_embeddings: [m, h], used instead of looking `tokens` up (multimodal rows).

        Raises:
            FeatureWidthError: features have another width than K*H.
            IndexError: a token, position, sequence or row offset is out of range.
            ValueError: another rank, dtype, device or row count, or a sequence longer than max_length.
            RuntimeError: another thread is being served, by this call or any other.
        """
        for name, value in (
            ("features", features),
            ("tokens", tokens),
            ("positions", positions),
            ("row_offsets", row_offsets),
        ):
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")
        if trace.active is not None:
            trace.active.extend(self, features, tokens, positions, row_offsets, sequences)
        self._check_features(features)
        if positions.dim() == 2:
            positions = flat_positions(positions, features.shape[0])
        self._native.extend(features, tokens, positions, row_offsets, sequences, token_embeddings)

    @served_alone
    def draft(self, num_tokens: int) -> DraftTokens:
        """Drafts `num_tokens` tokens for every sequence of the last extend; greedy. The next draft reuses the tensors.

        Raises ValueError without a fresh extend (twice in a row, after a reset or truncate) or past max_length; on a
        GPU, whose lengths nobody reads, a sequence that is full ends its draft early instead (-1, as with NaN logits).
        """
        self._native.claim_draft(num_tokens)
        if self._graphs is None:
            drafts = DraftTokens(*self._native.run_draft(num_tokens))
        else:
            drafts = DraftTokens(*self._graphs.run(self._native.batch, num_tokens))
        if trace.active is not None:
            trace.active.draft(self, drafts)
        return drafts

    @served_alone
    def reset(self, sequences: Sequence[int] | None = None) -> None:
        """Forgets these sequences (all if None), so that the next extend starts them anew."""
        if trace.active is not None:
            trace.active.reset()
        self.resets += 1
        self._native.reset(None if sequences is None else [int(sequence) for sequence in sequences])

    @served_alone
    def truncate(self, sequence: int, length: int) -> None:
        """Keeps the first `length` committed rows of a sequence. IndexError for more than there are."""
        self._native.truncate(sequence, length)

    @property
    def lengths(self) -> torch.Tensor:
        """Committed rows of each sequence, int64 [max_batch]; a copy."""
        return self._native.lengths

    def _check_features(self, features: torch.Tensor) -> None:
        if features.dim() != 2:
            raise ValueError(f"features must be [rows, K*H], got {list(features.shape)}")
        width, plan = features.shape[1], self.plan
        if width == self.config.features_width:
            return
        count, state = self.config.num_states, self.config.target_hidden_size
        source = f"fc.weight [{self.config.hidden_size}, {plan.width}]; " if self.config.fusion == "fc" else ""
        raise FeatureWidthError(
            f"features have width {width}; this drafter fuses {count} x {state} = {self.config.features_width} "
            f"({source}it {plan.describe()}). {self._likely_cause(width)}"
        )

    def _likely_cause(self, width: int) -> str:
        state, h = self.config.target_hidden_size, self.config.hidden_size
        if width == state:
            return f"{width} is the width of one hidden state: capture is off, or only one layer reached the concat."
        if width == h:
            return f"{width} is the drafter's own width: its recurrent hidden stays inside, never passed to extend."
        if width % state == 0:
            return f"{width} is {width // state} hidden states: another number of layers was captured."
        return f"{width} is no multiple of the target's hidden size {state}: the features are another model's."

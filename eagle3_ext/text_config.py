"""What the package asks of a target's config, each question in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

DEFAULT_MAX_LENGTH = 4096  # tokens a cache holds where nobody says; long-context targets would take gigabytes


def text_config_of(model: PreTrainedModel) -> PretrainedConfig:
    """The config of the part that writes text: that of a multimodal model's decoder, else the model's own."""
    return model.config.get_text_config(decoder=True)


def max_positions(config: PretrainedConfig) -> int | None:
    """How many positions the target has; None for one without a limit (ALiBi)."""
    return getattr(config, "max_position_embeddings", None)


def default_max_length(config: PretrainedConfig) -> int:
    """Tokens to provide for where nobody says: all positions, at most DEFAULT_MAX_LENGTH."""
    return min(max_positions(config) or DEFAULT_MAX_LENGTH, DEFAULT_MAX_LENGTH)

"""The three errors that mean "these tensors do not belong together". All are `ValueError`s."""


class FeatureWidthError(ValueError):
    """Features (or a hidden state) have another last dimension than the drafter was built for.

    Raised before any kernel runs. The message names the tensor, its width, the expected width and where that comes
    from (the capture plan, or fc.weight), and the likely cause.
    """


class CheckpointError(ValueError):
    """A drafter checkpoint is unusable: unknown, missing, duplicate or misshapen tensors, or contradictory config keys.

    The message lists every problem by tensor name or config key, not only the first one.
    """


class BoundaryError(ValueError):
    """Capture boundaries are out of range, repeated, ambiguous, or were not reached by the target's forward.

    Boundary 0 is the embedding output, boundary i + 1 the output of decoder layer i, boundary n the last layer's output
    before the final norm.
    """

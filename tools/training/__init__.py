"""Stages of the demo drafter's training: the target writes text, its states are captured, the drafter learns from them."""

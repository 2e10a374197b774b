"""Why is acceptance low? Traces, logs and checkpoints in, findings out."""

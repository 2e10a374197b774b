"""Rules over a drafter's checkpoint folder: what the strict loader says, and what engines read differently."""

from __future__ import annotations

import warnings
from pathlib import Path

from ..checkpoint import load_checkpoint
from ..errors import CheckpointError
from .findings import Finding, found

# Switches that at least one serving engine does not implement, and runs without.
SWITCHES = {
    "norm_before_residual": "SGLang 0.5.23 has no code for it",
    "norm_output": "vLLM did not pass it on in some releases",
    "feature_norm": "engines without it skip the norm before fc",
}


def unrecognised_folder(folder: Path) -> str:
    """Why a folder is no checkpoint and what to do, "" for one that has a config or weights."""
    names = sorted(path.name for path in folder.iterdir())
    if "config.json" in names or any(name.endswith((".safetensors", ".bin")) for name in names):
        return ""
    if not names:
        return (
            "the folder is empty; expected a drafter's config.json and *.safetensors. Name the folder the drafter was "
            "downloaded or exported to."
        )
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (
        f"the folder holds {shown}, but no config.json, *.safetensors or *.bin: it is no checkpoint. Logs and traces "
        f"are named themselves: eagle3-ext doctor {folder}/*"
    )


def diagnose_checkpoint(folder: Path) -> tuple[list[Finding], list[str], int | None]:
    """(findings, what was read in words, K*H or None without a fusion) of a drafter's folder."""
    source = str(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checkpoint = load_checkpoint(folder)
    except CheckpointError as error:
        return [found("broken-checkpoint", *str(error).splitlines(), source=source)], [], None
    config = checkpoint.config
    findings = []
    if checkpoint.report:
        findings.append(found("loader-notes", *checkpoint.report, source=source))
    if config.fusion == "fc" and config.boundaries is None:
        line = "no layer ids in the file: engines take the defaults 2, n//2, n-3"
        findings.append(found("untold-boundaries", line, source=source))
    switched = {name: getattr(config, name) for name in SWITCHES if getattr(config, name) not in (False, "none")}
    if switched:
        lines = (f"{name} is {value}: {SWITCHES[name]}" for name, value in switched.items())
        findings.append(found("unusual-switches", *lines, source=source))
    width = config.num_states * config.target_hidden_size
    words = [
        f"fuses {config.num_states} x {config.target_hidden_size} = {width} into {config.hidden_size}"
        + (f"; captures boundaries {', '.join(map(str, config.boundaries))}" if config.boundaries else ""),
        f"trained for {config.max_position_embeddings} positions; drafts from {config.draft_vocab_size} of "
        f"{config.vocab_size} tokens",
        "proves: the file is whole and consistent. Cannot prove: that an engine reads it this way, or that it belongs "
        "to the target it is served with",
    ]
    return findings, words, width if config.fusion == "fc" else None

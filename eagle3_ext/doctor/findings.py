"""A finding: what is wrong, what shows it, what it means, what would confirm or refute it, and what to do.

`CATALOGUE` is the list of everything the doctor can find; the rules in `trace_rules`, `log_rules` and
`checkpoint_rules` only decide whether, and with which evidence.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["fault", "suspect", "note"]
SEVERITIES: tuple[Severity, ...] = ("fault", "suspect", "note")


@dataclass(frozen=True)
class Entry:
    """What the catalogue says about one kind of finding."""

    severity: Severity
    title: str
    meaning: str
    check: str
    action: str


@dataclass(frozen=True)
class Finding:
    """One finding with its evidence.

    Attributes:
        id: a key of `CATALOGUE`.
        severity: "fault" (the data show it), "suspect" (the data fit it, and fit something harmless, too), "note".
        source: the file it was found in.
        evidence: the numbers and lines that show it.
        meaning, check, action: what it means, what would confirm or refute it, what to do.
    """

    id: str
    severity: Severity
    title: str
    source: str
    evidence: tuple[str, ...]
    meaning: str
    check: str
    action: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def found(id: str, *evidence: str, source: str = "", severity: Severity | None = None) -> Finding:
    """The finding `id` of the catalogue with this evidence; `severity` where the evidence is weaker than usual."""
    entry = CATALOGUE[id]
    severity = severity or entry.severity
    return Finding(id, severity, entry.title, source, evidence, entry.meaning, entry.check, entry.action)


def worst_first(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))


_TRACE = (
    "Record the run with EAGLE3_TRACE=run.jsonl (a transformers target) or feed eagle3_ext.doctor.trace.record from "
    "the engine, then run `eagle3-ext doctor run.jsonl`."
)

CATALOGUE: dict[str, Entry] = {
    "one-state-in-extend": Entry(
        "fault",
        "extend gets one hidden state instead of the features",
        "The drafter fuses K states of width H. One state of width H is as wide as what the fusion gives back, so an "
        "engine that fuses only when the width differs skips the fusion in silence. Acceptance falls to about zero.",
        "Width H must come up in draft steps only. In SGLang a run with SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH=1 shows "
        "extend's width in the drafter's forward.",
        "Find where the K states are joined in this phase: capture off after graph capture, a list of one state, or "
        "the recurrent hidden passed to extend.",
    ),
    "sliced-features": Entry(
        "fault",
        "extend gets the first H columns of the features",
        "The K states arrived and were cut to the first one on the way (a buffer or slice sized by H, not K*H).",
        "The state found is the lowest captured boundary, and the forward's own features have the full width.",
        "Look for a buffer, slice or copy between the target's forward and extend that takes its width from "
        "hidden_size.",
    ),
    "eagle-algorithm": Entry(
        "fault",
        "an EAGLE-3 drafter is run as EAGLE",
        "EAGLE captures nothing: the drafter gets the state after the final norm, of width H, in prefill and decode. "
        "The fusion is skipped everywhere and d2t and the drafter's own head may be ignored, too. Accept length is "
        "1.0.",
        "The state found is the final norm's output already in prefill; the start line says EAGLE or NEXTN.",
        "Start with --speculative-algorithm EAGLE3 (vLLM: method eagle3).",
    ),
    "reshaping-linear": Entry(
        "fault",
        "features of a wrong width pass a linear layer that reshapes",
        "A linear layer that views its input as [-1, K*H] takes any tensor whose element count divides: rows are glued "
        "together, fewer rows come out, and the rest of the output is whatever memory held. vLLM's CPU engine does so.",
        "Runs whose rows * width does not divide by K*H fail with a shape error; those that do go on in silence.",
        "Fix the capture (a repeated layer id drops one state in vLLM); check the width before the layer, not inside "
        "it.",
    ),
    "width-mismatch": Entry(
        "fault",
        "features of a width the drafter does not fuse",
        "Another number of states, or another model's states, reach extend.",
        "Width divided by H is the number of states that arrived.",
        "Compare the layers the engine captures with the drafter's plan (print drafter.plan).",
    ),
    "missing-states": Entry(
        "fault",
        "some of the K states are missing",
        "A state is zero in every row, or a boundary was never delivered: its layer id is beyond the loop, on another "
        "pipeline stage, or in a code path without capture.",
        "The norm of the state is exactly 0, or the capture names the boundary that did not arrive.",
        "Count the captured states once per forward; compare the ids with the number of layers.",
    ),
    "repeated-state": Entry(
        "fault",
        "one state stands in several places of the features",
        "The same state fills several slots: a list that holds one tensor K times, or a buffer shared by all captures "
        "and overwritten by the last.",
        "Norms and values of two slots are equal in every row.",
        "Copy each state when it is captured; later layers change the residual stream in place.",
    ),
    "wrong-order": Entry(
        "fault",
        "the states are in the wrong order",
        "All K states arrive, in other slots than those the fusion was trained on. Which pair is swapped decides the "
        "price: from a few percent to everything.",
        "Each slot equals another slot's boundary in the target's own states.",
        "Join states in ascending boundary order, whatever order a file lists.",
    ),
    "shifted-boundary": Entry(
        "fault",
        "every state is taken one layer early or late",
        "The two ways to number layers (the state before layer i, the output of layer i) were mixed up. It costs a few "
        "percent of the acceptance and therefore hides: no acceptance number shows it.",
        "Each slot equals the target's state one boundary away.",
        "Pass explicit boundaries; print the plan and compare it with how the drafter was trained.",
    ),
    "other-boundary": Entry(
        "fault",
        "states are taken from other layers than the plan's",
        "A default list of layers was used instead of the drafter's, or an id means something else here.",
        "The slots equal the target's states at the boundaries named in the evidence.",
        "Check that the file's layer ids are read, and read before graphs are captured.",
    ),
    "normed-states": Entry(
        "fault",
        "states are taken after a norm where the plain residual stream is due",
        "The state went through RMSNorm before it was captured: direction bent by the gain, length lost.",
        "The slots equal the output of the norm that follows the boundary; their norms are far below the stream's.",
        "Capture before the norm. The last entry of transformers' hidden_states is after the final norm.",
    ),
    "unnormed-state": Entry(
        "fault",
        "the state is taken before the final norm where the drafter was trained after it",
        "A drafter without fusion reads the final norm's output; it gets the raw residual stream.",
        "The state equals boundary n of the target, not the final norm's output.",
        "Use a plan with final_norm=True.",
    ),
    "residual-not-added": Entry(
        "fault",
        "only a part of the residual stream is captured",
        "Blocks with a fused add-norm return two tensors, the update and the residual; the state is their sum, and one "
        "of them was taken.",
        "The slots equal the last block's update, or the stream without it.",
        "Capture hidden + residual, after all-reduce.",
    ),
    "unknown-states": Entry(
        "fault",
        "the features are no state of this forward",
        "What reached extend matches no boundary and no row of the target's forward: partial sums of one rank, another "
        "model's states, a reused buffer.",
        "Compare with the witness events of the same round by hand; under tensor parallelism sum the ranks' values.",
        "Follow the tensor from the capture to extend; look for a copy that did not happen before a buffer was reused.",
    ),
    "wrong-rows": Entry(
        "fault",
        "extend gets the features of other rows",
        "The states are right and belong to other positions or other sequences: accepted indices without the block's "
        "offset, one row per request, a block too far, requests in another order.",
        "Each row's features equal the features of the row named in the evidence.",
        "Build row indices from accept lengths and the block width on the device (ops.accepted_rows), requests in "
        "batch order.",
    ),
    "stale-features": Entry(
        "fault",
        "extend gets features of an earlier round",
        "The buffer was not refilled: a copy that is skipped when widths differ, or a graph replayed on old inputs.",
        "The rows' bytes equal rows of an earlier extend, while tokens and positions have moved on.",
        "In SGLang a width mismatch skips the copy into the extend graph's buffer: fix the width, then rerun.",
    ),
    "identical-steps": Entry(
        "note",
        "values repeat from line to line",
        "Either every tensor-parallel rank reports the same replicated tensor, or one buffer is read again unchanged.",
        "Ranks: every value comes exactly as often as there are ranks and the embedding repeats with it. A stale "
        "buffer: the embedding changes and the hidden state does not.",
        "Print the rank and the round with each line, or report from rank 0 only.",
    ),
    "norm-flag-ignored": Entry(
        "fault",
        "the drafter runs with a norm switch that its file does not set",
        "norm_before_residual, norm_output or the features' norm is not what the file says. Shapes do not depend on "
        "it.",
        "Plain PyTorch with the switch turned reproduces the drafts, and as filed it does not.",
        "Read the switch from the file; some engines do not implement all of them.",
    ),
    "wrong-vocabulary-map": Entry(
        "fault",
        "draft ids are mapped to the wrong target ids",
        "d2t holds offsets (target id = i + d2t[i]). Ignored, or read as ids, it turns every draft into another token.",
        "Plain PyTorch with the mistaken map reproduces the drafts.",
        "Make the absolute table once when loading; check that it is distinct and inside the vocabulary.",
    ),
    "drafter-differs": Entry(
        "fault",
        "the drafter does not draft what its weights say",
        "Plain PyTorch, fed the same features, drafts other tokens, and none of the known changes explains it.",
        "Compare hidden states after fusion, attention and MLP with eagle3_ext.reference.Drafter.",
        "Look at weights that were not loaded, RoPE settings, positions, and the cache.",
    ),
    "kept-guesses": Entry(
        "fault",
        "the drafter's cache keeps entries of its own guesses",
        "For accepted drafts the entries made from recurrent hidden stay, instead of being written again from the "
        "target's features. Costs 8 to 15 % of the accept length, so it hides.",
        "An extend runs fewer than a + 1 rows, or starts past the committed position.",
        "After a round that accepted a drafts extend a + 1 rows, over the entries of the draft steps.",
    ),
    "not-finite": Entry(
        "fault",
        "NaN or infinity in the features or in what the drafter makes of them",
        "fp16 overflow in a late layer, uninitialised memory, or a weight that is NaN. A NaN spreads through attention to all later rows.",
        "`Features.check_finite()` names boundary and row; a drafter's weights are checked by isfinite.",
        "Use bf16 for the states; export the drafter again if a weight is NaN; check buffers that are read before they are written.",
    ),
    "past-trained-length": Entry(
        "suspect",
        "positions past the length the drafter was trained for",
        "RoPE angles the drafter has never seen; acceptance falls from there on, or the engine crashes.",
        "Acceptance over position: does it break at the trained length?",
        "Limit speculation to the trained length, or take a drafter trained for longer texts.",
    ),
    "features-only-in-prefill": Entry(
        "suspect",
        "full-width features in prefill lines only, width H ever after",
        "Prefill right, decode wrong: the fault this project began with looks like this. So does a healthy engine "
        "whose extend runs from a CUDA graph: a line does not say its phase, and width H is right in a draft step.",
        "One line of the full width after the first decode lines refutes it. A replayed graph prints nothing: repeat "
        "with SGLANG_DISABLE_DRAFT_EXTEND_CUDA_GRAPH=1 and with forward_mode in the line.",
        _TRACE,
    ),
    "no-features-seen": Entry(
        "suspect",
        "no line of the full width at all",
        "Either the print sits where only draft steps pass, or features never reach the drafter (EAGLE instead of "
        "EAGLE3).",
        "Print in prefill, with forward_mode; look at the start line for --speculative-algorithm.",
        _TRACE,
    ),
    "drafts-useless": Entry(
        "suspect",
        "almost no draft is accepted",
        "Published drafters' first token is accepted at 0.45 to 0.75. Near zero fits a skipped fusion, states in the "
        "wrong order, a wrong vocabulary map, or another target's drafter.",
        "The same prompts through plain PyTorch with the same drafter: near zero there, too, is the drafter's own "
        "fault.",
        _TRACE,
    ),
    "low-acceptance": Entry(
        "suspect",
        "acceptance is lower than drafters of this kind reach",
        "At this level speculation hardly pays or costs. It fits decode without features after a right prefill, a "
        "capture that is half right, a drafter trained for other text or too little.",
        "The same prompts through plain PyTorch with the same drafter: if acceptance is much higher, the engine loses "
        "it.",
        _TRACE,
    ),
    "bonus-counted": Entry(
        "suspect",
        "the accept rate counts the bonus token",
        "This release prints (accepted + 1) / draft tokens. A rate that can never fall below 1 / draft tokens looks "
        "like some acceptance where there is none.",
        "accept length / draft tokens gives the printed rate on every line, (accept length - 1) / drafts on none.",
        "Compute (accept length - 1) / (draft tokens - 1), and compare that with other releases and engines.",
    ),
    "impossible-numbers": Entry(
        "suspect",
        "lines whose numbers contradict each other",
        "A rate above 1, more accepted than drafted, a length that is not the sum of its positions: counts were mixed, "
        "a denominator comes from another setting, or the line was edited or written over. Nothing in such a line is "
        "used here.",
        "Recompute rate and length from the counts the engine exports (its metrics endpoint).",
        "Read the other lines. In SGLang a rate above 1 comes with a right accept length in some releases.",
    ),
    "broken-checkpoint": Entry(
        "fault",
        "the drafter's files are no usable drafter",
        "Engines that drop unknown keys and do not miss absent ones load such a file and draft noise.",
        "Each line names the tensor or key.",
        "Export the drafter again, or take another revision.",
    ),
    "untold-boundaries": Entry(
        "note",
        "the file does not say which layers to capture, or engines read it differently",
        "Layer ids mean a layer's output to some engines and its input to others.",
        "Compare the plan with the drafter's training code; acceptance differs by a few percent only.",
        "Pass boundaries explicitly.",
    ),
    "unusual-switches": Entry(
        "note",
        "the file sets switches that some engines ignore",
        "An engine that does not know the switch runs the drafter without it, in silence.",
        "Look the switch up in the engine's drafter module.",
        "Check with a trace and a drafter witness (doctor.witness.DrafterWitness).",
    ),
    "loader-notes": Entry(
        "note",
        "the loader had to decide something",
        "Config and stored tensors disagree, or tensors were left out.",
        "Each line says what was taken.",
        "Nothing, if the lines are what you expect.",
    ),
    "weak-drafter": Entry(
        "suspect",
        "almost no draft is accepted, and capture is right: suspect the drafter or its target",
        "Every check of this trace passed: the drafter gets what it asks for. It was trained beside another target (or "
        "another revision of it), for other text, on other layers than its file says, or hardly at all.",
        "The model card's target against the one that is served; probe_boundaries measures which layers the weights were "
        "trained on; prompts like the training data.",
        "The drafter of this very target, or fewer speculative tokens.",
    ),
    "falls-after-first-round": Entry(
        "note",
        "the first round of a text accepts, later rounds do not",
        "The first round feeds on prefill's features, the later ones on decode's: the two paths differ.",
        "The extend events of the trace, prefill against decode.",
        "Compare capture and gather of the decode path with prefill's.",
    ),
}

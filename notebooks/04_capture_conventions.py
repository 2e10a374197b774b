# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 04 · Capture conventions: which state, in which order, before or after the norm
#
# **Claim.** "Layer 2" is the input of layer 2 to one engine and its output to another; one joins states in the order of the
# file, another in the order of the layers; one takes them before a norm, another after it. Every one of these runs without an
# error. Some cost everything and some so little that no acceptance number shows them: a plan and a comparison must.

# %% tags=["parameters"]
import os
import sys

PROMPTS = int(os.environ.get("EAGLE3_NB_PROMPTS", "10")) // 2  # many runs: half the prompts of a notebook with few
NEW_TOKENS = int(os.environ.get("EAGLE3_NB_TOKENS", "32"))

# %%
import torch

import eagle3_ext as e3
from eagle3_ext import demo, plot
from eagle3_ext.doctor.trace_rules import diagnose_trace

sys.path.insert(0, os.path.join(os.path.dirname(e3.__file__), "..", "tests"))
from faults import outputs_at, tapped
from loops import Loop

_ = torch.manual_seed(0)
torch.set_num_threads(1)
setup = demo.EmbeddedSetup.load()
prompts = [setup.encode(prompt)[0] for prompt in demo.PROMPTS[:PROMPTS]]
loop = Loop(setup.model, setup.checkpoint, prompts, depth=3, new_tokens=NEW_TOKENS)
print(setup.drafter.plan)

# %% [markdown]
# ## One list, two readings
# The drafter's file says [1, 14, 26] and means layer outputs. Read as boundaries, the same list is one layer early; shifted
# twice, it is one layer late.

# %%
filed = [boundary - 1 for boundary in setup.drafter.plan.boundaries]
readings = {"read as boundaries": filed, "read as outputs": [i + 1 for i in filed], "shifted twice": [i + 2 for i in filed]}
for name, boundaries in readings.items():
    print(f"{name:<20} {e3.CapturePlan(tuple(boundaries), setup.drafter.plan.hidden_size)}")
assert tuple(readings["read as outputs"]) == setup.drafter.plan.boundaries

# %% [markdown]
# ## Neighbours are alike
# How alike are the states at neighbouring boundaries? The cosine to the next boundary, and the norms, over one prompt.

# %%
with torch.no_grad():
    states = setup.model(prompts[0][None], output_hidden_states=True).hidden_states[:-1]
stack = torch.stack([state[0].float() for state in states])
cosine = torch.nn.functional.cosine_similarity(stack[:-1], stack[1:], dim=-1)[:, 1:].mean(-1)
for boundary in setup.drafter.plan.boundaries:
    before, after = cosine[boundary - 1].item(), cosine[boundary].item() if boundary < len(cosine) else float("nan")
    norm = stack[boundary, 1:].norm(dim=-1).mean().item()
    print(f"boundary {boundary:>2}: cosine to the one before {before:.3f}, to the one after {after:.3f}, norm {norm:.0f}")

# %% [markdown]
# ## What each convention costs

# %%
CONVENTIONS = {
    "as filed": (None, ""),
    "one early": (outputs_at(lambda b: [i - 1 for i in b]), "shifted-boundary"),
    "one late": (outputs_at(lambda b: [i + 1 for i in b]), "shifted-boundary"),
    "low and mid swapped": (outputs_at(lambda b: [b[1], b[0], b[2]]), "wrong-order"),
    "reversed": (outputs_at(lambda b: b[::-1]), "wrong-order"),
    "after the next norm": (tapped(lambda layers, b: [layers[i].input_layernorm for i in b]), "normed-states"),
    "without the residual": (tapped(lambda layers, b: [layers[i - 1].mlp for i in b]), "residual-not-added"),
}
stats, named = {}, {}
for name, (fault, _) in CONVENTIONS.items():
    events, stats[name] = loop.run(fault, witness=False)
    named[name] = [finding.id for finding in diagnose_trace(events)]
    rates = [round(rate, 3) for rate in stats[name].acceptance_per_position]
    print(f"{name:<22} accept length {stats[name].accept_length:.2f}, per position {rates}, {named[name]}")

# %%
_ = plot.acceptance_bars(
    {name: stats[name].acceptance_per_position for name in ("one early", "as filed", "one late")}, "Boundary shift: -1, 0, +1"
)

# %%
_ = plot.acceptance_bars(
    {name: stats[name].acceptance_per_position for name in ("as filed", "low and mid swapped", "reversed")}, "Order of the states"
)

# %%
_ = plot.acceptance_bars(
    {name: stats[name].acceptance_per_position for name in ("as filed", "after the next norm", "without the residual")},
    "What is taken at a boundary",
)

# %% [markdown]
# ## The claim, checked
# The comparison with the target's own states names each convention, whatever it costs. Acceptance separates only the total
# ones: the shifts stay within what another set of prompts does.

# %%
for name, (_, expected) in CONVENTIONS.items():
    assert named[name] == ([expected] if expected else []), (name, named[name])
healthy = stats["as filed"].accept_length
total = [stats[name].accept_length for name in ("reversed", "after the next norm", "without the residual")]
hidden = [stats[name].accept_length for name in ("one early", "one late")]
assert max(total) < 1 + 0.5 * (healthy - 1) and max(total) < min(hidden)

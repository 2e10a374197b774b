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
# # 01 · The width that went missing: 7168 instead of 21504
#
# **Claim.** A drafter that fuses three hidden states can be handed one, compute without any error, and be useless. The
# width alone does not tell: h numbers per row are *right* in a draft step (its recurrent hidden) and *wrong* in extend.
# Two doors, one for each phase, make the mistake impossible.

# %% tags=["parameters"]
import os
import sys

PROMPTS = int(os.environ.get("EAGLE3_NB_PROMPTS", "6"))
NEW_TOKENS = int(os.environ.get("EAGLE3_NB_TOKENS", "32"))

# %%
import torch

import eagle3_ext as e3
from eagle3_ext import demo, plot

sys.path.insert(0, os.path.join(os.path.dirname(e3.__file__), "..", "tests"))
from faults import DecodeOnlyFault
from kimi import kimi_shaped_drafter

_ = torch.manual_seed(0)

# %% [markdown]
# ## The silent check
# Engines decide whether to fuse by looking at the width. Kimi-K2.5: H = h = 7168, K = 3.

# %%
H, K = 7168, 3
fc = torch.nn.Linear(K * H, H, bias=False, dtype=torch.bfloat16)


def fuse_by_width(hidden: torch.Tensor, embedding_width: int = H) -> tuple[torch.Tensor, str]:
    if hidden.shape[-1] != embedding_width:
        return fc(hidden), "fc ran"
    return hidden, "fc skipped"


seen = {width: fuse_by_width(torch.randn(1, width, dtype=torch.bfloat16)) for width in (K * H, H)}
for width, (out, what) in seen.items():
    print(f"hidden [1, {width}] -> {list(out.shape)}: {what}")
assert seen[K * H][1] == "fc ran" and seen[H][1] == "fc skipped"
assert seen[K * H][0].shape == seen[H][0].shape, "same output shape: nothing downstream can notice"

# %% [markdown]
# ## What a log line proves
# In a healthy run the drafter's layer sees width 7168 in every draft step. So `[1, 7168]` in a log proves nothing until
# the line says which phase it is from.

# %%
meaning = {
    ("extend", K * H): "right: features of a row the target has verified",
    ("extend", H): "WRONG: one state of three; fc is skipped",
    ("draft step", H): "right: the recurrent hidden of the step before",
}
for (phase, width), verdict in meaning.items():
    print(f"{phase:>10}, width {width:>5}: {verdict}")

# %% [markdown]
# ## Two doors
# `extend` takes features and nothing else. `draft` takes no hidden state at all. This drafter has Kimi-K2.5's widths and
# its boundaries (random weights: shapes are the point here).

# %%
kimi = kimi_shaped_drafter(H, K)
print(kimi.plan)
rows, offsets = torch.arange(1), torch.tensor([0, 1])
try:
    kimi.extend(torch.randn(1, H, dtype=torch.bfloat16), rows, rows, offsets)
    message = ""
except e3.FeatureWidthError as error:
    message = str(error)
print(message)
kimi.extend(torch.randn(1, K * H, dtype=torch.bfloat16), rows, rows, offsets)
draft = kimi.draft(4)
assert "7168" in message and "21504" in message
assert draft.tokens.shape == (1, 4), "four tokens drafted, and no hidden state came in or went out"

# %% [markdown]
# ## What the fault costs, on a real model
# SmolLM2-135M-Instruct, three ways of feeding the same native drafter: true features; prefill right and decode wrong (the
# deployment this project began with); every extend wrong.

# %%
setup = demo.EmbeddedSetup.load()
torch.set_num_threads(1)
prompts = [setup.encode(prompt) for prompt in demo.PROMPTS[:PROMPTS]]
length = max(ids.shape[1] for ids in prompts) + NEW_TOKENS + 4
decode_wrong = DecodeOnlyFault(setup.drafter, setup.checkpoint.weights["fc.weight"])
all_wrong = e3.Drafter.from_checkpoint(demo.skip_fusion(setup.checkpoint), setup.model)
drafters = {"features": setup.drafter, "prefill right, decode wrong": decode_wrong, "every extend wrong": all_wrong}

# %%
stats, texts = {}, {}
for name, drafter in drafters.items():
    decoder = e3.SpeculativeDecoder(setup.target(length, drafter.plan), drafter, num_speculative_tokens=3)
    results = [decoder.generate(ids, max_new_tokens=NEW_TOKENS) for ids in prompts]
    stats[name] = sum((result.stats for result in results[1:]), results[0].stats)
    texts[name] = [result.tokens for result in results]
for name, s in stats.items():
    print(f"{name:>28}: accept length {s.accept_length:.2f}, per position", [round(p, 3) for p in s.acceptance_per_position])

# %%
rates = {name: s.acceptance_per_position for name, s in stats.items()}
_ = plot.acceptance_bars(rates, "The same drafter, fed three ways")

# %% [markdown]
# ## The claim, checked
# The text never changes, whatever the drafter is fed: verification sees to that. Only acceptance tells.

# %%
assert texts["features"] == texts["prefill right, decode wrong"] == texts["every extend wrong"]
assert stats["features"].acceptance_per_position[0] > 0.3
assert stats["every extend wrong"].acceptance_per_position[0] < 0.05
assert stats["prefill right, decode wrong"].accept_length < stats["features"].accept_length - 0.2

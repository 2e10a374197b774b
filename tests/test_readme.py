"""The README's Python runs as written, with the embedded model in place of the paths a reader fills in."""

import re
from pathlib import Path

import pytest
import torch
from embedded import needs_target

from eagle3_ext import smollm2

pytestmark = needs_target
README = Path(__file__).parents[1] / "README.md"
DRAFTER = Path(smollm2.__file__).parent / "demo_drafter"


def python_blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def names() -> dict[str, object]:
    """What the first block leaves behind: the later ones go on from there."""
    model, tokenizer = smollm2.load_target(torch.float32)
    ids = tokenizer.encode(smollm2.chat_prompt("Name the colors of the rainbow."), add_special_tokens=False).ids
    names: dict[str, object] = {"model": model, "prompt": torch.tensor([ids])}
    run_block(0, names)
    return names


def run_block(index: int, names: dict[str, object]) -> None:
    text = python_blocks()[index].replace('"path/to/eagle3-drafter"', repr(str(DRAFTER)))
    exec(compile(text, f"README block {index}", "exec"), names)


def test_decoding(names):
    assert names["drafter"].plan.width == 3 * 576
    assert len(names["result"].tokens) > 20 and names["result"].stats.accept_length > 1.2


def test_a_round_of_a_loop_of_ones_own(names):
    """The round's tokens are those of the decoder, and the drafter has kept exactly the settled rows."""
    names = dict(names)
    run_block(1, names)
    settled = int(names["accept_lengths"])
    expected = names["result"].tokens[: 1 + settled]
    assert [int(names["first"]), *names["choices"][0, :settled].tolist()] == expected
    assert names["drafter"].lengths.tolist() == [names["prompt"].shape[1] + settled]
    assert names["cache"].get_seq_length() == names["prompt"].shape[1] + settled

"""The layer ids of a file, and how its writer meant them: the source of most silent losses of acceptance.

The same list stands for different states in different stacks. Two readings exist: ids that name layer *outputs*
(boundary = id + 1: SpecForge, ModelOpt, AngelSlim, TorchSpec, SGLang) and ids that name *boundaries* (speculators,
vLLM).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .families import Family
from .source import Source

KEY = "eagle_aux_hidden_state_layer_ids"
Reading = Literal["outputs", "boundaries", "ambiguous"]


@dataclass(frozen=True)
class LayerIds:
    """Layer ids as listed, the reading of their writer, and what decided it."""

    listed: tuple[int, ...]
    reading: Reading
    because: str
    key: str = KEY

    def as_outputs(self) -> tuple[int, ...]:
        """Boundaries, ascending, if the ids name layer outputs."""
        return tuple(sorted(i + 1 for i in self.listed))

    def as_boundaries(self) -> tuple[int, ...]:
        """Boundaries, ascending, if the ids name boundaries."""
        return tuple(sorted(self.listed))

    @property
    def boundaries(self) -> tuple[int, ...] | None:
        """What the writer meant; None where that is ambiguous."""
        return {"outputs": self.as_outputs(), "boundaries": self.as_boundaries()}.get(self.reading)

    @property
    def other_reading(self) -> tuple[int, ...]:
        """What the same list means to those who read it the other way."""
        return self.as_outputs() if self.reading == "boundaries" else self.as_boundaries()


def read_layer_ids(source: Source, family: Family, names: tuple[str, ...]) -> LayerIds | None:
    """The file's layer ids with their reading; None where it lists none. `names` are the tensors' as stored."""
    ids = source.said(KEY)
    if ids is None:
        return None
    if ids == []:
        source.note(f"config.json: {KEY} is empty: read as if it were not there")
        return None
    if not isinstance(ids, list) or not all(type(i) is int and i >= -1 for i in ids):
        source.problem(f"config.json: {KEY} is {ids!r}; expected distinct layer indices")
        return None
    repeated = sorted({i for i in ids if ids.count(i) > 1})
    if repeated:
        source.problem(f"config.json: {KEY} is {ids!r}; {', '.join(map(str, repeated))} is listed more than once")
        return None
    if ids != sorted(ids):
        source.note(f"config.json lists layer ids {ids}; states are captured in ascending order")
    return LayerIds(tuple(ids), *_reading(source, family, tuple(ids), names))


def _reading(source: Source, family: Family, ids: tuple[int, ...], names: tuple[str, ...]) -> tuple[Reading, str]:
    if family.name == "speculators":
        return "boundaries", "speculators lists boundaries"
    if family.name.startswith("speculators"):
        return "ambiguous", ("an Eagle3Speculator file is either speculators' own (boundaries) or converted with the "
                             "ids of another stack (outputs)")
    kimi = "kimi" in str(source.raw.get("model_type"))
    if kimi and family.name == "TorchSpec" and any(name.startswith("layers.") for name in names):
        return "boundaries", "TorchSpec's export for vLLM adds 1 to the ids of kimi models"
    if kimi and family.name.startswith("ModelOpt MLA") and ids[0] != 1:
        return "ambiguous", ("a kimi MLA file without _torchspec_version is either ModelOpt's (outputs) or TorchSpec's "
                             "export for vLLM (boundaries)")
    return "outputs", f"{family.name} lists layer outputs"

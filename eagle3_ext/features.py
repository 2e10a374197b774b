"""From the target's layers to the drafter's features: the packed buffer, and the hooks that fill it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from .doctor import trace
from .errors import BoundaryError, FeatureWidthError
from .plan import CapturePlan, boundary_name
from .text_config import text_config_of
from .turns import ModelTurn, here_only, model_turn


class Features:
    """The packed [rows, K*H] buffer that one target forward fills, and the bookkeeping that makes stale rows an error.

    Row b*T + t holds position t of sequence b. Every forward starts a new generation and forgets the rows before it,
    except in append mode (`append=True`, for chunked prefill): then rows accumulate until `reset()`.

    Attributes:
        plan: the capture plan the layout comes from.
        generation: counts forwards; a features row is only valid within the generation that wrote it.
        append: whether the next forward adds rows instead of replacing them.
    """

    def __init__(self, plan: CapturePlan, *, device: torch.device | str | None = None, append: bool = False):
        """The buffer takes the dtype of the captured states, and their device unless `device` names another."""
        self.plan = plan
        self.generation = 0
        self.append = append
        self._device = None if device is None else torch.device(device)
        self._buffer: torch.Tensor | None = None
        self._first_row = 0  # where the current forward's rows begin
        self._end_row = 0
        self._arrived: set[int] = set()

    @property
    def rows(self) -> int:
        """How many rows this generation holds."""
        return self._end_row

    def reset(self) -> None:
        """Forgets every row, also in append mode."""
        self._first_row = self._end_row = 0
        self._arrived.clear()

    def begin_forward(self) -> None:
        """Starts a generation. The capture hooks call this before the first layer of every forward."""
        if self.append and self._end_row:
            self._require_complete()
        self.generation += 1
        self._first_row = self._end_row if self.append else 0
        self._end_row = self._first_row
        self._arrived.clear()

    def write(self, slot: int, hidden: torch.Tensor, residual: torch.Tensor | None = None) -> None:
        """Copies one captured state, hidden (+ residual) [..., H], into columns slot*H .. (slot+1)*H of this forward's
        rows.

        Raises FeatureWidthError for another width than H, or another number of rows than the forward's first state.
        """
        name = boundary_name(self.plan.boundaries[slot])
        if hidden.shape[-1] != self.plan.hidden_size:
            raise FeatureWidthError(
                f"{name} has width {hidden.shape[-1]}; the plan expects {self.plan.hidden_size} "
                f"({self.plan.describe()})"
            )
        state = hidden.detach().reshape(-1, self.plan.hidden_size)
        first_rows = self._end_row - self._first_row
        if self._arrived and state.shape[0] != first_rows:
            raise FeatureWidthError(
                f"{name} has {state.shape[0]} rows; the first state of this forward had {first_rows}"
            )
        self._end_row = self._first_row + state.shape[0]
        buffer = self._reserve(self._end_row, state)
        if residual is not None:
            residual = residual.detach().reshape(state.shape).to(buffer.device)
        torch.ops.eagle3_ext.capture_(buffer[self._first_row : self._end_row], slot, state.to(buffer.device), residual)
        self._arrived.add(slot)

    @property
    def tensor(self) -> torch.Tensor:
        """[rows, K*H], a view that is valid until the next forward. Raises BoundaryError while a state is missing."""
        self._require_complete()
        return self._buffer[: self._end_row]

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of this generation, int32 or int64 [m] -> [m, K*H]; -1 is padding and gives zeros.

        Raises IndexError for any other row that this generation did not write. On CUDA that check would synchronise, so
        there the caller vouches for `rows` (`accepted_rows` of this forward is always in range).
        """
        features = self.tensor
        if rows.device.type == "cpu" and rows.numel():
            low, high = (int(extreme) for extreme in torch.aminmax(rows))
            if low < -1 or high >= self._end_row:
                wrong = low if low < -1 else high
                raise IndexError(
                    f"features row {wrong} was not written by this forward (generation {self.generation} holds rows 0 "
                    f"to {self._end_row - 1}; -1 is padding): the row is stale or belongs to another forward"
                )
        return torch.ops.eagle3_ext.gather_concat([features], rows.to(features.device), check=False)

    def check_finite(self) -> None:
        """Raises ValueError naming the first row and boundary that hold a NaN or an infinity. Synchronises."""
        states = self.tensor.view(self._end_row, len(self.plan.boundaries), self.plan.hidden_size)
        bad = (~states.isfinite()).any(dim=-1).nonzero()
        if bad.shape[0]:
            row, slot = bad[0].tolist()
            boundary = self.plan.boundaries[slot]
            raise ValueError(
                f"features row {row} is not finite at boundary {boundary} ({boundary_name(boundary)}); "
                f"{bad.shape[0]} of {self._end_row * len(self.plan.boundaries)} states are affected"
            )

    def _reserve(self, rows: int, state: torch.Tensor) -> torch.Tensor:
        device, old = self._device or state.device, self._buffer
        if self._arrived:  # the forward's first state fixed the rows, dtype and device; capture_ refuses others
            return old
        if old is None or old.shape[0] < rows or old.dtype != state.dtype or old.device != device:
            # Doubling keeps chunked prefill linear. A buffer born in inference mode could not be written outside of it.
            capacity = rows if old is None else max(rows, 2 * old.shape[0])
            with torch.inference_mode(False):
                self._buffer = torch.empty(capacity, self.plan.width, dtype=state.dtype, device=device)
                if self._first_row:  # chunks of earlier forwards
                    self._buffer[: self._first_row].copy_(old[: self._first_row])
        return self._buffer

    def _require_complete(self) -> None:
        missing = [b for slot, b in enumerate(self.plan.boundaries) if slot not in self._arrived]
        if not missing:
            return
        if not self._arrived:
            plan = self.plan.describe()
            raise BoundaryError(f"the features hold no forward yet ({plan}): run the target under capture")
        names = ", ".join(f"boundary {boundary} ({boundary_name(boundary)})" for boundary in missing)
        raise BoundaryError(f"the last forward (generation {self.generation}) did not deliver {names}")


class CaptureHooks:
    """Where a transformers causal LM is tapped for a plan. Found once, attached as often as needed.

    The decoder layers are recognised by structure: the shallowest `ModuleList` below the text decoder that has as many
    entries as the text config has layers. The module that owns it is the decoder: its forward starts a generation, and
    its first output is the state after the final norm.

    Raises BoundaryError when there is no such list, or when the plan does not fit the model.
    """

    def __init__(self, model: torch.nn.Module, plan: CapturePlan):
        self.plan = plan
        self.decoder, self.layers = _find_decoder(model)
        num_layers = len(self.layers)
        if plan.boundaries[-1] > num_layers:
            raise BoundaryError(
                f"boundary {plan.boundaries[-1]} is beyond the target's {num_layers} layers ({plan.describe()})"
            )
        if plan.final_norm and plan.boundaries != (num_layers,):
            raise BoundaryError(f"final_norm needs boundaries ({num_layers},), the plan has {plan.boundaries}")

    @contextmanager
    def attach(self, features: Features) -> Iterator[Features]:
        """Every forward of the model that this thread runs inside the block fills `features`."""
        with ExitStack() as stack:

            def tap(handle: torch.utils.hooks.RemovableHandle) -> None:
                stack.callback(handle.remove)

            tap(self.decoder.register_forward_pre_hook(here_only(lambda *_: features.begin_forward())))
            for slot, boundary in enumerate(self.plan.boundaries):
                if boundary == 0:
                    write = here_only(_input_writer(features, slot))
                    tap(self.layers[0].register_forward_pre_hook(write, with_kwargs=True))
                else:
                    source = self.decoder if self.plan.final_norm else self.layers[boundary - 1]
                    tap(source.register_forward_hook(here_only(_output_writer(features, slot))))
            if trace.active is not None:
                stack.enter_context(trace.active.watch(self.decoder, self.layers, features))
            yield features


@contextmanager
def capture(
    model: torch.nn.Module, plan: CapturePlan, *, device: torch.device | str | None = None, append: bool = False
) -> Iterator[Features]:
    """Captures the plan's states of every forward of `model` inside the block into one packed buffer.

    `model` is any transformers causal LM. `device` is where the features go, for a model whose layers lie on several: the
    drafter's. The features stay readable after the block. See `Features`, `CaptureHooks`.

    The block belongs to the thread that opens it: RuntimeError, before anything runs, for another thread that runs the
    model or captures it meanwhile.
    """
    hooks, turn = CaptureHooks(model, plan), model_turn(model)
    with turn.capture(model), _guarded(model, hooks.decoder, turn):
        with hooks.attach(Features(plan, device=device, append=append)) as features:
            yield features


@contextmanager
def _guarded(model: torch.nn.Module, decoder: torch.nn.Module, turn: ModelTurn) -> Iterator[None]:
    """Both doors into the model ask whose it is, the whole model's before anything of it has run."""

    def ask(*_) -> None:
        if not torch.compiler.is_compiling():
            turn.check(model)

    with ExitStack() as stack:
        for door in {door for door in (model, decoder) if isinstance(door, torch.nn.Module)}:
            stack.callback(door.register_forward_pre_hook(ask, prepend=True).remove)
        yield


def _find_decoder(model: torch.nn.Module) -> tuple[torch.nn.Module, torch.nn.ModuleList]:
    text_config = text_config_of(model)
    root = model.get_decoder() if hasattr(model, "get_decoder") else model
    lists = {name: module for name, module in root.named_modules() if isinstance(module, torch.nn.ModuleList)}
    fitting = [name for name, module in lists.items() if len(module) == text_config.num_hidden_layers]
    if not fitting:
        found = ", ".join(f"{name} ({len(module)})" for name, module in lists.items()) or "none"
        raise BoundaryError(
            f"no decoder layers to capture from: {type(model).__name__} has no ModuleList of "
            f"{text_config.num_hidden_layers} layers (config.num_hidden_layers); ModuleLists found: {found}"
        )
    name = min(fitting, key=lambda name: name.count("."))
    return root.get_submodule(name.rpartition(".")[0]), lists[name]


def _input_writer(features: Features, slot: int):
    def write(_module, args, kwargs):
        features.write(slot, args[0] if args else kwargs["hidden_states"])

    return write


def _output_writer(features: Features, slot: int):
    def write(_module, _args, output):
        if isinstance(output, torch.Tensor):
            features.write(slot, output)
            return
        # Layers with a fused add-norm return (hidden, residual), whose sum is the stream. Nothing else a layer returns
        # beside its hidden state, such as attention weights or a cache, has its shape.
        hidden, beside = output[0], output[1] if len(output) > 1 else None
        is_residual = isinstance(beside, torch.Tensor) and beside.shape == hidden.shape
        features.write(slot, hidden, beside if is_residual else None)

    return write

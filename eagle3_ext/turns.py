"""Turns among threads: what holds one text serves one thread at a time, and so does a model for one forward.

Locks are taken in one order, so that no two threads wait for each other: trace, decoder, target, drafter, model.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from weakref import WeakKeyDictionary

import torch


class Turn:
    """The right to use one object. `with turn:` waits for it, `with turn.claim():` takes it at once or not at all.

    A thread that has it may take it again. Which thread made the object does not matter, only that two use it together.
    """

    def __init__(self, what: str):
        self._what = what
        self._lock = threading.RLock()
        self._holder = ""

    def __enter__(self) -> None:
        self._lock.acquire()
        self._holder = threading.current_thread().name

    def __exit__(self, _type: type | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self._lock.release()

    @contextmanager
    def claim(self) -> Iterator[None]:
        """For one call from outside of a text. Raises RuntimeError while another thread has the turn."""
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                f"this {self._what} is in use by thread {self._holder}: it holds one text at a time. Let a "
                f"SpeculativeDecoder serve the threads in turn, or give each thread a {self._what} of its own"
            )
        try:
            self._holder = threading.current_thread().name
            yield
        finally:
            self._lock.release()


def served_alone(method: Callable) -> Callable:
    """The method of an object with a `turn`, claimed for each call."""

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        with self.turn.claim():
            return method(self, *args, **kwargs)

    return call


class ModelTurn:
    """Who may run a model: one `TransformersTarget` at a time, and during a capture block its thread alone.

    Hooks, replaced linears and the attention switch belong to the model, whichever thread put them there.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # Open capture blocks. Single operations of a dict need no lock, and a garbage collection may close a block in
        # any thread, which must not wait for one there.
        self._blocks: dict[object, threading.Thread] = {}

    @contextmanager
    def forward(self, model: torch.nn.Module) -> Iterator[None]:
        """For one forward of a target; waits for other targets'. Raises what `check` raises."""
        with self._lock:
            self.check(model)
            yield

    @contextmanager
    def capture(self, model: torch.nn.Module) -> Iterator[None]:
        """For a capture block; waits for the end of a target's forward. Raises what `check` raises."""
        block = object()
        with self._lock:
            self.check(model)
            self._blocks[block] = threading.current_thread()
        try:
            yield
        finally:
            self._blocks.pop(block, None)

    def check(self, model: torch.nn.Module) -> None:
        """Raises RuntimeError when another thread captures the model: the rows of both would be mixed."""
        here = threading.current_thread()
        for owner in tuple(self._blocks.values()):
            if owner is not here:
                raise RuntimeError(
                    f"{type(model).__name__} is being captured by thread {owner.name}, and thread {here.name} wants to "
                    "run it: the rows of both would be mixed. Run it in the thread that opened e3.capture, or when "
                    "that block has ended"
                )


def here_only(hook: Callable) -> Callable:
    """A module's hook for the forwards of this thread: those of others, under way since before, pass it by."""
    owner = threading.current_thread()

    def here(*args, **kwargs):
        # What torch.compile traces cannot ask for its thread.
        if torch.compiler.is_compiling() or threading.current_thread() is owner:
            return hook(*args, **kwargs)

    return here


_models: WeakKeyDictionary[torch.nn.Module, ModelTurn] = WeakKeyDictionary()
_models_lock = threading.RLock()


def model_turn(model: torch.nn.Module) -> ModelTurn:
    """The model's turn; wrappers and heads around the same decoder share it."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    with _models_lock:
        if decoder not in _models:
            _models[decoder] = ModelTurn()
        return _models[decoder]

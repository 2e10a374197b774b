"""CUDA graphs and streams: a captured round follows new inputs in its buffers, a drafter drafts the same with and
without graphs, and nothing is launched on another stream than the caller's.

On the emulator a replay is the same calls again over the same buffers, which is what a graph does, and there is one
stream.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from eagle3_ext import ops
from eagle3_ext.bench.measure import Meter

from .devices import Findings, main, require
from .drafters import STEPS, inputs_of, rounds_of, small_drafter

WIDTH, STATES, BATCH, ROWS = 64, 3, 4, 5
ROUNDS = ((4, 6), (2, 1), (0, 3), (5, 0), (1, 1))  # rows of both sequences; 0: it sleeps for a round


class Round:
    """The hidden path of a round and the choice of its tokens, from buffers to buffers, as a graph holds it."""

    def __init__(self, device: str) -> None:
        self.draft = torch.zeros(BATCH, ROWS - 1, dtype=torch.int64, device=device)
        self.target = torch.zeros(BATCH, ROWS, dtype=torch.int64, device=device)
        self.states = [torch.zeros(BATCH * ROWS, WIDTH, device=device) for _ in range(STATES)]
        self.logits = torch.zeros(BATCH, 1000, device=device)
        self.features = torch.zeros(BATCH * ROWS, STATES * WIDTH, device=device)
        self.lengths = torch.zeros(BATCH, dtype=torch.int64, device=device)
        self.tokens = torch.zeros(BATCH, dtype=torch.int64, device=device)

    def run(self) -> None:
        lengths, _ = ops.verify_greedy(self.draft, self.target)
        rows, _ = ops.accepted_rows(lengths, ROWS)
        ops.gather_concat(self.states, rows, out=self.features, check=False)
        self.lengths.copy_(lengths)
        self.tokens.copy_(ops.argmax_tokens(self.logits)[0])

    def fill(self, generator: torch.Generator) -> None:
        for tokens in (self.draft, self.target):
            tokens.copy_(torch.randint(2, tokens.shape, generator=generator))
        for values in (*self.states, self.logits):
            values.copy_(torch.randn(values.shape, generator=generator))

    def take(self, other: Round) -> None:
        """The other's inputs."""
        for mine, theirs in zip(self._inputs(), other._inputs()):
            mine.copy_(theirs)

    def _inputs(self) -> list[Tensor]:
        return [self.draft, self.target, *self.states, self.logits]

    def expected(self) -> tuple[Tensor, Tensor, Tensor]:
        """lengths, features and tokens in plain PyTorch on the CPU."""
        draft, target, logits = (t.cpu() for t in (self.draft, self.target, self.logits))
        lengths = 1 + (draft == target[:, :-1]).cumprod(1).sum(1)
        rows = (torch.arange(ROWS) < lengths[:, None]).flatten().nonzero()[:, 0]
        features = torch.zeros(BATCH * ROWS, STATES * WIDTH)
        features[: len(rows)] = torch.cat([state.cpu()[rows] for state in self.states], 1)
        return lengths, features, logits.argmax(1)


def check_ops(device: str, graphed: Callable[[Callable[[], object]], Callable[[], object]]) -> str:
    generator = torch.Generator().manual_seed(1)
    held = Round(device)
    replay = graphed(held.run)
    seen = set()
    for number in range(6):
        held.fill(generator)
        replay()
        lengths, features, tokens = held.expected()
        require(torch.equal(held.lengths.cpu(), lengths), f"replay {number}: accept lengths do not follow the inputs")
        require(torch.equal(held.features.cpu(), features), f"replay {number}: features do not follow the inputs")
        require(torch.equal(held.tokens.cpu(), tokens), f"replay {number}: tokens do not follow the inputs")
        seen.add(tuple(lengths.tolist()))
    require(len(seen) > 1, "the inputs did not change")
    return "6 replays of one capture follow new inputs"


# Called with what makes the inputs and what reads them: runs both, in that order for all that a stream promises.
Queue = Callable[[Callable[[], object], Callable[[], object]], None]


def behind_a_slow_producer(produce: Callable[[], object], consume: Callable[[], object]) -> None:
    """On a stream that is not the default one, and reaches `produce` late: a launch elsewhere reads what was before."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        consume()  # loads and allocates what it needs, which may wait for the GPU
        torch.cuda._sleep(400_000_000)  # cycles: about 0.2 s
        produce()
        produced = side.record_event()
        consume()
    late = not produced.query()
    side.synchronize()
    require(late, "the producer was done before all was launched: this shows nothing")


def at_once(produce: Callable[[], object], consume: Callable[[], object]) -> None:
    for call in (consume, produce, consume):
        call()


def check_ops_stream(device: str, queue: Queue) -> str:
    generator = torch.Generator().manual_seed(2)
    held, fresh = Round(device), Round(device)
    for each in (held, fresh):
        each.fill(generator)
    queue(lambda: held.take(fresh), held.run)
    lengths, features, tokens = held.expected()
    found = (("lengths", held.lengths, lengths), ("features", held.features, features), ("tokens", held.tokens, tokens))
    for name, mine, wanted in found:
        require(torch.equal(mine.cpu(), wanted), f"ops did not wait for their stream: {name} are those of older inputs")
    return "ops wait for their inputs on a stream that is not the default one"


def check_drafter_stream(device: str, queue: Queue) -> str:
    plain, streamed = small_drafter(device), small_drafter(device)
    (fresh,) = inputs_of(plain.dtype, device, ROUNDS[:1])
    plain.extend(**fresh)
    expected = plain.draft(STEPS).tokens.cpu()
    held, drafts = {name: torch.zeros_like(value) for name, value in fresh.items()}, []

    def produce() -> None:
        for name, value in held.items():
            value.copy_(fresh[name])

    def consume() -> None:
        streamed.reset()
        streamed.extend(**held)
        drafts.append(streamed.draft(STEPS).tokens)

    queue(produce, consume)
    found = drafts[-1].cpu()
    require(torch.equal(found, expected), f"the drafter did not wait for its stream: {found.tolist()}")
    return "the drafter waits for its inputs on a stream that is not the default one"


def check_drafter(device: str, dtype: torch.dtype) -> str:
    plain, graphed = small_drafter(device, dtype), small_drafter(device, dtype, cuda_graphs=device == "cuda")
    drafts = set()
    for number, (a, b) in enumerate(zip(rounds_of(plain, device, ROUNDS), rounds_of(graphed, device, ROUNDS))):
        require(torch.equal(a, b), f"round {number}: with graphs the drafter drafts {b.tolist()}, without {a.tolist()}")
        for sequence, rows in enumerate(ROUNDS[number]):
            require(bool((a[sequence] == -1).all()) == (rows == 0), f"round {number}: a sleeping sequence drafts")
        drafts.add(str(a.tolist()))
    require(len(drafts) == len(ROUNDS), "the drafts did not change with their inputs")
    return f"{len(ROUNDS)} rounds, {dtype}: the same tokens with and without graphs"


def check(backend: str, device: str) -> Findings:
    meter = Meter(device)
    findings: Findings = {"ops": check_ops(device, lambda call: meter.graphed(call, 1))}
    for dtype in (torch.float32, torch.bfloat16):
        findings[f"drafter, {dtype}"] = check_drafter(device, dtype)
    queue = behind_a_slow_producer if device == "cuda" else at_once
    findings["ops on a stream"] = check_ops_stream(device, queue)
    findings["drafter on a stream"] = check_drafter_stream(device, queue)
    return findings


if __name__ == "__main__":
    main(check, __doc__)

"""CUDA graphs: the kernels of a part of a step are recorded once, and then started by one call.

Python starts a kernel in 10 to 20 us, and most kernels of a small batch take less: without graphs a fast GPU waits for
Python for most of a step (docs/hardware.md has figures). A part is recorded for each set of shapes; the recording reads
and writes the same memory each time. Recipes are pure functions of tensors, and draw random numbers on the device
alone, so that a replay computes what Python would have computed.

Source: "Accelerating PyTorch with CUDA Graphs" (Nguyen et al. 2021); the notes of torch on CUDA semantics.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from fusionray.errors import first_line
from fusionray.training.engine.batches.microbatching import MicroBatch
from fusionray.training.engine.memory import is_out_of_memory
from fusionray.training.timing.step_timer import StepTimer
from fusionray.types import Batch

ResultT = TypeVar("ResultT")
# Before a part is recorded, libraries must have chosen their algorithms and compilers must have compiled.
WARM_UPS = 2
# Kernels that add in any order differ by far less, wrong inputs, random numbers or memory by far more.
TOLERANCE = 0.05
# Each recording keeps the memory of its results. Shapes beyond these, which no usual run has, stay without.
MOST_RECORDINGS = 32


class Recorder(Protocol):
    """What records on a device; tests have one that needs no GPU."""

    def warm_up(self, compute: Callable[[], ResultT]) -> ResultT:
        """Compute as a recording will."""

    def record(self, compute: Callable[[], ResultT]) -> tuple[ResultT, Callable[[], None]]:
        """Record without computing; return the results, whose values each call of the function makes anew."""


class CudaRecorder:
    """Record on a stream of its own, into memory that all recordings of a run share."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Warm-ups too: what autograd keeps of a parameter belongs to the stream that first used it.
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # What a recording leaves is kept alive, so they may share the rest, whatever the order in which they replay.
        self.pool = torch.cuda.graph_pool_handle()

    def warm_up(self, compute: Callable[[], ResultT]) -> ResultT:
        present = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(present)
        with torch.cuda.stream(self.stream):
            result = compute()
        present.wait_stream(self.stream)
        return result

    def record(self, compute: Callable[[], ResultT]) -> tuple[ResultT, Callable[[], None]]:
        graph = torch.cuda.CUDAGraph()
        # Other threads, which copy batches or watch NCCL, may use the device meanwhile.
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            result = compute()
        return result, graph.replay


@dataclass(frozen=True)
class Part(Generic[ResultT]):
    """A part of a step.

    `compute` makes results from micro-batches, which it does not change, and leaves gradients of `parameters`. `seed`
    seeds torch for it, by another seed for each salt; `undo` takes back what else it changed. `is_first`: its
    micro-batches come from no other part.
    """

    name: str
    compute: Callable[[Sequence[MicroBatch]], ResultT]
    seed: Callable[[str], None]
    undo: Callable[[], None]
    parameters: Sequence[nn.Parameter] = ()
    is_first: bool = False

    def gradients(self) -> list[Tensor | None]:
        """Return the gradients that are there now."""
        return [parameter.grad for parameter in self.parameters]


@dataclass(frozen=True)
class Recording:
    """A recorded part: the tensors that it reads, what it returns, and the gradients that it leaves."""

    inputs: list[Tensor]
    result: Any
    gradients: list[Tensor | None]
    replay: Callable[[], None]


class GraphCache:
    """The recordings of an engine; parts whose shapes are new run without.

    A recording is checked once: replayed with other random numbers than it was recorded with, it has to give what the
    part itself gives with those. If it does not, or cannot be made, the engine goes on without and says so.
    """

    def __init__(self, recorder: Recorder, timer: StepTimer, tell: Callable[[str], None]) -> None:
        """`tell`: called with messages for the user."""
        self.recorder = recorder
        self.timer = timer
        self.tell = tell
        self.runs: Counter[Hashable] = Counter()
        self.recordings: dict[Hashable, Recording] = {}
        self.is_paused = False

    def run(self, part: Part[ResultT], micros: Sequence[MicroBatch]) -> ResultT:
        """Return what a part computes from micro-batches, and leave the gradients that it leaves.

        The results of a recorded part are overwritten by its next replay.
        """
        key = (part.name, *map(describe, micros))
        recording = self.recordings.get(key)
        if recording is None and not self.is_paused:
            self.runs[key] += 1
            if self.runs[key] > WARM_UPS and len(self.recordings) < MOST_RECORDINGS:
                recording = self.try_to_record(part, micros)
        part.seed("")
        if self.is_paused:
            return part.compute(micros)
        if recording is None:
            return self.compute(part, micros)
        self.recordings[key] = recording
        with self.timer.part("graphs"):
            for kept, given in zip(recording.inputs, list_tensors(micros), strict=True):
                if kept.data_ptr() != given.data_ptr():
                    kept.copy_(given)
            recording.replay()
        for parameter, gradient in zip(part.parameters, recording.gradients, strict=True):
            parameter.grad = gradient
        result: ResultT = recording.result
        return result

    def compute(self, part: Part[ResultT], micros: Sequence[MicroBatch]) -> ResultT:
        """Compute a part as its recording will."""
        try:
            return self.recorder.warm_up(lambda: part.compute(micros))
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                # The caller goes on with smaller parts, and needs the memory of these.
                self.clear()
            raise

    def try_to_record(self, part: Part[Any], micros: Sequence[MicroBatch]) -> Recording | None:
        """Record and check a part; None if that fails: then there are no recordings any more."""
        if part.is_first:
            # A recording reads where it read, and that memory, which may be a view, is the caller's.
            micros = [replace(micro, batch=micro.batch.map(Tensor.clone)) for micro in micros]
        part.seed("check")
        wanted = measured(self.compute(part, micros), part.gradients())
        part.undo()
        try:
            recording = self.record(part, micros)
            part.seed("check")
            recording.replay()
            found = measured(recording.result, recording.gradients)
            part.undo()
        except (RuntimeError, MemoryError) as error:
            self.give_up(f"'{part.name}' cannot be recorded as a CUDA graph ({first_line(error)})")
            return None
        if difference(wanted, found) > TOLERANCE:
            self.give_up(f"'{part.name}' differs by {difference(wanted, found):.0%} when replayed as a CUDA graph")
            return None
        return recording

    def record(self, part: Part[Any], micros: Sequence[MicroBatch]) -> Recording:
        """Record a part, which reads the tensors of `micros` where they are now."""
        # Time stamps would become part of the recording.
        with self.timer.stopped():
            result, replay = self.recorder.record(lambda: part.compute(micros))
        return Recording(list_tensors(micros), result, part.gradients(), replay)

    def give_up(self, problem: str) -> None:
        """Go on without recordings."""
        self.is_paused = True
        self.clear()
        self.tell(f"{problem}: continuing without; engine.cuda_graphs=false says so from the start")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Run parts without recordings, such as those that only try a batch size."""
        former, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = former

    def clear(self) -> None:
        """Forget all recordings, and free their memory."""
        self.recordings.clear()
        self.runs.clear()


def measured(result: Any, gradients: Iterable[Tensor | None]) -> list[Tensor]:
    """Copy what is compared: all floating-point values of a result, and all gradients, flat, float32."""
    groups = (list_results(result), [gradient for gradient in gradients if gradient is not None])
    return [
        torch.cat([value.detach().flatten().float() for value in values])
        for group in groups
        if (values := [value for value in group if value.is_floating_point()])
    ]


def difference(wanted: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    """Return the largest distance of two vectors, relative to the wanted one; values that overflowed do not count."""
    distances = [0.0]
    for one, other in zip(wanted, found, strict=True):
        known = one.isfinite()
        length = torch.where(known, one, 0.0).norm().clamp_min(1e-12)
        distance = float(torch.where(known, one - other, 0.0).norm() / length)
        distances.append(math.inf if math.isnan(distance) else distance)
    return max(distances)


def describe(micro: MicroBatch) -> Hashable:
    """Describe what a recording depends on: the shapes and dtypes of a micro-batch, its weight, its flags."""
    shared = tuple((name, describe_value(value)) for name, value in sorted(micro.shared.items()))
    return describe_value(micro.batch), micro.weight, shared


def describe_value(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, Batch):
        return type(value), *(describe_value(getattr(value, field.name)) for field in fields(value))
    flag: Hashable = value
    return flag


def list_tensors(micros: Iterable[MicroBatch]) -> list[Tensor]:
    """List the tensors of micro-batches in a fixed order."""
    found: list[Tensor] = []

    def add(value: Tensor) -> Tensor:
        found.append(value)
        return value

    for micro in micros:
        micro.batch.map(add)
        found.extend(value for _, value in sorted(micro.shared.items()))
    return found


def list_results(value: Any) -> list[Tensor]:
    """List the tensors of what a part returns."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, MicroBatch):
        return list_tensors([value])
    if isinstance(value, Mapping):
        value = list(value.values())
    return [tensor for part in value for tensor in list_results(part)]

"""Recordings of a step's parts, with a recorder that computes again where a GPU would replay kernels."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fusionray.training.config import EngineConfig
from fusionray.training.engine.batches.microbatching import MicroBatch
from fusionray.training.engine.cuda_graphs import WARM_UPS, GraphCache, Part, list_results
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.state import state_tensors
from tests.support.tiny_fusion import build_config, build_pairs, build_recipe
from tests.support.toy_recipe import ToyRecipe, draw_numbers

CPU = torch.device("cpu")


class Rerunner:
    """Replay by computing again, from the same tensors into the same tensors."""

    def __init__(self, parameters: Callable[[], list[Tensor]] = list) -> None:
        self.parameters = parameters
        self.recorded = self.replayed = 0

    def warm_up(self, compute: Callable[[], Any]) -> Any:
        return compute()

    def record(self, compute: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        self.recorded += 1
        with torch.random.fork_rng(devices=[]):
            result = compute()
        kept = [*list_results(result), *self.gradients()]
        # Recording computes nothing: no value of a loss or a gradient is there yet. What the batch holds was given.
        for tensor in [*list_results(result[1] if isinstance(result, tuple) else []), *self.gradients()]:
            tensor.detach().fill_(torch.nan)

        def replay() -> None:
            self.replayed += 1
            for old, new in zip(kept, [*list_results(compute()), *self.gradients()], strict=True):
                old.detach().copy_(new.detach())

        return result, replay

    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters() if parameter.grad is not None]


def with_graphs(engine: Engine) -> Rerunner:
    recorder = Rerunner(lambda: [value for network in engine.networks.values() for value in network.parameters()])
    engine.passes.graphs = GraphCache(recorder, engine.step_timer, engine.notes.append)
    return recorder


def build_toy(**settings: Any) -> Engine:
    config = EngineConfig(**{"global_batch": 16, "precision": "fp32", **settings})
    return Engine(ToyRecipe("adamw"), config, total_images=1600, device=CPU)


def build_fusion(**settings: Any) -> Engine:
    config = EngineConfig(**{"global_batch": 4, "precision": "fp32", **settings})
    torch.manual_seed(0)
    return Engine(build_recipe(build_config()), config, total_images=1600, device=CPU)


def assert_same_state(one: Engine, other: Engine) -> None:
    for name, value in state_tensors(one).items():
        torch.testing.assert_close(value, state_tensors(other)[name], rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("batch_size", [None, 4])
def test_replayed_steps_are_equal_to_computed_ones_bit_for_bit(batch_size: int | None) -> None:
    plain, graphed = build_toy(batch_size=batch_size), build_toy(batch_size=batch_size)
    recorder = with_graphs(graphed)
    for step in range(8):
        batch = draw_numbers(16, seed=step)
        assert graphed.step(batch).losses == plain.step(batch).losses
    assert recorder.recorded == 3  # the preparation, and two phases
    assert_same_state(plain, graphed)


def test_a_face_fusion_with_all_its_random_numbers_replays_equally() -> None:
    plain, graphed = build_fusion(), build_fusion()
    recorder = with_graphs(graphed)
    for step in range(WARM_UPS + 4):
        batch = build_pairs(4, seed=step)
        assert graphed.step(batch).losses == plain.step(batch).losses
    assert recorder.replayed >= 4 * 4
    assert not graphed.notes
    assert_same_state(plain, graphed)


def test_each_shape_has_a_recording_of_its_own() -> None:
    graphed, plain = build_toy(), build_toy()
    recorder = with_graphs(graphed)
    for step in range(12):
        # A rank has an image less in some steps.
        batch = draw_numbers(16 - step % 2, seed=step)
        assert graphed.step(batch).losses == plain.step(batch).losses
    assert recorder.recorded == 2 * 2 + 1  # the second phase runs in even steps alone
    assert_same_state(plain, graphed)


def test_out_of_memory_forgets_the_recordings_and_goes_on_with_less() -> None:
    graphed = build_toy()
    recorder = with_graphs(graphed)
    for step in range(WARM_UPS + 2):
        graphed.step(draw_numbers(16, seed=step))
    assert graphed.passes.graphs is not None
    assert graphed.passes.graphs.recordings

    def fail(compute: Callable[[], Any]) -> Any:
        recorder.warm_up = Rerunner.warm_up.__get__(recorder)  # type: ignore[method-assign]
        raise torch.OutOfMemoryError("out of memory")

    recorder.warm_up = fail  # type: ignore[method-assign]
    graphed.step(draw_numbers(15, seed=9))  # a shape that is not recorded yet
    assert not graphed.passes.graphs.recordings
    assert graphed.batch_size == 8


def build_part(compute: Callable[[Any], Any]) -> Part[Any]:
    return Part("part", compute, lambda salt: torch.manual_seed(len(salt)) and None, lambda: None, is_first=True)


def test_a_pause_computes_without_recordings() -> None:
    cache = GraphCache(Rerunner(), build_toy().step_timer, pytest.fail)
    part = build_part(lambda micros: micros[0].batch.x * 2)
    with cache.paused():
        for _ in range(WARM_UPS + 2):
            cache.run(part, [MicroBatch(draw_numbers(2), 1.0)])
    assert not cache.recordings
    assert not cache.runs


class WithStaleNumbers(Rerunner):
    """Replay with the random numbers of the recording."""

    def record(self, compute: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        state = torch.get_rng_state()
        result, replay = super().record(compute)

        def replay_from_there() -> None:
            torch.set_rng_state(state)
            replay()

        return result, replay_from_there


class WithoutValues(Rerunner):
    """Replay nothing, so that results and gradients stay what they were: NaN."""

    def record(self, compute: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        result, _ = super().record(compute)
        for tensor in list_results(result):
            tensor.fill_(torch.nan)
        return result, lambda: None


class Refusing(Rerunner):
    """Record nothing, as CUDA if a kernel waits for the host."""

    def record(self, compute: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        raise RuntimeError("operation not permitted when stream is capturing\nCUDA_LAUNCH_BLOCKING=1")


@pytest.mark.parametrize(
    ("recorder", "note"),
    [
        (WithStaleNumbers(), "'part' differs by [0-9]+% when replayed as a CUDA graph: continuing without"),
        (WithoutValues(), "'part' differs by inf% when replayed as a CUDA graph: continuing without"),
        (Refusing(), r"'part' cannot be recorded as a CUDA graph \(operation not permitted when stream is capturing\)"),
    ],
)
def test_a_recording_that_is_wrong_or_impossible_is_given_up(recorder: Rerunner, note: str) -> None:
    notes: list[str] = []
    cache = GraphCache(recorder, build_toy().step_timer, notes.append)
    part = build_part(lambda micros: [micros[0].batch.x + torch.rand(2, 3)])
    results = [cache.run(part, [MicroBatch(draw_numbers(2), 1.0)])[0].clone() for _ in range(WARM_UPS + 2)]
    (said,) = notes
    assert re.match(note, said)
    assert cache.is_paused
    for result in results:  # seeded alike
        torch.testing.assert_close(result, results[0], rtol=0, atol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_replays_what_it_would_compute() -> None:
    device = torch.device("cuda")
    losses = []
    for cuda_graphs in (False, True):
        torch.manual_seed(0)
        config = EngineConfig(global_batch=4, precision="fp32", compile=False, cuda_graphs=cuda_graphs)
        engine = Engine(build_recipe(build_config()), config, total_images=1600, device=device)
        losses.append([engine.step(build_pairs(4, seed=step)).losses for step in range(8)])
        assert not engine.notes
        assert bool(engine.passes.graphs and engine.passes.graphs.recordings) == cuda_graphs
    for off, on in zip(*losses, strict=True):
        assert on == pytest.approx(off, rel=1e-3)

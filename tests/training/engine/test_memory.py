from __future__ import annotations

import dataclasses
import json
import math
from functools import partialmethod

import pytest
import torch
from torch import nn

from fusionray.errors import TrainingFailed
from fusionray.hardware.memory import resident_bytes
from fusionray.recipes.recipe import Losses
from fusionray.training.config import EngineConfig
from fusionray.training.engine.batches.microbatching import MicroBatch, cut, recut
from fusionray.training.engine.engine import Engine
from fusionray.training.engine.memory import even_chunks, is_out_of_memory, largest_batch, memory_limit
from fusionray.training.run.batch_size_search import fit_batch
from tests.support.child_python import run_python
from tests.support.toy_recipe import HUNGRY, CompilableRecipe, HungryRecipe, ToyRecipe, draw_numbers
from tests.training.engine.limited_memory import BATCH, NUM_STEPS, train

MIB = 2**20


def test_memory_that_really_runs_out_halves_the_batch_and_loses_no_step() -> None:
    found = json.loads(run_python("-m", "tests.training.engine.limited_memory", str(700 * MIB)))
    # 32 rows of 40 MiB do not fit into 700 MiB; 16 or 8 do.
    assert found["batch_size"] in (8, 16)
    assert found["notes"][0].startswith("out of memory in 'fit_first' with 32 images at once: continuing with 16")
    assert found["images"] == NUM_STEPS * BATCH
    assert found["losses"] == pytest.approx(train(None)["losses"], rel=1e-5)


def build(**settings: object) -> Engine:
    return Engine(HungryRecipe(), EngineConfig(precision="fp32", **settings), **HUNGRY)


def test_the_batch_that_fits_is_found_and_the_share_is_cut_evenly() -> None:
    engine = build(global_batch=64, batch_size="auto")
    engine.memory_bytes = resident_bytes() + 700 * MIB
    fit_batch(engine, draw_numbers(3))
    assert 10 <= engine.batch_size <= 18
    assert engine.local_batch_images == 64
    engine.step(draw_numbers(64))
    assert engine.images_seen == 64


def test_a_share_that_fits_is_computed_at_once() -> None:
    engine = build(global_batch=4, batch_size="auto")
    fit_batch(engine, draw_numbers(2))
    assert engine.batch_size == 4


# torch's compiler asks all inputs for their gradients, of which torch warns.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_the_search_compiles_nothing_and_all_networks_are_compiled_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []

    def record(graph: torch.fx.GraphModule, inputs: object) -> object:
        compiled.append(len(graph.graph.nodes))
        return graph.forward

    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend=record))
    config = EngineConfig(global_batch=24, batch_size="auto", precision="fp32", compile=True)
    engine = Engine(CompilableRecipe(), config, **HUNGRY)
    fit_batch(engine, draw_numbers(2))
    assert compiled == []
    # More sizes than torch compiles one function for by itself.
    for size in (24, 12, 8, 6, 4, 3, 2):
        engine.batch_partition.set_batch_size(size)
        before = len(compiled)
        engine.num_steps = 0  # all phases are due
        engine.step(draw_numbers(24))
        # One graph with gradients of the weights, one with those of the input alone; the networks share them.
        assert len(compiled) == before + 2, size


def test_an_automatic_global_batch_fills_the_memory_and_scales_the_rate() -> None:
    engine = build(global_batch="auto")
    engine.memory_bytes = resident_bytes() + 700 * MIB
    fit_batch(engine, draw_numbers(2))
    assert engine.global_batch in (8, 16)
    assert engine.batch_size == engine.global_batch
    rate = engine.step(draw_numbers(engine.global_batch)).learning_rates["first"]
    assert rate == pytest.approx(0.1 * engine.global_batch / 32)


def test_a_single_image_that_does_not_fit_is_an_error_that_names_remedies() -> None:
    engine = build(global_batch=4, batch_size="auto")
    engine.memory_bytes = 1
    with pytest.raises(
        TrainingFailed, match=r"1 image\(s\) at a time do not fit .*engine\.activation_checkpointing=true"
    ):
        fit_batch(engine, draw_numbers(2))


def test_a_static_graph_is_not_cut_when_memory_runs_out() -> None:
    engine = build(global_batch=8, parallel={"static_graph": True})
    engine.batch_partition.num_ranks = 2
    with pytest.raises(TrainingFailed, match=r"static_graph=true does not support less; .* engine.batch_size=4"):
        engine.batch_partition.retry("prepare", draw_numbers(4), run_out)


def test_memory_that_runs_out_with_one_image_ends_the_training() -> None:
    engine = build(global_batch=2)
    engine.recipe.phases = (dataclasses.replace(engine.recipe.phases[0], loss=run_out),)
    with pytest.raises(TrainingFailed, match=r"out of memory in 'fit_first' with 1 image\(s\) at a time"):
        engine.step(draw_numbers(2))


def build_normed(**settings: object) -> Engine:
    """Build an engine of networks with a batch norm over rows, which finds no variance in one."""
    recipe = ToyRecipe()
    recipe.networks["first"].append(nn.BatchNorm1d(1))
    return Engine(recipe, EngineConfig(precision="fp32", **settings), **HUNGRY)


def test_a_batch_is_found_for_networks_that_cannot_learn_from_one_image() -> None:
    engine = build_normed(global_batch=8, batch_size="auto")
    fit_batch(engine, draw_numbers(2))
    assert engine.batch_size == 8
    engine.step(draw_numbers(8))


def test_such_networks_are_never_left_with_one_image() -> None:
    engine = build_normed(global_batch=16, batch_size=5)  # not 5 + 5 + 5 + 1
    assert all(math.isfinite(value) for value in engine.step(draw_numbers(16)).losses.values())
    fail = dataclasses.replace(engine.recipe.phases[0], loss=run_out)
    engine.recipe.phases = (fail,)
    with pytest.raises(TrainingFailed, match=r"out of memory in 'fit_first' with 2 image\(s\) at a time"):
        engine.step(draw_numbers(16))


def run_out(step: object) -> Losses:
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_other_errors_are_no_lack_of_memory() -> None:
    assert is_out_of_memory(MemoryError())
    for library, call in (("CUBLAS", "cublasCreate(handle)"), ("CUDNN", "cudnnCreate(handle)")):
        assert is_out_of_memory(RuntimeError(f"CUDA error: {library}_STATUS_ALLOC_FAILED when calling `{call}`"))
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")
    )
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


@pytest.mark.parametrize(
    ("fixed", "slope", "limit"), [(0.0, 1.0, 37.5), (10.0, 2.0, 90.0), (99.0, 5.0, 100.0), (0.0, 1.0, 3.0)]
)
def test_the_search_finds_the_largest_size_under_a_line(fixed: float, slope: float, limit: float) -> None:
    tried = []

    def measure(size: int) -> float:
        tried.append(size)
        return (fixed + slope * size) / limit

    fitting = [size for size in range(1, 65) if fixed + slope * size <= limit and size != 3]
    assert largest_batch(measure, most=64) == max(fitting, default=0)
    assert len(tried) <= 5


def test_the_search_steps_down_where_the_line_promised_too_much() -> None:
    def measure(size: int) -> float:
        return math.inf if size > 20 else size / 64

    found = largest_batch(measure, most=64)
    assert 8 <= found <= 20


def test_the_limit_is_what_is_given_or_a_share_of_what_is_free() -> None:
    cpu = torch.device("cpu")
    assert memory_limit(cpu, 0.9, 2.0, 1) == int(2 * 2**30 * 0.9)
    alone, shared = memory_limit(cpu, 0.9, None, 1), memory_limit(cpu, 0.9, None, 4)
    assert 0 < shared < alone


def test_the_limit_of_a_gpu_leaves_what_others_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of 80 GiB, this process's tensors hold 10, and others, contexts and communicators 30.
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (40 * 2**30, 80 * 2**30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10 * 2**30)
    assert memory_limit(torch.device("cuda"), 0.9, None, 1) == int(50 * 2**30 * 0.9)


@pytest.mark.parametrize(
    ("share", "largest", "chunk"), [(64, 64, 64), (64, 33, 32), (64, 20, 16), (7, 3, 3), (5, 1, 1)]
)
def test_shares_are_cut_into_the_fewest_and_most_equal_parts(share: int, largest: int, chunk: int) -> None:
    assert even_chunks(share, largest) == chunk


@pytest.mark.parametrize(
    ("count", "size", "parts"),
    [
        (8, 4, [4, 4]),
        (16, 5, [4, 4, 4, 4]),
        (7, 3, [2, 2, 3]),
        (3, 9, [3]),
        (3, 2, [3]),
        (5, 2, [2, 3]),
        (3, 1, [1, 1, 1]),
    ],
)
def test_parts_are_the_fewest_and_differ_by_a_row_at_most(count: int, size: int, parts: list[int]) -> None:
    assert [len(part) for part in cut(draw_numbers(count), size)] == parts


def test_cut_parts_join_to_the_whole_and_keep_their_weight() -> None:
    batch = draw_numbers(7)
    parts = [MicroBatch(part, len(part) / 7, {"row": part.x * 2, "mean": part.x.mean()}) for part in cut(batch, 4)]
    again = recut(parts, 2)
    assert [len(part.batch) for part in again] == [3, 2, 2]
    assert sum(part.weight for part in again) == pytest.approx(1)
    torch.testing.assert_close(torch.cat([part.batch.x for part in again]), batch.x)
    torch.testing.assert_close(torch.cat([part.shared["row"] for part in again]), batch.x * 2)
    assert again[0].shared["mean"] is parts[0].shared["mean"]

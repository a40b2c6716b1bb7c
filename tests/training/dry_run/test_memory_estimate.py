from __future__ import annotations

import json
from typing import Any

from fusionray.training.config import ParallelConfig
from fusionray.training.dry_run.footprint import Footprint, NetworkFootprint, PhaseFootprint
from fusionray.training.dry_run.memory_estimate import MemoryEstimate, estimate_memory, largest_fit
from tests.support.child_python import run_python

MILLION = 1_000_000


def build_footprint() -> Footprint:
    return Footprint(
        networks={
            "generator": NetworkFootprint(
                100 * MILLION, 2, has_ema=True, largest_fsdp_unit=20 * MILLION, cannot_shard=False
            ),
            "discriminator": NetworkFootprint(
                10 * MILLION, 2, has_ema=False, largest_fsdp_unit=10 * MILLION, cannot_shard=True
            ),
        },
        frozen={"identity": MILLION},
        frozen_bytes=4 * MILLION,
        phases=(
            PhaseFootprint("generator", "generator", 1, 1e9, 80 * MILLION, 100 * MILLION, 10 * MILLION),
            PhaseFootprint("discriminator", "discriminator", 1, 1e9, 50 * MILLION, 60 * MILLION, 0),
        ),
        input_bytes=MILLION,
    )


def estimate(strategy: Any, ranks: int, batch: int = 4, share: int = 8, **parallel: Any) -> MemoryEstimate:
    return estimate_memory(
        build_footprint(),
        batch_size=batch,
        local_batch_images=share,
        strategy=strategy,
        num_ranks=ranks,
        parallel=ParallelConfig(**parallel),
    )


def test_one_worker_holds_everything_once() -> None:
    found = estimate("ddp", 1)
    assert found.parameters == found.gradients == 440 * MILLION
    assert found.optimizer == 880 * MILLION
    assert found.ema == 400 * MILLION
    assert found.frozen == 4 * MILLION
    assert found.exchange == 0
    # The hungriest phase, at the images computed at once; the whole share stays prepared.
    assert found.activations == 410 * MILLION
    assert found.inputs == 8 * MILLION
    assert found.total == sum(vars(found).values())


def test_zero_divides_the_optimizer_alone() -> None:
    whole, zero = estimate("ddp", 4), estimate("zero", 4)
    assert zero.optimizer == whole.optimizer // 4
    assert (zero.parameters, zero.gradients, zero.ema) == (whole.parameters, whole.gradients, whole.ema)


def test_fsdp_divides_what_may_be_divided() -> None:
    sharded = estimate("fsdp", 4)
    assert sharded.parameters == sharded.gradients == 100 * MILLION + 40 * MILLION
    assert sharded.optimizer == 200 * MILLION + 80 * MILLION
    assert sharded.ema == 100 * MILLION
    assert estimate("fsdp", 4, shard_from_parameters=200 * MILLION).parameters == 440 * MILLION


def test_compression_has_its_price() -> None:
    assert estimate("ddp", 2).exchange == 0
    assert estimate("ddp", 2, compression="fp16").exchange == 220 * MILLION
    assert estimate("ddp", 2, compression="powersgd").exchange == 440 * MILLION
    assert estimate("ddp", 1, compression="powersgd").exchange == 0


def fit(limit: int, **changes: Any) -> int:
    settings: dict[str, Any] = {"most": 32, "local_batch_images": 32, "strategy": "ddp", "num_ranks": 1, **changes}
    return largest_fit(build_footprint(), limit_bytes=limit, parallel=ParallelConfig(), **settings)


def test_the_largest_batch_is_the_last_that_fits() -> None:
    seven = estimate("ddp", 1, batch=7, share=32).total
    assert fit(seven) == 7
    assert fit(seven - 1) == 6
    assert fit(10**12) == 32
    assert fit(10**9) == 0


def test_where_the_share_is_one_batch_its_inputs_grow_with_it() -> None:
    assert fit(estimate("ddp", 1, batch=7, share=7).total, local_batch_images=None) == 7


def test_the_estimate_is_near_what_a_process_takes() -> None:
    # A fixed threshold returns freed tensors to the system: without it the heap's own waste would be measured, too.
    found = json.loads(run_python("-m", "tests.training.dry_run.peak_memory", MALLOC_MMAP_THRESHOLD_="65536"))
    # Seen: 0.88. Kernels' work space and code that is compiled on the way are not tensors.
    assert 0.7 < found["estimated"] / found["measured"] < 1.15

"""Memory that is used again: not while anything refers to it, not without bound, and from any thread."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fusionray.hardware.array_pool import ArrayPool

SHAPE = (40, 30, 3)


def place_of(array: NDArray[np.uint8]) -> int:
    return array.ctypes.data


def kept(pool: ArrayPool) -> list[int]:
    gc.collect()
    return [place_of(block) for block in pool.free]


def test_memory_is_used_again_when_nothing_refers_to_it() -> None:
    pool = ArrayPool()
    first = pool.allocate(SHAPE)
    place = place_of(first)
    assert first.shape == SHAPE
    assert first.flags.writeable
    assert first.flags.c_contiguous
    del first
    assert kept(pool) == [place]
    again = pool.allocate(SHAPE)
    assert place_of(again) == place
    assert kept(pool) == []
    assert place_of(pool.allocate(SHAPE)) != place


@pytest.mark.parametrize(
    "refer",
    [
        lambda array: array[3:, ::2],
        lambda array: array.reshape(-1)[5:].reshape(-1, 5),
        lambda array: array.transpose(2, 0, 1)[1:][:, ::-1],
        lambda array: np.asarray(array[1:]).view(np.int8),
        memoryview,
        lambda array: torch.from_numpy(array).permute(2, 0, 1)[1:],
        lambda array: torch.from_numpy(array)[:2].numpy(),
        lambda array: cv2.rectangle(array, (1, 1), (4, 4), (1, 2, 3)),
    ],
)
def test_a_view_of_any_kind_keeps_the_memory(refer: object) -> None:
    pool = ArrayPool()
    array = pool.allocate(SHAPE)
    view = refer(array)  # type: ignore[operator]
    del array
    assert kept(pool) == []
    del view
    assert len(kept(pool)) == 1


def test_blocks_serve_arrays_that_are_a_little_smaller_and_the_tightest_one_is_taken() -> None:
    pool = ArrayPool()
    sizes = {size: pool.allocate((size,)) for size in (1000, 1500, 4000)}
    places = {size: place_of(array) for size, array in sizes.items()}
    sizes.clear()
    assert place_of(pool.allocate((900,))) == places[1000]
    assert place_of(pool.allocate((1200,))) == places[1500]
    assert place_of(pool.allocate((100,))) not in places.values()
    assert pool.allocate((0, 3)).shape == (0, 3)


def test_no_more_is_kept_than_allowed_and_the_oldest_goes_first() -> None:
    pool = ArrayPool(kept_bytes=2500)
    arrays = [pool.allocate((1000,)) for _ in range(3)]
    places = [place_of(array) for array in arrays]
    while arrays:
        del arrays[0]
    assert kept(pool) == places[1:]
    large = pool.allocate((5000,))
    del large
    assert kept(pool) == []


def test_threads_never_share_an_array() -> None:
    pool = ArrayPool(kept_bytes=20_000)

    def use(seed: int) -> bool:
        random = np.random.default_rng(seed)
        for _ in range(400):
            array = pool.allocate((int(random.integers(500, 3000)),))
            array[:] = seed
            view = array[10:]
            del array
            if not (view == seed).all():
                return False
        return True

    with ThreadPoolExecutor(4) as executor:
        assert all(executor.map(use, range(8)))
    assert sum(map(len, pool.free)) <= 20_000

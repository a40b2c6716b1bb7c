from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from fusionray.data.prefetch import map_ahead, prefetched


def test_calls_run_ahead_by_a_stated_number_and_keep_their_order() -> None:
    started: list[int] = []
    ahead = threading.Barrier(4)

    def work(item: int) -> int:
        started.append(item)
        if item < 4:
            ahead.wait(timeout=30)
        return item * item

    def items() -> Iterator[int]:
        for item in range(20):
            # One more may wait for the consumer.
            assert item <= taken + 4
            yield item

    taken = 0
    for square in map_ahead(work, items(), at_once=4):
        assert square == taken * taken
        taken += 1
    assert taken == 20
    assert sorted(started) == list(range(20))


def test_after_an_error_nothing_more_comes() -> None:
    def make() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    with prefetched(make, 2) as items:
        assert next(items) == 1
        with pytest.raises(OSError, match="gone"):
            next(items)
        with pytest.raises(StopIteration):
            items.take(timeout=5)


def test_an_error_comes_in_its_place_and_ends_the_threads() -> None:
    before = threading.active_count()

    def work(item: int) -> int:
        if item == 2:
            raise OSError("gone")
        return item

    results = map_ahead(work, range(100), at_once=3)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(OSError, match="gone"):
        next(results)
    assert threading.active_count() == before


def test_a_consumer_that_leaves_early_ends_the_threads() -> None:
    before = threading.active_count()
    results = map_ahead(lambda item: item, range(100), at_once=3)
    assert next(results) == 0
    results.close()
    assert threading.active_count() == before

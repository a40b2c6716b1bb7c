from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from fusionray.errors import Overloaded
from fusionray.runtime.batching import CropBatcher
from fusionray.runtime.cores import OwnCores
from fusionray.runtime.crop_fuser import CropFuser, FusedCrops


class SteppedFuser(CropFuser):
    """Adds each crop's source to its pixels when the gate is released; records the batches."""

    def __init__(self, max_batch: int) -> None:
        self.max_batch = max_batch
        self.batches: list[list[int]] = []
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.fault: Exception | None = None
        self.poison: int | None = None

    def fuse(self, source_NL: NDArray[np.float32], crops_NSS3: NDArray[np.uint8]) -> FusedCrops:
        self.entered.release()
        self.gate.acquire()
        if self.fault is not None:
            raise self.fault
        if self.poison in crops_NSS3:
            raise ValueError("poison")
        self.batches.append([int(crop[0, 0, 0]) for crop in crops_NSS3])
        sums = crops_NSS3 + source_NL[:, :1, None, None].astype(np.uint8)
        return FusedCrops(sums, np.ones(crops_NSS3.shape[:3], np.float32))


def crops(*values: int) -> NDArray[np.uint8]:
    return np.stack([np.full((2, 2, 3), value, np.uint8) for value in values])


def sources(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)[:, None]


def firsts(found: tuple[FusedCrops, float]) -> list[int]:
    return [int(crop[0, 0, 0]) for crop in found[0].crops]


@pytest.fixture
def fuser() -> SteppedFuser:
    return SteppedFuser(4)


@pytest.fixture
def batcher(fuser: SteppedFuser) -> Iterator[CropBatcher]:
    batcher = CropBatcher(fuser, max_waiting=12)
    yield batcher
    fuser.gate.release(100)
    batcher.close()
    assert not any(stream.is_alive() for stream in batcher.streams)


def test_crops_that_arrive_during_a_batch_share_the_next_one(fuser: SteppedFuser, batcher: CropBatcher) -> None:
    first = batcher.submit(sources(100), crops(1))
    fuser.entered.acquire()
    others = [batcher.submit(sources(100 + k), crops(k)) for k in (2, 3, 4)]
    fuser.gate.release(2)
    assert firsts(first.result(5)) == [101]
    assert [firsts(other.result(5)) for other in others] == [[104], [106], [108]]
    assert fuser.batches == [[1], [2, 3, 4]]


def test_faces_of_a_large_request_share_batches_with_others(fuser: SteppedFuser, batcher: CropBatcher) -> None:
    batcher.submit(sources(0), crops(1))
    fuser.entered.acquire()
    crowd = batcher.submit(sources(*range(10, 16)), crops(2, 3, 4, 5, 6, 7))
    single = batcher.submit(sources(50), crops(8))
    fuser.gate.release(3)
    assert firsts(crowd.result(5)) == [12, 14, 16, 18, 20, 22]
    assert firsts(single.result(5)) == [58]
    assert fuser.batches == [[1], [2, 3, 4, 5], [6, 7, 8]]


def test_cancelled_crops_are_not_computed(fuser: SteppedFuser, batcher: CropBatcher) -> None:
    batcher.submit(sources(0), crops(1))
    fuser.entered.acquire()
    gone, kept = batcher.submit(sources(0), crops(2)), batcher.submit(sources(0), crops(3))
    assert gone.cancel()
    fuser.gate.release(2)
    kept.result(5)
    assert fuser.batches == [[1], [3]]
    assert batcher.num_waiting == 0


def test_a_full_queue_refuses_crops_and_an_empty_one_takes_any_number(
    fuser: SteppedFuser, batcher: CropBatcher
) -> None:
    batcher.submit(sources(0), crops(1))
    fuser.entered.acquire()
    crowd = batcher.submit(np.zeros((20, 1), np.float32), crops(*range(20)))
    with pytest.raises(Overloaded, match="20 faces wait"):
        batcher.submit(sources(0), crops(2))
    fuser.gate.release(6)
    assert len(crowd.result(5)[0].crops) == 20


def test_an_error_reaches_only_the_callers_of_its_batch(fuser: SteppedFuser, batcher: CropBatcher) -> None:
    fuser.fault = ValueError("broken")
    first = batcher.submit(sources(0), crops(1))
    fuser.entered.acquire()
    crowd = batcher.submit(np.zeros((6, 1), np.float32), crops(*range(6)))
    fuser.gate.release()
    with pytest.raises(ValueError, match="broken"):
        first.result(5)
    fuser.entered.acquire()
    fuser.gate.release()
    with pytest.raises(ValueError, match="broken"):
        crowd.result(5)
    fuser.fault = None
    fuser.gate.release(2)
    assert firsts(batcher.submit(sources(1), crops(7)).result(5)) == [8]


def test_one_bad_request_fails_alone(fuser: SteppedFuser, batcher: CropBatcher) -> None:
    batcher.submit(sources(0), crops(1))
    fuser.entered.acquire()
    wrong_size = np.zeros((1, 3, 3, 3), np.uint8)
    bad = batcher.submit(sources(0), wrong_size)
    good = [batcher.submit(sources(100), crops(k)) for k in (2, 3)]
    fuser.gate.release(4)
    assert [firsts(each.result(5)) for each in good] == [[102], [103]]
    assert bad.result(5)[0].crops.shape == (1, 3, 3, 3)
    fuser.poison = 7
    futures = [batcher.submit(sources(100), crops(k)) for k in (6, 7, 8)]
    fuser.gate.release(10)
    with pytest.raises(ValueError, match="poison"):
        futures[1].result(5)
    assert [firsts(futures[k].result(5)) for k in (0, 2)] == [[106], [108]]
    batcher.check()


def test_two_streams_that_fail_the_same_request_go_on() -> None:
    fuser = SteppedFuser(1)
    batcher = CropBatcher(fuser, num_streams=2)
    fuser.fault = ValueError("broken")
    for _ in range(50):
        crowd = batcher.submit(sources(0, 0), crops(1, 2))
        fuser.gate.release(2)
        with pytest.raises(ValueError, match="broken"):
            crowd.result(5)
    fuser.fault = None
    fuser.gate.release(100)
    batcher.check()
    assert firsts(batcher.submit(sources(1), crops(7)).result(5)) == [8]
    batcher.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_stream_that_ended_is_noticed(fuser: SteppedFuser) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the observer is broken")

    fuser.gate.release(10)
    batcher = CropBatcher(fuser, observer=fail)
    batcher.submit(sources(0), crops(1)).result(5)
    for stream in batcher.streams:
        stream.join(5)
    with pytest.raises(RuntimeError, match="has ended"):
        batcher.check()
    batcher.close()


def test_close_computes_queued_crops_and_refuses_new_ones(fuser: SteppedFuser) -> None:
    batcher = CropBatcher(fuser)
    waiting = [batcher.submit(sources(0), crops(k)) for k in range(6)]
    fuser.gate.release(10)
    batcher.close()
    assert [firsts(one.result(0)) for one in waiting] == [[k] for k in range(6)]
    with pytest.raises(Overloaded):
        batcher.submit(sources(0), crops(1))


def test_two_streams_keep_the_order_of_a_large_request() -> None:
    fuser = SteppedFuser(2)
    batcher = CropBatcher(fuser, num_streams=2)
    crowd = batcher.submit(np.zeros((7, 1), np.float32), crops(*range(7)))
    fuser.gate.release(10)
    assert firsts(crowd.result(5)) == list(range(7))
    batcher.close()


def test_a_single_batch_gets_all_threads_and_concurrent_ones_share_them(fuser: SteppedFuser) -> None:
    concurrent = SteppedFuser(1)
    batcher = CropBatcher(fuser, concurrent_fuser=concurrent, num_streams=2)
    first = batcher.submit(sources(100), crops(1))
    fuser.entered.acquire()
    second = batcher.submit(sources(100), crops(2))
    concurrent.entered.acquire()
    for each in (fuser, concurrent):
        each.gate.release()
    assert firsts(first.result(5)) == [101]
    assert firsts(second.result(5)) == [102]
    assert (fuser.batches, concurrent.batches) == ([[1]], [[2]])
    batcher.close()


def test_an_idle_batcher_fuses_on_the_thread_that_asks(fuser: SteppedFuser) -> None:
    threads: list[str] = []

    def observe(*_: object) -> None:
        threads.append(threading.current_thread().name)

    batcher = CropBatcher(fuser, observer=observe, max_waiting=12)
    fuser.gate.release(2)
    made = batcher.fuse_at_once(sources(100, 100), crops(1, 2))
    assert made is not None
    assert [int(crop[0, 0, 0]) for crop in made.crops] == [101, 102]
    assert threads == [threading.current_thread().name]
    assert batcher.fuse_at_once(np.zeros((5, 1), np.float32), crops(*range(5))) is None  # More than a batch holds.
    waiting = batcher.submit(sources(0), crops(3))
    assert firsts(waiting.result(5)) == [3]
    batcher.submit(sources(0), crops(4))
    fuser.entered.acquire()
    fuser.entered.acquire()
    fuser.entered.acquire()
    assert batcher.fuse_at_once(sources(0), crops(5)) is None  # Another batch is computed.
    fuser.gate.release(10)
    batcher.close()
    assert batcher.fuse_at_once(sources(0), crops(6)) is None
    assert fuser.batches == [[1, 2], [3], [4]]


@pytest.mark.parametrize("num_cores", [2, 16])
def test_callers_fuse_at_the_same_time_as_many_as_streams_with_few_threads_each(
    fuser: SteppedFuser, num_cores: int
) -> None:
    concurrent = SteppedFuser(4)
    batcher = CropBatcher(fuser, concurrent_fuser=concurrent, num_streams=2, cores=OwnCores(num_cores))
    callers = [
        threading.Thread(target=batcher.fuse_at_once, args=(sources(0), crops(number + 1))) for number in range(2)
    ]
    callers[0].start()
    fuser.entered.acquire()
    callers[1].start()
    concurrent.entered.acquire()
    assert batcher.fuse_at_once(sources(0), crops(3)) is None
    for each in (fuser, concurrent):
        each.gate.release()
    for caller in callers:
        caller.join(5)
    assert (fuser.batches, concurrent.batches) == ([[1]], [[2]])
    batcher.close()


class SharedCores(OwnCores):
    """Cores on which another process computes, as a test says; it sees whether this one does."""

    def __init__(self, num_batches: int) -> None:
        super().__init__(num_batches)
        self.others_work = False
        self.num_working = 0
        self.times_worked = 0

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        self.num_working += 1
        self.times_worked += 1
        yield
        self.num_working -= 1

    def do_others_work(self) -> bool:
        return self.others_work


def test_a_batch_gets_few_threads_while_another_process_computes(fuser: SteppedFuser) -> None:
    concurrent = SteppedFuser(4)
    cores = SharedCores(1)
    batcher = CropBatcher(fuser, concurrent_fuser=concurrent, num_streams=2, cores=cores)
    cores.others_work = True
    concurrent.gate.release(2)
    assert batcher.fuse_at_once(sources(0), crops(1)) is not None
    assert firsts(batcher.submit(sources(0), crops(2)).result(5)) == [2]
    cores.others_work = False
    fuser.gate.release(2)
    assert batcher.fuse_at_once(sources(0), crops(3)) is not None
    assert firsts(batcher.submit(sources(0), crops(4)).result(5)) == [4]
    assert (fuser.batches, concurrent.batches) == ([[3], [4]], [[1], [2]])
    batcher.close()
    assert (cores.num_working, cores.times_worked) == (0, 4)


def test_a_stream_waits_for_a_batch_that_its_caller_computes(fuser: SteppedFuser, batcher: CropBatcher) -> None:
    caller = threading.Thread(target=batcher.fuse_at_once, args=(sources(0), crops(1)))
    caller.start()
    fuser.entered.acquire()
    queued = batcher.submit(sources(0), crops(2))
    assert not fuser.entered.acquire(timeout=0.2)
    fuser.gate.release(2)
    assert firsts(queued.result(5)) == [2]
    caller.join(5)
    assert fuser.batches == [[1], [2]]


def test_a_batch_that_fails_on_the_thread_that_asks_leaves_the_batcher_idle(
    fuser: SteppedFuser, batcher: CropBatcher
) -> None:
    fuser.fault = ValueError("broken")
    fuser.gate.release(2)
    with pytest.raises(ValueError, match="broken"):
        batcher.fuse_at_once(sources(0), crops(1))
    fuser.fault = None
    assert batcher.fuse_at_once(sources(0), crops(2)) is not None


def test_no_more_batches_run_than_just_now_are_allowed() -> None:
    fuser = SteppedFuser(1)
    cores = SharedCores(1)
    batcher = CropBatcher(fuser, num_streams=3, cores=cores)
    calls = [batcher.submit(sources(0), crops(value)) for value in range(9)]
    fuser.entered.acquire()
    assert not fuser.entered.acquire(timeout=0.2)
    cores.num_batches = 2
    fuser.gate.release()
    for _ in range(2):
        assert fuser.entered.acquire(timeout=5)
    assert not fuser.entered.acquire(timeout=0.2)
    fuser.gate.release(100)
    # It ends, though streams wait that were not allowed to work.
    batcher.close()
    assert [firsts(call.result(0)) for call in calls] == [[value] for value in range(9)]
    assert not any(stream.is_alive() for stream in batcher.streams)

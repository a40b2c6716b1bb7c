from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from fusionray.data import ray_data_reader
from fusionray.data.decoding import CropDecoder
from fusionray.data.order import DataOrder, DataPosition, ShuffleWindow
from fusionray.data.person_labels import read_labels
from fusionray.data.prefetch import prefetched
from fusionray.data.ray_data_reader import RayDataReader
from fusionray.data.segments import Segment
from fusionray.data.shard_files import list_files
from fusionray.data.shard_readers import LocalReader
from fusionray.data.shards import Manifest
from fusionray.data.stream import TrainingStream
from fusionray.errors import ShardCorrupt
from fusionray.recipes.single_faces import collate_faces
from fusionray.types import PairBatch
from tests.support.tiny_shards import SIZE, draw_crop, name_person, write_tiny_shards

PEOPLE, PICTURES, WINDOW = 13, 8, 24
NUM_ROWS = PEOPLE * PICTURES
ORIGINALS = {
    draw_crop(person, number).tobytes(): (person, number) for person in range(PEOPLE) for number in range(PICTURES)
}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Manifest]:
    folder = tmp_path_factory.mktemp("shards")
    return str(folder), write_tiny_shards(folder, people=PEOPLE, pictures=PICTURES, shards=5)


@pytest.fixture(scope="module")
def decoder() -> Iterator[CropDecoder]:
    decoder = CropDecoder(SIZE, threads=2)
    yield decoder
    decoder.close()


def open_stream(
    shards: tuple[str, Manifest],
    decoder: CropDecoder,
    *,
    rank: int = 0,
    num_ranks: int = 1,
    step: int = 10,
    reader: LocalReader | RayDataReader | None = None,
) -> TrainingStream:
    files = list_files(*shards, "train")
    order = DataOrder(files.rows, seed=3, num_ranks=num_ranks, window_rows=WINDOW)
    return TrainingStream(order, reader or LocalReader(files), decoder, rank=rank, step_rows=step)


def stream_pairs(stream: TrainingStream, position: DataPosition, ratio: float) -> Iterator[PairBatch]:
    return stream.batches(position, lambda roles: PairBatch.from_rows(*roles), num_roles=2, same_identity_ratio=ratio)


def name_pictures(images: torch.Tensor) -> list[tuple[int, int]]:
    return [ORIGINALS[image.permute(1, 2, 0).contiguous().numpy().tobytes()] for image in images]


def take_pairs(stream: TrainingStream, position: DataPosition, rows: int) -> PairBatch:
    """Join batches to one of `rows` rows."""
    fewest = stream.step_rows // stream.order.num_ranks
    batches = list(islice(stream_pairs(stream, position, 0.3), -(-rows // fewest)))
    assert all(fewest <= len(batch) <= -(-stream.step_rows // stream.order.num_ranks) for batch in batches)
    return PairBatch(
        torch.cat([batch.source for batch in batches])[:rows],
        torch.cat([batch.target for batch in batches])[:rows],
        torch.cat([batch.same_identity for batch in batches])[:rows],
    )


def assert_equal(left: PairBatch, right: PairBatch) -> None:
    assert torch.equal(left.source, right.source)
    assert torch.equal(left.target, right.target)
    assert torch.equal(left.same_identity, right.same_identity)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_a_resumed_stream_continues_bit_for_bit(
    shards: tuple[str, Manifest], decoder: CropDecoder, num_ranks: int
) -> None:
    for rank in range(num_ranks):
        whole = open_stream(shards, decoder, rank=rank, num_ranks=num_ranks)
        expected = take_pairs(whole, DataPosition(), 250)
        # Within a window, at the end of an epoch, in a later epoch; other batches see the same.
        for rows in (10 * num_ranks, NUM_ROWS, 130 * num_ranks + 1):
            position = whole.order.advance(DataPosition(), rows)
            first = whole.order.local_rows(DataPosition(), rows, rank)
            for step in (10, 7):
                resumed = open_stream(shards, decoder, rank=rank, num_ranks=num_ranks, step=step)
                later = expected.map(lambda value, first=first: value[first : first + 90])  # type: ignore[misc]
                assert_equal(take_pairs(resumed, position, 90), later)


@pytest.mark.parametrize("decode_size", [None, SIZE], ids=["encoded", "decoded by tasks"])
@pytest.mark.usefixtures("ray_session")
def test_a_stream_through_ray_data_resumes_with_the_batches_of_a_local_one(
    shards: tuple[str, Manifest], decoder: CropDecoder, decode_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several data sets, the first of which begins and ends within an epoch.
    monkeypatch.setattr(ray_data_reader, "TASKS_PER_DATASET", 3)
    local = open_stream(shards, decoder, rank=1, num_ranks=2)
    position = local.order.advance(DataPosition(), 2 * 30 + 1)
    reader = RayDataReader(local.reader.files, local_rows=30, decode_size=decode_size)  # type: ignore[attr-defined]
    copier = CropDecoder(SIZE, threads=1, decoded=decode_size is not None)
    stream = open_stream(shards, copier, rank=1, num_ranks=2, step=7, reader=reader)
    assert_equal(take_pairs(stream, position, 700), take_pairs(local, position, 700))
    copier.close()


def test_a_reader_may_plan_in_a_thread_of_its_own(
    shards: tuple[str, Manifest], decoder: CropDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = take_pairs(open_stream(shards, decoder), DataPosition(), 300)
    plan = DataOrder.windows

    def plan_slowly(order: DataOrder, position: DataPosition, rank: int) -> Iterator[ShuffleWindow]:
        for window in plan(order, position, rank):
            time.sleep(0.002)
            yield window

    class ReaderInThread(LocalReader):
        def read(self, segments: Iterable[Segment]) -> Iterator[pa.Table]:
            with prefetched(lambda: super(ReaderInThread, self).read(segments), depth=3) as tables:
                yield from tables

    monkeypatch.setattr(DataOrder, "windows", plan_slowly)
    stream = open_stream(shards, decoder, reader=ReaderInThread(list_files(*shards, "train")))
    assert_equal(take_pairs(stream, DataPosition(), 300), expected)


def test_every_picture_is_a_target_once_an_epoch_though_the_number_of_ranks_changes(
    shards: tuple[str, Manifest], decoder: CropDecoder
) -> None:
    position = DataPosition()
    seen = Counter[tuple[int, int]]()
    for num_ranks, rows in ((2, 43), (1, 29), (3, 30)):
        for rank in range(num_ranks):
            stream = open_stream(shards, decoder, rank=rank, num_ranks=num_ranks)
            own = stream.order.local_rows(position, rows, rank)
            seen.update(name_pictures(take_pairs(stream, position, own).target))
        position = stream.order.advance(position, rows)
    assert max(seen.values()) == 1
    assert NUM_ROWS - len(seen) == NUM_ROWS - 43 - 29 - 30 == 2
    assert position == DataPosition(epoch=1)


def test_same_identity_is_true_for_pairs_of_one_person_only(shards: tuple[str, Manifest], decoder: CropDecoder) -> None:
    batch = take_pairs(open_stream(shards, decoder), DataPosition(), 2 * NUM_ROWS)
    pairs = list(zip(name_pictures(batch.source), name_pictures(batch.target), strict=True))
    assert [source[0] == target[0] for source, target in pairs] == batch.same_identity.tolist()
    assert all(source != target for source, target in pairs)
    assert 0.15 < batch.same_identity.float().mean() < 0.45
    targets = [target for _, target in pairs]
    assert sorted(targets[:NUM_ROWS]) == sorted(targets[NUM_ROWS:]) == sorted(ORIGINALS.values())
    assert targets[:NUM_ROWS] != targets[NUM_ROWS:]


def test_faces_come_with_the_labels_of_their_people(shards: tuple[str, Manifest], decoder: CropDecoder) -> None:
    labels = read_labels(*shards)
    seen = Counter[tuple[int, int]]()
    for batch in islice(
        open_stream(shards, decoder, step=26).batches(DataPosition(), collate_faces, num_roles=1, labels=labels), 8
    ):  # two epochs
        assert batch.image.shape == (26, 3, SIZE, SIZE)
        assert batch.image.dtype == torch.uint8
        pictures = name_pictures(batch.image)
        assert batch.label.tolist() == [labels[name_person(person)] for person, _ in pictures]
        seen.update(pictures)
    assert set(seen.values()) == {2}
    assert len(seen) == NUM_ROWS


def test_targets_do_not_come_in_the_order_of_the_rows(shards: tuple[str, Manifest], decoder: CropDecoder) -> None:
    people = [
        person for person, _ in name_pictures(take_pairs(open_stream(shards, decoder), DataPosition(), 100).target)
    ]
    assert sum(left != right for left, right in pairwise(people)) > 60


def test_a_stream_that_is_left_ends_its_threads(shards: tuple[str, Manifest], decoder: CropDecoder) -> None:
    stream = open_stream(shards, decoder)
    with prefetched(lambda: stream_pairs(stream, DataPosition(), 0.2), depth=2) as batches:
        next(batches)
        assert len(prefetch_threads()) == 2
    assert prefetch_threads() == []


def test_damage_in_a_later_window_is_reported_after_the_batches_before_it(tmp_path: Path, decoder: CropDecoder) -> None:
    manifest = write_tiny_shards(tmp_path, people=6, pictures=8, shards=2, validation_people=0)
    stream = open_stream((str(tmp_path), manifest), decoder, step=4)
    first_file = next(stream.order.windows(DataPosition(), 0)).segments[0].file
    (tmp_path / manifest.shards[1 - first_file].file).unlink()
    batches = stream_pairs(stream, DataPosition(), 0.5)
    assert len(list(islice(batches, 6))) == 6
    with pytest.raises(ShardCorrupt, match=r"cannot be read"):
        next(batches)


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def test_prefetching_keeps_the_order_and_ends_with_the_items() -> None:
    with prefetched(lambda: iter(range(20)), depth=3) as items:
        assert list(items) == list(range(20))
    assert prefetch_threads() == []


def test_prefetching_stays_within_its_depth() -> None:
    made: list[int] = []

    def make() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    with prefetched(make, depth=3) as items:
        assert [next(items) for _ in range(5)] == [0, 1, 2, 3, 4]
        assert len(made) <= 5 + 3
    assert prefetch_threads() == []


def test_an_error_of_the_producer_reaches_the_consumer_after_what_came_before() -> None:
    def make() -> Iterator[int]:
        yield 1
        raise ShardCorrupt("a crop of 'p' is damaged")

    with prefetched(make, depth=2) as items:
        assert next(items) == 1
        with pytest.raises(ShardCorrupt, match="'p' is damaged"):
            next(items)
    assert prefetch_threads() == []


def test_leaving_early_ends_the_thread_of_an_endless_stream() -> None:
    def make() -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1

    with prefetched(make, depth=1) as items:
        next(items)
        assert len(prefetch_threads()) == 1
    assert prefetch_threads() == []

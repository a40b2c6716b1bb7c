from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import ray
import torch

from fusionray.data.pairs import Crop, CropPair, CropPool
from fusionray.data.shards import Manifest
from fusionray.data.stream import (
    CropDecoder,
    collate_faces,
    collate_pairs,
    decode_crop,
    endless_blocks,
    in_batches,
    list_people,
    open_dataset,
    prefetched,
    read_split,
    stream_faces,
    stream_pairs,
)
from fusionray.errors import ShardCorrupt, ShardMismatch
from tests.tiny_shards import SIZE, draw_crop, encode, name_person, write_tiny_shards


@pytest.fixture
def decoder() -> Iterator[CropDecoder]:
    decoder = CropDecoder(SIZE, threads=2)
    yield decoder
    decoder.close()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Manifest]:
    folder = tmp_path_factory.mktemp("shards")
    return str(folder), write_tiny_shards(folder, people=16, pictures=8, shards=8)


@pytest.mark.usefixtures("ray_session")
def test_two_workers_read_disjoint_parts_in_a_new_order_every_epoch(shards: tuple[str, Manifest]) -> None:
    def read_epochs(part: Any, epochs: int) -> list[list[str]]:
        names = []
        for _ in range(epochs):
            blocks = part.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=2)
            names.append([name for block in blocks for name in block.column("source").to_pylist()])
        return names

    # Defined here, so that it travels by value: a worker of this session need not know the tests.
    read = ray.remote(num_cpus=0)(read_epochs)
    parts = open_dataset(*shards, "train", seed=3).streaming_split(2, equal=True)
    first, second = ray.get([read.remote(part, 3) for part in parts], timeout=60)
    everything = {f"{person}/{number}" for person in range(16) for number in range(8)}
    for epoch in range(3):
        mine, yours = first[epoch], second[epoch]
        assert len(mine) == len(yours) == 64
        assert Counter(mine + yours) == Counter(everything)
    assert first[0] + second[0] != first[1] + second[1]
    assert first[1] + second[1] != first[2] + second[2]


@pytest.mark.usefixtures("ray_session")
def test_batches_hold_the_pictures_that_were_written(shards: tuple[str, Manifest], decoder: CropDecoder) -> None:
    (part,) = open_dataset(*shards, "train", seed=0).streaming_split(1, equal=True)
    labels = {person: index for index, person in enumerate(list_people(*shards, "train"))}
    originals = {draw_crop(person, number).tobytes(): person for person in range(16) for number in range(8)}
    stream = stream_faces(endless_blocks(part), CropPool(32, 0), decoder, batch=32, labels=labels)
    seen = Counter[int]()
    for batch in islice(stream, 8):  # two epochs
        assert batch.image.shape == (32, 3, SIZE, SIZE)
        assert batch.image.dtype == torch.uint8
        for image, label in zip(batch.image, batch.label, strict=True):
            person = originals[image.permute(1, 2, 0).contiguous().numpy().tobytes()]
            assert label == labels[name_person(person)]
            seen[person] += 1
    assert len(seen) == 16


def test_pairs_hold_source_and_target_in_their_places(decoder: CropDecoder) -> None:
    def crop(person: int, number: int) -> Crop:
        parameters = np.full(3, person, np.float32), np.full(4, number, np.float32), np.arange(6, dtype=np.float32)
        return Crop(encode(draw_crop(person, number)), name_person(person), *parameters)

    pairs = [CropPair(crop(0, 0), crop(1, 1)), CropPair(crop(2, 2), crop(2, 3))]
    batch = collate_pairs(pairs, decoder)
    np.testing.assert_array_equal(batch.source[1].permute(1, 2, 0).numpy(), draw_crop(2, 2))
    np.testing.assert_array_equal(batch.target[0].permute(1, 2, 0).numpy(), draw_crop(1, 1))
    assert batch.same_identity.tolist() == [False, True]
    assert batch.truth is not None
    # The truth shows the source person the way the target picture shows its own.
    assert batch.truth.source_identity[:, 0].tolist() == [0, 2]
    assert batch.truth.target_attributes[:, 0].tolist() == [1, 3]
    assert batch.truth.view.shape == (2, 2, 3)
    assert batch.truth.view[0].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_streamed_pairs_come_in_batches_of_the_size_asked_for(decoder: CropDecoder) -> None:
    rows = [(encode(draw_crop(person, number)), name_person(person)) for person in range(5) for number in range(8)]
    table = pa.table({"image": [image for image, _ in rows], "identity": [name for _, name in rows]})
    batches = list(stream_pairs([table], CropPool(10, 0), decoder, batch=10, same_identity_ratio=0.5))
    assert [len(batch) for batch in batches] == [10, 10, 10]
    assert all(batch.truth is None for batch in batches)


def test_a_jpeg_decodes_to_nearly_what_was_encoded() -> None:
    smooth = np.broadcast_to(np.arange(SIZE, dtype=np.uint8)[:, None, None] * 12, (SIZE, SIZE, 3)).copy()
    smooth[:, :, 2] = 200
    decoded = decode_crop(Crop(encode(smooth, "JPEG"), "p"), SIZE).astype(int)
    assert np.abs(decoded - smooth).mean() < 4


@pytest.mark.parametrize("image_format", ["PNG", "JPEG"])
@pytest.mark.parametrize("damage", ["truncated", "empty", "text"])
def test_a_damaged_crop_is_reported_with_its_person(decoder: CropDecoder, image_format: str, damage: str) -> None:
    sound = encode(draw_crop(0, 0), image_format)
    data = {"truncated": sound[: len(sound) // 2], "empty": b"", "text": b"not a picture"}[damage]
    crops = [Crop(sound, "sound")] * 5 + [Crop(data, "person-042")]
    with pytest.raises(ShardCorrupt, match=r"a crop of 'person-042' .*; prepare the data again") as caught:
        decoder.decode(crops)
    assert "\n" not in str(caught.value)


def test_a_crop_of_another_size_is_reported(decoder: CropDecoder) -> None:
    with pytest.raises(ShardCorrupt, match=r"'p' holds \(32, 32, 3\), not 16 x 16 RGB"):
        decoder.decode([Crop(encode(draw_crop(0, 0, 32)), "p")])


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_crops_decode_in_order_however_they_share_the_threads(count: int) -> None:
    decoder = CropDecoder(SIZE, threads=3)
    images = decoder.decode([Crop(encode(draw_crop(0, number)), "p") for number in range(count)])
    decoder.close()
    for number in range(count):
        np.testing.assert_array_equal(images[number].permute(1, 2, 0).numpy(), draw_crop(0, number))


def test_labels_follow_the_list_of_people(shards: tuple[str, Manifest], decoder: CropDecoder) -> None:
    assert list_people(*shards, "train") == [name_person(person) for person in range(16)]
    assert list_people(*shards, "validation") == [name_person(16), name_person(17)]
    batch = collate_faces([Crop(encode(draw_crop(0, 0)), "b")], decoder, {"a": 0, "b": 1})
    assert batch.label.tolist() == [1]
    assert batch.label.dtype == torch.int64


def test_a_split_is_read_in_a_fixed_order_and_an_empty_one_is_refused(tmp_path: Path) -> None:
    manifest = write_tiny_shards(tmp_path, people=4, pictures=2, shards=2, validation_people=0)
    table = read_split(str(tmp_path), manifest, "train", ["source"])
    assert table.column("source").to_pylist() == ["0/0", "0/1", "2/0", "2/1", "1/0", "1/1", "3/0", "3/1"]
    with pytest.raises(ShardCorrupt, match="the validation split is empty"):
        read_split(str(tmp_path), manifest, "validation")


def test_a_worker_without_rows_is_told_so() -> None:
    class Nothing:
        def iter_batches(self, **settings: object) -> Iterator[pa.Table]:
            return iter([])

    with pytest.raises(ShardMismatch, match="got no pictures"):
        next(endless_blocks(Nothing()))


def test_groups_are_full_but_for_the_last() -> None:
    assert list(in_batches(range(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]


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
        # Taken, waiting in the queue, and one in the producer's hand.
        assert len(made) <= 5 + 3 + 1
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

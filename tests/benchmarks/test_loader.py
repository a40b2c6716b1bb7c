from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch

from fusionray.benchmarks.interleaving import Pace
from fusionray.benchmarks.train.loader import (
    Decode,
    ShardBatches,
    decode_with_pillow,
    decode_with_simplejpeg,
    measure_loader,
)
from fusionray.data.person_labels import read_labels
from fusionray.data.shard_files import list_files
from tests.support.tiny_shards import SIZE, draw_crop, name_person, write_tiny_shards


@pytest.mark.parametrize("decode", [decode_with_pillow, decode_with_simplejpeg])
def test_the_loader_that_we_are_compared_with_does_the_same_work(tmp_path: Path, decode: Decode) -> None:
    manifest = write_tiny_shards(tmp_path, people=6, pictures=8)
    folder = str(tmp_path)
    labels = read_labels(folder, manifest)
    dataset = ShardBatches(list_files(folder, manifest, "train"), labels, SIZE, 16, decode)
    people = {labels[name_person(person)]: person for person in range(6)}
    seen = set()
    for images, numbers in islice(dataset, 3):  # one epoch
        assert images.shape == (16, 3, SIZE, SIZE)
        assert images.dtype == torch.uint8
        assert images.is_contiguous()
        for image, number in zip(images, numbers.tolist(), strict=True):
            pixels = image.permute(1, 2, 0).numpy().tobytes()
            person = people[number]
            seen.add((person, next(n for n in range(8) if draw_crop(person, n).tobytes() == pixels)))
    assert len(seen) == 48


def test_all_loaders_are_measured(tmp_path: Path) -> None:
    write_tiny_shards(tmp_path, people=6, pictures=8)
    rates = measure_loader(str(tmp_path), Pace(rounds=2, steps=2), workers=1, batch=4)
    assert sorted(rates) == ["dataloader_pillow", "dataloader_simplejpeg", "ours"]
    assert [len(values) for values in rates.values()] == [2, 2, 2]
    assert min(map(min, rates.values())) > 0

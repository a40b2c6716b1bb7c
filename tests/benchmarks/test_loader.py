from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
import torch

from fusionray.benchmarks.interleaving import Pace
from fusionray.benchmarks.loader import (
    Decode,
    ShardBatches,
    decode_with_pillow,
    decode_with_simplejpeg,
    measure_loader,
)
from fusionray.data.shard_files import list_files, list_people
from tests.support.tiny_shards import SIZE, draw_crop, write_tiny_shards


@pytest.mark.parametrize("decode", [decode_with_pillow, decode_with_simplejpeg])
def test_the_loader_that_we_are_compared_with_does_the_same_work(tmp_path: Path, decode: Decode) -> None:
    manifest = write_tiny_shards(tmp_path, people=6, pictures=8)
    folder = str(tmp_path)
    labels = {person: index for index, person in enumerate(list_people(folder, manifest, "train"))}
    dataset = ShardBatches(list_files(folder, manifest, "train"), labels, SIZE, 16, decode)
    seen = set()
    for images, numbers in islice(dataset, 3):  # one epoch
        assert images.shape == (16, 3, SIZE, SIZE)
        assert images.dtype == torch.uint8
        assert images.is_contiguous()
        for image, number in zip(images, numbers.tolist(), strict=True):
            pixels = image.permute(1, 2, 0).numpy().tobytes()
            seen.add((number, next(n for n in range(8) if draw_crop(number, n).tobytes() == pixels)))
    assert len(seen) == 48


def test_all_loaders_are_measured(tmp_path: Path) -> None:
    write_tiny_shards(tmp_path, people=6, pictures=8)
    rates = measure_loader(str(tmp_path), Pace(rounds=2, steps=2), workers=1, batch=4)
    assert sorted(rates) == ["dataloader_pillow", "dataloader_simplejpeg", "ours"]
    assert [len(values) for values in rates.values()] == [2, 2, 2]
    assert min(map(min, rates.values())) > 0

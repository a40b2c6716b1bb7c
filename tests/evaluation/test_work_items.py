from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from fusionray.data.decoding import CropDecoder, decode_source_regions
from fusionray.data.pairs import SampledPairs
from fusionray.data.shards import read_manifest
from fusionray.errors import ShardMismatch
from fusionray.evaluation.clips import RecordedClip
from fusionray.evaluation.config import EvaluateConfig
from fusionray.evaluation.dataset import EvalDataset, check_split, compact, load_dataset
from fusionray.evaluation.work_items import ClipItem, CropItem, PairItem, merge_results, split_work
from tests.support.tiny_shards import write_tiny_shards
from tests.support.tiny_world import write_world


def load(folder: Path, **changes: object) -> EvalDataset:
    settings = {"model": "m", "data": str(folder), "output": "o", "split": "train", "pairs": 40}
    faces = {"gallery_images": 2, **changes}
    return load_dataset(EvaluateConfig.model_validate({**settings, "face_fusion": faces}), read_manifest(str(folder)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards whose train split lies in four files."""
    folder = tmp_path_factory.mktemp("shards")
    write_tiny_shards(folder, people=8, pictures=6, shards=4, test_people=1)
    return folder


def test_the_dataset_holds_exactly_the_crops_of_the_plan(folder: Path) -> None:
    dataset = load(folder, people=3)
    assert len(set(dataset.file.tolist())) > 1
    for crop in range(len(dataset.crops)):
        file, row, person = dataset.locate(crop)
        written = pq.read_table(folder / file).slice(row, 1).to_pylist()[0]
        assert bytes(dataset.crops.images[crop]) == written["image"]
        assert person == written["identity"]
    used = set(dataset.plan.pairs.ravel()) | set(dataset.plan.gallery)
    assert used == set(range(len(dataset.crops)))


def test_a_split_without_two_people_is_refused_with_what_there_is(folder: Path) -> None:
    manifest = read_manifest(str(folder))
    with pytest.raises(
        ShardMismatch, match=r"train 8, validation 2, test 1.*test_fraction.*split=validation"
    ) as refusal:
        check_split(str(folder), manifest, "test")
    assert "\n" not in str(refusal.value)
    check_split(str(folder), manifest, "validation")


def test_work_items_hold_every_pair_and_gallery_crop_once(folder: Path) -> None:
    dataset = load(folder)
    clip = RecordedClip("clip", "somewhere", 3)
    items = list(split_work(dataset, [(clip, 5)], batch_size=7))
    pairs = [item for item in items if isinstance(item, PairItem)]
    crops = [item for item in items if isinstance(item, CropItem)]
    (film,) = (item for item in items if isinstance(item, ClipItem))
    assert np.concatenate([item.numbers for item in pairs]).tolist() == list(range(40))
    assert max(len(item.numbers) for item in pairs) == 7
    assert np.concatenate([item.numbers for item in crops]).tolist() == dataset.plan.gallery.tolist()
    assert film.source == dataset.crops.select(np.array([5]))[0]
    for item in pairs:
        for number, (source, target) in zip(item.numbers, item.draws.indices, strict=True):
            wanted = dataset.crops.select(dataset.plan.pairs[number])
            assert item.draws.crops.select(np.array([source, target])) == wanted


def test_regions_of_photographs_come_along_if_they_are_skin(tmp_path: Path) -> None:
    manifest = write_world(tmp_path, photographs=True)
    config = EvaluateConfig(model="m", data=str(tmp_path), output="o", split="test", pairs=6)
    assert load_dataset(config, manifest).crops.regions is None
    dataset = load_dataset(config, manifest.model_copy(update={"skin_regions": True}))
    (item,) = (each for each in split_work(dataset, [], batch_size=8) if isinstance(each, PairItem))
    target = int(dataset.plan.pairs[2, 1])
    file, row, _ = dataset.locate(target)
    written = pq.read_table(tmp_path / file).slice(row, 1).to_pylist()[0]
    (sent,) = item.draws.crops.select_regions(item.draws.indices[2, 1:])
    assert sent == written["region"]
    regions = decode_source_regions(item.draws, CropDecoder(manifest.size, 1))
    assert regions is not None
    assert regions.shape == (6, 1, *(manifest.size,) * 2)
    gallery = next(each for each in split_work(dataset, [], batch_size=8) if isinstance(each, CropItem))
    assert gallery.draws.crops.regions is None


def test_a_work_item_holds_only_its_own_crops(folder: Path) -> None:
    dataset = load(folder)
    first = next(item for item in split_work(dataset, [], batch_size=4) if isinstance(item, PairItem))
    again = pickle.loads(pickle.dumps(first))
    assert again.draws.crops.select(again.draws.indices[:, 0]) == first.draws.crops.select(first.draws.indices[:, 0])
    assert len(first.draws.crops) <= 8
    assert len(pickle.dumps(first)) < sum(map(len, first.draws.crops.images)) + 4096


def test_compact_draws_show_the_same_crops(folder: Path) -> None:
    dataset = load(folder)
    pairs = dataset.plan.pairs
    draws = compact(SampledPairs(dataset.crops, pairs))
    for role in (0, 1):
        assert draws.crops.select(draws.indices[:, role]) == dataset.crops.select(pairs[:, role])


def test_results_are_merged_in_the_order_of_their_numbers() -> None:
    late = (np.array([3, 4]), {"x": np.array([3.0, 4.0], np.float32)})
    early = (np.array([0]), {"x": np.array([0.0], np.float32)})
    numbers, columns = merge_results([late, early])
    assert numbers.tolist() == [0, 3, 4]
    assert columns["x"].tolist() == [0, 3, 4]
    assert merge_results([])[1] == {}

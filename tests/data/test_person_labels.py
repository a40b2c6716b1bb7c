from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fusionray.data.person_labels import LABELS_NAME, PersonLabels, read_labels, write_labels
from fusionray.errors import InputMissing, ShardCorrupt
from tests.support.tiny_shards import name_person, write_tiny_shards

NAMES = [name_person(person) for person in range(8)]


def test_people_have_labels_of_their_own_in_any_order_of_their_names(tmp_path: Path) -> None:
    manifest = write_tiny_shards(tmp_path, people=8)
    labels = read_labels(str(tmp_path), manifest)
    assert sorted(labels[name] for name in NAMES) == list(range(manifest.num_people)) == list(range(8))
    again = PersonLabels.of([*reversed(NAMES), *NAMES])
    assert [again[name] for name in NAMES] == [labels[name] for name in NAMES]
    # Who is held out has none.
    for name in (name_person(8), "", "somebody"):
        with pytest.raises(KeyError):
            labels[name]


def test_labels_that_are_missing_or_damaged_are_one_line(tmp_path: Path) -> None:
    manifest = write_tiny_shards(tmp_path, people=8)
    file = tmp_path / LABELS_NAME
    whole = file.read_bytes()
    write_labels(str(tmp_path), [*NAMES, "one more"])
    more = file.read_bytes()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    pickled = file.read_bytes()
    for data in (b"", whole[:-3], more, pickled):
        file.write_bytes(data)
        with pytest.raises(ShardCorrupt, match="is damaged; delete it, and run `fusionray prepare` again"):
            read_labels(str(tmp_path), manifest)
    file.unlink()
    with pytest.raises(InputMissing, match=r"has no labels\.npy; run `fusionray prepare` again"):
        read_labels(str(tmp_path), manifest)

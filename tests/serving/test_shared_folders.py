from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from fusionray.errors import ConfigInvalid
from fusionray.serving import shared_folders
from fusionray.serving.config import ModelConfig, ServeConfig
from fusionray.serving.config_sections.identities import IdentityConfig
from fusionray.serving.config_sections.jobs import JobConfig
from fusionray.serving.shared_folders import ask_nodes

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.fixture
def own_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that this process alone finds under its path, as if it lay on a disk of this node."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    # No worker has so many files open.
    high = os.dup2(descriptor, 900)
    yield Path(f"/proc/self/fd/{high}/own")
    os.close(high)
    os.close(descriptor)


def list_nodes() -> dict[str, str]:
    return {node["NodeID"]: "10.0.0.2" for node in ray.nodes() if node["Alive"]}


def test_folders_that_every_node_sees_are_accepted_and_left_as_they_were(tmp_path: Path) -> None:
    stores = {"jobs.folder": tmp_path / "jobs", "identities.folder": tmp_path / "deep" / "identities"}
    ask_nodes(list_nodes(), stores, {"models: tiny": tmp_path})
    assert not any(any(folder.iterdir()) for folder in stores.values())


def test_a_folder_of_one_node_is_refused_by_its_setting(tmp_path: Path, own_folder: Path) -> None:
    stores = {"identities.folder": tmp_path, "jobs.folder": own_folder}
    with pytest.raises(ConfigInvalid, match=r"jobs\.folder: the node 10\.0\.0\.2 does not see /proc/self/fd/900/own"):
        ask_nodes(list_nodes(), stores, {})
    assert not list(own_folder.iterdir())


def test_a_bundle_that_lies_on_one_node_is_refused(tmp_path: Path, own_folder: Path) -> None:
    with pytest.raises(ConfigInvalid, match=r"models: tiny: the node 10\.0\.0\.2 does not see"):
        ask_nodes(list_nodes(), {"jobs.folder": tmp_path}, {"models: tiny": own_folder.parent})


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigInvalid, match=r"file.*choose another folder"):
        ask_nodes(list_nodes(), {"jobs.folder": tmp_path / "file" / "jobs"}, {})


@pytest.mark.parametrize(
    ("tasks", "stores"),
    [
        (("face_fusion",), {"identities.folder", "jobs.folder"}),
        (("style_transfer",), {"jobs.folder"}),
        (("deblur",), set()),
    ],
)
def test_what_is_shared_follows_from_the_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: tuple[str, ...], stores: set[str]
) -> None:
    asked: list[set[str]] = []
    monkeypatch.setattr(shared_folders, "ask_nodes", lambda _, stores, __: asked.append(set(stores)))
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": n, "NodeManagerAddress": n, "Alive": True} for n in "ab"])
    config = ServeConfig(
        models=(ModelConfig(bundle=str(tmp_path)),),
        jobs=JobConfig(folder=str(tmp_path / "jobs")),
        identities=IdentityConfig(folder=str(tmp_path / "identities")),
    )
    shared_folders.check_shared_folders(config, tasks)
    assert asked == [stores]

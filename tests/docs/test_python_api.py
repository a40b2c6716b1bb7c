"""The examples of docs/python-api.md work: export, fuse and serve are run, the stages on Ray are called with care.

What the stages on Ray do is proved elsewhere (tests/e2e); here their configurations are built for real, and the
functions only note that they were called with them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest

# The import of Ray Serve uses deprecated parts of pydantic, so it happens here, before warnings become errors.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import fusionray.serving.application  # noqa: F401

from fusionray.config import Section
from fusionray.data import prepare as prepare_stage
from fusionray.evaluation import evaluate as evaluate_stage
from fusionray.faces.image_files.decode import encode_image
from fusionray.ray_cluster import connection
from fusionray.safety.verify import verify
from fusionray.training import train as train_stage
from fusionray.tuning import driver as tune_stage
from tests.support.child_python import ROOT
from tests.support.documents import read_sections, run_blocks
from tests.support.pictures import draw_person
from tests.support.tiny_world import save_fusion, write_world

PAGE = read_sections("python-api.md")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a run and its shards, and two pictures."""
    place = tmp_path_factory.mktemp("api")
    write_world(place / "shards")
    save_fusion(place / "runs" / "mine" / "first", shards=str(place / "shards"))
    for name, seed in (("a", 1), ("b", 2)):
        (place / f"{name}.jpg").write_bytes(encode_image(draw_person(seed), "jpeg"))
    return place


@pytest.fixture(autouse=True)
def working_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def note_calls(stage: Callable[..., Any], called: list[str]) -> Callable[..., Any]:
    """Stand in for a stage: check the type of its configuration, and give a result with the fields of the real one."""
    hints = get_type_hints(stage)
    result = hints["return"]
    fields = [field.name for field in dataclasses.fields(result)] if dataclasses.is_dataclass(result) else []
    fields += list(result.model_fields) if issubclass(result, Section) else []
    (config_name, *_) = inspect.signature(stage).parameters

    def call(config: Any) -> Any:
        assert type(config) is hints[config_name]
        called.append(stage.__name__)
        return SimpleNamespace(**dict.fromkeys(fields, ""))

    return call


def test_stages_take_the_configurations_that_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    called: list[str] = []
    stages = (prepare_stage, "prepare"), (train_stage, "train"), (tune_stage, "tune"), (evaluate_stage, "evaluate")
    for module, name in stages:
        monkeypatch.setattr(module, name, note_calls(getattr(module, name), called))
    monkeypatch.setattr(connection, "cluster", contextlib.nullcontext)
    run_blocks(PAGE["Stages on Ray"], ROOT, {})
    assert called == ["prepare", "train", "tune", "evaluate"]


@pytest.mark.filterwarnings("ignore:.*TEST KEY.*:RuntimeWarning")
def test_a_checkpoint_is_exported_and_fuses_pictures(folder: Path) -> None:
    run_blocks(PAGE["Export"], folder, {})
    run_blocks(PAGE["Fuse pictures"], folder, {})
    assert verify((folder / "fused.png").read_bytes()).ai_made


@pytest.mark.usefixtures("ray_session")
def test_the_application_is_built() -> None:
    run_blocks(PAGE["Serve"], Path(), {})


def test_the_page_has_no_other_examples() -> None:
    assert {heading for heading, blocks in PAGE.items() if blocks} == {
        "Stages on Ray",
        "Export",
        "Fuse pictures",
        "Serve",
    }

"""The examples of docs/extending.md work: each block of the page is run, in the order of the page."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import pytest

# The import of Ray Serve uses deprecated parts of pydantic, so it happens here, before warnings become errors.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from fusionray.serving.http import task_routes
    from fusionray.serving.tasks import registry as tasks

from fusionray.environment import RECIPES_VARIABLE
from fusionray.faces.image_files.decode import encode_image
from fusionray.recipes import registry as recipes
from fusionray.training.dry_run.dry_run import dry_run
from tests.support.documents import read_sections, run_blocks
from tests.support.pictures import draw_person
from tests.support.tiny_bundle import write_tiny_bundle

PAGE = "extending.md"


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty working folder on the path; what the page registers is forgotten afterwards."""
    folder = tmp_path_factory.mktemp("extending")
    # The families that are always there register once: they must not be forgotten with those of the page.
    recipes.import_families()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        patch.setattr(recipes, "families", dict(recipes.families))
        patch.setattr(recipes, "imported", set(recipes.imported))
        patch.setattr(task_routes, "ROUTES", dict(task_routes.ROUTES))
        patch.setattr(tasks, "TASKS", dict(tasks.TASKS))
        patch.setenv(RECIPES_VARIABLE, "deblur")
        yield folder
    for path in folder.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture(scope="module")
def names(workplace: Path) -> dict[str, Any]:
    """The names that the blocks share, once the family of the page has gone its way."""
    found: dict[str, Any] = {"__name__": "page"}
    run_blocks(read_sections(PAGE)["A recipe family"], workplace, found)
    return found


def test_a_family_learns_is_exported_and_runs(workplace: Path, names: dict[str, Any]) -> None:
    assert (workplace / "runs" / "bundle" / "bundle.json").is_file()
    said: list[str] = []
    assert set(dry_run(names["config"], said.append).losses) == {"pixels"}
    assert any("sharpener" in line for line in said)


def test_a_loss_is_part_of_a_step(workplace: Path, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RECIPES_VARIABLE, "deblur,edge_deblur")
    run_blocks(read_sections(PAGE)["A loss"], workplace, dict(names))


def test_a_detector_finds_the_faces_of_a_large_picture(workplace: Path) -> None:
    write_tiny_bundle(workplace / "faces-bundle")
    large = cv2.resize(draw_person(2), (700, 700), interpolation=cv2.INTER_CUBIC)
    (workplace / "ada.png").write_bytes(encode_image(draw_person(1), "png"))
    (workplace / "beach.png").write_bytes(encode_image(large, "png"))
    run_blocks(read_sections(PAGE)["A face detector"], workplace, {})


@pytest.mark.filterwarnings("ignore:no certificate:RuntimeWarning", "ignore:.*TEST KEY.*:RuntimeWarning")
def test_an_endpoint_answers(workplace: Path, names: dict[str, Any]) -> None:
    run_blocks(read_sections(PAGE)["An HTTP endpoint"], workplace, dict(names))


def test_the_page_has_no_other_examples() -> None:
    shown = {heading for heading, blocks in read_sections(PAGE).items() if blocks}
    assert shown == {"A recipe family", "A loss", "A face detector", "An HTTP endpoint"}

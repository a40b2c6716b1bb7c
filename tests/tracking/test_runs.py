"""The tracker against a real store: one SQLite file in a folder of its own."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fusionray.bundle.bundle import bundle_hash, read_bundle, write_bundle
from fusionray.errors import BundleInvalid, RunStopped, TrackerFailed
from fusionray.tracking.bundles import register_bundle, resolve_bundle
from fusionray.tracking.runs import (
    RunTracker,
    close_run,
    closed_run,
    flatten,
    metric_history,
    open_run,
    read_run_metrics,
)
from fusionray.tracking.store import make_client, tracking_uri
from tests.support.tiny_bundle import build_generator, build_identity, describe_tiny, write_tiny_bundle


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """URI and folder of a store; made once, since its migrations take seconds."""
    folder = tmp_path_factory.mktemp("store with space")
    return tracking_uri(None, str(folder)), folder


def test_the_default_store_is_a_file_in_the_output_folder(tmp_path: Path) -> None:
    output = tmp_path / "runs"
    assert tracking_uri(None, str(output)) == f"sqlite:///{output}/mlflow.db"
    assert output.is_dir()
    assert tracking_uri("http://server:5000", "s3://bucket") == "http://server:5000"
    with pytest.raises(
        ValueError, match=r"^tracking\.uri: name an MLflow server .* since run\.output=s3://bucket is not"
    ):
        tracking_uri(None, "s3://bucket")


def test_a_new_store_is_a_copy_that_keeps_its_artifacts_next_to_it(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        client = make_client(f"sqlite:///{tmp_path / name}/mlflow.db")
        default = client.get_experiment("0")
        assert default.artifact_location == (tmp_path / name / "mlflow-artifacts" / "0").as_uri()
        assert [file.name for file in (tmp_path / name).iterdir()] == ["mlflow.db"]
    client.create_experiment("only in two")
    assert make_client(f"sqlite:///{tmp_path}/one/mlflow.db").get_experiment_by_name("only in two") is None
    assert make_client(f"sqlite:///{tmp_path}/two/mlflow.db").get_experiment_by_name("only in two") is not None


def test_without_a_cache_a_store_is_made_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file where a folder is wanted")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert make_client(f"sqlite:///{tmp_path}/mlflow.db").get_experiment("0").name == "Default"


def test_the_same_name_goes_on_with_the_same_run(store: tuple[str, Path]) -> None:
    uri, _ = store
    first = open_run(uri, "faces", "one", {"a": 1})
    close_run(uri, first, "FAILED")
    assert make_client(uri).get_run(first).info.status == "FAILED"
    assert open_run(uri, "faces", "one", {"a": 1}) == first
    assert make_client(uri).get_run(first).info.status == "RUNNING"
    assert open_run(uri, "faces", "two", {}) != first
    close_run(uri, first)
    assert make_client(uri).get_run(first).info.status == "FINISHED"


def test_a_run_that_begins_anew_has_curves_of_its_own(store: tuple[str, Path]) -> None:
    uri, _ = store
    former = open_run(uri, "faces", "anew twice", {"rate": 1}, key="train /a", fresh=True)
    RunTracker(uri, former, once=True).log(500, {"loss/all": 3.0})
    other = open_run(uri, "faces", "anew twice", {}, key="train /b", fresh=True)
    # As after `rm -r` of its folder.
    run = open_run(uri, "faces", "anew twice", {"rate": 2}, key="train /a", fresh=True)
    assert len({former, other, run}) == 3
    assert open_run(uri, "faces", "anew twice", {}, key="train /a") == run
    RunTracker(uri, run, once=True).log(100, {"loss/all": 2.0})
    assert metric_history(uri, run, "loss/all") == [(100, 2.0)]
    assert make_client(uri).get_run(run).data.params == {"rate": "2"}
    assert read_run_metrics(uri, "faces", "anew twice", "loss/") == {"loss/all": [(100, 2.0)]}


@pytest.mark.parametrize(
    ("error", "status"), [(None, "FINISHED"), (RunStopped("later"), "KILLED"), (ValueError("broken"), "FAILED")]
)
def test_a_run_says_how_it_ended(store: tuple[str, Path], error: Exception | None, status: str) -> None:
    uri, _ = store
    run = open_run(uri, "faces", f"ends {status}", {})
    with contextlib.suppress(ValueError, RunStopped), closed_run(uri, run):
        if error is not None:
            raise error
    assert make_client(uri).get_run(run).info.status == status


def test_a_store_that_is_lost_hides_no_error_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere = f"sqlite:///{tmp_path}/file/mlflow.db"
    with pytest.raises(TrackerFailed, match="name a store that can be reached and written") as caught:
        open_run(nowhere, "faces", "lost", {})
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="broken"), closed_run(nowhere, "lost"):
        raise ValueError("broken")
    with pytest.raises(TrackerFailed), closed_run(nowhere, "lost"):
        pass


def test_parameters_name_no_password_and_keys_may_have_apostrophes(store: tuple[str, Path]) -> None:
    uri, _ = store
    settings = {"tracking": {"uri": "http://ann:secret@host:5000"}, "paths": ["s3://bucket/a@b"]}
    run = open_run(uri, "faces", "hidden", settings, key="search /home/o'neil/runs")
    assert open_run(uri, "faces", "hidden", settings, key="search /home/o'neil/runs") == run
    logged = make_client(uri).get_run(run).data.params
    assert logged == {"tracking.uri": '"http://host:5000"', "paths": '["s3://bucket/a@b"]'}


def test_a_key_tells_runs_of_one_name_apart(store: tuple[str, Path]) -> None:
    uri, _ = store
    first = open_run(uri, "faces", "evaluate one", {}, key="a")
    assert open_run(uri, "faces", "evaluate one", {}, key="a") == first
    other = open_run(uri, "faces", "evaluate one", {}, key="b")
    assert other != first
    assert make_client(uri).get_run(other).info.run_name == "evaluate one"


def test_a_file_is_stored_with_the_run(store: tuple[str, Path], tmp_path: Path) -> None:
    uri, _ = store
    run = open_run(uri, "faces", "files", {})
    (tmp_path / "report.md").write_text("words")
    RunTracker(uri, run).log_file(tmp_path / "report.md")
    (tmp_path / "back").mkdir()
    place = make_client(uri).download_artifacts(run, "report.md", str(tmp_path / "back"))
    assert Path(place).read_text() == "words"


def test_parameters_are_stored_flat(store: tuple[str, Path]) -> None:
    uri, _ = store
    run = open_run(uri, "faces", "parameters", {"run": {"seed": 3, "name": "x"}, "widths": (1, 2), "long": "y" * 9000})
    stored = make_client(uri).get_run(run).data.params
    assert stored["run.seed"] == "3"
    assert stored["run.name"] == '"x"'
    assert stored["widths"] == "[1, 2]"
    assert len(stored["long"]) == 500


def test_metrics_come_back_in_the_order_of_images(store: tuple[str, Path]) -> None:
    uri, _ = store
    run = open_run(uri, "faces", "metrics", {})
    client = make_client(uri)
    for images, value in ((64, 0.25), (32, 0.5)):
        client.log_metric(run, "loss", value, step=images)
    assert metric_history(uri, run, "loss") == [(32, 0.5), (64, 0.25)]


def test_a_run_that_comes_past_an_entry_again_does_not_make_it_twice(store: tuple[str, Path]) -> None:
    uri, _ = store
    run = open_run(uri, "faces", "again", {})
    for start in (32, 64):  # killed after 96, from a checkpoint at 32 images
        tracker = RunTracker(uri, run, once=True)
        for images in range(start, start + 96, 32):
            tracker.log(images, {"loss": 1.0, "bad": math.nan})
    # What was not measured before is no second entry.
    tracker.log(128, {"rare": 2.0})
    assert [images for images, _ in metric_history(uri, run, "loss")] == [32, 64, 96, 128]
    assert metric_history(uri, run, "bad") == []
    assert metric_history(uri, run, "rare") == [(128, 2.0)]


def test_what_is_measured_anew_takes_the_place_of_what_was(store: tuple[str, Path]) -> None:
    uri, _ = store
    run = open_run(uri, "faces", "anew", {})
    for value in (1.0, 2.0):
        RunTracker(uri, run).log(0, {"best_value": value})
    assert make_client(uri).get_run(run).data.metrics["best_value"] == 2.0


def test_a_store_that_does_not_answer_is_told_in_one_line(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    run = open_run(uri, "faces", "lost", {})
    make_client(uri).delete_run(run)
    with pytest.raises(TrackerFailed, match=r"tracking: .*start the same run again") as caught:
        RunTracker(uri, run).log(32, {"loss": 1.0})
    assert "\n" not in str(caught.value)


def test_a_part_of_a_run_is_filed_under_it(store: tuple[str, Path]) -> None:
    uri, _ = store
    whole = open_run(uri, "faces", "whole", {})
    part = open_run(uri, "faces", "part", {}, parent=whole)
    assert make_client(uri).get_run(part).data.tags["mlflow.parentRunId"] == whole


def test_previews_lie_with_the_run_and_the_last_under_a_fixed_name(store: tuple[str, Path]) -> None:
    uri, folder = store
    run = open_run(uri, "faces", "previews", {})
    picture = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    RunTracker(uri, run).log_preview(64, picture, final=False)
    RunTracker(uri, run).log_preview(128, picture, final=True)
    artifacts = folder / "mlflow-artifacts" / run / "artifacts"
    assert sorted(path.name for path in (artifacts / "previews").iterdir()) == ["000000000064.png", "000000000128.png"]
    with Image.open(artifacts / "preview.png") as image:
        np.testing.assert_array_equal(np.asarray(image), picture)


def test_a_registered_bundle_comes_back_whole_by_alias_and_by_version(store: tuple[str, Path], tmp_path: Path) -> None:
    uri, _ = store
    run = open_run(uri, "faces", "bundle", {})
    bundle = write_tiny_bundle(tmp_path / "bundle")
    assert register_bundle(uri, bundle.folder, "fusion", "champion", run) == "models:/fusion@champion"
    for location in ("models:/fusion@champion", "models:/fusion/1"):
        found = read_bundle(location, tracking_uri=uri)
        assert bundle_hash(found) == bundle_hash(bundle)


def test_a_second_export_moves_the_alias_and_leaves_the_first_version_as_it_was(
    store: tuple[str, Path], tmp_path: Path
) -> None:
    uri, _ = store
    run = open_run(uri, "faces", "twice", {})
    first = write_tiny_bundle(tmp_path / "bundle")
    first_hash = bundle_hash(first)
    register_bundle(uri, first.folder, "moving", "champion", run)
    files = {"generator.onnx": build_generator(), "identity.onnx": build_identity(seed=1)}
    second = write_bundle(tmp_path / "bundle", files, describe_tiny())
    register_bundle(uri, second.folder, "moving", "champion", run)
    assert bundle_hash(read_bundle("models:/moving@champion", tracking_uri=uri)) == bundle_hash(second)
    assert bundle_hash(read_bundle("models:/moving/1", tracking_uri=uri)) == first_hash


@pytest.mark.parametrize("location", ["models:/none@champion", "models:/none/3", "models:/none"])
def test_an_unknown_model_is_refused_naming_the_registry(store: tuple[str, Path], location: str) -> None:
    with pytest.raises(BundleInvalid, match=rf"{location}: not in the registry at sqlite:///") as caught:
        resolve_bundle(location, store[0])
    assert "\n" not in str(caught.value)


def test_a_registry_location_without_a_registry_is_refused() -> None:
    with pytest.raises(BundleInvalid, match="name the registry"):
        resolve_bundle("models:/fusion@champion", None)


def test_flattening_keeps_every_value() -> None:
    tree = {"a": {"b": {"c": 1}, "d": [1, 2]}, "e": None}
    assert {key: json.loads(value) for key, value in flatten(tree).items()} == {"a.b.c": 1, "a.d": [1, 2], "e": None}

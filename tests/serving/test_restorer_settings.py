"""A restorer of the operator in the settings of a service; tests/serving/styles asks a service that has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusionray.errors import ConfigInvalid
from fusionray.runtime.restorer import RestorerConfig
from fusionray.serving.application import run
from fusionray.serving.config import ModelConfig, ServeConfig, with_absolute_paths
from fusionray.serving.config_sections.identities import IdentityConfig
from tests.support.tiny_bundle import write_tiny_bundle


def build_config(folder: Path, restorer: RestorerConfig | None = None) -> ServeConfig:
    if not (folder / "bundle").exists():
        write_tiny_bundle(folder / "bundle")
    return ServeConfig(
        models=(ModelConfig(bundle=str(folder / "bundle")),),
        identities=IdentityConfig(folder=str(folder / "identities")),
        restorer=restorer or RestorerConfig(),
    )


def test_a_restorer_that_does_not_load_is_refused_before_anything_starts(tmp_path: Path) -> None:
    settings = RestorerConfig(model=str(tmp_path / "gone.onnx"), licence="MIT")
    with pytest.raises(ConfigInvalid, match=r"restorer\.model: .*gone\.onnx: there is no such model"):
        run(build_config(tmp_path, settings), port=1, blocking=False)


def test_its_path_is_that_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FUSIONRAY_ROOT", raising=False)
    config = with_absolute_paths(build_config(tmp_path, RestorerConfig(model="invert.onnx", licence="MIT")))
    assert config.restorer.model == str(tmp_path / "invert.onnx")

"""A face parser goes into the bundle of a fusion, and into no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fusionray.cli import main
from fusionray.data import synthetic
from fusionray.errors import CheckpointMissing, ConfigInvalid
from fusionray.export.export import largest_difference, write_graphs
from fusionray.export.face_parser import add_parser
from fusionray.recipes.bundle_export import BundleExport
from tests.support.head_parsers import save_parser
from tests.support.tiny_world import save_fusion

FUSION = BundleExport("face_fusion", (), {"size": 32})


def test_its_graph_answers_as_the_network_does(tmp_path: Path) -> None:
    save_parser(tmp_path / "parser")
    exported = add_parser(FUSION, str(tmp_path / "parser"))
    (graph,) = exported.graphs
    files = write_graphs(exported.graphs, np.random.default_rng(0), tmp_path)
    for batch in (1, 3):
        example = graph.draw(np.random.default_rng(batch), batch)
        assert largest_difference(graph.module, files["parser.onnx"], example) < 1e-5
        shares = graph.module(*example)
        assert shares.shape == (batch, len(synthetic.PARTS), 32, 32)
        assert torch.allclose(shares.sum(1), torch.ones(batch, 32, 32), atol=1e-5)
    described = exported.description["parser"]
    assert (described.template, described.size, described.parts) == ("head_256", 32, synthetic.PARTS)
    assert exported.description["size"] == 32


def test_a_bundle_of_another_task_is_refused(tmp_path: Path) -> None:
    save_parser(tmp_path / "parser")
    with pytest.raises(ConfigInvalid, match="a bundle of the task style_transfer has no use for a face parser"):
        add_parser(BundleExport("style_transfer", (), {}), str(tmp_path / "parser"))


def test_another_run_is_refused_before_anything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_fusion(tmp_path / "fusion")
    with pytest.raises(CheckpointMissing):
        add_parser(FUSION, str(tmp_path / "fusion"))
    command = ["export", str(tmp_path / "fusion"), "--output", str(tmp_path / "bundle")]
    assert main([*command, f"parser={tmp_path / 'fusion'}"]) == 1
    assert "holds no face parser; train one with `--preset face-parser`" in capsys.readouterr().err
    assert not (tmp_path / "bundle").exists()

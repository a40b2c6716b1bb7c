"""A bundle and the run that it was exported from make the same pictures of the same roles."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusionray.bundle.bundle import read_bundle
from fusionray.checkpoint.info import find_checkpoint
from fusionray.errors import BundleInvalid
from fusionray.evaluation.picture_model import BundlePictureModel, open_picture_model
from fusionray.recipes.registry import find_family

CPU = torch.device("cpu")


def test_a_bundle_of_style_transfer_paints_as_its_run_does(style_folder: Path) -> None:
    family = find_family("style_transfer")
    generator = torch.Generator().manual_seed(0)
    style, content = (torch.randint(0, 256, (2, 3, 32, 32), generator=generator, dtype=torch.uint8) for _ in range(2))
    run, _ = open_picture_model(str(find_checkpoint(str(style_folder / "run"))), family, "", CPU)
    bundle, _ = open_picture_model(str(style_folder / "bundle"), family, "", CPU)
    painted, exported = (model.run([style, content]).int() for model in (run, bundle))
    assert (painted - exported).abs().max() <= 1
    # The two roles are no mirror of each other.
    assert (painted - bundle.run([content, style]).int()).abs().float().mean() > 0.5


def test_other_inputs_are_refused(style_folder: Path) -> None:
    with pytest.raises(BundleInvalid, match="takes content, style, but its recipe has 2 input"):
        BundlePictureModel(read_bundle(str(style_folder / "bundle")), 2, inputs=("source", "target"))

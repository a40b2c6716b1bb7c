"""The synthetic input: its address, and the ground truth of each crop."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from fusionray.data.crop_decoding import decode_region
from fusionray.data.prepare.config import PrepareConfig
from fusionray.data.prepare.crop import FaceCropper
from fusionray.data.prepare.open_input import open_input
from fusionray.data.prepare.picture_input import DecodedPicture
from fusionray.data.prepare.synthetic_input import SyntheticInput, SyntheticPictures, parse_synthetic
from fusionray.data.synthetic import render, render_with_region
from fusionray.errors import ConfigInvalid
from fusionray.faces.align import load_template
from fusionray.faces.detectors.factory import build_detector
from fusionray.faces.image_files.decode import decode_image


def test_an_address_is_parsed_with_its_defaults() -> None:
    assert parse_synthetic("synthetic://").signature() == "people=500,images=20,size=128,seed=0"
    text = "people=3,images=2,size=64,seed=9"
    assert parse_synthetic(f"synthetic://{text}").signature() == text


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("peple=5", "'peple'"),
        ("people=many", "people=many"),
        ("people=0", "people=0"),
        ("people=-3", "people=-3"),
        ("size=7", "size=7"),
        ("images=2,images=3", "'images' is given twice"),
        ("seed", "seed="),
        ("people=1e3", "people=1e3"),
    ],
)
def test_a_malformed_address_names_the_key(text: str, key: str) -> None:
    with pytest.raises(ConfigInvalid, match=key):
        parse_synthetic(f"synthetic://{text}")


def read(source: SyntheticInput, *numbers: int) -> list[DecodedPicture]:
    entries = source.list_entries().entries
    pictures = list(source.read([entries[number] for number in numbers]))
    assert all(isinstance(picture, DecodedPicture) for picture in pictures)
    return pictures  # type: ignore[return-value]


def test_a_person_looks_the_same_however_the_work_is_divided() -> None:
    small = SyntheticInput(people=3, images=2, size=64, seed=4)
    large = SyntheticInput(people=9, images=2, size=64, seed=4)
    together = read(small, 0, 1, 2, 3, 4, 5)
    for number in (5, 2):
        (alone,) = read(large, number)
        assert alone.entry == together[number].entry
        assert np.abs(alone.image.astype(int) - together[number].image).mean() < 0.5
    assert not np.array_equal(together[0].image, together[1].image)
    (other,) = read(SyntheticInput(people=3, images=2, size=64, seed=5), 0)
    assert not np.array_equal(other.image, together[0].image)


@pytest.mark.parametrize("landmarks", ["detected", "exact"])
def test_the_stored_view_renders_the_crop(landmarks: str) -> None:
    config = PrepareConfig(input="-", output="-", landmarks=landmarks, size=96, image_format="png", min_face_pixels=10)
    cropper = FaceCropper(config, load_template("ffhq_512"), build_detector("default"))
    compared = 0
    for picture in read(SyntheticInput(people=2, images=2, size=192, seed=1), 0, 1, 2, 3):
        row = cropper.build(picture)
        crop = decode_image(row["image"]).astype(np.float32)
        parameters = [torch.tensor(row[key])[None] for key in ("identity_parameters", "attribute_parameters")]
        view = torch.tensor(row["view"]).reshape(1, 2, 3)
        rendered = (render(*parameters, 96, view)[0] * 255).permute(1, 2, 0).numpy()
        away = [
            np.abs(np.roll(crop, shift, (0, 1)) - rendered)[8:-8, 8:-8].mean() for shift in ((0, 0), (1, 0), (0, 1))
        ]
        assert away[0] < 6
        assert away[0] < 0.8 * min(away[1:]), "a shift by one pixel would fit better"
        compared += 1
    assert compared == 4


@pytest.mark.parametrize("landmarks", ["detected", "exact"])
def test_the_stored_region_is_that_of_the_renderer(landmarks: str) -> None:
    config = PrepareConfig(input="-", output="-", landmarks=landmarks, size=96, min_face_pixels=10)
    cropper = FaceCropper(config, load_template("arcface_128"), build_detector("default"))
    for picture in read(SyntheticInput(people=2, images=2, size=192, seed=1), 0, 1, 2, 3):
        row = cropper.build(picture)
        parameters = [torch.tensor(row[key])[None] for key in ("identity_parameters", "attribute_parameters")]
        _, region = render_with_region(*parameters, 96, torch.tensor(row["view"]).reshape(1, 2, 3))
        stored = decode_region(row["region"], 96, row["identity"]) / 255
        assert np.abs(stored - region[0, 0].numpy()).mean() < 0.02
        assert 0.1 < stored.mean() < 0.8


def test_the_region_of_a_photograph_is_the_inside_of_the_mesh() -> None:
    config = PrepareConfig(input="-", output="-", size=96, min_face_pixels=10)
    cropper = FaceCropper(config, load_template("arcface_128"), build_detector("default"))
    overlaps = []
    for picture in read(SyntheticInput(people=3, images=2, size=192, seed=1), 0, 1, 2, 3, 4, 5):
        assert picture.truth is not None
        photograph = dataclasses.replace(picture, truth=None)
        row = cropper.build(photograph)
        drawn, known = (decode_region(cropper.build(made)["region"], 96, "x") / 255 for made in (photograph, picture))
        # Eyes, nose and mouth are in it, the corners of the crop are not.
        assert all(drawn[round(y), round(x)] == 1 for x, y in row["landmarks"])
        assert not drawn[:4, :4].any()
        assert not drawn[:4, -4:].any()
        overlaps.append(np.minimum(drawn, known).sum() / np.maximum(drawn, known).sum())
    # The mesh estimates the hidden sides of turned heads, and the foreheads of synthetic people are high.
    assert np.mean(overlaps) > 0.65


def test_exact_points_land_on_the_template() -> None:
    config = PrepareConfig(input="-", output="-", landmarks="exact", size=112, template="arcface_112")
    template = load_template("arcface_112")
    cropper = FaceCropper(config, template, build_detector("default"))
    (picture,) = read(SyntheticInput(people=1, images=1, size=192, seed=0), 0)
    row = cropper.build(picture)
    assert np.abs(np.array(row["landmarks"]) - template.points(112)).mean() < 6


def test_pictures_have_an_address_of_their_own() -> None:
    source = parse_synthetic("synthetic://pictures=6,size=64,seed=9")
    assert isinstance(source, SyntheticPictures)
    assert source.signature() == "pictures=6,size=64,seed=9"
    assert parse_synthetic("synthetic://pictures=6").signature() == "pictures=6,size=128,seed=0"
    with pytest.raises(ConfigInvalid, match="the key 'people' is not known; there are pictures, size, seed"):
        parse_synthetic("synthetic://pictures=6,people=2")


def test_contents_and_styles_take_turns_whatever_their_number() -> None:
    few, many = (parse_synthetic(f"synthetic://pictures={number},size=32,seed=4") for number in (6, 20))
    entries = few.list_entries().entries
    names = [entry.source for entry in entries]
    assert names == [f"{kind}/{number:06d}" for number in range(3) for kind in ("contents", "styles")]
    together = list(few.read(list(entries)))
    for place in (4, 1):
        (alone,) = many.read([many.list_entries().entries[place]])
        assert isinstance(alone, DecodedPicture)
        assert isinstance(together[place], DecodedPicture)
        assert alone.entry == together[place].entry
        np.testing.assert_allclose(alone.image.astype(int), together[place].image, atol=1)
    assert together[0].image.shape == (32, 32, 3)  # type: ignore[union-attr]


def test_pictures_without_faces_are_no_input_for_faces(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="shows no faces to train on; set task=pictures"):
        open_input(PrepareConfig(input="synthetic://pictures=6", output=str(tmp_path)))
    open_input(PrepareConfig(input="synthetic://pictures=6", output=str(tmp_path), task="pictures"))

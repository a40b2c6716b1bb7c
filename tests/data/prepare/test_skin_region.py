"""The region of a photograph is the skin that the face parser of a bundle sees."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from fusionray.data.prepare import PrepareConfig, prepare
from fusionray.data.prepare.skin_region import SkinRegion, fill_holes
from fusionray.errors import BundleInvalid, ShardMismatch
from fusionray.faces.align import load_template, template_to_template
from fusionray.faces.image_files.decode import encode_image
from tests.support.head_parsers import build_parser, write_parser_bundle
from tests.support.pictures import draw_person
from tests.support.tiny_bundle import write_tiny_bundle

# Ray 2.60 warns of its own defaults whenever a DataContext is made.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")

SIZE = 96


def test_the_region_is_the_skin_of_the_head_in_the_view_of_the_crop(tmp_path: Path) -> None:
    """The picture is a head aligned already: red below, blue above. The parser sees skin from a quarter on."""
    bundle = write_parser_bundle(tmp_path / "bundle")
    template, head = load_template("arcface_128"), load_template("head_256")
    picture = np.full((256, 256, 3), (200, 120, 90), np.uint8)
    picture[:64] = (40, 60, 180)
    picture[150:180, 100:130] = (40, 60, 180)  # A blue glove, where the parser expects skin.
    to_crop = template_to_template(head, 256, template, SIZE)
    region = SkinRegion(str(bundle.folder)).find(picture, template, to_crop, SIZE)
    assert (region.shape, region.dtype) == ((SIZE, SIZE), np.uint8)
    at = lambda x, y: int(region[tuple(np.rint(to_crop @ (x, y, 1)).astype(int)[::-1])])  # noqa: E731
    assert [at(128, 54) < 30, at(128, 100) > 225, at(80, 180) > 225] == [True] * 3
    # The parser of the test is nearly sure; what is left to doubt, the colour decides.
    assert at(115, 165) < at(180, 165) - 20


def test_eyes_are_part_of_the_face_and_what_reaches_beyond_it_is_not() -> None:
    skin = np.full((40, 40), 0.02, np.float32)
    skin[4:36, 4:36] = 0.98
    eye, glasses = np.s_[12:16, 10:16], np.s_[20:24, 20:40]
    skin[eye], skin[glasses] = 0.1, 0.1
    skin[11:17, 9] = 0.6
    filled = fill_holes(skin)
    assert (filled[eye] == 1).all()
    assert (filled[11:17, 9] == 1).all()
    changed = filled != skin
    changed[10:18, 8:18] = False
    assert not changed.any()


def regions_of(output: Path) -> list[NDArray[np.uint8]]:
    rows = [row for file in sorted(output.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    assert rows
    return [cv2.imdecode(np.frombuffer(row["region"], np.uint8), cv2.IMREAD_GRAYSCALE) for row in rows]


@pytest.mark.usefixtures("ray_session")
def test_photographs_get_the_skin_of_the_parser_and_synthetic_people_what_was_rendered(tmp_path: Path) -> None:
    bundle, source = write_parser_bundle(tmp_path / "bundle"), tmp_path / "in"
    for person in range(2):
        (source / f"person {person}").mkdir(parents=True)
        (source / f"person {person}" / "0.png").write_bytes(encode_image(draw_person(person, 256), "png"))
    common = {"size": SIZE, "min_sharpness": 0, "contact_sheet": False}

    def regions(name: str, address: str = str(source), **settings: object) -> list[NDArray[np.uint8]]:
        output = tmp_path / name
        manifest = prepare(PrepareConfig(input=address, output=str(output), **common, **settings))
        assert manifest.skin_regions == (name == "skins")
        return regions_of(output)

    outlines, skins = regions("outlines"), regions("skins", parser=str(bundle.folder))
    # The parser's skin reaches beyond the outline of the face: the lower corners of a crop show neck.
    for outline, skin in zip(outlines, skins, strict=True):
        assert outline[-1].max() == 0
        assert skin[-1].max() > 200
    world = "synthetic://people=2,images=1,size=128"
    rendered = regions("rendered", world), regions("rendered too", world, parser=str(bundle.folder))
    assert all(np.array_equal(first, second) for first, second in zip(*rendered, strict=True))

    # Another parser would give other shards; the same one, elsewhere, the same.
    config = PrepareConfig(input=str(source), output=str(tmp_path / "skins"), **common)
    moved = write_parser_bundle(tmp_path / "moved")
    prepare(config.model_copy(update={"parser": str(moved.folder)}))
    other = write_parser_bundle(tmp_path / "other", build_parser() + b"\x72\x00")
    for changed in (None, str(other.folder)):
        with pytest.raises(ShardMismatch, match="parser"):
            prepare(config.model_copy(update={"parser": changed}))


def test_a_bundle_without_a_parser_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "plain")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.png").write_bytes(encode_image(draw_person(1, 128), "png"))
    config = PrepareConfig(input=str(tmp_path / "in"), output=str(tmp_path / "out"), parser=str(bundle.folder))
    with pytest.raises(BundleInvalid, match="export it with parser=RUN"):
        prepare(config)
    with pytest.raises(BundleInvalid, match="absent"):
        prepare(config.model_copy(update={"parser": "absent"}))
    assert not (tmp_path / "out").exists()

"""Style transfer behind the service, beside face fusion."""

from __future__ import annotations

import io
from pathlib import Path

import httpx
import numpy as np
import PIL.Image
import pytest
from PIL import ImageCms

from fusionray.bundle.bundle import read_bundle
from fusionray.client import FusionClient
from fusionray.faces.face import Image
from fusionray.faces.image_files.decode import ImageLimits, decode_image, encode_image
from fusionray.runtime.tasks import open_runner
from fusionray.safety.verify import verify
from tests.support.pictures import draw_person
from tests.support.serving import encode

STYLES = ("style", "style_2")
ANY_SIZE = ImageLimits(min_side=1)
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


@pytest.mark.slow(seconds=60)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_a_content_is_painted_in_a_mixture_of_styles(
    client: FusionClient, style_folder: Path, pictures: dict[str, Image]
) -> None:
    runner = open_runner(read_bundle(str(style_folder / "bundle")))
    files = {name: encode_image(picture, "png") for name, picture in pictures.items()}
    plain = client.stylize(files["content"], files["style"])
    mixed = client.stylize(
        files["content"], [files[name] for name in STYLES], weights=[0.2, 0.8], strength=0.7, model="paint"
    )
    for answer, wanted in (
        (plain, runner.run({name: pictures[name] for name in ("content", "style")})),
        (mixed, runner.run(pictures, weights=[0.2, 0.8], strength=0.7)),  # type: ignore[call-arg]
    ):
        assert verify(answer.data).holds
        np.testing.assert_array_equal(decode_image(answer.data, ANY_SIZE), wanted)
    assert not np.array_equal(decode_image(plain.data, ANY_SIZE), decode_image(mixed.data, ANY_SIZE))


@pytest.mark.slow(seconds=10)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_the_answer_has_the_profile_of_the_content_and_faces_are_fused_beside(
    client: FusionClient, pictures: dict[str, Image]
) -> None:
    content, style = (io.BytesIO() for _ in range(2))
    PIL.Image.fromarray(pictures["content"]).save(content, "JPEG", icc_profile=PROFILE)
    PIL.Image.fromarray(pictures["style"]).save(style, "PNG")
    answer = client.stylize(content.getvalue(), style.getvalue())
    with PIL.Image.open(io.BytesIO(answer.data)) as made:
        assert (made.format, made.info["icc_profile"]) == ("JPEG", PROFILE)
    fused = client.fuse(encode(draw_person(1), "PNG"), encode(draw_person(2), "PNG"))
    assert fused.boxes
    assert fused.model.endswith(", restored by invert (MIT)")
    # The generator inverts the face, and the restorer inverts it again.
    target = draw_person(2)
    middle = tuple(slice(side // 2 - 8, side // 2 + 8) for side in target.shape[:2])
    inverted, kept = (
        np.abs(each[middle].astype(int) - decode_image(fused.data)[middle]).mean() for each in (255 - target, target)
    )
    assert kept < inverted
    assert {model.task for model in client.list_models()} == {None, "style_transfer"}


@pytest.mark.slow(seconds=10)
@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"strength": "1.5"}, "strength"),
        ({"weights": "1,2"}, "weights: 2 weights for 1 styles"),
        ({"weights": "0"}, "not all 0"),
        ({"weights": "-1"}, "weights"),
        ({"model": "faces"}, "faces"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_what_cannot_be_painted_is_refused(
    client: FusionClient, pictures: dict[str, Image], fields: dict[str, str], wanted: str
) -> None:
    files = {name: encode_image(pictures[name], "png") for name in ("content", "style")}
    answer = httpx.post(f"{client.connection.url}/v1/stylize", files=files, data=fields, timeout=60)
    assert answer.status_code == 422, answer.text
    assert wanted in answer.json()["detail"]

"""A client finds the faces of a picture, and fuses those that it chooses, as strongly as it likes."""

from __future__ import annotations

import io

import httpx
import numpy as np
import pytest
from PIL import Image

from fusionray.client import FusionClient
from fusionray.errors import ServiceRefused
from tests.support.pictures import draw_empty, draw_person
from tests.support.serving import OpenService, encode
from tests.support.waiting import wait_for
from tests.support.whole_pictures import HEIC_FOLDER

SOURCE = encode(draw_person(1))
# Three people, of whom the one in the middle is the largest, and the one at the right the next.
SIDES, ORDER = (192, 320, 256), (1, 2, 0)


def draw_three() -> np.ndarray:
    row = np.full((320, sum(SIDES), 3), 128, np.uint8)
    left = 0
    for seed, side in zip((5, 6, 7), SIDES, strict=True):
        row[:side, left : left + side] = draw_person(seed, side)
        left += side
    return row


TARGET = encode(draw_three(), "PNG")


def fuse(service: OpenService, target: bytes = TARGET, **fields: str) -> httpx.Response:
    return httpx.post(f"{service.url}/v1/fuse", files={"source": SOURCE, "target": target}, data=fields, timeout=30)


def find_changed_columns(response: httpx.Response) -> set[int]:
    """Return the numbers of the people, from left to right, who look different in the answer."""
    assert response.status_code == 200, response.text
    return find_changed_people(response.content)


def find_changed_people(data: bytes | None) -> set[int]:
    assert data is not None
    with Image.open(io.BytesIO(data)) as picture:
        changed = (np.asarray(picture).astype(int) != draw_three()).any(axis=(0, 2))
    edges = np.cumsum((0, *SIDES))
    return {number for number in range(3) if changed[edges[number] : edges[number + 1]].any()}


def test_faces_are_listed_with_the_largest_first(open_service: OpenService) -> None:
    answer = httpx.post(f"{open_service.url}/v1/faces", files={"target": TARGET}, timeout=30)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["width"], found["height"]) == (768, 320)
    assert [face["index"] for face in found["faces"]] == [0, 1, 2]
    edges = np.cumsum(SIDES)
    centres = [face["box"][0] + face["box"][2] / 2 for face in found["faces"]]
    assert tuple(int(np.searchsorted(edges, centre)) for centre in centres) == ORDER
    for face in found["faces"]:
        left, top, width, height = face["box"]
        points = np.array(face["landmarks"])
        assert points.shape == (5, 2)
        assert (points > (left, top)).all()
        assert (points < (left + width, top + height)).all()
        assert 0.5 <= face["score"] <= 1


@pytest.mark.parametrize(
    ("selection", "expected"),
    [("0", {1}), ("2", {0}), ("1,2", {0, 2}), ("2,2", {0}), ("largest", {1}), ("all", {0, 1, 2})],
)
def test_the_chosen_faces_are_fused(open_service: OpenService, selection: str, expected: set[int]) -> None:
    response = fuse(open_service, faces=selection, format="png")
    assert find_changed_columns(response) == expected
    assert response.headers["x-fusionray-faces"] == str(len(expected))


@pytest.mark.parametrize(
    ("selection", "reason", "words"),
    [
        ("3", "no_such_face", "shows 3 faces, numbered from 0 by their size; there is no face 3"),
        ("0,99", "no_such_face", "there is no face 99"),
        ("first", "bad_fields", "faces"),
        ("-1", "bad_fields", "faces"),
        ("0,", "bad_fields", "faces"),
    ],
)
def test_a_face_that_is_not_there_is_refused(
    open_service: OpenService, selection: str, reason: str, words: str
) -> None:
    response = fuse(open_service, faces=selection)
    assert response.status_code == 422
    assert response.json()["reason"] == reason
    assert words in response.json()["detail"]


def test_the_strength_blends_the_fused_face_with_the_target(open_service: OpenService) -> None:
    changes = []
    for strength in ("0", "0.5", "1"):
        with Image.open(io.BytesIO(fuse(open_service, strength=strength, format="png").content)) as picture:
            changes.append(np.abs(np.asarray(picture).astype(int) - draw_three()).mean())
    assert changes[0] == 0
    assert changes[1] == pytest.approx(changes[2] / 2, rel=0.05)
    for wrong in ("1.5", "-0.1", "nan", "much"):
        assert fuse(open_service, strength=wrong).json()["reason"] == "bad_fields"


def test_the_skin_is_that_of_the_model_or_of_the_head_around_it(open_service: OpenService) -> None:
    def read(**fields: str) -> np.ndarray:
        with Image.open(io.BytesIO(fuse(open_service, format="png", **fields).content)) as picture:
            return np.asarray(picture).astype(int)

    own, matched = read(skin="source"), read(skin="target")
    assert np.array_equal(own, read())
    # The model inverts colours: with the skin of the head, the face is much nearer to the target.
    assert np.abs(matched - draw_three()).mean() < 0.85 * np.abs(own - draw_three()).mean()
    assert fuse(open_service, skin="mine").json()["reason"] == "bad_fields"


def test_a_large_face_is_fused_at_more_than_the_models_size(open_service: OpenService) -> None:
    portrait = encode(draw_person(3, 768))

    def see_detail(**fields: str) -> float:
        answer = fuse(open_service, portrait, format="png", **fields)
        with Image.open(io.BytesIO(answer.content)) as picture:
            middle = np.asarray(picture.convert("L")).astype(np.float32)[300:500, 250:500]
        return float(np.abs(np.diff(middle, axis=1)).mean())

    plain, once, double = see_detail(), see_detail(pixel_boost="1"), see_detail(pixel_boost="2")
    assert plain == once < 0.9 * double
    # The operator of this service allows twice the size.
    assert see_detail(pixel_boost="4") == double
    for wrong in ("3", "0", "much", "2.0", "9" * 5000):
        assert fuse(open_service, pixel_boost=wrong).json()["reason"] == "bad_fields"


def test_a_picture_without_faces_or_pixels_is_a_problem(open_service: OpenService) -> None:
    for data, status, reason in ((encode(draw_empty()), 422, "no_face"), (b"no picture", 415, "not_an_image")):
        answer = httpx.post(f"{open_service.url}/v1/faces", files={"target": data}, timeout=30)
        assert (answer.status_code, answer.json()["reason"], answer.json()["picture"]) == (status, reason, "target")


def encode_person(number: int) -> bytes:
    """Render one of the three people alone, as they stand in the target."""
    return encode(draw_person(5 + number, SIDES[number]), "PNG")


def fuse_reference(service: OpenService, reference: bytes, **fields: str) -> httpx.Response:
    files = {"source": SOURCE, "target": TARGET, "reference": reference}
    data = {"faces": "reference", "format": "png", **fields}
    return httpx.post(f"{service.url}/v1/fuse", files=files, data=data, timeout=30)


def test_faces_are_compared_with_a_reference(open_service: OpenService) -> None:
    files = {"target": TARGET, "reference": encode_person(0)}
    answer = httpx.post(f"{open_service.url}/v1/faces", files=files, timeout=30)
    assert answer.status_code == 200, answer.text
    similarities = [face["similarity"] for face in answer.json()["faces"]]
    assert all(-1 <= similarity <= 1.0001 for similarity in similarities)
    assert int(np.argmax(similarities)) == ORDER.index(0)
    assert similarities[ORDER.index(0)] > 0.98


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_face_of_the_reference_is_fused(open_service: OpenService, number: int) -> None:
    assert find_changed_columns(fuse_reference(open_service, encode_person(number))) == {number}


def test_a_reference_that_does_not_fit_is_a_problem(open_service: OpenService) -> None:
    answers = (
        (fuse_reference(open_service, SOURCE, reference_similarity="1"), 422, "no_such_face"),
        (fuse_reference(open_service, encode(draw_empty())), 422, "no_face"),
        (fuse_reference(open_service, b"no picture"), 415, "not_an_image"),
        (fuse_reference(open_service, SOURCE, faces="all"), 422, "bad_fields"),
        (fuse_reference(open_service, SOURCE, reference_similarity="2"), 422, "bad_fields"),
        (fuse(open_service, faces="reference"), 422, "bad_fields"),
    )
    for answer, status, reason in answers:
        assert (answer.status_code, answer.json()["reason"]) == (status, reason), answer.text
    assert answers[1][0].json()["picture"] == answers[2][0].json()["picture"] == "reference"
    for path in ("batches", "jobs"):
        for files, faces in (
            ({"source": SOURCE, "target": TARGET}, "reference"),
            ({"source": SOURCE, "target": TARGET, "reference": SOURCE}, "all"),
        ):
            answer = httpx.post(f"{open_service.url}/v1/{path}", files=files, data={"faces": faces}, timeout=30)
            assert (answer.status_code, answer.json()["reason"]) == (422, "bad_fields")


def test_a_batch_fuses_the_face_of_the_reference_in_each_target(open_service: OpenService) -> None:
    with FusionClient(open_service.url) as client:
        first, faceless, last = client.fuse_batch(
            SOURCE, [TARGET, encode(draw_empty()), TARGET], reference=encode_person(2), picture_format="png"
        )
        assert find_changed_people(first.data) == find_changed_people(last.data) == {2}
        assert faceless.problem is not None
        assert faceless.problem.picture == "target"
        faulty = client.fuse_batch(SOURCE, [TARGET, TARGET], reference=b"no picture")
        assert [item.problem and item.problem.picture for item in faulty] == ["reference"] * 2


def test_a_job_fuses_the_face_of_the_reference_and_removes_it_in_the_end(open_service: OpenService) -> None:
    reference = encode_person(2)
    with FusionClient(open_service.url) as client:
        job = client.create_job(
            SOURCE, [TARGET], reference=reference, picture_format="png", idempotency_key="of a face"
        )
        assert client.wait_for_job(job.job, timeout=30).done == 1
        assert find_changed_people(client.fetch_item(job.job, 1)) == {2}
        folder = open_service.folder / "runs" / "jobs" / "jobs" / job.job
        wait_for(lambda: not (folder / "secrets").exists())
        assert not any(path.read_bytes() == reference for path in folder.rglob("*") if path.is_file())
        for other, least in ((encode_person(1), None), (reference, 0.5)):
            with pytest.raises(ServiceRefused, match="idempotency_key_reused"):
                client.create_job(
                    SOURCE,
                    [TARGET],
                    reference=other,
                    reference_similarity=least,
                    picture_format="png",
                    idempotency_key="of a face",
                )
        unlike = client.create_job(SOURCE, [TARGET], reference=SOURCE, reference_similarity=1)
        assert client.wait_for_job(unlike.job, timeout=30).failed == 1
        (item,) = client.list_items(unlike.job)
        assert item.problem is not None
        assert item.problem.reason == "no_such_face"
        for each in (job, unlike):
            client.remove_job(each.job)


OTHER_SOURCE = encode(draw_person(9))


def read_person(data: bytes, number: int) -> np.ndarray:
    """Return the part of an answer that shows a person, by the number from left to right."""
    edges = np.cumsum((0, *SIDES))
    with Image.open(io.BytesIO(data)) as picture:
        return np.asarray(picture)[:, edges[number] : edges[number + 1]]


@pytest.mark.parametrize("kept", [False, True])
def test_each_source_is_for_the_number_in_its_place(open_service: OpenService, kept: bool) -> None:
    with FusionClient(open_service.url) as client:
        sources = [SOURCE, OTHER_SOURCE]
        given = [client.keep_identity(source) for source in sources] if kept else [*sources]
        together = client.fuse(given, TARGET, faces="2,0", picture_format="png")
        assert find_changed_people(together.data) == {ORDER[2], ORDER[0]}
        for number, source, other in zip((2, 0), given, given[::-1], strict=True):
            person = ORDER[number]
            alone, wrong = (
                read_person(client.fuse(one, TARGET, faces=str(number), picture_format="png").data, person)
                for one in (source, other)
            )
            assert (read_person(together.data, person) == alone).all()
            assert (alone != wrong).any()
        first, second = client.fuse_batch(given, [TARGET, SOURCE], faces="2,0", picture_format="png")
        assert first.data is not None
        assert (read_person(first.data, 0) == read_person(together.data, 0)).all()
        assert second.problem is not None
        assert second.problem.reason == "no_such_face"


@pytest.mark.parametrize(
    ("num_sources", "faces", "words"),
    [
        (2, "largest", "2 sources are for as many faces, and 0 are named by number; name 2, as in 0,1"),
        (2, "all", "0 are named"),
        (2, "1", "and 1 are named"),
        (2, "1,1", "and 1 are named"),
        (3, "0,1", "3 sources are for as many faces, and 2 are named by number; name 3, as in 0,1,2"),
        (65, "0", "65 were sent; 64 are the limit"),
    ],
)
@pytest.mark.parametrize("path", ["fuse", "batches"])
def test_other_numbers_of_sources_are_refused(
    open_service: OpenService, num_sources: int, faces: str, words: str, path: str
) -> None:
    data = {"identity": ["id_x"] * num_sources, "faces": faces}
    answer = httpx.post(f"{open_service.url}/v1/{path}", files={"target": TARGET}, data=data, timeout=30)
    assert (answer.status_code, answer.json()["reason"]) == (422, "bad_fields")
    assert words in answer.json()["detail"]


def test_pictures_and_stored_faces_are_not_mixed_and_a_job_has_one_source(open_service: OpenService) -> None:
    target, source = ("target", ("a", TARGET)), ("source", ("a", SOURCE))
    sent = [
        ("fuse", [target, source], {"identity": "id_x", "faces": "0,1"}, "either `source`"),
        ("fuse", [target], {"faces": "0"}, "either `source`"),
        ("batches", [target, source], {"identity": "id_x", "faces": "0,1"}, "either `source`"),
        ("jobs", [target, source, source], {"faces": "0,1"}, "source: 2 were sent; a job has one"),
        ("jobs", [target], {"identity": ["id_x", "id_y"], "faces": "0,1"}, "identity: 2 were sent; a job has one"),
    ]
    for path, files, data, words in sent:
        answer = httpx.post(f"{open_service.url}/v1/{path}", files=files, data=data, timeout=30)
        assert (answer.status_code, answer.json()["reason"]) == (422, "bad_fields"), answer.text
        assert words in answer.json()["detail"]


def test_a_faulty_source_is_named_by_its_number(open_service: OpenService) -> None:
    for faulty, status, reason in ((encode(draw_empty()), 422, "no_face"), (b"no picture", 415, "not_an_image")):
        with FusionClient(open_service.url) as client, pytest.raises(ServiceRefused, match="source 2: ") as refused:
            client.fuse([SOURCE, faulty], TARGET, faces="0,1")
        found = refused.value
        assert (found.status, found.reason, found.picture) == (status, reason, "source")


def test_the_document_describes_sources_and_references(open_service: OpenService) -> None:
    document = httpx.get(f"{open_service.url}/openapi.json", timeout=30).json()
    for path in ("fuse", "batches", "jobs"):
        form = document["paths"][f"/v1/{path}"]["post"]["requestBody"]["content"]["multipart/form-data"]
        schema = document["components"]["schemas"][form["schema"]["$ref"].rpartition("/")[2]]
        fields = schema["properties"]
        for name in ("source", "identity", "target", "faces", "reference", "reference_similarity"):
            assert fields[name]["description"], (path, name)
        kinds = {name: (fields[name]["type"], fields[name].get("minItems")) for name in ("source", "identity")}
        assert set(kinds.values()) == ({("string", None)} if path == "jobs" else {("array", 1)})
        assert {"source", "identity"} <= {name for choice in schema["oneOf"] for name in choice["required"]}
        assert {"source", "target", "reference"} <= form["encoding"].keys()


@pytest.mark.parametrize("kind", ["AVIF", "TIFF", "PPM", "HEIC"])
def test_pictures_of_other_formats_are_fused(open_service: OpenService, kind: str) -> None:
    person = (HEIC_FOLDER / "plain.heic").read_bytes() if kind == "HEIC" else encode(draw_person(2, 160), kind)
    answer = httpx.post(f"{open_service.url}/v1/fuse", files={"source": person, "target": person}, timeout=30)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == ("image/jpeg" if kind in ("AVIF", "HEIC") else "image/png")
    answer = httpx.post(
        f"{open_service.url}/v1/fuse", files={"source": SOURCE, "target": b"GIF89a" + bytes(50)}, timeout=30
    )
    assert (answer.status_code, answer.json()["reason"]) == (415, "unknown_format")

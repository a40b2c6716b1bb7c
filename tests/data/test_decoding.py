from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from fusionray.data.crop_decoding import allocate_scratch_image, decode_crop
from fusionray.data.decoding import CROPS_PER_TASK, CropDecoder, collate_pairs, decode_rows
from fusionray.data.pairs import EncodedCrop, EncodedCrops, SampledPairs
from fusionray.data.synthetic import ATTRIBUTE_NAMES, neutral_attributes
from fusionray.errors import ShardCorrupt
from fusionray.recipes.single_faces import collate_faces
from tests.support.tiny_shards import SIZE, draw_crop, encode, name_person

SMILE, ROLL = (ATTRIBUTE_NAMES.index(name) for name in ("smile", "roll"))
# A crop that is rotated by 90 degrees in its picture.
VIEW_23 = np.array([[0, -0.5, 0.75], [0.5, 0, 0.25]], np.float32)


@pytest.fixture
def decoder() -> Iterator[CropDecoder]:
    decoder = CropDecoder(SIZE, threads=2)
    yield decoder
    decoder.close()


def crops_of(*rows: tuple[int, int], truth: bool = False) -> EncodedCrops:
    """Build crops of (person, number); with truth, of heads that smile by tenths of the number and roll by ten."""
    people = sorted({person for person, _ in rows})
    attributes = neutral_attributes(len(rows)).numpy()
    attributes[:, SMILE] = [number / 10 for _, number in rows]
    attributes[:, ROLL] = 10
    columns = {
        "identity_parameters": np.array([[person] * 3 for person, _ in rows], np.float32),
        "attribute_parameters": attributes,
        "view": np.tile(VIEW_23.reshape(6), (len(rows), 1)),
    }
    return EncodedCrops(
        [encode(draw_crop(*row)) for row in rows],
        [name_person(person) for person in people],
        np.array([people.index(person) for person, _ in rows]),
        columns if truth else {},
    )


def regions_of(*rows: tuple[int, int]) -> list[bytes]:
    return [encode(draw_crop(*row)[:, :, 0]) for row in rows]


def test_pairs_carry_the_regions_of_their_targets(decoder: CropDecoder) -> None:
    rows = ((0, 0), (1, 1))
    crops = dataclasses.replace(crops_of(*rows), regions=regions_of(*rows))
    batch = collate_pairs([SampledPairs(crops, np.array([[0, 1], [1, 0]]))], decoder)
    assert batch.region is not None
    assert batch.region.shape == (2, 1, SIZE, SIZE)
    for row, (person, number) in enumerate(((1, 1), (0, 0))):
        np.testing.assert_array_equal(batch.region[row, 0].numpy(), draw_crop(person, number)[:, :, 0])


def test_a_batch_with_an_unknown_region_has_no_regions(decoder: CropDecoder) -> None:
    known = dataclasses.replace(crops_of((0, 0), (1, 1)), regions=regions_of((0, 0), (1, 1)))
    group = [SampledPairs(known, np.array([[0, 1]])), SampledPairs(crops_of((2, 3), (2, 2)), np.array([[1, 0]]))]
    assert collate_pairs(group, decoder).region is None


@pytest.mark.parametrize(
    ("region", "message"),
    [
        (b"no picture", r"of a crop of 'person-001' cannot be decoded, .* prepare the data again"),
        (b"", r"the region of a crop of 'person-001' cannot be decoded"),
        (
            encode(draw_crop(0, 0, size=SIZE + 1)[:, :, 0]),
            rf"is {SIZE + 1} x {SIZE + 1}, not a plane of {SIZE} x {SIZE}",
        ),
    ],
)
def test_a_damaged_region_is_named(decoder: CropDecoder, region: bytes, message: str) -> None:
    crops = dataclasses.replace(crops_of((0, 0), (1, 1)), regions=[region, region])
    with pytest.raises(ShardCorrupt, match=message):
        collate_pairs([SampledPairs(crops, np.array([[0, 1]]))], decoder)


def test_pairs_keep_the_order_of_source_and_target_over_several_sets_of_crops(decoder: CropDecoder) -> None:
    group = [
        SampledPairs(crops_of((0, 0), (1, 1), truth=True), np.array([[0, 1]])),
        SampledPairs(crops_of((2, 3), (2, 2), truth=True), np.array([[1, 0]])),
    ]
    batch = collate_pairs(group, decoder)
    np.testing.assert_array_equal(batch.source[1].permute(1, 2, 0).numpy(), draw_crop(2, 2))
    np.testing.assert_array_equal(batch.target[0].permute(1, 2, 0).numpy(), draw_crop(1, 1))
    assert batch.same_identity.tolist() == [False, True]
    assert batch.truth is not None
    # The truth shows the source person the way the target picture shows its own.
    assert batch.truth.source_identity[:, 0].tolist() == [0, 2]
    torch.testing.assert_close(batch.truth.target_attributes[:, SMILE], torch.tensor([0.1, 0.3]))
    assert batch.truth.view.shape == (2, 2, 3)
    np.testing.assert_array_equal(batch.truth.view[0].numpy(), VIEW_23)


def test_labels_follow_the_names_of_people(decoder: CropDecoder) -> None:
    draws = SampledPairs(crops_of((0, 0), (7, 0)), np.array([[1], [0]]))
    batch = collate_faces(decode_rows([draws], decoder, {name_person(0): 5, name_person(7): 1}))
    assert batch.label.tolist() == [1, 5]
    assert batch.label.dtype == torch.int64
    assert batch.traits is None
    assert batch.attributes is None


def test_a_synthetic_face_carries_its_person_and_what_its_crop_shows(decoder: CropDecoder) -> None:
    group = [
        SampledPairs(crops_of((3, 1), (5, 2), truth=True), np.array([[1], [0]])),
        SampledPairs(crops_of((4, 7), truth=True), np.array([[0]])),
    ]
    batch = collate_faces(decode_rows(group, decoder, {name_person(person): person for person in (3, 4, 5)}))
    assert batch.traits is not None
    assert batch.attributes is not None
    assert batch.traits[:, 0].tolist() == [5, 3, 4]
    torch.testing.assert_close(batch.attributes[:, SMILE], torch.tensor([0.2, 0.1, 0.7]))
    # The picture's head leans by 10 degrees, and the crop was turned by 90 to cut it out.
    torch.testing.assert_close(batch.attributes[:, ROLL], torch.full((3,), -80.0))


def test_a_jpeg_decodes_to_nearly_what_was_encoded() -> None:
    smooth = np.broadcast_to(np.arange(SIZE, dtype=np.uint8)[:, None, None] * 12, (SIZE, SIZE, 3)).copy()
    smooth[:, :, 2] = 200
    decoded = decode_crop(EncodedCrop(encode(smooth, "JPEG"), "p"), allocate_scratch_image(SIZE)).astype(int)
    assert np.abs(decoded - smooth).mean() < 4


@pytest.mark.parametrize("image_format", ["PNG", "JPEG"])
@pytest.mark.parametrize("damage", ["truncated", "empty", "text"])
def test_a_damaged_crop_is_reported_with_its_person(decoder: CropDecoder, image_format: str, damage: str) -> None:
    sound = encode(draw_crop(0, 0), image_format)
    data = {"truncated": sound[: len(sound) // 2], "empty": b"", "text": b"not a picture"}[damage]
    crops = [EncodedCrop(sound, "sound")] * 5 + [EncodedCrop(memoryview(data), "person-042")]
    with pytest.raises(ShardCorrupt, match=r"a crop of 'person-042' .*; prepare the data again") as caught:
        decoder.decode(crops)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("image_format", ["PNG", "JPEG"])
@pytest.mark.parametrize("size", [8, 32])
def test_a_crop_of_another_size_is_reported(decoder: CropDecoder, image_format: str, size: int) -> None:
    with pytest.raises(ShardCorrupt, match=rf"'p' holds \({size}, {size}, 3\), not 16 x 16 RGB"):
        decoder.decode([EncodedCrop(encode(draw_crop(0, 0, size), image_format), "p")])


@pytest.mark.parametrize("count", [1, CROPS_PER_TASK, 2 * CROPS_PER_TASK + 1])
def test_crops_decode_in_order_however_they_share_the_threads(count: int) -> None:
    decoder = CropDecoder(SIZE, threads=3)
    images = decoder.decode([EncodedCrop(encode(draw_crop(0, number)), "p") for number in range(count)])
    decoder.close()
    assert images.shape == (count, 3, SIZE, SIZE)
    assert images.is_contiguous()
    for number in range(count):
        np.testing.assert_array_equal(images[number].permute(1, 2, 0).numpy(), draw_crop(0, number))


def test_scratch_images_are_aligned_so_that_they_stay_in_the_cache() -> None:
    for size in (16, 64, 128):
        scratch = allocate_scratch_image(size)
        assert scratch.ctypes.data % 32 == 16
        assert scratch.flags.c_contiguous

"""Identity and attributes are apart: each parameter shows, and shows where it should."""

from __future__ import annotations

import pytest
import torch

from fusionray.data.synthetic import (
    ATTRIBUTE_NAMES,
    IDENTITY_NAMES,
    neutral_attributes,
    project_landmarks,
    render,
    render_with_region,
    sample_attributes,
    sample_identities,
)
from fusionray.data.synthetic.parameters.definitions import (
    ATTRIBUTE_PARAMETERS,
    GLASSES_KINDS,
    HAIR_STYLES,
    IDENTITY_PARAMETERS,
    Parameter,
)

SIZE = 96
# These only show where others are not at zero.
NEEDED = {
    "beard_extent": {"beard": 1.0},
    "mole_x": {"mole_size": 1.0},
    "mole_y": {"mole_size": 1.0},
    "glasses_tone": {"glasses": 2.0},
    "noise_phase": {"noise": 1.0},
    "background_style": {"background_contrast": 1.0},
    "background_phase": {"background_style": 4.0, "background_contrast": 1.0},
    "background_hue": {"background_saturation": 1.0},
    "background_saturation": {"background_hue": 0.6},
    "background_contrast": {"background_style": 2.0},
    "clothes_hue": {"clothes_saturation": 1.0},
    "hair_part": {"hair_style": 2.0},
    "hair_length": {"hair_style": 5.0},
    "hair_volume": {"hair_style": 7.0},
    "hair_warmth": {"hair_tone": 0.5},
}


def set_columns(rows: torch.Tensor, names: tuple[str, ...], **values: float) -> torch.Tensor:
    rows = rows.clone()
    for name, value in values.items():
        rows[:, names.index(name)] = value
    return rows


def middle_person() -> torch.Tensor:
    return torch.tensor([[parameter.neutral for parameter in IDENTITY_PARAMETERS]])


def largest_changes(
    person: torch.Tensor, attributes: torch.Tensor, parameters: tuple[Parameter, ...]
) -> dict[str, float]:
    """Render each parameter at both ends and in the middle of its range; return by how much pixels change at most."""
    people, conditions = [], []
    for parameter in parameters:
        for value in (parameter.low, 0.5 * (parameter.low + parameter.high), parameter.high):
            settings = NEEDED.get(parameter.name, {}) | {parameter.name: value}
            people.append(set_columns(person, IDENTITY_NAMES, **keep(settings, IDENTITY_NAMES)))
            conditions.append(set_columns(attributes, ATTRIBUTE_NAMES, **keep(settings, ATTRIBUTE_NAMES)))
    pictures = render(torch.cat(people), torch.cat(conditions), SIZE).unflatten(0, (len(parameters), 3))
    changes = (pictures.amax(dim=1) - pictures.amin(dim=1)).amax(dim=(1, 2, 3))
    return dict(zip((parameter.name for parameter in parameters), changes.tolist(), strict=True))


def keep(settings: dict[str, float], names: tuple[str, ...]) -> dict[str, float]:
    return {name: value for name, value in settings.items() if name in names}


def largest_change(first: torch.Tensor, second: torch.Tensor) -> float:
    return float((first - second).abs().amax())


def test_each_identity_parameter_shows():
    changes = largest_changes(middle_person(), neutral_attributes(1), IDENTITY_PARAMETERS)
    assert {name: change for name, change in changes.items() if change < 0.05} == {}


def test_each_attribute_parameter_shows():
    changes = largest_changes(middle_person(), neutral_attributes(1), ATTRIBUTE_PARAMETERS)
    assert {name: change for name, change in changes.items() if change < 0.02} == {}


@pytest.mark.parametrize(
    ("name", "value", "share"),
    [("smile", 1.0, 0.01), ("smile", -1.0, 0.005), ("mouth_open", 1.0, 0.015), ("brow_raise", 1.0, 0.015),
     ("brow_furrow", 1.0, 0.008), ("eye_closure", 1.0, 0.015), ("squint", 1.0, 0.005), ("gaze_x", 1.0, 0.007),
     ("gaze_y", 1.0, 0.004)],
)  # fmt: skip
def test_an_expression_is_large_enough_to_be_seen_at_64_pixels(name, value, share):
    """At least `share` of the face's pixels changes by more than a tenth of the range."""
    people = sample_identities(12, 21)
    calm, region = render_with_region(people, neutral_attributes(12), 64)
    moved = render(people, set_columns(neutral_attributes(12), ATTRIBUTE_NAMES, **{name: value}), 64)
    changed = ((moved - calm).abs().amax(dim=1) > 0.1).float().sum(dim=(1, 2))
    assert (changed / region.sum(dim=(1, 2, 3))).median() > share


def test_changing_small_features_leaves_what_is_outside_the_region():
    people, attributes = sample_identities(10, 30), sample_attributes(10, 31)
    others = set_columns(
        people, IDENTITY_NAMES, iris_tone=0.9, brow_thickness=1.0, lip_colour=1.0, freckles=1.0, eye_fold=1.0
    )
    first, region = render_with_region(people, attributes, SIZE)
    second, other_region = render_with_region(others, attributes, SIZE)
    change = (first - second).abs().amax(dim=1, keepdim=True)
    assert torch.equal(region, other_region)
    assert (change * (region == 0)).amax() < 1e-4
    assert (change * region).amax(dim=(1, 2, 3)).min() > 0.05


def test_another_person_changes_the_face_more_than_the_rest():
    count = 16
    attributes = sample_attributes(count, 33)
    first, region = render_with_region(sample_identities(count, 1), attributes, SIZE)
    second = render(sample_identities(count, 2), attributes, SIZE)
    change = (first - second).abs().mean(dim=1, keepdim=True)
    inside = (change * region).sum() / region.sum()
    background = (region == 0)[:, :, : SIZE // 4]
    outside = (change[:, :, : SIZE // 4] * background).sum() / background.sum()
    assert inside > 8.0 * outside


def test_hair_and_background_do_not_reach_the_middle_of_the_face():
    people = sample_identities(8, 40)
    plain = set_columns(neutral_attributes(8), ATTRIBUTE_NAMES, hair_style=HAIR_STYLES.index("bob"))
    other = set_columns(
        plain, ATTRIBUTE_NAMES, hair_tone=0.9, hair_warmth=0.9, background_style=4.0, background_hue=0.3,
        background_saturation=1.0, clothes_hue=0.1, clothes_saturation=1.0,
    )  # fmt: skip
    first, second = render(people, plain, SIZE), render(people, other, SIZE)
    centre = (project_landmarks(people, plain).mean(dim=1) * SIZE).round().long()
    reach = SIZE // 12
    for row, (x, y) in enumerate(centre.tolist()):
        window = (row, slice(None), slice(y - reach, y + reach), slice(x - reach, x + reach))
        assert largest_change(first[window], second[window]) < 1e-4


def test_the_region_covers_the_features_and_spares_the_corners():
    people, attributes = sample_identities(24, 50), neutral_attributes(24)
    attributes[:, ATTRIBUTE_NAMES.index("yaw")] = torch.linspace(-25.0, 25.0, 24)
    _, region = render_with_region(people, attributes, SIZE)
    points = (project_landmarks(people, attributes) * SIZE).long().clamp(0, SIZE - 1)
    for row in range(24):
        assert (region[row, 0, points[row, :, 1], points[row, :, 0]] > 0.9).all()
    for corner in (region[:, :, :4, :4], region[:, :, -4:, :4], region[:, :, :4, -4:], region[:, :, -4:, -4:]):
        assert corner.amax() == 0.0
    share = region.mean(dim=(1, 2, 3))
    assert share.min() > 0.1
    assert share.max() < 0.5


def test_glasses_and_a_fringe_are_taken_from_the_region():
    people = sample_identities(6, 60)
    bare = set_columns(neutral_attributes(6), ATTRIBUTE_NAMES, hair_style=HAIR_STYLES.index("bald"))
    shades = set_columns(bare, ATTRIBUTE_NAMES, glasses=GLASSES_KINDS.index("sunglasses"))
    fringe = set_columns(bare, ATTRIBUTE_NAMES, hair_style=HAIR_STYLES.index("fringe"))
    regions = [render_with_region(people, attributes, SIZE)[1] for attributes in (bare, shades, fringe)]
    areas = [region.sum(dim=(1, 2, 3)) for region in regions]
    assert (areas[1] < 0.95 * areas[0]).all()
    assert (areas[2] < 0.85 * areas[0]).all()
    eye = (project_landmarks(people, bare)[:, 0] * SIZE).long()
    assert (regions[1][torch.arange(6), 0, eye[:, 1], eye[:, 0]] < 0.15).all()


def test_people_differ_from_one_another_under_the_same_conditions():
    pictures = render(sample_identities(60, 70), neutral_attributes(60), 64).flatten(1)
    distances = torch.cdist(pictures, pictures) / pictures.shape[1] ** 0.5 + torch.eye(60)
    assert distances.min() > 0.02

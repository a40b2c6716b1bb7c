from __future__ import annotations

import pytest
import torch

from fusionray.data.synthetic import (
    ATTRIBUTE_NAMES,
    IDENTITY_NAMES,
    neutral_attributes,
    sample_attributes,
    sample_identities,
)
from fusionray.data.synthetic.parameters.definitions import ATTRIBUTE_PARAMETERS, IDENTITY_PARAMETERS

SAMPLERS = [
    (sample_identities, IDENTITY_NAMES, IDENTITY_PARAMETERS),
    (sample_attributes, ATTRIBUTE_NAMES, ATTRIBUTE_PARAMETERS),
]


@pytest.mark.parametrize(("sample", "names", "parameters"), SAMPLERS)
def test_columns_stay_in_their_stated_range(sample, names, parameters):
    rows = sample(2000, 3)
    assert rows.shape == (2000, len(names))
    assert rows.dtype == torch.float32
    assert torch.isfinite(rows).all()
    for index, parameter in enumerate(parameters):
        column = rows[:, index]
        assert column.min() >= parameter.low - 1e-5, parameter.name
        assert column.max() <= parameter.high + 1e-5, parameter.name
        assert column.std() > 0.02 * (parameter.high - parameter.low), parameter.name


@pytest.mark.parametrize(("sample", "names", "parameters"), SAMPLERS)
def test_growing_the_count_never_changes_earlier_rows(sample, names, parameters):
    assert torch.equal(sample(7, 11), sample(500, 11)[:7])


@pytest.mark.parametrize(("sample", "names", "parameters"), SAMPLERS)
def test_seeds_and_rows_differ(sample, names, parameters):
    rows = torch.cat([sample(50, seed) for seed in (0, 1, 2**31 - 1, 2**40)])
    distances = torch.cdist(rows, rows) + 1e3 * torch.eye(len(rows))
    assert distances.min() > 0.1


def test_parameters_do_not_depend_on_one_another():
    """A weak hash would tie columns together, and an encoder could learn the tie in place of the face."""
    names = [name for name in IDENTITY_NAMES if name not in {"moustache", "lip_colour", "iris_tone", "brow_tone"}]
    rows = sample_identities(4000, 5)[:, [IDENTITY_NAMES.index(name) for name in names]]
    correlation = torch.corrcoef(rows.T) - torch.eye(len(names))
    assert correlation.abs().max() < 0.08


def test_skin_tones_are_spread_evenly_from_dark_to_light():
    tones = sample_identities(4000, 0)[:, IDENTITY_NAMES.index("skin_tone")]
    shares = torch.histc(tones, bins=4, min=0.0, max=1.0) / len(tones)
    assert shares.min() > 0.15


def test_codes_are_whole_numbers_and_all_occur():
    rows = sample_attributes(2000, 1)
    for index, parameter in enumerate(ATTRIBUTE_PARAMETERS):
        if parameter.is_code:
            codes = rows[:, index].unique()
            assert codes.tolist() == list(range(int(parameter.high) + 1)), parameter.name


def test_neutral_rows_are_frontal_and_calm():
    rows = neutral_attributes(3)
    assert rows.shape == (3, len(ATTRIBUTE_NAMES))
    assert torch.equal(rows[0], rows[2])
    for name in ("yaw", "pitch", "roll", "smile", "mouth_open", "eye_closure", "gaze_x", "glasses", "defocus", "noise"):
        assert rows[0, ATTRIBUTE_NAMES.index(name)] == 0.0, name

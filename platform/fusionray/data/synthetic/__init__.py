"""A seeded world of synthetic people: who they are apart from how a picture shows them.

`render(identity[source], attributes[target], size)` is the exact true fusion of any two of its pictures.
"""

from __future__ import annotations

from fusionray.data.synthetic.cropping import attributes_in_crop
from fusionray.data.synthetic.parameters import ATTRIBUTE_NAMES, IDENTITY_NAMES
from fusionray.data.synthetic.renderer import landmarks, measure_rate, render, render_with_mask
from fusionray.data.synthetic.sampling import neutral_attributes, sample_attributes, sample_identities
from fusionray.data.synthetic.truth import render_truth

__all__ = [
    "ATTRIBUTE_NAMES",
    "IDENTITY_NAMES",
    "attributes_in_crop",
    "landmarks",
    "measure_rate",
    "neutral_attributes",
    "render",
    "render_truth",
    "render_with_mask",
    "sample_attributes",
    "sample_identities",
]

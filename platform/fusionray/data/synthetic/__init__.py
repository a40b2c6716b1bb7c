"""Render synthetic people from two parameter vectors: the identity of a person, and the attributes of a picture.

`render(identity[source], attributes[target], size)` is the true fusion of any two of its pictures.
"""

from __future__ import annotations

from fusionray.data.synthetic.parameters.cropping import attributes_in_crop
from fusionray.data.synthetic.parameters.definitions import ATTRIBUTE_NAMES, IDENTITY_NAMES
from fusionray.data.synthetic.parameters.sampling import neutral_attributes, sample_attributes, sample_identities
from fusionray.data.synthetic.renderer import project_landmarks, render, render_parts, render_with_region
from fusionray.data.synthetic.scene import PARTS
from fusionray.data.synthetic.true_fusion import render_true_fusion

__all__ = [
    "ATTRIBUTE_NAMES",
    "IDENTITY_NAMES",
    "PARTS",
    "attributes_in_crop",
    "neutral_attributes",
    "project_landmarks",
    "render",
    "render_parts",
    "render_true_fusion",
    "render_with_region",
    "sample_attributes",
    "sample_identities",
]

"""The default detector takes synthetic people for people, and agrees where their features are."""

from __future__ import annotations

import numpy as np
import torch

from fusionray.data.synthetic import project_landmarks, render, sample_attributes, sample_identities
from fusionray.faces.detectors.factory import build_detector


def test_the_default_detector_finds_the_faces_and_their_landmarks():
    count, size = 24, 128
    identity, attributes = sample_identities(count, 80), sample_attributes(count, 81)
    pictures = (render(identity, attributes, size) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    truth = project_landmarks(identity, attributes).numpy() * size - 0.5
    detector = build_detector("default")
    errors = []
    for picture, points in zip(pictures, truth, strict=True):
        faces = detector.detect(np.ascontiguousarray(picture))
        if faces:
            between_eyes = np.linalg.norm(points[1] - points[0])
            errors.append(np.linalg.norm(faces[0].landmarks - points, axis=1).mean() / between_eyes)
    assert len(errors) >= count - 1
    assert np.mean(errors) < 0.12

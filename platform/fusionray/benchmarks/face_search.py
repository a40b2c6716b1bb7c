"""Measure how long the default detector searches pictures of 2 and 12 megapixels, and how many faces it finds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import cv2
import numpy as np
from pydantic import Field
from tqdm import tqdm

from fusionray.benchmarks.findings import Findings, load_keys
from fusionray.benchmarks.results import BenchResult, write_result
from fusionray.config import Section
from fusionray.data.synthetic.crowd import Crowd, draw_crowd
from fusionray.environment import resolve_location
from fusionray.faces.detectors.default_detector import DefaultDetector, smallest_width
from fusionray.faces.face import Detector, Face

# Width, height and widths of the faces of the pictures that are timed. One person fills a part of each.
TIMED = {"2mp": (1632, 1224), "12mp": (4000, 3000)}
LARGEST_SHARE = 0.3
# Width, height, widths of the faces.
CROWDS = (
    (1632, 1224, (20.0, 400.0)),
    (1920, 1080, (20.0, 400.0)),
    (640, 480, (20.0, 240.0)),
    (4000, 3000, (40.0, 1500.0)),
)
# A found face is right if its eyes' middle and distance are near the truth, in true eye distances.
MAX_SHIFT, SCALES = 0.6, (0.6, 1.6)


class FaceSearchConfig(Section):
    """Settings of `fusionray bench faces`."""

    listed_by: ClassVar[str] = "fusionray bench faces --settings"

    output: str = Field(description="Folder for figures.json, report.html and report.md.")
    rounds: int = Field(9, ge=1, description="Pictures of each size that are timed; medians are reported.")
    pictures: int = Field(20, ge=1, description="Pictures of each size whose faces are counted.")


def bench_faces(config: FaceSearchConfig) -> BenchResult:
    """Time and count on one thread, and write figures.json, report.html and report.md.

    Raises: DetectorUnavailable.
    """
    output = Path(resolve_location(config.output))
    output.mkdir(parents=True, exist_ok=True)
    former = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        findings = measure(DefaultDetector(), config)
    finally:
        cv2.setNumThreads(former)
    return write_result(output, "faces", load_keys("faces"), findings)


def measure(detector: DefaultDetector, config: FaceSearchConfig) -> Findings:
    """Time the searches, then count what they find."""
    findings = Findings(notes=["one thread; synthetic people of known places on coloured noise"])
    with tqdm(total=len(TIMED) * config.rounds + len(CROWDS) * config.pictures, desc="bench faces") as bar:
        for name, (width, height) in TIMED.items():
            for number in range(config.rounds):
                range_of_widths = (0.02 * width, 0.06 * width)
                crowd = draw_crowd(number, width, height, range_of_widths, count=5, largest=LARGEST_SHARE * width)
                for suffix, only_largest in (("", True), ("_all", False)):
                    seconds = time_search(detector, crowd, only_largest=only_largest)
                    findings.values.setdefault(f"search_{name}{suffix}_ms", []).append(seconds * 1000)
                bar.update()
        found: list[np.ndarray] = []
        worth: list[np.ndarray] = []
        for crowd in draw_crowds(config.pictures):
            found.append(check_faces(detector.detect(crowd.image), crowd))
            worth.append(crowd.widths >= smallest_width(*crowd.image.shape[:2]))
            bar.update()
        hits, counted = np.concatenate(found), np.concatenate(worth)
        findings.values["search_recall"] = [float(hits[counted].mean())]
        findings.values["search_recall_20_px"] = [float(hits.mean())]
        findings.notes.append(f"{len(hits)} faces, {int(counted.sum())} of them as wide as is worth fusing")
    return findings


def draw_crowds(pictures: int) -> Iterator[Crowd]:
    """Draw the pictures whose faces are counted."""
    for width, height, widths in CROWDS:
        for number in range(pictures):
            yield draw_crowd(1000 * width + number, width, height, widths)


def time_search(detector: Detector, crowd: Crowd, *, only_largest: bool) -> float:
    """Return the shortest of three searches, in seconds."""
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        detector.detect(crowd.image, only_largest=only_largest)
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def check_faces(faces: Sequence[Face], crowd: Crowd) -> np.ndarray:
    """Tell of each true face, bool [N], whether one of the found faces is it."""
    if not faces:
        return np.zeros(len(crowd.points), bool)
    eyes_F22 = np.stack([face.landmarks[:2] for face in faces])
    middles_F2, spans_F = eyes_F22.mean(1), np.linalg.norm(eyes_F22[:, 1] - eyes_F22[:, 0], axis=1)
    true_middles_N2 = crowd.points[:, :2].mean(1)
    true_spans_N = np.linalg.norm(crowd.points[:, 1] - crowd.points[:, 0], axis=1)
    shift_NF = np.linalg.norm(true_middles_N2[:, None] - middles_F2, axis=2) / true_spans_N[:, None]
    scale_NF = spans_F / true_spans_N[:, None]
    return np.asarray(((shift_NF < MAX_SHIFT) & (SCALES[0] < scale_NF) & (scale_NF < SCALES[1])).any(1))

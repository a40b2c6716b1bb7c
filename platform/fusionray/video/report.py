"""The report of a video: frames before and after, what its kind of work has to say, and where the seconds went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np

from fusionray.faces.face import Image
from fusionray.faces.image_files.decode import encode_image
from fusionray.reporting.figures import MeasuredFigure, write_figures
from fusionray.reporting.page import Page, PageSection, PageTable, save_page
from fusionray.reporting.parts import PageImage
from fusionray.safety.provenance import Provenance
from fusionray.safety.signing import Signer
from fusionray.video.files.reader import VideoReader
from fusionray.video.run import MadeVideo

# Frames of the strip, and their longest side.
SHOWN_FRAMES, SHOWN_SIDE = 6, 320


@dataclass(frozen=True)
class ReportParts:
    """What a kind of work says of a video: a sentence, figures as value and unit, and sections. `verb`: the command."""

    verb: str
    lead: str
    figures: Mapping[str, tuple[float, str]]
    sections: Sequence[PageSection] = ()


def write_report(
    folder: Path,
    made: MadeVideo,
    parts: ReportParts,
    target: Path,
    output: Path,
    *,
    signer: Signer,
    provenance: Provenance,
) -> Mapping[str, MeasuredFigure]:
    """Write report.html, report.md and figures.json into a folder; return the figures."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = measure(made, parts)
    write_figures(folder, parts.verb, figures)
    strip = signer.sign(encode_image(draw_strip(target, output)), "image/png", provenance)
    page = Page(
        title=f"{output.name}",
        lead=f"{parts.lead} All of the lower frames are AI-made.",
        origin=f"SHA-256 of the film before it was signed: {made.film_sha256}",
        sections=[
            PageSection("Before and after", [PageImage("strip", "frames of the video before and after", strip)]),
            *parts.sections,
        ],
        tables=[list_seconds(made)],
    )
    save_page(folder, page)
    return figures


def measure(made: MadeVideo, parts: ReportParts) -> dict[str, MeasuredFigure]:
    """List what was counted and timed."""
    rendered = made.num_frames - made.num_resumed
    values: dict[str, tuple[float, str]] = {
        "frames": (made.num_frames, "frames"),
        "frames_resumed": (made.num_resumed, "frames"),
        "damaged": (made.num_damaged, "faults"),
        **parts.figures,
        "segments": (len(made.segments), "segments"),
        "frames_per_second": (rendered / made.wall_seconds, "frames/s"),
        **{f"{stage}_seconds": (seconds, "s") for stage, seconds in made.seconds.items()},
    }
    return {key: MeasuredFigure(value=value, unit=unit) for key, (value, unit) in values.items()}


def draw_strip(target: Path, output: Path) -> Image:
    """Draw some frames of the target, spread over it, above those of the result."""
    rows = [read_frames(path) for path in (target, output)]
    return np.ascontiguousarray(np.vstack([np.hstack(row) for row in rows]))


def read_frames(path: Path) -> list[Image]:
    """Read some frames, small and of equal size: spread over the video as far as its header says how long it is."""
    reader = VideoReader(path)
    start = reader.description.start_seconds or Fraction(0)
    duration = reader.description.duration_seconds or Fraction(0)
    shown: list[Image] = []
    for number in range(SHOWN_FRAMES):
        # A last frame that lasts long may begin before the time.
        frame = next(reader.read_frames(start + duration * number / SHOWN_FRAMES if number else None), None)
        picture = shown[-1] if frame is None else reader.see(frame, SHOWN_SIDE)
        shown.append(picture)
    edges = (2, 2, 2, 2, cv2.BORDER_CONSTANT)
    return [np.asarray(cv2.copyMakeBorder(picture, *edges, value=(255, 255, 255)), np.uint8) for picture in shown]


def list_seconds(made: MadeVideo) -> PageTable:
    """List the seconds of each stage; stages overlap."""
    rendered = made.num_frames - made.num_resumed
    rows = [
        (stage, f"{seconds:.2f}", f"{rendered / seconds:.1f}" if seconds else "")
        for stage, seconds in [*made.seconds.items(), ("whole run", made.wall_seconds)]
    ]
    return PageTable(
        "stages", ("stage", "seconds", "frames/s"), rows, "Stages overlap; an earlier run's are not counted."
    )

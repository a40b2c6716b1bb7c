"""Face detectors: the built-in one, or a YuNet or SCRFD file of the user."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue

from fusionray.errors import DetectorUnavailable
from fusionray.faces.detectors.default_detector import DefaultDetector
from fusionray.faces.detectors.scrfd import ScrfdDetector, open_on_cpu
from fusionray.faces.detectors.yunet import YuNetDetector
from fusionray.faces.face import Detector, Face, Image


def build_detector(name_or_path: str | Path, smallest: float | None = None) -> Detector:
    """Build a detector: "default", or the path of a YuNet or SCRFD ONNX file.

    `smallest` is the width of the smallest face that the default detector searches for (see there).

    The family of a file is recognised by its outputs, not by its name.

    Raises:
        DetectorUnavailable: the file is missing, damaged or of no known family, or the default's models are missing.
    """
    if str(name_or_path) == "default":
        return DefaultDetector(smallest=smallest)
    path = Path(name_or_path)
    if not path.is_file():
        raise DetectorUnavailable(f"{path}: no such detector file; give the path of an ONNX file, or 'default'")
    outputs = open_on_cpu(path).get_outputs()
    names = [output.name for output in outputs]
    if {"cls_8", "obj_8", "bbox_8", "kps_8"} <= set(names):
        return YuNetDetector(path)
    widths = [output.shape[-1] for output in outputs if output.shape]
    if widths == [1] * 3 + [4] * 3 + [10] * 3:
        return ScrfdDetector(path)
    raise DetectorUnavailable(
        f"{path}: its outputs ({', '.join(names)}) are not those of a known face detector; use a YuNet file (outputs "
        "cls/obj/bbox/kps at strides 8, 16, 32) or an SCRFD file (three scores, boxes, key points)"
    )


class DetectorPool:
    """A detector for many threads: a detector has state during a call, so each call uses one of its own.

    Raises: DetectorUnavailable, as `build_detector`.
    """

    def __init__(self, name_or_path: str | Path, size: int, smallest: float | None = None) -> None:
        self.free: SimpleQueue[Detector] = SimpleQueue()
        for _ in range(size):
            self.free.put(build_detector(name_or_path, smallest))

    def detect(self, image: Image, *, only_largest: bool = False) -> list[Face]:
        """Find the faces of a uint8 RGB [H, W, 3] picture, as `Detector.detect`; waits until a detector is free."""
        detector = self.free.get()
        try:
            return detector.detect(image, only_largest=only_largest)
        finally:
            self.free.put(detector)

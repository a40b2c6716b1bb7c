"""Quality checks of faces and crops: size, pose and sharpness. A failed check raises ImageRejected with its reason."""

from __future__ import annotations

import cv2
import numpy as np

from fusionray.errors import ImageRejected
from fusionray.faces.face import Face, Image, Points

_SHARPNESS_SIZE = 112


def sharpness(crop: Image) -> float:
    """Measure the variance of the Laplacian of the grey crop at 112 px: about 0 if blurred, 100 and more if sharp.

    A crop that was enlarged from a few pixels scores low.
    """
    grey = cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY)
    interpolation = cv2.INTER_AREA if grey.shape[0] > _SHARPNESS_SIZE else cv2.INTER_LINEAR
    small = cv2.resize(grey, (_SHARPNESS_SIZE, _SHARPNESS_SIZE), interpolation=interpolation)
    return float(cv2.Laplacian(small, cv2.CV_32F).var())


def yaw_asymmetry(landmarks_52: Points) -> float:
    """Measure yaw: the offset of the nose tip from the middle of the eyes, along the eye line, in half eye distances.

    0 is frontal, about 1 a profile; roll has no effect.
    """
    left, right, nose = landmarks_52[0], landmarks_52[1], landmarks_52[2]
    across = right - left
    half = float(across @ across) / 2
    return abs(float((nose - (left + right) / 2) @ across)) / max(half, 1e-6)


def check_face(face: Face, *, min_face_pixels: int, max_yaw_asymmetry: float | None) -> None:
    """Reject a face that is too small or not frontal enough.

    Raises:
        ImageRejected: "face_too_small" or "not_frontal".
    """
    width = float(min(face.box[2], face.box[3]))
    if width < min_face_pixels:
        raise ImageRejected("face_too_small", f"the face is {width:.0f} px wide; min_face_pixels is {min_face_pixels}")
    if max_yaw_asymmetry is not None and (turned := yaw_asymmetry(face.landmarks)) > max_yaw_asymmetry:
        raise ImageRejected("not_frontal", f"turned aside by {turned:.2f}; max_yaw_asymmetry is {max_yaw_asymmetry}")


def check_sharpness(crop: Image, *, min_sharpness: float) -> None:
    """Reject a blurred crop.

    Raises:
        ImageRejected: "blurred".
    """
    if min_sharpness > 0 and (found := sharpness(crop)) < min_sharpness:
        raise ImageRejected("blurred", f"sharpness {found:.1f}; min_sharpness is {min_sharpness}")


def box_around_landmarks(landmarks_52: Points) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Estimate the box (left, top, width, height) of a face: a square of twice the extent of its landmarks."""
    low, high = landmarks_52.min(0), landmarks_52.max(0)
    side = 2.0 * float((high - low).max())
    return np.array([*((low + high) / 2 - side / 2), side, side], np.float32)

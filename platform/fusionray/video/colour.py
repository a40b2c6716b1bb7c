"""The colours of a video: from what its planes store to the RGB that face models take, and back.

Values are float32. A stored value is that of a plane over its largest one, 0..1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
MatrixName = Literal["bt601", "bt709", "bt2020"]
Transfer = Literal["sdr", "pq", "hlg"]

# Kr and Kb of Y' = Kr R' + (1 - Kr - Kb) G' + Kb B' (ITU-R BT.601, BT.709, BT.2020).
WEIGHTS: dict[MatrixName, tuple[float, float]] = {
    "bt601": (0.299, 0.114),
    "bt709": (0.2126, 0.0722),
    "bt2020": (0.2627, 0.0593),
}
# Linear BT.2020 to BT.709 (ITU-R BT.2087).
TO_BT709 = np.array([[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]], np.float32)
# Luminance that is shown as white, in cd/m2 (ITU-R BT.2408); brighter highlights of HDR are white for a face model.
REFERENCE_WHITE = 203.0
# The largest luminance of PQ (SMPTE ST 2084), and that of a display for which HLG is mostly mastered.
PQ_PEAK, HLG_PEAK = 10_000.0, 1000.0
# Constants of the curves of PQ and HLG (ITU-R BT.2100).
PQ_M1, PQ_M2, PQ_C1, PQ_C2, PQ_C3 = 2610 / 16384, 78.84375, 0.8359375, 18.8515625, 18.6875
HLG_A, HLG_B, HLG_C = 0.17883277, 0.28466892, 0.55991073
HLG_GAMMA = 1.2


@dataclass(frozen=True)
class ColourSpace:
    """How the planes of a video encode colours: its matrix, its range, its transfer curve, its bits a value."""

    matrix: MatrixName = "bt709"
    full_range: bool = False
    transfer: Transfer = "sdr"
    bits: int = 8

    @property
    def largest(self) -> int:
        """Return the largest value of a plane."""
        return (1 << self.bits) - 1

    @cached_property
    def from_rgb(self) -> tuple[FloatArray, FloatArray]:
        """Return matrix [3,3] and offset [3] from R'G'B' in 0..1 to stored Y'CbCr in 0..1."""
        red, blue = WEIGHTS[self.matrix]
        luma = np.array([red, 1 - red - blue, blue])
        rows = np.stack([luma, (np.eye(3)[2] - luma) / (2 * (1 - blue)), (np.eye(3)[0] - luma) / (2 * (1 - red))])
        step = 1 << (self.bits - 8)
        scale, offset = np.array([1.0, 1.0, 1.0]), np.array([0.0, 128 * step, 128 * step]) / self.largest
        if not self.full_range:
            scale = np.array([219.0, 224.0, 224.0]) * step / self.largest
            offset[0] = 16 * step / self.largest
        return (rows * scale[:, None]).astype(np.float32), offset.astype(np.float32)

    @cached_property
    def to_rgb(self) -> tuple[FloatArray, FloatArray]:
        """Return matrix [3,3] and offset [3] from stored Y'CbCr in 0..1 to R'G'B' in 0..1."""
        matrix, offset = self.from_rgb
        inverse = np.linalg.inv(matrix.astype(np.float64))
        return inverse.astype(np.float32), (-inverse @ offset).astype(np.float32)

    def show(self, signal: FloatArray) -> FloatArray:
        """Map R'G'B' [...,3] of this transfer to what a face model knows: sRGB in 0..1."""
        if self.transfer == "sdr":
            return np.clip(signal, 0.0, 1.0)
        light = self.to_light(np.clip(signal, 0.0, 1.0)) / np.float32(REFERENCE_WHITE)
        return encode_srgb(np.clip(light @ TO_BT709.T, 0.0, 1.0))

    def restore(self, shown: FloatArray) -> FloatArray:
        """Map sRGB [...,3] in 0..1 back to R'G'B' of this transfer: the inverse of `show` for colours that it keeps."""
        if self.transfer == "sdr":
            return shown
        light = decode_srgb(shown) @ np.linalg.inv(TO_BT709).T.astype(np.float32)
        return self.to_signal(np.clip(light, 0.0, None) * np.float32(REFERENCE_WHITE))

    def to_light(self, signal: FloatArray) -> FloatArray:
        """Return the luminance of each channel, cd/m2, of a PQ or HLG signal in 0..1."""
        if self.transfer == "pq":
            power = signal ** (1 / PQ_M2)
            light = np.maximum(power - PQ_C1, 0) / (PQ_C2 - PQ_C3 * power)
            return np.asarray(PQ_PEAK * light ** (1 / PQ_M1), np.float32)
        scene = np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - HLG_C) / HLG_A) + HLG_B) / 12)
        # The system gamma of each channel alone: exact for greys, and invertible.
        return np.asarray(HLG_PEAK * scene**HLG_GAMMA, np.float32)

    def to_signal(self, light: FloatArray) -> FloatArray:
        """Return the PQ or HLG signal in 0..1 of luminances of each channel, cd/m2: the inverse of `to_light`."""
        if self.transfer == "pq":
            power = np.clip(light / PQ_PEAK, 0, 1) ** PQ_M1
            return np.asarray(((PQ_C1 + PQ_C2 * power) / (1 + PQ_C3 * power)) ** PQ_M2, np.float32)
        scene = np.clip(light / HLG_PEAK, 0, 1) ** (1 / HLG_GAMMA)
        bright = HLG_A * np.log(np.maximum(12 * scene - HLG_B, 1e-6)) + HLG_C
        return np.asarray(np.where(scene <= 1 / 12, np.sqrt(3 * scene), bright), np.float32)


def encode_srgb(light: FloatArray) -> FloatArray:
    """Encode linear light in 0..1 as sRGB (IEC 61966-2-1)."""
    return np.asarray(np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055), np.float32)


def decode_srgb(value: FloatArray) -> FloatArray:
    """Decode sRGB in 0..1 to linear light."""
    return np.asarray(np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4), np.float32)

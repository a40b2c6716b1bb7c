"""Show HDR pictures to a network that knows sRGB, and map its answer back.

Light is relative to a reference white of 203 nits (ITU-R BT.2408), which becomes sRGB white. Primaries of BT.2020
become those of BT.709. What is brighter or more colourful than sRGB is clipped: `planes.blend_region` keeps it where
the network leaves the picture as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from fusionray.faces.face import Image

Floats = NDArray[np.float32]
Number = TypeVar("Number", np.float32, np.uint8)

REFERENCE_WHITE_NITS = 203.0
_PQ_PEAK_NITS = 10_000.0
# The peak of the display that HLG is shown on, and its system gamma. Source: ITU-R BT.2100, table 5.
_HLG_PEAK_NITS, _HLG_GAMMA = 1_000.0, 1.2
_LUMA_2020 = np.array([[0.2627, 0.6780, 0.0593]], np.float32)
# Linear BT.2020 to linear BT.709. Source: ITU-R BT.2087, inverted.
_TO_709 = np.array(
    [[1.660491, -0.587641, -0.072850], [-0.124550, 1.132900, -0.008349], [-0.018151, -0.100579, 1.118730]]
)
_TABLE_SIZE = 1 << 14


@dataclass(frozen=True, eq=False)
class HdrTransfer:
    """The map between an HDR signal R'G'B' of 0 to 1, in BT.2020 primaries, and uint8 sRGB [H, W, 3].

    Curves are tables: `to_light` by the signal, `to_signal` by the fourth root of the light, which is smooth at black.
    """

    is_hlg: bool
    to_light: Floats
    to_signal: Floats
    peak: float

    def to_srgb(self, signal: Floats) -> Image:
        """Map a signal to uint8 sRGB."""
        light = _look_up(self.to_light, signal)
        if self.is_hlg:
            # The display's light grows with the luminance of the scene: L = peak * E * Y^(gamma - 1).
            light *= self.peak * cv2.pow(_luminance(light), _HLG_GAMMA - 1)[..., None]
        return _look_up(_srgb_table(), cv2.transform(light, _TO_709.astype(np.float32)))

    def from_srgb(self, rgb: Image | Floats) -> Floats:
        """Map sRGB, uint8 or float32 of 0 to 1, to a signal: the inverse of `to_srgb`, up to clipping and rounding."""
        shown = _light_table()[rgb] if rgb.dtype == np.uint8 else _srgb_to_light(rgb.astype(np.float64))
        light = np.maximum(cv2.transform(shown.astype(np.float32), np.linalg.inv(_TO_709).astype(np.float32)), 0)
        if self.is_hlg:
            light /= self.peak
            luminance = np.maximum(_luminance(light), np.float32(1e-9))
            light *= cv2.pow(luminance, 1 / _HLG_GAMMA - 1)[..., None]
            return _look_up(self.to_signal, cv2.sqrt(cv2.sqrt(light)))
        return _look_up(self.to_signal, cv2.sqrt(cv2.sqrt(light / self.peak)))


def choose_hdr_transfer(name: str) -> HdrTransfer | None:
    """Return the map of an HDR transfer by FFmpeg's name (smpte2084, arib-std-b67), None for standard range."""
    return _build_transfer(name) if name in {"smpte2084", "arib-std-b67"} else None


@lru_cache(maxsize=2)
def _build_transfer(name: str) -> HdrTransfer:
    steps = np.linspace(0, 1, _TABLE_SIZE)
    if name == "smpte2084":
        peak = _PQ_PEAK_NITS / REFERENCE_WHITE_NITS
        return HdrTransfer(False, _freeze(_pq_to_light(steps) * peak), _freeze(_light_to_pq(steps**4)), peak)
    peak = _HLG_PEAK_NITS / REFERENCE_WHITE_NITS
    return HdrTransfer(True, _freeze(_hlg_to_light(steps)), _freeze(_light_to_hlg(steps**4)), peak)


# Source: ITU-R BT.2100, table 4.
_M1, _M2, _C1, _C2, _C3 = 2610 / 16384, 2523 / 32, 3424 / 4096, 2413 / 128, 2392 / 128


def _pq_to_light(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    root = signal ** (1 / _M2)
    return (np.maximum(root - _C1, 0) / (_C2 - _C3 * root)) ** (1 / _M1)


def _light_to_pq(light: NDArray[np.float64]) -> NDArray[np.float64]:
    root = light**_M1
    return ((_C1 + _C2 * root) / (1 + _C3 * root)) ** _M2


# Source: ITU-R BT.2100, table 5.
_A, _B, _C = 0.17883277, 0.28466892, 0.55991073


def _hlg_to_light(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - _C) / _A) + _B) / 12)


def _light_to_hlg(light: NDArray[np.float64]) -> NDArray[np.float64]:
    above = np.maximum(light, 1 / 12)
    return np.where(light <= 1 / 12, np.sqrt(3 * light), _A * np.log(12 * above - _B) + _C)


# Source: IEC 61966-2-1.
def _srgb_to_light(value: NDArray[np.float64]) -> NDArray[np.float64]:
    value = np.clip(value, 0, 1)
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def _light_to_srgb(light: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(light <= 0.0031308, light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055)


@lru_cache(maxsize=1)
def _srgb_table() -> NDArray[np.uint8]:
    table = np.rint(_light_to_srgb(np.linspace(0, 1, _TABLE_SIZE)) * 255).astype(np.uint8)
    table.flags.writeable = False
    return table


@lru_cache(maxsize=1)
def _light_table() -> Floats:
    return _freeze(_srgb_to_light(np.arange(256) / 255))


def _freeze(table: NDArray[np.float64]) -> Floats:
    frozen = table.astype(np.float32)
    frozen.flags.writeable = False
    return frozen


def _luminance(light: Floats) -> Floats:
    return np.asarray(cv2.transform(light, _LUMA_2020), np.float32).reshape(light.shape[:2])


def _look_up(table: NDArray[Number], place: Floats) -> NDArray[Number]:
    """Look up values of 0 to 1 in a table; those outside are clipped."""
    # The product rounds to whole numbers, and saturates at 0; 16 bits hold the size of a table.
    index = cv2.multiply(place, (_TABLE_SIZE - 1.0,) * 4, dtype=cv2.CV_16U)
    return np.asarray(table[np.minimum(index, _TABLE_SIZE - 1)], table.dtype)

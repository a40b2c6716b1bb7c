"""Build quantized variants of a generator; a variant that misses its quality gate stops the export."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field, model_validator

from fusionray.bundle.description import Variant, WeightPrecision
from fusionray.config import Section, in_unit
from fusionray.errors import ParityFailed
from fusionray.export.calibration_data import CalibrationData
from fusionray.export.quantize import INT8_OPERATORS, write_float16, write_int8
from fusionray.metrics.similarity import region_psnr, region_ssim
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.engines.factory import open_engine
from fusionray.runtime.engines.fixed_batches import run_batches
from fusionray.runtime.engines.providers import CPU
from fusionray.runtime.pixels import FloatArray

BATCH = 8
# White minus black of an output is 2, of a mask 1.
SPANS = {"output": 2}
# PSNR of equal pictures is infinite. This is the PSNR of rounding to eight bits: 10 log10(12 x 255^2).
HIGHEST_PSNR = 58.9


class Gate(Section):
    """Limits of the difference between a quantized generator and `generator.onnx`."""

    tolerance: float = Field(
        gt=0, description="Largest difference of output and mask, in 0..1.", json_schema_extra=in_unit("")
    )
    ssim: float = Field(ge=0, le=1, description="Smallest mean SSIM of the outputs.", json_schema_extra=in_unit(""))


class Gates(Section):
    """Quality gates of the quantized generators."""

    # The largest of millions of values: at 128 px 0.022 was found where SSIM was 1.0000, at 64 px 0.0025.
    fp16: Gate = Gate(tolerance=0.05, ssim=0.999)
    int8: Gate = Gate(tolerance=0.25, ssim=0.98)

    @model_validator(mode="before")
    @classmethod
    def keep_defaults(cls, given: Any) -> Any:
        """Keep the default of the limit of a gate that is not given."""
        if not isinstance(given, dict):
            return given
        fields = cls.model_fields
        return {
            name: {**fields[name].default.model_dump(), **gate} if name in fields and isinstance(gate, dict) else gate
            for name, gate in given.items()
        }


def build_variant(
    precision: WeightPrecision, generator: Path, folder: Path, calibration_data: CalibrationData, gate: Gate
) -> tuple[Path, Variant]:
    """Write a quantized variant of a generator into a folder and measure it; return its path and description.

    Raises: ParityFailed with the measurements, if it misses its gate.
    """
    path = folder / f"generator.{precision}.onnx"
    expected = compute(generator, calibration_data)
    measured: Variant | None = None
    for operators in INT8_OPERATORS if precision == "int8" else ((),):
        if precision == "int8":
            write_int8(generator, path, calibration_data.calibration, operators)
        else:
            write_float16(generator, path)
        measured = measure(path, expected, calibration_data, gate, operators)
        if passes(measured, gate):
            return path, measured
    assert measured is not None
    path.unlink()
    raise ParityFailed(
        f"the {precision} generator misses its gate: largest difference {measured.largest_difference:.3g} (allowed: "
        f"{gate.tolerance:g}), SSIM {measured.ssim:.4f} (needed: {gate.ssim:g}), PSNR {measured.psnr_decibels:.1f} dB "
        f"on {measured.crops} {measured.measured_on}; nothing was exported: leave {precision} out of "
        f"--precision, or set gates.{precision}.tolerance and gates.{precision}.ssim"
    )


def passes(measured: Variant, gate: Gate) -> bool:
    """Return whether a variant passes its gate; NaN does not pass."""
    return measured.largest_difference <= gate.tolerance and measured.ssim >= gate.ssim


def compute(model: Path, calibration_data: CalibrationData) -> dict[str, FloatArray]:
    """Run a generator on the held-out inputs: `output` [N,3,S,S] in [-1,1], and `mask` [N,1,S,S] if it has one."""
    engine = open_engine(model, RuntimeConfig(providers=(CPU,)))
    found = run_batches(engine, calibration_data.outputs, calibration_data.held_out, BATCH, fixed=False)
    return dict(zip(calibration_data.outputs, found, strict=True))


def measure(
    path: Path,
    expected: Mapping[str, FloatArray],
    calibration_data: CalibrationData,
    gate: Gate,
    operators: tuple[str, ...],
) -> Variant:
    """Compare a variant's outputs with those of `generator.onnx`."""
    computed = compute(path, calibration_data)
    differences = {name: np.abs(values - expected[name]) / SPANS.get(name, 1) for name, values in computed.items()}
    found, wanted = (torch.from_numpy(values["output"]).clamp(-1, 1) for values in (computed, expected))
    everywhere = torch.ones_like(found[:, :1])
    return Variant(
        file=path.name,
        bytes=path.stat().st_size,
        tolerance=gate.tolerance,
        largest_difference=float(np.max([values.max() for values in differences.values()])),
        mean_difference=float(differences["output"].mean()),
        psnr_decibels=float(region_psnr(found, wanted, everywhere).clamp(max=HIGHEST_PSNR).mean()),
        ssim=float(region_ssim(found, wanted, everywhere).mean()),
        crops=len(found),
        measured_on=calibration_data.measured_on,
        quantized=operators,
    )

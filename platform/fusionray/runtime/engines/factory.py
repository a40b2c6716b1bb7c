"""Open a model file as an inference engine: ONNX Runtime or OpenVINO, as the settings say."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fusionray.bundle.bundle import Bundle, hash_file
from fusionray.bundle.description import WeightPrecision
from fusionray.errors import BundleInvalid
from fusionray.hardware.device import has_nvidia_device
from fusionray.runtime.config import AUTO, ComputePrecision, EngineName, RuntimeConfig
from fusionray.runtime.engines.engine import InferenceEngine, ModelFile


def open_engine(
    path: str | Path,
    settings: RuntimeConfig | None = None,
    *,
    digest: str | None = None,
    weight_precision: ComputePrecision = "fp32",
    quantized: bool = False,
) -> InferenceEngine:
    """Open a model by the settings; `digest` is the sha256 of the file, if the caller knows it.

    `quantized`: the model has int8 operators (QuantizeLinear, DequantizeLinear).

    Raises: ProviderUnavailable if an engine, provider or precision of the settings does not run here; BundleInvalid if
        the file is missing or not a model.
    """
    settings = settings or RuntimeConfig()
    path = Path(path)
    if not path.is_file():
        raise BundleInvalid(f"{path}: there is no such model; copy or export the bundle again")
    # Only the cache needs the hash; without a GPU there is one only if the settings name it.
    is_cached = has_nvidia_device() if settings.cache == AUTO else settings.cache is not None
    known = digest or (hash_file(path) if is_cached else "")
    model = ModelFile(path, known, weight_precision, quantized)
    # Each library takes a quarter of a second to import, so only the chosen one is imported.
    if choose_engine(settings) == "openvino":
        from fusionray.runtime.engines.openvino_engine import OpenVinoEngine

        return OpenVinoEngine(model, settings)
    from fusionray.runtime.engines.onnx_engine import OnnxEngine

    return OnnxEngine(model, settings)


def open_generator(
    bundle: Bundle, settings: RuntimeConfig | None = None, *, precision: WeightPrecision = "fp32"
) -> InferenceEngine:
    """Open a generator of a bundle; `precision` chooses among them.

    Raises: BundleInvalid if the bundle has no generator in that precision, or as `open_engine`; ProviderUnavailable.
    """
    path = bundle.generator_path_for(precision)
    # The weights between the int8 operators of a variant are float32.
    weight_precision: ComputePrecision = "fp16" if precision == "fp16" else "fp32"
    digest = bundle.description.files[path.name]
    quantized = precision == "int8"
    return open_engine(path, settings, digest=digest, weight_precision=weight_precision, quantized=quantized)


def choose_engine(settings: RuntimeConfig) -> EngineName:
    """Choose the library: OpenVINO for bf16 or fp16 on a CPU, else ONNX Runtime.

    On our models, ONNX Runtime is as fast or faster in float32; it has no bf16 on x86 (docs/runtime.md).
    """
    if settings.engine != "auto":
        return settings.engine
    on_cpu = settings.providers == "auto" and not has_nvidia_device()
    reduced = settings.precision in ("bf16", "fp16")
    return "openvino" if on_cpu and reduced and find_spec("openvino") is not None else "onnxruntime"

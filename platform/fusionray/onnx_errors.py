"""The errors of ONNX Runtime, which have no common base class."""

from __future__ import annotations

from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

# Of a file that is no model, and of a model that does not run.
ONNX_ERRORS = (
    ort_state.EPFail,
    ort_state.Fail,
    ort_state.InvalidArgument,
    ort_state.InvalidGraph,
    ort_state.InvalidProtobuf,
    ort_state.NoSuchFile,
    ort_state.NotImplemented,
    ort_state.RuntimeException,
)

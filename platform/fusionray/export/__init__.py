"""Export trained models to ONNX bundles, checked against torch, and import ONNX models made elsewhere."""

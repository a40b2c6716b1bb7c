"""Engines that run a compiled graph: ONNX Runtime and OpenVINO, with their providers, sessions and caches."""

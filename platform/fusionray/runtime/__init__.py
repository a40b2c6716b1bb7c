"""Run a bundle: ONNX Runtime sessions, and the fuser from picture to picture. Knows nothing of Ray."""

"""What leaves training: ONNX models, checked against torch, in a bundle."""

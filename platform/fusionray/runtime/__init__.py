"""Run the models of a bundle on ONNX Runtime or OpenVINO, from pictures to pictures. Imports neither Ray nor torch."""

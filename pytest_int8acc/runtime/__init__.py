"""Runs models in ONNX Runtime and TensorRT. No other package of this plugin imports these runtimes."""

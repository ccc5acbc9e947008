"""A model becomes something that runs: only this room knows ONNX Runtime and TensorRT."""

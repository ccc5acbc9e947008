"""What cases cost, whole processes, beside plain runs of ONNX Runtime and beside NNCF."""

"""The search for the layers that must leave the low format. It knows no ONNX, no runtime and no pytest."""

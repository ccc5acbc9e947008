"""The search for the groups that must leave the low format. It knows no ONNX, no runtime and no pytest."""

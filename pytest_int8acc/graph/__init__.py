"""Reads and rewrites ONNX graphs: groups of layers, Q/DQ, FP16, plans of precisions. No model runs here."""

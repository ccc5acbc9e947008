"""The search for the layers that must leave the low format.

This package works on indices and losses, without ONNX, runtimes or pytest.
"""

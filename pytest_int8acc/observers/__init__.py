"""Measures the values of activation tensors, and computes quantization scales from them."""

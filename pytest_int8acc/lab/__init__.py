"""Tries plans of a case, computes their prices, and builds and proves them.

A plan says which layers of the low-precision candidate run in high precision, and which scales tensors have.
"""

"""Tries, prices, builds and proves plans of a case.

A plan says which layers of the low-precision candidate run in high precision, and which scales tensors have.
"""

"""Tries plans of a case by inference, computes what they cost in speed, and builds and proves them.

A plan says which layers of the low-precision candidate run in high precision, and which scales tensors have.
"""

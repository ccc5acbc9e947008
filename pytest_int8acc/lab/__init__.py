"""Tries, prices, builds and proves plans of a case.

A plan changes precision or scales of the INT8 candidate.
"""

"""Faults planted by code into trained networks, and healthy ones: what the plugin makes of them.

python -m benchmarks.regressions
"""

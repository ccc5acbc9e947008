"""Faults of FP16 planted in networks: what is found, and what is not blamed."""

"""Strength of the tests: how many of 150 small faults planted in the package they find."""

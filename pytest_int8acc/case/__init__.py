"""Runs a case of a spec: loads its model and data, builds baseline and candidate, and judges them."""

"""Computes metrics from arrays, and judges them by criteria. No model runs here."""

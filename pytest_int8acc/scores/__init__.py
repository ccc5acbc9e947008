"""Metrics and criteria: arrays in, plain numbers out; nothing here runs a model."""

"""Healthy cases."""

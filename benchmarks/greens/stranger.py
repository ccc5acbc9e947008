"""Planted lies, written by someone who knows only what was measured, not the rules."""

"""Goldens: baseline outputs and accepted scores of a case, kept in the repository."""

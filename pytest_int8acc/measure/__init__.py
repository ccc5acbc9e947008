"""A case run and scored: its forms in lock-step on the same inputs, judged by its criteria."""

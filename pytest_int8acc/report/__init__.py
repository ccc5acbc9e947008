"""Turns results into text, HTML, Markdown and JSON. No model runs here."""

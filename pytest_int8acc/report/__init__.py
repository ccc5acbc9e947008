"""Turns results into text, HTML, Markdown and JSON. Imports nothing that measures."""

"""Graphs in Python: reading, writing, deriving, summarizing and evaluating them."""

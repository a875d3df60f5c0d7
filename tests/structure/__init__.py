"""Measures of the source tree: names, sizes, and the walk of one message."""

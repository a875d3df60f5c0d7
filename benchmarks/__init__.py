"""Measurements anybody can repeat: `make bench`."""

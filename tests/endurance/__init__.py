"""Runs that are too long for the suite: an hour of traffic, a million messages at once."""

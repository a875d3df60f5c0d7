"""Transports: how a batch of events reaches a broker, one module per kind of broker."""

"""Queues, messages and poison in the Django admin."""

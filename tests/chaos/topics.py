"""The topics of the events of a run: those that somebody reads, and one that the broker refuses."""

from __future__ import annotations

TOPICS = ("chaos.orders", "chaos.stock", "chaos.mail")
REFUSED = "chaos.nowhere"
#: The queue of RabbitMQ in which all of them arrive.
QUEUE = "collected"

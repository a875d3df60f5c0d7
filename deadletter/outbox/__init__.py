"""The outbox: messages for other systems, stored in the caller's transaction, then published."""

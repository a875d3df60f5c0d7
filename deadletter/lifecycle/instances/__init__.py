"""
What the queue does to instances, inside the transactions of its verbs.

The API of instances, with flows, turns and activities, is the package `deadletter.instances`, which
uses this one. Reading order: rows (lock, create and save an instance), post (its messages), log,
end (complete or fail it), on_death (one of its messages was quarantined), on_retry (such a message
is retried), retention, stuck.
"""

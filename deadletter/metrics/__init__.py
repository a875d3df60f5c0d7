"""
What Prometheus is told. Reading order: board (what a process sees), totals and depths (what the
tables say), reading (how often they are asked), families (names), page, server, exporter, view.

Only `families` and `page` import prometheus-client: without it nothing else is missing.
"""

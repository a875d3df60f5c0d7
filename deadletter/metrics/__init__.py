"""
Metrics for Prometheus.

Reading order: process_counters (what a worker process measures), totals and depths (what the tables
contain), cache (how often the tables are read), exposition (names and format of the metrics),
server and exporter (the port of a worker). The page of a site is in deadletter/views.py.

Only `exposition` imports prometheus-client: without it everything else works.
"""

"""
The test suites of Django Tasks, run against `deadletter.tasks.DeadletterBackend`.

`make conformance` (`python -m tests.conformance`) downloads the source distributions of Django and
django-tasks-db into `.conformance`, and runs their tests of tasks with our backend in the place of
theirs, on SQLite and on PostgreSQL, in the environments of `.ci/matrix`. Nothing of them is copied
into this repository, and no line of their tests is changed, except that names of `django.tasks`
become those of the backport where the backport is tested.

- `sources`: downloads, and the folder of tests of each suite.
- `suite`: runs one such folder in one environment on one database, and counts.
- `backends`: what takes the place of their backends.
- `applicability`: the tests that cannot apply, each with its reason.
"""

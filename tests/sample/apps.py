from __future__ import annotations

from django.apps import AppConfig


class SampleConfig(AppConfig):
    name = "tests.sample"
    default_auto_field = "django.db.models.BigAutoField"

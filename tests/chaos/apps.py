from __future__ import annotations

import os

from django.apps import AppConfig


class ChaosConfig(AppConfig):
    name = "tests.chaos"
    label = "chaos"

    def ready(self) -> None:
        from .crashes import arm

        arm(os.environ)

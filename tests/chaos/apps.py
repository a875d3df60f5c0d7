from __future__ import annotations

import os

from django.apps import AppConfig


class ChaosConfig(AppConfig):
    name = "tests.chaos"
    label = "chaos"

    def ready(self) -> None:
        from deadletter.tasks.frameworks import primary

        from .crashes import arm
        from .relays import hurry
        from .tasks import hear

        arm(os.environ)
        hurry(os.environ)
        primary().signals.task_finished.connect(hear)

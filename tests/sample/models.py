"""What handlers do to the database of their application."""

from __future__ import annotations

from django.db import models


class Effect(models.Model):
    """A handler's own work: `message` says for which message, `note` which step."""

    message = models.BigIntegerField()
    note = models.CharField(max_length=100, default="")
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        app_label = "sample"

    def __str__(self) -> str:
        return f"{self.note} of {self.message}"

"""The documented address of the health view; it lives in `deadletter.views`."""

from __future__ import annotations

from .views import health

__all__ = ["health"]

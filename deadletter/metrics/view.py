"""The documented address of the metrics view; it lives in `deadletter.views`."""

from __future__ import annotations

from ..views import metrics

__all__ = ["metrics"]

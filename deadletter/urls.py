"""
What a site may add to its urls: `path("deadletter/", include("deadletter.urls"))`.

The admin needs none of it.
"""

from __future__ import annotations

from django.urls import path

from .metrics.view import metrics
from .views import health

app_name = "deadletter"
urlpatterns = [
    path("health", health, name="health"),
    path("metrics", metrics, name="metrics"),
]

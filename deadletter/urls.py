"""
URLs that a site can include: `path("deadletter/", include("deadletter.urls"))`.

The admin does not need them.
"""

from __future__ import annotations

from django.urls import path

from .views import health, metrics

app_name = "deadletter"
urlpatterns = [
    path("health", health, name="health"),
    path("metrics", metrics, name="metrics"),
]

"""A site that includes the app's urls."""

from __future__ import annotations

from django.urls import include, path

from deadletter.views import metrics

urlpatterns = [
    path("deadletter/", include("deadletter.urls")),
    path("second", metrics, {"using": "second"}),
]

"""URLs of the demonstration site: home page, admin, health and metrics."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from django.views.generic import TemplateView

urlpatterns = [
    path("", TemplateView.as_view(template_name="home.html"), name="home"),
    path("admin/", admin.site.urls),
    path("deadletter/", include("deadletter.urls")),
]

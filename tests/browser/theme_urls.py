"""The addresses of the site with a theme."""

from __future__ import annotations

from django.apps import apps
from django.conf import settings
from django.contrib import admin
from django.urls import include, path

if settings.THEME == "unfold_classes":
    from unfold.admin import ModelAdmin

    for model in apps.get_app_config("deadletter").get_models():
        if admin.site.is_registered(model):
            ours = type(admin.site.get_model_admin(model))
            admin.site.unregister(model)
            admin.site.register(model, type(ours.__name__, (ours, ModelAdmin), {}))

from project.urls import urlpatterns as own

urlpatterns = [*own]
if settings.THEME == "grappelli":
    urlpatterns = [path("grappelli/", include("grappelli.urls")), *own]

"""Addresses of a project with an admin of its own beside Django's."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from deadletter.models import (
    AuditEntry,
    Breaker,
    BrokerStatus,
    Count,
    Instance,
    Message,
    PoisonRecord,
    PublishedMessage,
    Queue,
    Result,
    Schedule,
    WorkerProcess,
)

MODELS = (
    AuditEntry, Breaker, BrokerStatus, Count, Instance, Message, PoisonRecord, PublishedMessage,
    Queue, Result, Schedule, WorkerProcess,
)  # fmt: skip

ops = admin.AdminSite(name="ops")
for model in MODELS:
    ops.register(model, type(admin.site.get_model_admin(model)))

#: Sites that have one model each: links to the others must not break their pages.
alone = {}
for model in MODELS:
    site = admin.AdminSite(name=f"only-{model._meta.model_name}")
    site.register(model, type(admin.site.get_model_admin(model)))
    alone[model._meta.model_name] = site

urlpatterns = [
    path("admin/", admin.site.urls),
    path("ops/", ops.urls),
    *(path(f"only-{name}/", site.urls) for name, site in alone.items()),
]

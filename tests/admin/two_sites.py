"""Addresses of a project with an admin of its own beside Django's."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from deadletter.models import AuditEntry, Breaker, Message, PoisonRecord, Queue, WorkerProcess

ops = admin.AdminSite(name="ops")
for model in (AuditEntry, Breaker, Message, PoisonRecord, Queue, WorkerProcess):
    ops.register(model, type(admin.site.get_model_admin(model)))

urlpatterns = [path("admin/", admin.site.urls), path("ops/", ops.urls)]

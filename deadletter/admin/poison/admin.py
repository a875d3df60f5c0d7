"""Poison: which page is where. Each page is a function of its own; this only declares them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.urls import path

from ...models import PoisonRecord
from ..base import ReadOnlyAdmin, as_id
from . import bulk, edit, groups, jobs, matrix, record, records, retry


@admin.register(PoisonRecord)
class PoisonRecordAdmin(ReadOnlyAdmin):
    """Groups first; from there to the records, to one record, and to what can be done."""

    def get_urls(self) -> list[Any]:
        def page(route: str, view: Callable[..., Any], name: str) -> Any:
            wrapped = self.admin_site.admin_view(partial(view, self))
            return path(route, wrapped, name=f"deadletter_poisonrecord_{name}")

        return [
            page("records/", records.records, "records"),
            page("matrix/", matrix.matrix, "matrix"),
            page("bulk/<slug:act>/", bulk.bulk, "bulk"),
            page("export/", bulk.export, "export"),
            page("jobs/", jobs.jobs, "jobs"),
            page("jobs/<int:job_id>/", jobs.job, "job"),
            page("<int:object_id>/payload/", record.payload, "payload"),
            page("<int:object_id>/retry/", retry.retry, "retry"),
            page("<int:object_id>/edit/", edit.edit, "edit"),
            page("<int:object_id>/remove/", retry.remove, "remove"),
            *super().get_urls(),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        return groups.groups(self, request)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        return record.record(self, request, object_id)

    def matches(self, term: str) -> Q:
        """For Django's own searches; the page of records searches in `asked`."""
        id = as_id(term)
        found = Q(fingerprint=term)
        return found if id is None else found | Q(message_id=id)

"""The admin of poison records; each page is a view of its own, and this class names them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.urls import path

from ...models import PoisonRecord
from ..base import AdminView, ReadOnlyAdmin, as_id
from .acts import RemoveRecordView, RetryRecordView
from .bulk import BulkActView, ExportView
from .edit import EditRecordView
from .group_acts import GROUP_ACTS
from .group_page import GroupView
from .groups import GroupsView, MatrixView
from .jobs import JobsView, JobView
from .record import PayloadView, RecordView
from .records import RecordsView
from .tag_page import TagView


@admin.register(PoisonRecord)
class PoisonRecordAdmin(ReadOnlyAdmin):
    """Opens with the groups; they lead to the records, to one record, and to the acts."""

    def get_urls(self) -> list[Any]:
        def page(route: str, view: type[AdminView], name: str) -> Any:
            wrapped = self.admin_site.admin_view(view.as_view(model_admin=self))
            return path(route, wrapped, name=f"deadletter_poisonrecord_{name}")

        return [
            page("records/", RecordsView, "records"),
            page("matrix/", MatrixView, "matrix"),
            page("bulk/<slug:act>/", BulkActView, "bulk"),
            page("export/", ExportView, "export"),
            page("groups/<str:fingerprint>/", GroupView, "group"),
            *(page(f"groups/act/{act}/", GROUP_ACTS[act], f"group_{act}") for act in GROUP_ACTS),
            page("tags/", TagView, "tag"),
            page("jobs/", JobsView, "jobs"),
            page("jobs/<int:job_id>/", JobView, "job"),
            page("<int:object_id>/payload/", PayloadView, "payload"),
            page("<int:object_id>/retry/", RetryRecordView, "retry"),
            page("<int:object_id>/edit/", EditRecordView, "edit"),
            page("<int:object_id>/remove/", RemoveRecordView, "remove"),
            *super().get_urls(),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        return GroupsView.as_view(model_admin=self)(request)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> Any:
        return RecordView.as_view(model_admin=self)(request, object_id=object_id)

    def matches(self, term: str) -> Q:
        """Serve Django's own searches; the page of records searches with `query.jump`."""
        id = as_id(term)
        found = Q(fingerprint=term)
        return found if id is None else found | Q(message_id=id)

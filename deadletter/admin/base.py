"""How is a big table shown without harm? Read from the primary; never changed, never counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db import models
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from ..models import Queue, primary_alias
from ..times import moment
from .error_text import may_read_errors
from .lookups import StrictLookups

#: Rows counted, and rows that can be paged through; a filter or a search leads to the others.
COUNT_LIMIT = 10_000

if TYPE_CHECKING:  # the class is generic to the type checker only
    _Paginator = Paginator[models.Model]
else:
    _Paginator = Paginator


class CappedPaginator(_Paginator):
    """Counts up to COUNT_LIMIT rows and then says "more": COUNT(*) reads a whole table."""

    @cached_property
    def _counted(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[: COUNT_LIMIT + 1].count())

    @cached_property
    def count(self) -> int:
        return min(self._counted, COUNT_LIMIT)

    @property
    def more(self) -> bool:
        return self._counted > COUNT_LIMIT


class ReadOnlyAdmin(StrictLookups):
    """Lists and pages that only show: what happens to messages is decided by `lifecycle`."""

    paginator = CappedPaginator
    show_full_result_count = False
    list_max_show_all = 0
    #: A count beside every filter would be as many counts of the whole table.
    show_facets = admin.ShowFacets.NEVER
    # Other columns have no index of their own: sorting by one would read and sort every row.
    sortable_by = ("id",)
    #: Columns and fields that need the payload permission, and what takes their place; "": nothing.
    without_payload: Mapping[str, str] = {}

    class Media:
        css = {"all": ("deadletter/admin.css",)}

    def get_queryset(self, request: HttpRequest) -> Any:
        # A replica may still show what is already gone.
        return super().get_queryset(request).using(primary_alias())

    def get_list_display(self, request: HttpRequest) -> Any:
        return self._allowed(request, super().get_list_display(request))

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return [
            (name, {**options, "fields": self._allowed(request, options["fields"])})
            for name, options in super().get_fieldsets(request, obj)
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        others = filter(None, self.without_payload.values())
        return tuple(dict.fromkeys((*super().get_readonly_fields(request, obj), *others)))

    def _allowed(self, request: HttpRequest, names: Any) -> Any:
        """Replace what shows payloads, headers or texts of errors for who may not see them."""
        if self.without_payload and not may_read_errors(request):
            allowed = (self.without_payload.get(name, name) for name in names)
            names = tuple(dict.fromkeys(filter(None, allowed)))
        model: Any = self.model
        exact = _exact_times(model)
        return tuple(exact.get(name, name) for name in names)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        title = {"title": capfirst(str(self.opts.verbose_name_plural))}
        return super().changelist_view(request, {**title, **(extra_context or {})})

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find by whole values of indexed columns, in one index probe each."""
        term = search_term.strip()
        return (queryset.filter(self.matches(term)) if term else queryset), False

    def matches(self, term: str) -> Q:
        raise NotImplementedError

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@cache
def _exact_times(model: type[models.Model]) -> dict[str, Callable[[Any], str]]:
    """Return for each time of a model what shows it to the second and with its zone."""

    def exact(field: Any) -> Callable[[Any], str]:
        def show(row: Any) -> str:
            at = getattr(row, field.attname)
            return "-" if at is None else moment(at)

        show.__name__ = field.name
        return admin.display(description=field.verbose_name)(show)

    fields = model._meta.concrete_fields
    return {f.name: exact(f) for f in fields if isinstance(f, models.DateTimeField)}


class QueueFilter(admin.SimpleListFilter):
    """By queue; the choices come from the short table of queues, not from the long one listed."""

    title = _("queue")
    parameter_name = "queue"
    #: What a row keeps of its queue: the key, or the name.
    column = "queue_id"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[Any, str]]:
        rows = Queue.objects.using(primary_alias()).order_by("name")
        return [
            (str(pk) if self.column == "queue_id" else name, name)
            for pk, name in rows.values_list("pk", "name")
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        known = {choice for choice, _ in self.lookup_choices}
        return queryset.filter(**{self.column: value}) if value in known else queryset.none()


def as_id(term: str) -> int | None:
    """Read a search term as an id; None when no row could have it."""
    if not (term.isascii() and term.isdigit() and len(term) <= 19):
        return None
    return int(term) if int(term) < 2**63 else None

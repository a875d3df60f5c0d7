"""
The base of the admin: read-only lists of big tables, and the frame of pages of our own.

Lists read from the primary, are never changed and never counted beyond a limit. A page that is not
one of Django's is an `AdminView`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import models
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template.response import TemplateResponse
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _
from django.views.generic import View

from ..models import Queue, primary_alias
from ..text import page_text
from ..times import moment
from .error_text import may_read_errors
from .lookups import StrictLookups
from .urls import link

#: Rows that are counted and can be paged through; a filter or a search leads to the others.
COUNT_LIMIT = 10_000
#: Choices of a name filter; each costs one index probe. Any name can be given in the URL.
NAMES = 20

if TYPE_CHECKING:  # the class is generic to the type checker only
    _Paginator = Paginator[models.Model]
else:
    _Paginator = Paginator


class CappedPaginator(_Paginator):
    """Counts up to COUNT_LIMIT rows and then says "more": COUNT(*) would read the whole table."""

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
    """A list that shows and never changes: `lifecycle` decides what happens to messages."""

    paginator = CappedPaginator
    show_full_result_count = False
    list_max_show_all = 0
    #: Facets would count the whole table once for every filter.
    show_facets = admin.ShowFacets.NEVER
    # Other columns have no index: sorting by one would read and sort every row.
    sortable_by = ("id",)
    #: Columns and fields that need the payload permission, each with its substitute ("": none).
    without_payload: Mapping[str, str] = {}

    class Media:
        css = {"all": ("deadletter/admin.css",)}

    def get_queryset(self, request: HttpRequest) -> Any:
        # A replica may still show rows that are already gone.
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
        """Replace columns with payloads, headers or error texts for readers without permission."""
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
        """Search for whole values of indexed columns, with one index probe each."""
        term = search_term.strip()
        return (queryset.filter(self.matches(term)) if term else queryset), False

    def matches(self, term: str) -> Q:
        raise NotImplementedError

    def _never(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_add_permission = has_change_permission = has_delete_permission = _never


@cache
def _exact_times(model: type[models.Model]) -> dict[str, Callable[[Any], str]]:
    """Return a column function for each time of a model: to the second, with its zone."""

    def exact(field: Any) -> Callable[[Any], str]:
        def show(row: Any) -> str:
            at = getattr(row, field.attname)
            return "-" if at is None else moment(at)

        show.__name__ = field.name
        return admin.display(description=field.verbose_name)(show)

    fields = model._meta.concrete_fields
    return {f.name: exact(f) for f in fields if isinstance(f, models.DateTimeField)}


class AdminView(View):
    """
    A page of our own. `model_admin` gives it the site, the permissions and the style sheets.

    The permission is checked before anything is read. A page that is about one row reads it in
    `prepare`, and may answer there when the row is gone.
    """

    #: Given to `as_view()`.
    model_admin: StrictLookups = None  # type: ignore[assignment]
    #: The permission that the page needs besides the one to view its model; "": none.
    permission = ""
    #: Set by `dispatch`, as is the next.
    site_name: str
    #: The name that the audit trail keeps.
    by: str

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        self.site_name = self.model_admin.admin_site.name
        self.by = request.user.get_username()
        if not self.has_permission():
            raise PermissionDenied
        return self.prepare() or super().dispatch(request, *args, **kwargs)

    def has_permission(self) -> bool:
        return may(self.model_admin, self.request, self.permission)

    def prepare(self) -> HttpResponseBase | None:
        """Read what the page is about; return a response to answer at once."""
        return None

    def link(self, page: str, *args: object, **query: Any) -> str:
        """Return the address of `deadletter_<page>` in this site; "" where it has none."""
        return link(self.site_name, page, *args, **query)

    def page(self, template: str, title: str, *, status: int = 200, **context: Any) -> HttpResponse:
        site = self.model_admin.admin_site
        self.request.current_app = site.name
        frame = {"title": title, "opts": self.model_admin.opts, "media": self.model_admin.media}
        return TemplateResponse(
            self.request,
            f"admin/deadletter/{template}.html",
            {**site.each_context(self.request), **frame, **context},
            status=status,
        )


def may(model_admin: StrictLookups, request: HttpRequest, permission: str = "") -> bool:
    """True if this person may view the model and has the permission as well."""
    seen = model_admin.has_view_permission(request)
    return seen and (not permission or request.user.has_perm(permission))


def tell(request: HttpRequest, text: str, level: int = messages.SUCCESS) -> None:
    messages.add_message(request, level, text, fail_silently=True)


def write_log(
    request: HttpRequest,
    rows: Sequence[models.Model],
    text: str,
    *,
    why: str = "",
    gone: bool = False,
) -> None:
    """Write Django's own log, one entry a row; the audit trail is written by `operations`."""
    user = request.user.pk
    if user is None:  # does not happen behind admin_view
        return
    flag = DELETION if gone else CHANGE
    said = f"{text} {why}" if why else text
    LogEntry.objects.log_actions(user, list(rows), flag, change_message=said)


def log_about_all(model_admin: StrictLookups, request: HttpRequest, text: str) -> None:
    """Write Django's own log about an act that read rows of a model and changed none."""
    LogEntry.objects.create(
        user_id=request.user.pk or 0,
        content_type=ContentType.objects.get_for_model(model_admin.model),
        object_repr=str(model_admin.opts.verbose_name_plural),
        action_flag=CHANGE,
        change_message=text,
    )


class QueueFilter(admin.SimpleListFilter):
    """Filters by queue. The choices come from the short table of queues, not from the list."""

    title = _("queue")
    parameter_name = "queue"
    #: The column of a row that names its queue: by key, or by name.
    column = "queue_id"

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> list[tuple[Any, str]]:
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


class NameFilter(admin.SimpleListFilter):
    """Filters by name. DISTINCT would read the whole table: names are found one by one."""

    title = _("name")
    parameter_name = "name"

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> list[tuple[str, str]]:
        return [(name, page_text(name, limit=80)) for name in first_names(model_admin.model)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        return queryset.none() if "\x00" in value else queryset.filter(name=value)


def first_names(model: type[models.Model]) -> list[str]:
    """Return the first names in alphabetical order, by one index probe each."""
    rows = model._default_manager.using(primary_alias()).order_by("name")
    names: list[str] = []
    following = rows
    while len(names) < NAMES:
        name = following.values_list("name", flat=True).first()
        if name is None:
            break
        names.append(name)
        following = rows.filter(name__gt=name)
    return names


def as_id(term: str) -> int | None:
    """Read a search term as an id; None when no row can have it."""
    if not (term.isascii() and term.isdigit() and len(term) <= 19):
        return None
    return int(term) if int(term) < 2**63 else None

"""The admin of queues: policy, number of messages per state, pause and resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import ProtectedError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from .. import clock, operations
from ..durations import as_text
from ..exceptions import UnknownQueue
from ..models import OnPoison, Queue, State, primary_alias
from ..models.fields import SecondsField
from ..operations.queues import POLICY
from .base import may
from .confirm import WHY_LIMIT
from .counts import IN_A_LIST, ON_A_PAGE, Capped, attach_counts
from .lookups import StrictLookups
from .queue_pause import PauseView, ResumeView, pause_url
from .urls import to_state

if TYPE_CHECKING:  # the class is generic to the type checker only
    _ModelForm = forms.ModelForm[Queue]
else:
    _ModelForm = forms.ModelForm


class QueueForm(_ModelForm):
    why = forms.CharField(
        label=_("Why"),
        required=False,
        max_length=WHY_LIMIT,
        widget=forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"}),
        help_text=_("Kept in the audit trail with your name."),
    )

    class Meta:
        model = Queue
        fields = ("name", *POLICY)

    def clean(self) -> dict[str, Any]:
        """Set `on_poison` to dead_queue if a dead queue is chosen and `on_poison` is unchanged."""
        found = super().clean() or self.cleaned_data
        chosen = "dead_queue" in self.changed_data and "on_poison" not in self.changed_data
        if chosen and found.get("dead_queue") is not None:
            found["on_poison"] = OnPoison.DEAD_QUEUE.value
        return found


class QueueList(ChangeList):
    """Counts the messages of all queues of the page, in bounded queries."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        queues, using = list(self.result_list), primary_alias()
        attach_counts(queues, now=clock.now(using), limit=IN_A_LIST, using=using)
        self.result_list = queues


def _column(state: State) -> Any:
    """Return the column of one state: a number that links to the list of its messages."""

    @admin.display(description=state.label)
    def show(self: Any, queue: Any) -> Any:
        count: Capped = queue.counts[state]
        url = to_state(self.admin_site.name, queue, state)
        return format_html('<a href="{}">{}</a>', url, count) if url and count else str(count)

    return show


def _read_only(name: str) -> Any:
    """Return the method that shows a duration on a read-only page."""
    label = Queue._meta.get_field(name).verbose_name  # type: ignore[union-attr]

    @admin.display(description=label)
    def show(self: Any, queue: Queue) -> str:
        value = getattr(queue, name)
        return "-" if value is None else as_text(value)

    return show


#: The durations of a policy, and the name of the admin's method that shows each as text.
DURATIONS = {
    name: f"shown_{name}"
    for name, field in Queue.policy_fields().items()
    if isinstance(field, SecondsField)
}


def _read_only_fieldsets(fieldsets: Any) -> Any:
    """Return the fieldsets of the read-only page, with durations as text."""
    return tuple(
        (title, {**options, "fields": tuple(DURATIONS.get(f, f) for f in options["fields"])})
        for title, options in fieldsets
    )


@admin.register(Queue)
class QueueAdmin(StrictLookups):
    list_display = (
        "name",
        "status",
        *(state.value for state in State),
        "policy",
    )
    pending, scheduled, failed = map(_column, (State.PENDING, State.SCHEDULED, State.FAILED))
    active, blocked, dead = map(_column, (State.ACTIVE, State.BLOCKED, State.DEAD))
    list_select_related = ("dead_queue",)
    list_per_page = 50
    # Queues are deleted one at a time, on their page; the checkboxes would take room in the list.
    actions = None
    search_fields = ("name",)
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ("name", "status")
    form = QueueForm
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("name",)}),
        *((title, {"fields": names}) for title, names in Queue.POLICY_SECTIONS),
    )

    class Media:
        css = {"all": ("deadletter/admin.css",)}

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        return super().changelist_view(request, {"title": _("Queues"), **(extra_context or {})})

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return QueueList

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).using(primary_alias())

    def get_fieldsets(self, request: HttpRequest, obj: Queue | None = None) -> Any:
        # Only a change asks for a reason.
        if obj is not None and not self.has_change_permission(request, obj):
            return _read_only_fieldsets(self.fieldsets)
        if obj is None:
            return self.fieldsets
        return (*self.fieldsets, (_("Reason of the change"), {"fields": ("why",)}))

    def get_readonly_fields(self, request: HttpRequest, obj: Queue | None = None) -> Any:
        # The name is fixed: senders and poison records refer to it.
        return ("name",) if obj else ()

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        own = [
            path(
                "<int:pk>/pause/",
                view(PauseView.as_view(model_admin=self)),
                name="deadletter_queue_pause",
            ),
            path(
                "<int:pk>/resume/",
                view(ResumeView.as_view(model_admin=self)),
                name="deadletter_queue_resume",
            ),
        ]
        return own + super().get_urls()

    def formfield_for_foreignkey(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        kwargs["using"] = primary_alias()
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def save_model(self, request: HttpRequest, obj: Queue, form: Any, change: bool) -> None:
        """Save through `operations`, which audits it; write only the edited fields."""
        by = request.user.get_username()
        given = {field: form.cleaned_data[field] for field in POLICY if field in form.cleaned_data}
        if not change:
            obj.pk = operations.create_queue(obj.name, by=by, **given).pk
            return
        edited = {field: value for field, value in given.items() if field in form.changed_data}
        if edited:
            why = form.cleaned_data.get("why", "")
            operations.set_queue(obj.name, by=by, why=why, **edited)

    def delete_model(self, request: HttpRequest, obj: Queue) -> None:
        """Delete through `operations`, which audits it."""
        operations.delete_queue(obj.name, by=request.user.get_username())

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        for queue in queryset:
            self.delete_model(request, queue)

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """Show the form; report a rule that a concurrent edit broke instead of raising."""
        extra = {**(extra_context or {}), **self._header(request, object_id)}
        try:
            return super().changeform_view(request, object_id, form_url, extra)
        except ValidationError as error:
            return self._refuse(request, " ".join(error.messages), request.get_full_path())

    def delete_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Ask and delete; a queue that came into use in the meantime stays."""
        try:
            return super().delete_view(request, *args, **kwargs)
        except (ProtectedError, UnknownQueue) as error:
            here = reverse("admin:deadletter_queue_changelist", current_app=self.admin_site.name)
            why = gettext("The queue was not deleted. %(why)s") % {"why": error.args[0]}
            return self._refuse(request, why, here)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Refuse to delete a queue in use, without loading its messages."""
        in_use = [why for queue in objs for why in _uses(queue)]
        if in_use:
            return [str(queue) for queue in objs], {}, set(), in_use
        return super().get_deleted_objects(objs, request)

    @admin.display(description=_("status"), ordering="paused")
    def status(self, queue: Queue) -> Any:
        word, kind = (_("paused"), "halted") if queue.paused else (_("open"), "due")
        return format_html('<span class="dl-state dl-state-{}">{}</span>', kind, word)

    @admin.display(description=_("policy"))
    def policy(self, queue: Queue) -> Any:
        parts = [_tries(queue), _delay(queue), _dead_messages(queue), queue.stream_policy]
        if queue.reason_policies:
            parts.insert(2, gettext("different limits for some failure reasons"))
        return format_html_join(" ", '<span class="dl-part">{}</span>', ((part,) for part in parts))

    def _header(self, request: HttpRequest, object_id: str | None) -> dict[str, Any]:
        """Return the counts and the pause button, for the top of the page."""
        queue = self.get_object(request, object_id) if object_id else None
        if queue is None or request.method != "GET":
            return {}
        using = primary_alias()
        attach_counts([queue], now=clock.now(using), limit=ON_A_PAGE, using=using)
        counts: dict[str, Capped] = queue.counts
        site = self.admin_site.name
        return {
            "counts": [
                {"label": State(state).label, "n": n, "url": to_state(site, queue, state)}
                for state, n in counts.items()
            ],
            "paused": queue.paused,
            "pause_url": pause_url(site, queue) if may(self, request, PauseView.permission) else "",
        }

    def _refuse(self, request: HttpRequest, why: str, url: str) -> HttpResponse:
        self.message_user(request, why, messages.ERROR)
        return HttpResponseRedirect(url)


for _name, _method in DURATIONS.items():
    setattr(QueueAdmin, _method, _read_only(_name))


def _tries(queue: Queue) -> str:
    if queue.max_attempts is None:
        return gettext("any number of attempts")
    n = max(queue.max_attempts, 1)
    return ngettext("%(n)s attempt", "%(n)s attempts", n) % {"n": n}


def _delay(queue: Queue) -> str:
    if queue.cooldown is not None:
        return as_text(queue.cooldown)
    return gettext("%(first)s doubling to %(cap)s") % {
        "first": as_text(queue.backoff().delay(1, chance=lambda: 0.0)),
        "cap": as_text(queue.backoff_cap),
    }


def _dead_messages(queue: Queue) -> str:
    if queue.on_poison == OnPoison.DEAD_QUEUE:
        return gettext("dead messages go to queue %(name)s") % {"name": queue.dead_queue}
    if queue.on_poison == OnPoison.DISCARD:
        return gettext("dead messages are discarded")
    return gettext("dead messages become poison records")


def _uses(queue: Queue) -> list[str]:
    using = queue._state.db
    found = [
        gettext("%(queue)s is the dead queue of %(name)s") % {"queue": queue, "name": source}
        for source in queue.sources.using(using).order_by("name")[:10]
    ]
    if _any(queue.messages.using(using)):
        found.append(gettext("%(queue)s has messages in it") % {"queue": queue})
    return found


def _any(rows: models.QuerySet[Any]) -> bool:
    return rows.order_by().exists()

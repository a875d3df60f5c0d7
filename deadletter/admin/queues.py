"""Queues: the failure policy of each, edited while everything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db import models, router
from django.db.models import ProtectedError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..models import OnPoison, Queue

if TYPE_CHECKING:  # the class is generic to the type checker only
    _ModelAdmin = admin.ModelAdmin[Queue]
else:
    _ModelAdmin = admin.ModelAdmin


@admin.register(Queue)
class QueueAdmin(_ModelAdmin):
    list_display = (
        "name",
        "max_attempts",
        "delay",
        "dead_messages",
        "order",
        "paused",
    )
    list_select_related = ("dead_queue",)
    list_filter = ("paused",)
    search_fields = ("name",)
    show_full_result_count = False
    fieldsets = (
        (None, {"fields": ("name", "paused")}),
        (
            _("Retries"),
            {"fields": ("max_attempts", "backoff_base", "backoff_cap", "jitter", "cooldown")},
        ),
        (_("Time limits"), {"fields": ("lease_timeout", "expire_timeout")}),
        (_("Dead messages"), {"fields": ("on_poison", "dead_queue", "poison_retention")}),
        (_("Streams"), {"fields": ("stream_policy",)}),
    )

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).using(router.db_for_write(Queue))

    def get_readonly_fields(self, request: HttpRequest, obj: Queue | None = None) -> Any:
        # Senders and poison records know a queue by its name.
        return ("name",) if obj else ()

    def formfield_for_foreignkey(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        kwargs["using"] = router.db_for_write(Queue)
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Show the form; a rule that another edit broke in the meantime is told, not raised."""
        try:
            return super().changeform_view(request, *args, **kwargs)
        except ValidationError as error:
            return self._refuse(request, " ".join(error.messages), request.get_full_path())

    def delete_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Ask and delete; a queue that came into use in the meantime stays."""
        try:
            return super().delete_view(request, *args, **kwargs)
        except ProtectedError:
            here = reverse("admin:deadletter_queue_changelist", current_app=self.admin_site.name)
            return self._refuse(request, gettext("The queue is in use and was not deleted."), here)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Refuse to delete a queue in use, without loading the messages that use it."""
        in_use = [why for queue in objs for why in _uses(queue)]
        if in_use:
            return [str(queue) for queue in objs], {}, set(), in_use
        return super().get_deleted_objects(objs, request)

    @admin.display(description=_("retry delay"))
    def delay(self, queue: Queue) -> str:
        if queue.cooldown is not None:
            return str(queue.cooldown)
        return gettext("%(first)s doubling to %(cap)s") % {
            "first": queue.backoff().delay(1, chance=lambda: 0.0),
            "cap": queue.backoff_cap,
        }

    @admin.display(description=_("dead messages"))
    def dead_messages(self, queue: Queue) -> str:
        if queue.on_poison == OnPoison.DEAD_QUEUE:
            return gettext("to queue %(name)s") % {"name": queue.dead_queue}
        return queue.on_poison

    @admin.display(description=_("stream policy"), ordering="stream_policy")
    def order(self, queue: Queue) -> str:
        return queue.stream_policy

    def _refuse(self, request: HttpRequest, why: str, url: str) -> HttpResponse:
        self.message_user(request, why, messages.ERROR)
        return HttpResponseRedirect(url)


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

"""The archive of the outbox: published messages that are kept, and publishing them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import quote
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from .. import operations
from ..conf import get_settings
from ..exceptions import MessageRejected
from ..lifecycle.archives import is_archived
from ..models import PublishedMessage, primary_alias
from ..operations import ArchiveFilter
from ..text import page_text
from .base import ReadOnlyAdmin, as_id, may, tell, write_log
from .confirm import ActSubject, ActView, Question, WhyForm, command
from .render import read_json, show_json
from .urls import link

PERMISSION = "deadletter.publish_again"
#: Messages that one answer publishes again; the command line has no limit.
AT_ONCE = 10_000
#: Messages of a selection, which the question names.
SELECTED = 100
#: Choices of the filter by topic; each costs one index probe.
TOPICS = 20


class TopicFilter(admin.SimpleListFilter):
    title = _("topic")
    parameter_name = "topic"

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> list[tuple[str, str]]:
        rows = PublishedMessage.objects.using(primary_alias()).order_by("topic")
        found: list[str] = []
        following = rows
        while len(found) < TOPICS:
            topic = following.values_list("topic", flat=True).first()
            if topic is None:
                break
            found.append(topic)
            following = rows.filter(topic__gt=topic)
        return [(topic, page_text(topic, limit=80)) for topic in found]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        return queryset.none() if "\x00" in value else queryset.filter(topic=value)


@admin.register(PublishedMessage)
class PublishedMessageAdmin(ReadOnlyAdmin):
    list_display = ("id", "shown_topic", "shown_key", "broker", "created_at", "published_at")
    list_display_links = ("id", "shown_topic")
    list_filter = (TopicFilter,)
    ordering = ("-id",)
    search_fields = ("topic",)
    search_help_text = _("An id, a whole topic or a whole key.")
    list_per_page = 50
    fields = (
        "id",
        "topic",
        "key",
        "broker",
        "created_at",
        "published_at",
        "shown_payload",
        "shown_headers",
    )
    readonly_fields = fields
    actions = ("publish_selected_again",)
    without_payload = {"shown_payload": "", "shown_headers": "", "payload": "", "headers": ""}

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).defer("payload", "headers")

    def matches(self, term: str) -> Q:
        if "\x00" in term:
            return Q(pk__in=[])
        id = as_id(term)
        return Q(topic=term) | Q(key=term) | (Q() if id is None else Q(pk=id))

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        own = [
            path(
                "publish-again/",
                view(PublishAgainView.as_view(model_admin=self)),
                name="deadletter_publishedmessage_again",
            ),
            path(
                "publish-topic-again/",
                view(PublishTopicAgainView.as_view(model_admin=self)),
                name="deadletter_publishedmessage_topic",
            ),
        ]
        return own + super().get_urls()

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        allowed = may(self, request, PERMISSION)
        extra = {
            "again_url": link(self.admin_site.name, "publishedmessage_topic") if allowed else "",
            "is_off": not any(map(is_archived, get_settings().brokers.values())),
        }
        return super().changelist_view(request, {**extra, **(extra_context or {})})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> Any:
        url = link(self.admin_site.name, "publishedmessage_again", ids=object_id)
        extra = {"again_url": url if may(self, request, PERMISSION) else ""}
        return super().change_view(request, object_id, form_url, {**extra, **(extra_context or {})})

    def has_publish_again_permission(self, request: HttpRequest) -> bool:
        return may(self, request, PERMISSION)

    @admin.action(description=_("Publish again"), permissions=["publish_again"])
    def publish_selected_again(self, request: HttpRequest, rows: Any) -> HttpResponse:
        ids = [str(id) for id in rows.order_by("pk").values_list("pk", flat=True)[:SELECTED]]
        url = link(self.admin_site.name, "publishedmessage_again", ids=",".join(ids))
        return HttpResponseRedirect(url)

    @admin.display(description=_("topic"))
    def shown_topic(self, row: PublishedMessage) -> str:
        return page_text(row.topic, limit=200)

    @admin.display(description=_("key"))
    def shown_key(self, row: PublishedMessage) -> str:
        return "-" if row.key is None else page_text(row.key, limit=200)

    @admin.display(description=_("payload"))
    def shown_payload(self, row: PublishedMessage) -> str:
        return _json(row, "payload")

    @admin.display(description=_("headers"))
    def shown_headers(self, row: PublishedMessage) -> str:
        return _json(row, "headers")


class PublishAgainView(ActView):
    """Publish the messages again whose ids are in the address, or come back with the answer."""

    permission = PERMISSION

    def prepare(self) -> None:
        given = self.request.POST if self.request.method == "POST" else self.request.GET
        found = [as_id(part.strip()) for part in given.get("ids", "").split(",")]
        self.ids = list(dict.fromkeys(id for id in found if id is not None))[:SELECTED]
        self.back = self.came_from(self.link("publishedmessage_changelist"))

    def question(self) -> Question:
        rows = _rows(self.ids)
        return Question(
            title=gettext("Publish again"),
            button=_button(len(rows)),
            says=_says() if rows else [gettext("There is nothing to do.")],
            subjects=[
                ActSubject(
                    label=str(row),
                    about=[row.broker, *([row.key] if row.key else [])],
                    url=self.link("publishedmessage_change", quote(str(row.pk))),
                )
                for row in rows
            ],
            hidden=[("ids", ",".join(str(row.pk) for row in rows)), ("next", self.back)],
            back=self.back,
            possible=bool(rows),
            command=command("outbox", "publish-again", *(row.pk for row in rows)),
        )

    def perform(self, form: WhyForm) -> HttpResponse:
        why = form.cleaned_data["why"]
        rows = _rows(self.ids)
        try:
            result = operations.publish_again(self.ids, by=self.by, why=why)
        except MessageRejected as error:
            form.add_error(None, error.problem)
            return self.ask(form)
        write_log(self.request, rows, gettext("Published again."), why=why)
        _tell(self.request, result)
        return HttpResponseRedirect(self.back)


class PublishTopicForm(WhyForm):
    topic = forms.CharField(
        label=_("Topic"), max_length=200, widget=forms.TextInput(attrs={"class": "vTextField"})
    )
    since = forms.DateTimeField(
        label=_("Published since"),
        required=False,
        help_text=_("For example 2026-01-31 12:00; empty: from the first one on."),
        widget=forms.DateTimeInput(attrs={"class": "vTextField"}),
    )
    until = forms.DateTimeField(
        label=_("Published before"),
        required=False,
        help_text=_("Empty: until now."),
        widget=forms.DateTimeInput(attrs={"class": "vTextField"}),
    )
    field_order = ["topic", "since", "until", "why"]

    def clean_topic(self) -> str:
        topic: str = self.cleaned_data["topic"]
        return topic

    def wanted(self) -> ArchiveFilter:
        given = self.cleaned_data
        return ArchiveFilter(topic=given["topic"], since=given["since"], until=given["until"])


class PublishTopicAgainView(ActView):
    """Publish the messages of a topic and time again, up to a number."""

    permission = PERMISSION
    form_class: type[WhyForm] = PublishTopicForm

    def prepare(self) -> None:
        self.back = self.came_from(self.link("publishedmessage_changelist"))

    def question(self) -> Question:
        return Question(
            title=gettext("Publish a topic again"),
            button=gettext("Publish again"),
            says=_says(),
            hidden=[("next", self.back)],
            back=self.back,
            command=command("outbox", "publish-again", topic="TOPIC", since="2h"),
        )

    def perform(self, form: WhyForm) -> HttpResponse:
        assert isinstance(form, PublishTopicForm)  # noqa: S101 - the form of this view
        wanted = form.wanted()
        rows = wanted.apply(PublishedMessage.objects.using(primary_alias()))
        n = rows.order_by()[: AT_ONCE + 1].count()
        if n > AT_ONCE:
            text = gettext("More than %(n)s messages: choose a shorter time, or use the command.")
            form.add_error(None, text % {"n": f"{AT_ONCE:,}"})
            return self.ask(form)
        try:
            why = form.cleaned_data["why"]
            result = operations.publish_again_matching(wanted, by=self.by, why=why)
        except MessageRejected as error:
            form.add_error(None, error.problem)
            return self.ask(form)
        _tell(self.request, result)
        return HttpResponseRedirect(self.back)


def _rows(ids: Sequence[int]) -> list[PublishedMessage]:
    rows = PublishedMessage.objects.using(primary_alias()).filter(pk__in=ids)
    return list(rows.defer("payload", "headers").order_by("pk"))


def _button(n: int) -> str:
    text = ngettext("Publish %(n)s message again", "Publish %(n)s messages again", n)
    return text % {"n": n}


def _says() -> list[str]:
    return [
        gettext(
            "The messages are stored in the outbox again, with new ids: a consumer ignores ids "
            "that it knows. The header original-id has the id of the first one."
        ),
        gettext("Consumers that do not recognise them handle them once more."),
    ]


def _tell(request: HttpRequest, result: operations.Republished) -> None:
    if result.done:
        text = ngettext(
            "%(n)s message is in the outbox again.",
            "%(n)s messages are in the outbox again.",
            result.done,
        )
        tell(request, text % {"n": result.done})
    if result.missing or not result.done:
        text = ngettext(
            "%(n)s message is not in the archive.",
            "%(n)s messages are not in the archive.",
            result.missing,
        )
        tell(request, text % {"n": result.missing}, messages.WARNING)


def _json(row: PublishedMessage, column: str) -> str:
    value = show_json(read_json(row, column))
    if value.problem:
        return format_html('<p class="dl-problem">{}</p>', page_text(value.problem, limit=500))
    if not value.text:
        return "-"
    return format_html('<pre class="dl-text" tabindex="0">{}</pre>', value.text)

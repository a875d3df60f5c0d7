"""The page of one poison record: why it died, its facts, its attempts, and the acts."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse

from ... import clock
from ...models import Damaged, PoisonRecord, is_moved, primary_alias
from ...operations import trail
from ...status import FailureReason
from ...text import page_text
from ..confirm import command
from ..dead_queue import show_death
from ..history import timeline
from ..outside_links import links_of_record
from ..render import read_json, reason_name, show_json, show_progress, stage_names
from ..result_text import call_of
from ..urls import to_instance, to_message
from .effects import following, on_instance
from .frame import PoisonPageView, find_record


class RecordView(PoisonPageView):
    def prepare(self) -> HttpResponse | None:
        self.record = find_record(self.kwargs["object_id"])
        return None if self.record is not None else self.gone(None)

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        found, allowed, now = self.record, self.rights, clock.now(primary_alias())
        behind = following(found)
        payload = read_json(found, "payload") if allowed.payload else None
        can = {"retry": allowed.retry, "remove": allowed.remove}
        return self.page(
            "poison/record",
            page_text(str(found), limit=250),
            tab="record",
            cause=cause(found),
            outside=links_of_record(found, headers=allowed.payload),
            # A death without an exception keeps the name of its reason, which `cause` has said.
            raised="" if found.exception in FailureReason.__members__ else found.exception,
            # Of a record that died again in a dead queue: where it died first.
            death=show_death(found, now, texts=allowed.payload) if is_moved(found) else "",
            instance_said=on_instance(found),
            instance_url=to_instance(self.site_name, request, found.instance),
            stages=stage_names(found.status),
            progress=show_progress(found, texts=allowed.payload),
            call=call_of(found, payload),
            payload=None if payload is None else show_json(payload),
            headers=show_json(read_json(found, "headers")) if allowed.payload else None,
            group_url=self.group_url(found.fingerprint),
            behind=behind,
            followers=[
                (message, to_message(self.site_name, request, message.pk))
                for message in behind.first
            ],
            timeline=timeline(found, payloads=allowed.payload),
            trail=trail(found.message_id, using=primary_alias()),
            commands=[
                command("show", found.pk),
                *(command(verb, found.pk, why="…") for verb, may in can.items() if may),
            ],
            now=now,
        )

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        raise PermissionDenied  # every act has an address of its own


class PayloadView(RecordView):
    """Downloads the whole payload, redacted like everything that leaves the system."""

    permission = "deadletter.view_payload"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        stored = read_json(self.record, "payload")
        damaged = isinstance(stored.value, Damaged)
        response = HttpResponse(
            stored.text().encode("utf-8", "replace"),
            # A browser must never show it as anything but text.
            content_type="text/plain; charset=utf-8" if damaged else "application/json",
        )
        name = f"message-{self.record.message_id}.json"
        response["Content-Disposition"] = f'attachment; filename="{name}"'
        response["X-Content-Type-Options"] = "nosniff"
        return response


def cause(found: PoisonRecord) -> str:
    """Name the cause an operator acts on: the last failure, unless no failure was the cause."""
    if found.reason == FailureReason.POISON_MESSAGE and found.last_failure_reason:
        return reason_name(found.last_failure_reason)
    return reason_name(found.reason)

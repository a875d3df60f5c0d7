"""Where an imported message came from is on every page that shows it."""

from __future__ import annotations

from django.urls import reverse

from deadletter import operations
from deadletter.models import AuditEntry, Message, PoisonRecord


def page(client, name: str, *args: object) -> str:
    response = client.get(reverse(f"admin:deadletter_{name}", args=args))
    assert response.status_code == 200
    return response.content.decode()


def test_origin_and_id_are_on_the_pages_of_messages_and_of_poison(admin_client, clock):
    rows = [{"source_id": 4711, "name": "mail"}]
    operations.import_messages(rows, origin="ber<b>lin", queue="default", by="ann")
    message = Message.objects.get()

    assert "ber&lt;b&gt;lin#4711" in page(admin_client, "message_changelist")
    detail = page(admin_client, "message_change", message.pk)
    assert "ber&lt;b&gt;lin" in detail
    assert "4711" in detail

    operations.poison([message.pk], why="a test")
    record = PoisonRecord.objects.get()
    for name, args in (("poisonrecord_records", ()), ("poisonrecord_change", (record.pk,))):
        text = page(admin_client, name, *args)
        assert "Imported from" in text
        assert "<bdi>ber&lt;b&gt;lin</bdi> #4711" in text
    entry = AuditEntry.objects.get(act="import")
    assert "import messages" in page(admin_client, "auditentry_change", entry.pk)

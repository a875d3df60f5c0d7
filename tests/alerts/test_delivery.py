"""From a message of the own queue to a mailbox and a web server, signed, safe, and tried again."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import socket
import threading
import time

import pytest
from django.core import mail as django_mail

from deadletter import Outgoing, send_many, testing
from deadletter.alert_rules import Channel
from deadletter.alerts import deadline, delivery, mail, send_test, webhook
from deadletter.alerts.delivery import DeliveryFailed
from deadletter.alerts.mail import render
from deadletter.models import Message, PoisonRecord, Queue
from deadletter.worker.options import Options
from deadletter.worker.process import Worker
from deadletter.worker.registry import discover
from tests.mail import HAS_MAILERS, LOCMEM, email_settings, mailers, smtp_settings
from tests.operations.records import dead
from tests.patience import PATIENCE, wait_until

from .conftest import SECRET, notices
from .servers import drip_server, http_server, smtp_server

pytestmark = pytest.mark.slow

NOTICE = {
    "version": 1,
    "id": "0123",
    "at": "2026-01-01T00:00:00+00:00",
    "test": True,
    "alerts": [],
    "omitted": {},
}
HOSTILE = "first\r\nBcc: everybody@example.org\x1b[2J\u202e\n.\n-- \nraised: forged"


@pytest.fixture
def receiver():
    with http_server() as found:
        yield found


@pytest.fixture
def hook(rules, receiver):
    """Switch new groups on, with the local server as the only channel."""

    def switch_on(**options):
        channel = {"type": "webhook", "url": receiver.url, "secret": SECRET, **options}
        rules(new_group=True, channels={"hook": channel})

    return switch_on


def drain():
    return testing.drain(["deadletter"])


def verify(request, secret: str = SECRET) -> bool:
    """As docs/alerts.md tells receivers to."""
    content = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}."
    digest = hmac.new(secret.encode(), content.encode() + request.body, hashlib.sha256).digest()
    expected = f"v1,{base64.b64encode(digest).decode()}"
    return expected in request.headers["webhook-signature"].split(" ")


def test_a_notice_is_mailed_to_the_addresses_of_its_channel(clock, rules, decide):
    rules(new_group=True, base_url="https://shop.example.org/")
    decide()
    dead("orders.ship", error="ConnectionError: the carrier is away\nsecond line")
    decide()

    assert drain().completed == 1

    [mail] = django_mail.outbox
    assert mail.to == ["ops@example.org"]
    assert mail.subject == "deadletter: new: orders.ship dies of UNKNOWN (1 so far)"
    since = f"{PoisonRecord.objects.get().poisoned_at:%Y-%m-%d %H:%M:%S} UTC"
    fingerprint = PoisonRecord.objects.get().fingerprint
    assert mail.body.splitlines()[:10] == [
        "new: orders.ship dies of UNKNOWN (1 so far)",
        f"  since: {since}",
        "  how many: 1",
        "  still there: 1",
        "  name: orders.ship",
        "  queue: default",
        "  a sample error:",
        "    | ConnectionError: the carrier is away",
        "    | second line",
        f"  https://shop.example.org/admin/deadletter/poisonrecord/groups/{fingerprint}/",
    ]
    assert mail.extra_headers["Message-ID"] == f"<{notices_id(mail)}@deadletter.invalid>"


def notices_id(mail) -> str:
    return mail.body.split("notice ")[-1].split(" ")[0]


def test_without_addresses_the_admins_of_the_site_are_told(clock, rules, decide, settings):
    settings.ADMINS = [("Ada", "ada@example.org")]
    settings.EMAIL_SUBJECT_PREFIX = "[shop] "
    rules(new_group=True, channels={"ops": {"type": "email"}})
    decide()
    dead()
    decide()

    assert drain().completed == 1

    [mail] = django_mail.outbox
    assert mail.to == ["ada@example.org"]
    assert mail.subject.startswith("[shop] deadletter: new: ")


def test_a_mail_that_would_reach_nobody_is_tried_again(clock, rules, decide, settings):
    settings.ADMINS = []
    rules(new_group=True, channels={"ops": {"type": "email"}})
    decide()
    dead()
    decide()

    assert drain().failed == 1

    assert "ADMINS are empty" in Message.objects.get().error


def test_hostile_text_becomes_neither_a_header_nor_a_line_of_the_notice(clock, rules, decide):
    rules(new_group=True)
    decide()
    dead("mail", error=HOSTILE, failure={"exception": HOSTILE})
    decide()

    assert drain().completed == 1

    [mail] = django_mail.outbox
    assert "\n" not in mail.subject
    assert "\r" not in mail.subject
    assert "\x1b" not in mail.subject + mail.body
    assert "\u202e" not in mail.subject + mail.body
    assert mail.recipients() == ["ops@example.org"]
    assert b"\nBcc:" not in mail.message().as_bytes().partition(b"\n\n")[0]
    assert [
        line for line in mail.body.splitlines() if "forged" in line and "|" not in line[:6]
    ] == [mail.body.splitlines()[0]]
    assert "    | raised: forged" in mail.body


def test_a_subject_is_bounded_whatever_the_name(clock, rules, decide):
    rules(new_group=True)
    decide()
    dead("n" * 200, failure={"exception": "E" * 200})
    decide()

    subject, _text = render(notices()[0])

    assert len(subject) <= 200


def test_errors_are_left_out_where_they_must_not_leave_the_site(clock, rules, decide):
    rules(new_group=True, errors=False)
    decide()
    dead(error="card 4111")
    decide()

    assert drain().completed == 1

    assert "4111" not in django_mail.outbox[0].body + str(notices())


def test_a_webhook_gets_the_notice_signed_and_stamped(clock, hook, receiver, decide):
    hook()
    decide()
    dead("orders.ship", error="away")
    decide()

    assert drain().completed == 1

    [request] = receiver.requests
    assert verify(request)
    assert abs(int(request.headers["webhook-timestamp"]) - time.time()) < PATIENCE
    assert request.headers["content-type"] == "application/json"
    assert request.headers["webhook-id"] == request.notice["id"]
    assert request.notice["text"] == "deadletter: new: orders.ship dies of UNKNOWN (1 so far)"
    [alert] = request.notice["alerts"]
    assert (alert["event"], alert["rule"], alert["error"]) == ("raised", "new_group", "away")


def test_a_changed_body_or_another_secret_does_not_verify(clock, hook, receiver, decide):
    hook()
    send_test()
    drain()

    [request] = receiver.requests
    assert verify(request)
    assert not verify(request, "another secret, just as long")
    request.body += b" "
    assert not verify(request)


def test_while_a_secret_is_replaced_both_verify(clock, hook, receiver):
    hook(secret=["the new secret of the tests", SECRET])
    send_test()
    drain()

    [request] = receiver.requests
    assert verify(request)
    assert verify(request, "the new secret of the tests")


def test_a_signature_is_that_of_the_published_scheme():
    """The example of standardwebhooks.com: its libraries can be used to verify."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")

    found = webhook.sign(
        [secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}'
    )

    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_webhook_that_fails_is_tried_again_with_the_same_id_and_raises_no_alert(
    clock, hook, receiver, decide
):
    hook()
    receiver.answers = [500, 503]
    receiver.body = b"no \x1b[2J"
    decide()
    dead()
    decide()

    assert drain().failed == 1
    message = Message.objects.get()
    assert message.error.endswith("channel hook: answered 500: no �[2J")
    assert decide(5).raised == []
    assert drain().failed == 0  # not due yet
    assert decide(5).raised == []
    assert drain().failed == 1
    assert decide(20).raised == []
    assert drain().completed == 1

    assert {request.headers["webhook-id"] for request in receiver.requests} == {
        receiver.requests[0].notice["id"]
    }
    assert all(verify(request) for request in receiver.requests)
    assert len(receiver.accepted()) == 1
    assert not Message.objects.exists()


def test_a_notice_that_never_gets_through_becomes_poison_and_is_not_told_about(
    clock, hook, receiver, decide, rules
):
    hook()
    receiver.status = 500
    decide()
    dead()
    decide()

    for _ in range(delivery.ATTEMPTS):
        drain()
        decide(3600)

    assert PoisonRecord.objects.filter(queue="deadletter").count() == 1
    # The end of the first alert, which cannot be told either, and nothing else.
    assert len(receiver.requests) >= delivery.ATTEMPTS
    assert {a["key"] for r in receiver.requests for a in r.notice["alerts"]} == {
        f"new_group:{PoisonRecord.objects.get(queue='default').fingerprint}"
    }


def test_a_redirect_is_refused(clock, hook, receiver):
    hook()
    receiver.status = 302
    receiver.headers = {"Location": receiver.url}
    send_test()

    assert drain().failed == 1

    assert len(receiver.requests) == 1
    assert "answered 302, a redirect" in Message.objects.get().error


def test_a_server_that_does_not_answer_is_given_up_in_time(clock, rules):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        channel = {"type": "webhook", "url": url, "secret": SECRET, "timeout": 0.2}
        rules(channels={"hook": channel})
        send_test()

        assert drain().failed == 1  # it never answers

    assert "channel hook: was not done within 0.2 s" in Message.objects.get().error


#: What a server says at once, before it goes on byte by byte.
DRIPS = {
    "headers": ("http", b"HTTP/1.1 200 OK\r\n", b"X-Drip: 1\r\n"),
    "a refusal": ("http", b"HTTP/1.1 500 No\r\nContent-Length: 9999\r\n\r\n", b"x"),
    "a handshake": ("https", b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc", b"\x03"),
}


def deliveries() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "deadletter-delivery"]


@pytest.mark.parametrize("what", DRIPS)
def test_a_server_that_drips_is_given_up_in_time_and_leaves_no_thread(what):
    scheme, first, drop = DRIPS[what]
    with drip_server(first, drop) as port:
        channel = Channel(
            name="hook",
            kind="webhook",
            url=f"{scheme}://127.0.0.1:{port}/",
            secrets=(SECRET.encode(),),
            timeout=1.5,
        )

        with pytest.raises(DeliveryFailed, match=r"was not done within 1\.5 s"):
            webhook.deliver(channel, NOTICE)

        # The server still drips.
        wait_until(lambda: not deliveries(), patience=60)


@pytest.mark.django_db(transaction=True)
def test_a_mail_server_that_drips_is_given_up_in_time_and_has_only_so_many_threads(settings):
    with drip_server(b"220-", b"x") as port:
        # Its own time limit is not what ends it here, however slowly the server drips.
        for name, value in smtp_settings("127.0.0.1", port, timeout=120).items():
            setattr(settings, name, value)
        channel = Channel(name="ops", kind="email", to=("ops@example.org",), timeout=0.3)

        for _ in range(deadline.MOST):
            with pytest.raises(DeliveryFailed, match="was not done within"):
                mail.deliver(channel, NOTICE)
        with pytest.raises(DeliveryFailed, match="earlier deliveries have not ended"):
            mail.deliver(channel, NOTICE)
        assert len(deliveries()) == deadline.MOST

    # With the server they end, and the channel is free again.
    wait_until(lambda: not deliveries(), patience=60)
    with pytest.raises(OSError, match="refused"):
        mail.deliver(channel, NOTICE)


def test_secrets_and_addresses_are_in_no_row_and_no_log(clock, hook, receiver, decide, caplog):
    caplog.set_level(logging.DEBUG)
    hook(url=f"{receiver.url}/T000/not-for-logs")
    receiver.status = 500
    decide()
    dead()
    decide()
    drain()

    message = Message.objects.filter(name="deadletter.alert").get()
    stored = f"{message.payload} {message.headers} {message.error} {message.history}"
    for secret in (SECRET, "not-for-logs"):
        assert secret not in stored
        assert secret not in caplog.text


def test_an_answer_that_repeats_the_address_does_not_give_it_away(clock, hook, receiver, caplog):
    hook(url=f"{receiver.url}/T000/not%2Dfor-logs?key=nor-this")
    receiver.status = 404
    receiver.body = b"no /alerts/T000/not%2Dfor-logs?key=nor-this (not-for-logs) here: wrong team"
    send_test()
    drain()

    message = Message.objects.get()
    assert "answered 404: no /…/T000/…?key=… (…) here: wrong team" in message.error
    for secret in ("for-logs", "nor-this"):
        assert secret not in f"{message.error} {message.history} {caplog.text}"


def test_a_channel_that_this_worker_does_not_know_waits_for_one_that_does(clock, hook, rules):
    hook()
    send_test()
    rules(new_group=True)

    assert drain().failed == 1

    assert "channel hook: is not in DEADLETTER" in Message.objects.get().error


def test_one_channel_that_is_down_does_not_delay_the_others(clock, rules, receiver, decide):
    receiver.status = 500
    channels = {
        "hook": {"type": "webhook", "url": receiver.url, "secret": SECRET},
        "ops": {"type": "email", "to": ["ops@example.org"]},
    }
    rules(new_group=True, channels=channels)
    decide()
    dead()
    assert decide().sent == 2

    tally = drain()

    assert (tally.completed, tally.failed) == (1, 1)
    assert len(django_mail.outbox) == 1


def test_a_mail_server_that_refuses_is_named_without_its_words(clock, rules, settings):
    for name, value in smtp_settings("127.0.0.1", 1).items():
        setattr(settings, name, value)
    rules(new_group=True)
    send_test()

    assert drain().failed == 1

    assert Message.objects.get().error.endswith("channel ops: ConnectionRefusedError")


@pytest.mark.filterwarnings("ignore:The EMAIL_")
def test_the_old_mail_settings_are_used_as_well_as_the_new_ones(clock, rules, settings):
    del settings.MAILERS
    rules(new_group=True)

    with smtp_server() as mailbox:
        for name, value in email_settings("127.0.0.1", mailbox.port).items():
            setattr(settings, name, value)
        send_test()
        assert drain().completed == 1

    assert mailbox.recipients == [["ops@example.org"]]


@pytest.mark.skipif(not HAS_MAILERS, reason="mailers came with Django 6.1")
def test_the_mailer_named_default_is_used(clock, rules, settings):
    rules(new_group=True)

    with smtp_server() as mailbox:
        settings.MAILERS = {
            **mailers("127.0.0.1", mailbox.port)["MAILERS"],
            "other": {"BACKEND": LOCMEM},
        }
        send_test()
        assert drain().completed == 1

    assert mailbox.recipients == [["ops@example.org"]]
    assert django_mail.outbox == []


@pytest.mark.skipif(not HAS_MAILERS, reason="mailers came with Django 6.1")
def test_a_site_without_a_default_mailer_is_told_so(clock, rules, settings):
    settings.MAILERS = {"other": {"BACKEND": LOCMEM}}
    rules(new_group=True)
    send_test()

    assert drain().failed == 1

    assert Message.objects.get().error.endswith("channel ops: MailerDoesNotExist")


def test_the_own_queue_is_made_when_it_is_first_needed(clock, rules, decide):
    rules(new_group=True)
    decide()
    assert not Queue.objects.filter(name="deadletter").exists()

    dead()
    decide()

    assert Queue.objects.filter(name="deadletter").exists()


def test_a_damaged_message_says_what_is_missing(clock, rules):
    rules(new_group=True)

    with pytest.raises((KeyError, DeliveryFailed)):
        delivery.deliver({"channel": "ops"})


def hooks(count: int, url: str) -> dict[str, dict[str, object]]:
    discover()
    channel = {"type": "webhook", "url": url, "secret": SECRET, "timeout": 60}
    return {f"hook{n}": channel for n in range(count)}


@pytest.mark.django_db(transaction=True)
def test_receivers_that_drip_leave_the_threads_of_a_worker_to_the_work(rules, handles):
    seen: list[int] = []
    handles("job", lambda message: seen.append(message.id))
    first, drop = DRIPS["headers"][1:]
    with drip_server(first, drop, every=1) as port:
        rules(channels=hooks(6, f"http://127.0.0.1:{port}/"))
        send_test()
        process = Worker(Options(name="here", concurrency=3, poll=0.1))
        thread = threading.Thread(target=process.run, daemon=True)
        thread.start()
        try:
            wait_until(lambda: len(deliveries()) == 2, patience=60)
            ids = send_many([Outgoing("job") for _ in range(50)])
            wait_until(lambda: len(seen) == 50, patience=60)
            assert len(deliveries()) == 2
        finally:
            process.stop(at_once=True)
            thread.join(60)

    assert sorted(seen) == ids
    # All of them were given back, uncounted.
    assert list(Message.objects.values_list("name", "attempts")) == [("deadletter.alert", 0)] * 6
    wait_until(lambda: not deliveries(), patience=60)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("concurrency", [1, 2, 8])
def test_a_drain_delivers_all_notices_though_few_at_a_time(rules, receiver, concurrency):
    rules(channels=hooks(9, receiver.url))
    send_test()

    process = Worker(Options(name="here", concurrency=concurrency, drain=True))
    process.run()

    assert len(receiver.requests) == 9
    assert process.pump.tally.completed == 9
    assert not Message.objects.exists()


def test_a_system_without_threads_costs_a_channel_no_delivery_for_good(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(deadline.MOST + 1):
            with pytest.raises(RuntimeError):
                deadline.call_within(1, lambda: 7, channel="hook")

    assert deadline.call_within(PATIENCE, lambda: 7, channel="hook") == 7

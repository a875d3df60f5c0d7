"""The password of a broker is told to nobody, also where the broker itself repeats it."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Self

import pytest
from django.core.management import call_command

from deadletter import publish
from deadletter.models import BrokerStatus
from deadletter.outbox.transports.base import BrokerUnavailable
from deadletter.outbox.transports.redis_streams import RedisStreams
from tests.patience import PATIENCE

SECRET = "s3cret"


@pytest.fixture
def server() -> Iterator[OldServer]:
    with OldServer() as server:
        yield server


def test_a_password_that_the_server_repeats_is_not_quoted(server):
    """Redis before 6 and some proxies do not know HELLO, and say with what it was sent."""
    transport = RedisStreams({"url": f"redis://:{SECRET}@127.0.0.1:{server.port}/0"})

    with pytest.raises(BrokerUnavailable) as raised:
        transport.open()

    assert SECRET in server.answers[0]
    assert "unknown command" in str(raised.value)
    assert SECRET not in str(raised.value)


def test_a_long_password_that_is_cut_off_is_not_quoted(server):
    url = f"redis://127.0.0.1:{server.port}/0"
    transport = RedisStreams({"url": url, "password": SECRET * 40})

    with pytest.raises(BrokerUnavailable) as raised:
        transport.open()

    assert SECRET in server.answers[0]
    assert SECRET not in str(raised.value)


@pytest.mark.django_db(transaction=True)
def test_no_log_page_or_command_tells_the_password(
    server, new_relay, settings, caplog, capsys, admin_client
):
    url = f"redis://joe:{SECRET}@127.0.0.1:{server.port}/0"
    settings.DEADLETTER = {"BROKERS": {"default": {"url": url}}}
    caplog.set_level(logging.DEBUG)
    publish("orders.shipped", 1)

    new_relay().turn()

    status = BrokerStatus.objects.get()
    assert "unknown command" in status.error
    call_command("deadletter", "outbox", "--format", "json")
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["error"] == status.error
    with pytest.raises(SystemExit):
        call_command("deadletter", "health")
    said = capsys.readouterr()
    pages = [
        admin_client.get(f"/admin/deadletter/{page}").content.decode()
        for page in ("brokerstatus/", "brokerstatus/default/change/", "")
    ]
    assert all("unknown command" in page for page in pages)
    for told in (status.error, caplog.text, said.out, said.err, *pages):
        assert SECRET not in told


class OldServer:
    """Answers every command as Redis answers one that it does not know."""

    def __enter__(self) -> Self:
        self.answers: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client:
                    while command := client.recv(65_536):
                        client.sendall(self._answer(command.decode()))

    def _answer(self, command: str) -> bytes:
        name, *arguments = command.split("\r\n")[2::2]
        # As Redis: 128 characters of the arguments.
        said = ""
        for argument in arguments:
            if len(said) < 128:
                said += f"'{argument[: 128 - len(said)]}' "
        self.answers.append(f"-ERR unknown command '{name}', with args beginning with: {said}\r\n")
        return self.answers[-1].encode()

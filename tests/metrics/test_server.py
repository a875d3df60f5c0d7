"""A port that answers GET /metrics and cannot be kept busy."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from deadletter.metrics import server
from deadletter.metrics.exposition import PLAIN, MetricsPage
from deadletter.metrics.server import AT_ONCE, LONGEST, CannotListen, Server, listen
from tests.patience import PATIENCE
from tests.processes import wait_until

from .scrapes import get

pytestmark = pytest.mark.slow

DEADLINE = 0.5


@pytest.fixture
def pages() -> list[str]:
    """What was accepted by those who were answered."""
    return []


@pytest.fixture
def port(pages: list[str]) -> Iterator[int]:
    def page(accept: str) -> MetricsPage:
        if accept == "bug":
            raise ValueError("a bug of ours")
        pages.append(accept)
        return MetricsPage(PLAIN, b"a 1\n" * 10_000)

    listener = listen("127.0.0.1", 0)
    serving = Server(listener, page, deadline=DEADLINE)
    thread = threading.Thread(target=serving.serve)
    thread.start()
    yield listener.getsockname()[1]
    serving.stop()
    thread.join()
    serving.server_close()


def raw(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        client.sendall(request)
        answer = b""
        while piece := client.recv(65_536):
            answer += piece
    return answer


def test_metrics_are_at_their_path_and_nowhere_else(port, pages):
    found = get(port, accept="text/plain")
    with_query = get(port, path="/metrics?x=1")
    elsewhere = [get(port, path=path) for path in ("/", "/metrics/", "/metric", "/x/metrics")]

    assert (found.status, found.body) == (200, b"a 1\n" * 10_000)
    assert found.headers["content-type"] == PLAIN
    assert found.headers["content-length"] == "40000"
    assert found.headers["server"].strip() == "deadletter"
    assert with_query.status == 200
    assert [answer.status for answer in elsewhere] == [404] * 4
    assert pages == ["text/plain", ""]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])
def test_only_get_is_answered(port, pages, method):
    found = get(port, method=method)

    assert (found.status, found.headers["allow"], found.body) == (405, "GET", b"")
    assert pages == []


def test_what_is_not_http_is_refused_and_harms_nobody(port):
    for nonsense in (
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"\xff\xfe\x00\r\n\r\n",
        b"<b> / HTTP/1.1\r\n\r\n",
    ):
        answer = raw(port, nonsense)
        assert b"200" not in answer.partition(b"\r\n")[0]
        assert b"text/html" not in answer

    assert get(port).status == 200


def test_a_request_that_never_ends_is_cut_off(port):
    assert raw(port, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 4 * LONGEST) == b""
    assert get(port).status == 200


def test_a_client_that_sends_a_byte_now_and_then_is_cut_off_in_time(port):
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        client.settimeout(DEADLINE / 5)
        while time.monotonic() < started + PATIENCE:
            try:
                client.sendall(b"G")
                if client.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("it was not cut off")

    assert time.monotonic() - started >= DEADLINE * 0.8


def test_more_clients_than_places_are_turned_away_and_make_no_threads(port):
    before = threading.active_count()
    idle = [
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) for _ in range(AT_ONCE * 5)
    ]
    turned_away = [client for client in idle[AT_ONCE:] if client.recv(1) == b""]
    threads = threading.active_count() - before
    for client in idle:
        client.close()

    assert len(turned_away) == AT_ONCE * 4
    assert threads <= AT_ONCE
    wait_until(lambda: get_or_none(port))


def get_or_none(port: int) -> bool:
    try:
        return get(port).status == 200
    except (ConnectionError, OSError):
        return False


def test_a_client_that_hangs_up_is_nobodys_error(port, caplog):
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")

    assert wait_until(lambda: get_or_none(port))
    assert "Traceback" not in caplog.text


def test_a_bug_of_ours_is_logged_and_told(port, caplog):
    found = get(port, accept="bug")

    assert (found.status, found.body) == (500, b"500 see the worker's log\n")
    assert "ValueError: a bug of ours" in caplog.text


def test_a_port_is_had_once():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"port {port} of 127.0.0.1 is taken, perhaps by"):
            listen("127.0.0.1", port)

    listen("127.0.0.1", port).close()


@pytest.mark.parametrize("host", ["192.0.2.7", "no such host", "::ffff:zz"])
def test_an_address_that_is_not_ours_is_refused(host):
    with pytest.raises(CannotListen, match="--metrics-host must be an address of this machine"):
        listen(host, 0)


def test_the_system_may_say_no(monkeypatch):
    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(server.socket, "create_server", refuse)

    with pytest.raises(CannotListen, match="take a --metrics-port over 1023"):
        listen("127.0.0.1", 80)

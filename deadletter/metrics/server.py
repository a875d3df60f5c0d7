"""
The HTTP server of a worker for scrapes: GET /metrics and nothing else.

A slow or hostile client occupies one of a few threads for a few seconds, never the worker.
"""

from __future__ import annotations

import errno
import io
import logging
import socket
import socketserver
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..logs import crash, event

if TYPE_CHECKING:
    from .exposition import MetricsPage

#: Scrapes answered at a time; further ones are refused.
AT_ONCE = 4
#: Seconds a client has to send its request, and again to read the answer.
DEADLINE = 5.0
#: Bytes of a request with all its headers.
LONGEST = 16_384
#: Seconds between two checks whether the server is still needed.
LOOK = 0.5


class CannotListen(Exception):
    """The port cannot be opened. The text says which address, why, and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """Open the port; 0 takes any free one. Raises: CannotListen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=16)
    except OSError as error:
        raise CannotListen(_explain(host, port, error)) from error


def _explain(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is taken, perhaps by another worker: give every run_worker of "
            "a machine a --metrics-port of its own, or run one of them with --processes"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} of {host} is not allowed to this user: take a --metrics-port over 1023"
    return (
        f"port {port} of {host} cannot be opened ({error.strerror or error}): --metrics-host must "
        "be an address of this machine, or 0.0.0.0 for all of them"
    )


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Serves on an open port until `stop`, or until `is_needed` returns False."""

    daemon_threads = True
    timeout = LOOK

    def __init__(
        self,
        listener: socket.socket,
        page: Callable[[str], MetricsPage],
        *,
        is_needed: Callable[[], bool] = lambda: True,
        deadline: float = DEADLINE,
    ) -> None:
        super().__init__(listener.getsockname()[:2], _Request, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.page = page
        self.deadline = deadline
        self._is_needed = is_needed
        self._places = threading.BoundedSemaphore(AT_ONCE)
        self._stopped = False

    def serve(self) -> None:
        while not self._stopped and self._is_needed():
            self.handle_request()

    def stop(self) -> None:
        self._stopped = True

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # The system can start no thread.
            self._places.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log at the level DEBUG: a client that disconnects is not an error."""
        event(
            logging.DEBUG,
            "scrape_unanswered",
            "a scrape from {client} was not answered",
            client=str(client_address),
        )


class _Request(BaseHTTPRequestHandler):
    server: Server
    server_version = "deadletter"
    sys_version = ""
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(code)d %(message)s\n"

    def setup(self) -> None:
        # The request is read here: the library's timeout is for each read, so that a client that
        # sends a byte now and then could stay for ever.
        super().setup()
        self.rfile = io.BufferedReader(io.BytesIO(self._read_head()))
        self.connection.settimeout(self.server.deadline)

    def _read_head(self) -> bytes:
        head, end = b"", monotonic() + self.server.deadline
        while b"\r\n\r\n" not in head and len(head) <= LONGEST:
            left = end - monotonic()
            if left <= 0:
                return b""
            self.connection.settimeout(left)
            try:
                piece = self.connection.recv(4096)
            except OSError:
                return b""
            if not piece:
                return b""
            head += piece
        return head if len(head) <= LONGEST else b""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND, "only /metrics is here")
            return
        try:
            page = self.server.page(self.headers.get("Accept", ""))
        except Exception as error:  # noqa: BLE001 - logged
            crash("scrape_failed", "a scrape could not be answered", error)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "see the worker's log")
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", page.type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(page.body)

    def _refuse(self) -> None:
        self.send_response(HTTPStatus.METHOD_NOT_ALLOWED)
        self.send_header("Allow", "GET")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log scrapes."""

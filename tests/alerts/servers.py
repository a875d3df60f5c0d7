"""A real HTTP server and a real SMTP server on this machine, that keep what they are given."""

from __future__ import annotations

import email
import email.policy
import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Request:
    headers: dict[str, str]
    body: bytes

    @property
    def notice(self) -> dict[str, Any]:
        return json.loads(self.body)


class Receiver:
    """Answers POST with `status`, or with the next of `answers` while there are any."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/alerts"
        self.status = 200
        self.answers: list[int] = []
        self.headers: dict[str, str] = {}
        self.body = b""
        self.requests: list[Request] = []

    def accepted(self) -> list[dict[str, Any]]:
        return [request.notice for request in self.requests if request.headers["answer"] == "200"]


@contextmanager
def http_server() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = receiver.answers.pop(0) if receiver.answers else receiver.status
            headers = {key.lower(): value for key, value in self.headers.items()}
            receiver.requests.append(Request({**headers, "answer": str(status)}, body))
            self.send_response(status)
            for key, value in receiver.headers.items():
                self.send_header(key, value)
            self.end_headers()
            self.wfile.write(receiver.body)

        do_GET = do_POST  # a redirect that was followed would come here

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(server.server_address[1])
        with serving(server):
            yield receiver


class Mailbox:
    """What an SMTP server took."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.mails: list[EmailMessage] = []
        self.recipients: list[list[str]] = []


@contextmanager
def smtp_server() -> Iterator[Mailbox]:
    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.say("220 tests ESMTP")
            recipients: list[str] = []
            while line := self.rfile.readline():
                verb = line.strip().upper()
                if verb.startswith(b"RCPT TO:"):
                    recipients.append(line.decode().split("<")[1].split(">")[0])
                    self.say("250 ok")
                elif verb == b"DATA":
                    self.say("354 go on")
                    self.take(recipients)
                    self.say("250 taken")
                elif verb == b"QUIT":
                    self.say("221 bye")
                    return
                else:  # EHLO, MAIL FROM, RSET, NOOP
                    self.say("250 ok")

        def take(self, recipients: list[str]) -> None:
            lines = []
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
            parsed = email.message_from_bytes(b"".join(lines), policy=email.policy.default)
            assert isinstance(parsed, EmailMessage)
            mailbox.mails.append(parsed)
            mailbox.recipients.append(recipients)

        def say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Session) as server:
        mailbox = Mailbox(server.server_address[1])
        with serving(server):
            yield mailbox


@contextmanager
def drip_server(first: bytes, drop: bytes, *, every: float = 0.05) -> Iterator[int]:
    """Accept any connection, say something at once and then a little now and then, for ever."""
    is_over = threading.Event()

    class Session(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            try:
                self.request.sendall(first)
                while not is_over.wait(every):
                    self.request.sendall(drop)
            except OSError:
                pass

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Session) as server, serving(server):
        try:
            yield server.server_address[1]
        finally:
            is_over.set()


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()

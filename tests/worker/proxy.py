"""
A proxy in front of PostgreSQL that cuts a connection at COMMIT: before it arrives, or before its
answer does. To the client both look the same. Or it swallows everything, and says nothing.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Literal

Mode = Literal["pass", "before", "after"]


class Proxy:
    """Listens on a Unix socket in `directory` and forwards to the server's socket."""

    def __init__(self, directory: Path, server: Path) -> None:
        self.directory = directory
        self.mode: Mode = "pass"
        #: Cut only transactions in which the client said this, and the server answered that.
        self.only = b""
        self.only_answered = b""
        self.cuts = 0
        #: Where connections that begin now are led to.
        self.server = server
        #: Cleared while whatever is sent disappears.
        self._flowing = threading.Event()
        self._flowing.set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / ".s.PGSQL.5432"))
        self._listener.listen(50)
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        self.hang_up()

    def hang_up(self) -> None:
        """End every connection."""
        for end in list(self._open):
            _hang_up(end)

    def put_away(self, *ends: socket.socket) -> None:
        """Close what both directions have done with."""
        with self._lock:
            for end in ends:
                self._open.remove(end)
                end.close()

    def swallow(self) -> None:
        """Let nothing through and close nothing: neither side learns that the other is gone."""
        self._flowing.clear()

    def flow(self) -> None:
        """After a silence every connection is broken; new ones work."""
        self.hang_up()
        self._flowing.set()

    def passes(self) -> None:
        self._flowing.wait()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(str(self.server))
            except OSError:
                # As a server does that is down.
                client.close()
                server.close()
                continue
            with self._lock:
                self._open += [client, server]
            link = _Link(self, client, server)
            threading.Thread(target=link.forward, daemon=True).start()
            threading.Thread(target=link.back, daemon=True).start()

    def take_cut(self) -> bool:
        """Say whether this commit is to be cut; one cut for each time a mode was set."""
        with self._lock:
            if self.mode == "pass":
                return False
            self.cuts += 1
            return True


class _Link:
    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy = proxy
        self.client = client
        self.server = server
        self.seen = b""
        self.answered = b""
        self.waiting_to_cut = False
        #: Directions that are still open.
        self.left = 2
        self.lock = threading.Lock()

    def forward(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.client.recv(65536):
                self.proxy.passes()
                self.seen = (self.seen + data)[-200_000:]
                if b"COMMIT" in data:
                    said = self.proxy.only in self.seen
                    relevant = said and self.proxy.only_answered in self.answered
                    self.seen = self.answered = b""
                    if relevant and self.proxy.take_cut():
                        if self.proxy.mode == "before":
                            self.proxy.mode = "pass"
                            break
                        self.proxy.mode = "pass"
                        self.waiting_to_cut = True
                self.server.sendall(data)
        self.hang_up()

    def back(self) -> None:
        with contextlib.suppress(OSError):
            while data := self.server.recv(65536):
                self.proxy.passes()
                if self.waiting_to_cut:
                    break
                self.answered = (self.answered + data)[-200_000:]
                self.client.sendall(data)
        self.hang_up()

    def hang_up(self) -> None:
        """End the other direction too; the last of the two closes the sockets."""
        _hang_up(self.client)
        _hang_up(self.server)
        with self.lock:
            self.left -= 1
            is_last = not self.left
        if is_last:
            self.proxy.put_away(self.client, self.server)


def _hang_up(end: socket.socket) -> None:
    # close() while another thread is in recv() sends nothing, and the other side waits for ever.
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)

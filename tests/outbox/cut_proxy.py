"""A relay between a client and a broker on this machine, which cuts the connection where we say."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.patience import PATIENCE

ADDRESS = "127.0.0.1"


class CutProxy:
    """Relays each connection; after `cut_after` the next bytes of the broker are counted."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server((ADDRESS, 0))
        self.port = int(self._listener.getsockname()[1])
        #: Bytes that the clients have written.
        self.written = 0
        #: Bytes of the broker that still pass; None: all.
        self._left: int | None = None
        #: The next bytes of a client do not arrive, and its connection is cut.
        self._is_cut_before = False
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> CutProxy:
        self._start(self._accept)
        return self

    def __exit__(self, *exc_info: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(PATIENCE)
        self.cut()
        for thread in self._threads:
            thread.join(PATIENCE)
        for end in (self._listener, *self._sockets):
            end.close()

    def cut_after(self, amount: int) -> None:
        """Let as many bytes of the broker pass, then cut that connection."""
        self._left = amount

    def cut_before(self) -> None:
        """Cut the connection on which a client writes next, before its bytes arrive."""
        self._is_cut_before = True

    def heal(self) -> None:
        """Forget the cuts that have not happened."""
        self._left, self._is_cut_before = None, False

    def cut(self) -> None:
        """Cut all connections now."""
        for end in list(self._sockets):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=target, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    broker = socket.create_connection((ADDRESS, self._target))
                except OSError:
                    # As a broker does that is down.
                    client.close()
                    continue
                self._sockets += [client, broker]
                for source, target in ((client, broker), (broker, client)):
                    self._start(self._relay, source, target, source is broker)

    def _relay(self, source: socket.socket, target: socket.socket, is_broker: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if is_broker and self._left is not None:
                    data, self._left = data[: self._left], max(self._left - len(data), 0)
                if not is_broker:
                    if self._is_cut_before:
                        self._is_cut_before = False
                        break
                    self.written += len(data)
                target.sendall(data)
                if is_broker and self._left == 0:
                    # Closed in one direction: a reset would take away what we have just sent.
                    target.shutdown(socket.SHUT_WR)
                    self._left = None
                    return
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

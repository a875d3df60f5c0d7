"""A broker that is a file: what arrived in it, from however many relays, is one line each."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deadletter.outbox.cloud_events import CloudEvent
from deadletter.outbox.transports.base import BrokerRefusal, Report, Transport
from deadletter.status import FailureReason

PATH = f"{__name__}.FileTransport"
#: Messages of this topic are refused for good.
REFUSED = "refused"


class FileTransport(Transport):
    """Writes each event in one system call: two relays never mix their lines."""

    def open(self) -> None:
        pass

    def publish(self, events: Sequence[CloudEvent], report: Report, *, timeout: float) -> None:
        flags = os.O_APPEND | os.O_CREAT | os.O_WRONLY
        file = os.open(self.options["path"], flags)
        try:
            for index, event in enumerate(events):
                if event.topic == REFUSED:
                    reason = FailureReason.VALIDATION_FAILURE
                    report(index, BrokerRefusal(reason, "never", is_permanent=True))
                    continue
                line = {"id": event.id, "key": event.key, "data": json.loads(event.data)}
                os.write(file, json.dumps(line).encode() + b"\n")
                report(index)
        finally:
            os.close(file)

    def close(self) -> None:
        pass


def arrived(path: Path) -> list[dict[str, Any]]:
    """Return what has arrived; the last line may be just being written."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]

"""The settings of a site that uses Sentry with everything it enables by itself."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from tests.settings import *  # noqa: F403

FILE = Path(os.environ["SENTRY_FILE"])


class ToFile(Transport):
    """Writes events to a file, one a line, and as late as Sentry's own may send them."""

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.events: list[Any] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        if (event := envelope.get_event()) is not None:
            self.events.append(event)

    def flush(self, timeout: float, callback: Any = None) -> None:
        with FILE.open("a") as file:
            while self.events:
                file.write(json.dumps(self.events.pop(), default=str) + "\n")


sentry_sdk.init(dsn="https://key@sentry.invalid/1", transport=ToFile)

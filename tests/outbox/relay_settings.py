"""The settings of relays in processes of their own: their broker is a file."""

from __future__ import annotations

import os

from tests.chaos.settings import *  # noqa: F403
from tests.chaos.settings import DEADLETTER

from .file_transport import PATH

DEADLETTER = {
    **DEADLETTER,
    "BROKERS": {"default": {"transport": PATH, "path": os.environ["OUTBOX_FILE"], "batch": 20}},
}

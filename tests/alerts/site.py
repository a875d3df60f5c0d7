"""Settings of worker processes that tell: the rules and the servers come from the environment."""

from __future__ import annotations

import json
import os

from tests.mail import smtp_settings
from tests.settings import *  # noqa: F403
from tests.settings import DEADLETTER

DEADLETTER = {**DEADLETTER, "ALERTS": json.loads(os.environ["TEST_ALERTS"])}
# Instead of the MAILERS of the tests, or as EMAIL_ settings.
globals().update(smtp_settings("127.0.0.1", int(os.environ.get("TEST_SMTP_PORT", "1"))))

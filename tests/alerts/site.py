"""Settings of worker processes that tell: the rules and the servers come from the environment."""

from __future__ import annotations

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import DEADLETTER

DEADLETTER = {**DEADLETTER, "ALERTS": json.loads(os.environ["TEST_ALERTS"])}
EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
EMAIL_HOST = "127.0.0.1"
EMAIL_PORT = int(os.environ.get("TEST_SMTP_PORT", "1"))

"""The settings of the tests, with the handlers of the chaos run."""

from __future__ import annotations

import json
import os
import threading
import time

from tests.settings import *  # noqa: F403
from tests.settings import DEADLETTER, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.chaos"]

if "CHAOS_BROKERS" in os.environ:
    DEADLETTER = {**DEADLETTER, "BROKERS": json.loads(os.environ["CHAOS_BROKERS"])}

if "FAKETIME" in os.environ:
    # The one call that the library for other clocks breaks while the monotonic clock stays real.
    time.sleep = lambda seconds: threading.Event().wait(seconds) and None

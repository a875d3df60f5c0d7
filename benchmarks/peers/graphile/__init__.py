"""graphile-worker (Node): a local queue of 500 and completions in batches."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psycopg

from ...system import Payload, System, url

MODULES = Path(sys.prefix) / "node_modules"
MANY = """
SELECT count(*) FROM graphile_worker.add_jobs(ARRAY(
    SELECT json_populate_record(NULL::graphile_worker.job_spec,
                                json_build_object('identifier', %s::text, 'payload', p.payload))
      FROM json_array_elements(%s::json) AS p(payload)))
"""


class Graphile(System):
    name = "graphile-worker"
    title = "graphile-worker (Node)"
    settings = "local queue 500, 24 jobs at a time, batched completion"
    rates = {"send-one": 800, "send-many": 20_000, "drain": 12_000}
    left_sql = "SELECT count(*) FROM graphile_worker._private_jobs"

    def missing(self) -> str | None:
        if shutil.which("node") is None:
            return "node is not installed (Debian: apt-get install nodejs npm)"
        if not (MODULES / "graphile-worker").exists():
            return "graphile-worker is not installed: install npm, remove .bench-venv, try again"
        return None

    def setup(self) -> None:
        program = MODULES / ".bin" / "graphile-worker"
        subprocess.run([program, "--schema-only", "-c", url()], check=True, capture_output=True)

    def environment(self) -> dict[str, str]:
        return {"NODE_PATH": str(MODULES), "GRAPHILE_LOGGER_DEBUG": "", "NO_LOG_SUCCESS": "1"}

    def open(self) -> None:
        self.connection = psycopg.connect(url(), autocommit=True)

    def send_one(self, name: str, payload: Payload) -> None:
        # The function its documentation gives to other languages.
        self.connection.execute(
            "SELECT graphile_worker.add_job(%s, %s::json)", (name, json.dumps(payload))
        )

    def send_many(self, name: str, payloads: Sequence[Payload]) -> None:
        self.connection.execute(MANY, (name, json.dumps(list(payloads))))

    def worker(self, processes: int, *, drain: bool) -> list[list[str]]:
        script = Path(__file__).with_name("worker.cjs")
        return [["node", str(script)] for _ in range(processes)]

    def versions(self) -> dict[str, str]:
        package = MODULES / "graphile-worker" / "package.json"
        node = subprocess.run(["node", "--version"], capture_output=True, text=True).stdout.strip()
        return {"graphile-worker": json.loads(package.read_text())["version"], "node": node}

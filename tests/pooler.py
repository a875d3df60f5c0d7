"""A pgbouncer of our own in transaction mode, for as long as a `with` block lasts."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.patience import PATIENCE

CONFIGURATION = """
[databases]
* = host={host} {port} user={user}
[pgbouncer]
listen_addr =
unix_socket_dir = {home}
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 200
# Of psycopg and Django: they belong to a session, and nobody relies on them.
ignore_startup_parameters = extra_float_digits,options
logfile = {home}/log
pidfile = {home}/pid
"""


def missing() -> str:
    """Say why there is no pooler here, or nothing."""
    if not (shutil.which("pgbouncer") or Path("/usr/sbin/pgbouncer").exists()):
        return "pgbouncer is not installed (Debian: apt-get install pgbouncer)"
    return ""


@contextmanager
def pooler(url: str, *, size: int = 5) -> Iterator[str]:
    """Start it in front of a server with a Unix socket; give the URL of the same database."""
    program = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    parts = urlsplit(url)
    host = parse_qs(parts.query).get("host", [parts.hostname or "/var/run/postgresql"])[0]
    home = Path(tempfile.mkdtemp(prefix="deadletter-pooler-"))
    account: dict = {}
    if os.geteuid() == 0:
        # It refuses to run as root, as the server does.
        nobody = pwd.getpwnam("nobody")
        account = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        os.chown(home, nobody.pw_uid, nobody.pw_gid)
    (home / "ini").write_text(
        CONFIGURATION.format(
            host=host,
            port=f"port={parts.port}" if parts.port else "",
            user=parts.username or "postgres",
            home=home,
            size=size,
        )
    )
    process = subprocess.Popen(
        [program, str(home / "ini")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=home,
        start_new_session=True,
        **account,
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while not list(home.glob(".s.PGSQL.6432")):
            assert process.poll() is None, (home / "log").read_text()
            assert time.monotonic() < deadline, (home / "log").read_text()
            time.sleep(0.01)
        yield f"postgresql://{parts.username}@/{parts.path.lstrip('/')}?host={home}&port=6432"
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(home, ignore_errors=True)

"""
Run every mutation and say which test killed it: `python -m tests.mutants [part of a name]`.

Fails when a mutant survives, when its text no longer applies, or when it is so broken that it says
nothing: a statement that cannot be parsed fails every test.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.private_postgres import private_postgres

from .mutation import ROOT, Mutation
from .mutations import mutations

COPIED = ("deadletter", "project", "templates", "tests", "manage.py", "pyproject.toml")
#: What a mutant dies of by itself, without a rule being missed.
SENSELESS = re.compile(
    r"SyntaxError|NameError|ImportError|ProgrammingError|near \"|no such column|ambiguous column"
)


def main(arguments: list[str]) -> int:
    wanted = [m for m in mutations() if all(part in f"{m.name} ({m.on})" for part in arguments)]
    began, bad = time.monotonic(), 0
    with private_postgres() as url:
        for mutation in wanted:
            problem, said = _run(mutation, url)
            bad += problem
            print(
                f"{'BAD ' if problem else 'ok  '} {mutation.name} ({mutation.on}): {said}",
                flush=True,
            )
    print(f"{len(wanted) - bad} of {len(wanted)} killed in {time.monotonic() - began:.0f} s")
    return 1 if bad or not wanted else 0


def _run(mutation: Mutation, url: str) -> tuple[bool, str]:
    with tempfile.TemporaryDirectory(prefix="deadletter-mutant-") as folder:
        root = Path(folder)
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, root / name)
        try:
            mutation.apply(root)
        except ValueError as error:
            return True, f"does not apply: {error}"
        return _judge(_pytest(mutation, root, url))


def _pytest(mutation: Mutation, root: Path, url: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    if mutation.on == "postgresql":
        environment["DATABASE_URL"] = url
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "--tb=short", *mutation.tests],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
    )


def _judge(done: subprocess.CompletedProcess[str]) -> tuple[bool, str]:
    killer = re.search(r"^FAILED (\S+)", done.stdout, re.MULTILINE)
    if done.returncode == 0:
        return True, "survived"
    if done.returncode != 1 or killer is None:
        return True, f"pytest could not run:\n{done.stdout}{done.stderr}"
    senseless = SENSELESS.search(done.stdout)
    if senseless:
        return True, f"makes no sense ({senseless[0]}):\n{done.stdout}"
    return False, f"killed by {killer[1]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

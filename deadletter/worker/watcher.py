"""
The watcher: a process that imports the code that a worker imports, and reports its first change.

`run_worker --reload` starts it (see `reloader.py`) with the worker's own command line. It runs that
up to the command, which does nothing here, and then imports the handlers. Code that cannot be
imported is watched too: the files that the traceback names.

It is started with SIGINT and SIGTERM blocked and is ended by SIGKILL: it holds nothing.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from django.apps import apps
from django.utils import autoreload

#: Seconds between two looks whether the reloader is alive.
TICK = 0.5

#: True in the process of a watcher.
is_active = False


def main(pipe: int, reloader: int) -> None:
    """
    Watch the code that the command line of this process runs.

    Two reports, one JSON object on a line each, are written to `pipe`: `watching` (the error of the
    import, or an empty text) when later changes are noticed, and `changed` (a path), the last one.
    """
    global is_active
    is_active = True
    os.set_inheritable(pipe, False)
    threading.Thread(target=_end_with, args=[reloader], daemon=True).start()

    def report(**fields: str) -> None:
        os.write(pipe, json.dumps(fields).encode() + b"\n")

    errors = _load(sys.argv[1:])
    summary = f"{type(errors[-1]).__name__}: {errors[-1]}" if errors else ""
    _watch(
        {file for error in errors for file in _files(error) if file.is_file()},
        on_listed=lambda: report(watching=summary),
        on_change=lambda path: report(changed=str(path)),
    )


def _end_with(reloader: int) -> None:
    """End this process when the reloader is gone."""
    while os.getppid() == reloader:
        time.sleep(TICK)
    os._exit(0)


def _load(program: Sequence[str]) -> list[BaseException]:
    """Import what a worker imports; return the errors that prevented it."""
    errors: list[BaseException] = []

    def attempt(step: Callable[[], object]) -> None:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - reported; a module may even exit
            # A script may end with `sys.exit()`.
            if not isinstance(error, SystemExit) or error.code:
                errors.append(error)

    # The worker shows the same warnings and errors. The file stays open: loggers keep it.
    with redirect_stderr(open(os.devnull, "w")):  # noqa: PTH123
        attempt(partial(_run, program))
        if apps.ready:
            # Imported here: they need models.
            from ..tasks import lookup
            from .registry import discover

            attempt(discover)
            if lookup.has_backend():
                # `discover` logs the errors of these modules and goes on.
                for module in lookup.task_modules():
                    attempt(partial(import_module, module))
    return errors


def _run(program: Sequence[str]) -> None:
    """Run a script, or a module after "-m", as Python does."""
    if program[0] == "-m":
        sys.argv = list(program[1:])
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(program)
        runpy.run_path(program[0], run_name="__main__")


def _files(error: BaseException) -> Iterator[Path]:
    """Yield the files that an error and its causes name: one of them is to be repaired."""
    described: traceback.TracebackException | None
    described = traceback.TracebackException.from_exception(error)
    while described is not None:
        # A syntax error has no frame of its own.
        yield from [Path(described.filename)] if getattr(described, "filename", None) else []
        yield from (Path(frame.filename) for frame in described.stack)
        described = described.__cause__ or described.__context__


def _watch(
    files: set[Path], *, on_listed: Callable[[], None], on_change: Callable[[Path], None]
) -> None:
    """Run Django's autoreloader until the first change."""
    missing = _missing_modules()
    reloader = autoreload.get_reloader()
    reloader.extra_files |= files | missing
    list_files = reloader.watched_files
    is_listed = False

    def watched_files(include_globs: bool = True) -> Iterator[Path]:
        nonlocal is_listed
        for path in missing:
            # The autoreloader does not report a file that it sees for the first time.
            if path.exists():
                changed(path)
        yield from list_files(include_globs)
        if not is_listed:
            # The caller has read the time of each file by now, and compares with it from now on.
            is_listed = True
            on_listed()

    def changed(path: Any) -> None:
        on_change(path)
        sys.exit(3)

    reloader.watched_files = watched_files  # type: ignore[method-assign]
    # Instead of the signal `file_changed`: its receivers take care of templates and translations in
    # their own process only, and the worker has them in its memory, too.
    reloader.notify_file_changed = changed  # type: ignore[method-assign]
    # Templates and translations are added by receivers; they fail if the settings cannot be read.
    autoreload.autoreload_started.send_robust(sender=reloader)
    reloader.run_loop()


def _missing_modules() -> set[Path]:
    """Return the modules that `discover` would import if they existed."""
    if not apps.ready:
        return set()
    modules = {
        Path(app.path) / name
        for app in apps.get_app_configs()
        for module in ("handlers", "tasks")
        for name in (f"{module}.py", f"{module}/__init__.py")
    }
    return {path for path in modules if not path.exists()}

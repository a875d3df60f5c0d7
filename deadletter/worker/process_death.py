"""The death of a worker process, as text and as a row for the admin."""

from __future__ import annotations

import signal
import socket
from dataclasses import dataclass
from typing import Any

from .. import clock
from ..lifecycle.transaction import bounded
from ..models import Message, WorkerDeath
from .crash_ledger import LedgerEntry, SlotState

#: Messages that a row lists.
LISTED = 50
#: Other messages that the error text of one names.
NAMED = 5


@dataclass(frozen=True)
class ProcessDeath:
    """A process that ended unexpectedly, as its supervisor saw it."""

    worker: str
    pid: int
    #: As returned by `os.waitstatus_to_exitcode`: negative for a signal.
    code: int
    #: Peak of resident memory, in bytes.
    peak: int
    held: tuple[LedgerEntry, ...] = ()
    is_replaced: bool = True

    @property
    def reason(self) -> str:
        return describe_exit(self.code)

    def facts(self, id: int) -> str:
        """Return what is known of the death, for the error text of one message that ran in it."""
        others = [entry for entry in self.held if entry.id != id]
        ran = [entry.id for entry in others if entry.state is SlotState.RUNNING]
        texts = [f"process {self.pid}, peak memory {self.peak / 2**20:.0f} MiB"]
        if ran:
            named = ", ".join(f"#{other}" for other in ran[:NAMED])
            more = f" and {len(ran) - NAMED} more" if len(ran) > NAMED else ""
            texts.append(f"it also ran {named}{more}")
        if waited := len(others) - len(ran):
            texts.append(f"{waited} others were held and not running")
        return "; ".join(texts)

    def store(self, *, using: str) -> None:
        """Store it as a row. Raises: DatabaseError."""
        with bounded(using):
            WorkerDeath.objects.using(using).create(
                name=self.worker,
                host=socket.gethostname()[:200],
                pid=self.pid,
                died_at=clock.now(using),
                signal=-self.code if self.code < 0 else None,
                exit_code=self.code if self.code >= 0 else None,
                peak_memory=self.peak,
                held=self._held_messages(using),
                successor=self.worker if self.is_replaced else "",
            )

    def _held_messages(self, using: str) -> list[dict[str, Any]]:
        """Return the messages that it held, running ones first."""
        ordered = sorted(
            self.held, key=lambda entry: (entry.state is not SlotState.RUNNING, entry.id)
        )
        ids = [entry.id for entry in ordered[:LISTED]]
        rows = Message.objects.using(using).filter(pk__in=ids)
        names = {
            id: (name, queue) for id, name, queue in rows.values_list("pk", "name", "queue__name")
        }
        return [
            {
                "id": entry.id,
                "name": names.get(entry.id, ("", ""))[0],
                "queue": names.get(entry.id, ("", ""))[1],
                "running": entry.state is SlotState.RUNNING,
            }
            for entry in ordered[:LISTED]
        ]


def describe_exit(code: int) -> str:
    """Return an exit code as text; a negative one stands for a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal has no name
        name = str(-code)
    return f"signal {name}"

"""
What did a process hold when it died? A table in memory it shares with its supervisor.

Each message has a slot for as long as the process holds it: id, token and how far it got. When the
process is gone the supervisor reads the table and charges only what was really running. Three bytes
beside it say how far the process itself has got, what its supervisor allows, and whether it began.
"""

from __future__ import annotations

import enum
import mmap
import struct
from dataclasses import dataclass

_SLOT = struct.Struct("<q8sBxH4x")
_FLAGS = struct.Struct("<H")
_SIZE = _SLOT.size
_STAGE = 16  # offset of the stage inside a slot
_STATUS = 18  # offset of the flags
_TOKEN = 8  # bytes of a token
_CLAIMS = 2  # under way, and answered but not entered yet

#: Messages a process can hold at once.
SLOTS = 4096


class Stage(enum.IntEnum):
    FREE = 0
    #: Waits in the buffer; no handler has seen it.
    WAITING = 1
    #: Its handler has been called.
    RUNNING = 2
    #: Its handler returned; not reported yet.
    DONE = 3
    #: Its handler raised; not reported yet.
    FAILED = 4
    #: Its handler returned and asked for the next stage; not reported yet.
    STAGED = 5


class Phase(enum.IntEnum):
    """What a process says of itself. An exit code says less: any handler can exit with 0."""

    #: Also of a process that is gone: it died.
    WORKING = 0
    #: Wants to be replaced, and goes on until it may.
    ASKING = 1
    #: Claims no more and lets its handlers finish; another process may take its place.
    DRAINING = 2
    #: Ended in good order, and another process is to follow.
    REPLACED = 3
    #: Ended in good order for good: there was nothing left to do.
    FINISHED = 4
    #: Ended before it began: the database answers, and cannot be worked with.
    REFUSED = 5


_WAITING = int(Stage.WAITING)


@dataclass(frozen=True)
class Entry:
    id: int
    token: str
    stage: Stage
    #: The flags of the message, where it is STAGED.
    flags: int = 0


class Ledger:
    """
    Fixed slots in anonymous shared memory. One process writes; its parent reads afterwards.

    `side` tells the ledgers of a process and of the one that it is replaced by apart: 0 and 1.
    """

    def __init__(self, slots: int = SLOTS, *, side: int = 0) -> None:
        self._claiming = slots * _SLOT.size
        self._phase = self._claiming + _CLAIMS * _TOKEN
        self._memory = mmap.mmap(-1, self._phase + 3)
        self.side = side
        self._slots = slots
        self._free = list(range(slots - 1, -1, -1))

    @property
    def room(self) -> int:
        return len(self._free)

    def announce(self, *tokens: str) -> None:
        """Write down under which tokens there may be messages that are not entered yet."""
        claims = b"".join(map(bytes.fromhex, tokens))
        self._memory[self._claiming : self._phase] = claims.ljust(_CLAIMS * _TOKEN, b"\0")

    @property
    def announced(self) -> list[str]:
        """Return the tokens of claims whose messages are not all among the entries."""
        claims = self._memory[self._claiming : self._phase]
        found = [claims[at : at + _TOKEN] for at in range(0, len(claims), _TOKEN)]
        return [token.hex() for token in found if any(token)]

    @property
    def phase(self) -> Phase:
        return Phase(self._memory[self._phase])

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._memory[self._phase] = phase

    @property
    def may_drain(self) -> bool:
        """Whether the supervisor will fill the place of a process that drains."""
        return bool(self._memory[self._phase + 1])

    def let_drain(self) -> None:
        """Called by the supervisor; the byte is its own."""
        self._memory[self._phase + 1] = 1

    @property
    def has_begun(self) -> bool:
        """Whether the process found a database that it can work with."""
        return bool(self._memory[self._phase + 2])

    def begin(self) -> None:
        self._memory[self._phase + 2] = 1

    def hold(self, id: int, token: str) -> int:
        """Enter a message and return its slot."""
        slot = self._free.pop()
        _SLOT.pack_into(self._memory, slot * _SIZE, id, bytes.fromhex(token), _WAITING, 0)
        return slot

    def mark(self, slot: int, stage: Stage) -> None:
        # One byte, written at once: a reader never sees half of it.
        self._memory[slot * _SIZE + _STAGE] = stage

    def mark_staged(self, slot: int, flags: int) -> None:
        """Enter that a stage is finished, and with which flags: these first."""
        _FLAGS.pack_into(self._memory, slot * _SIZE + _STATUS, flags)
        self.mark(slot, Stage.STAGED)

    def drop(self, *slots: int) -> None:
        memory = self._memory
        for slot in slots:
            memory[slot * _SIZE + _STAGE] = 0
        self._free += slots

    def entries(self) -> list[Entry]:
        """Return what is held, as the dead process left it."""
        found = []
        for slot in range(self._slots):
            if self._memory[slot * _SLOT.size + _STAGE]:
                id, token, stage, flags = _SLOT.unpack_from(self._memory, slot * _SLOT.size)
                found.append(Entry(id, token.hex(), Stage(stage), flags))
        return found

    def clear(self) -> None:
        self._memory[:] = bytes(len(self._memory))
        self._free = list(range(self._slots - 1, -1, -1))

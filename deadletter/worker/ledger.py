"""
What did a process hold when it died? A table in memory it shares with its supervisor.

Each message has a slot for as long as the process holds it: id, token and how far it got. When the
process is gone the supervisor reads the table and charges only what was really running.
"""

from __future__ import annotations

import enum
import mmap
import struct
from dataclasses import dataclass

_SLOT = struct.Struct("<q8sB7x")
_SIZE = _SLOT.size
_STAGE = 16  # offset of the stage inside a slot
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


_WAITING = int(Stage.WAITING)


@dataclass(frozen=True)
class Entry:
    id: int
    token: str
    stage: Stage


class Ledger:
    """Fixed slots in anonymous shared memory. One process writes; its parent reads afterwards."""

    def __init__(self, slots: int = SLOTS) -> None:
        self._memory = mmap.mmap(-1, slots * _SLOT.size + _CLAIMS * _TOKEN)
        self._claiming = slots * _SLOT.size
        self._slots = slots
        self._free = list(range(slots - 1, -1, -1))

    @property
    def room(self) -> int:
        return len(self._free)

    def announce(self, *tokens: str) -> None:
        """Write down under which tokens there may be messages that are not entered yet."""
        claims = b"".join(map(bytes.fromhex, tokens))
        self._memory[self._claiming :] = claims.ljust(_CLAIMS * _TOKEN, b"\0")

    @property
    def announced(self) -> list[str]:
        """Return the tokens of claims whose messages are not all among the entries."""
        claims = self._memory[self._claiming :]
        found = [claims[at : at + _TOKEN] for at in range(0, len(claims), _TOKEN)]
        return [token.hex() for token in found if any(token)]

    def hold(self, id: int, token: str) -> int:
        """Enter a message and return its slot."""
        slot = self._free.pop()
        _SLOT.pack_into(self._memory, slot * _SIZE, id, bytes.fromhex(token), _WAITING)
        return slot

    def mark(self, slot: int, stage: Stage) -> None:
        # One byte, written at once: a reader never sees half of it.
        self._memory[slot * _SIZE + _STAGE] = stage

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
                id, token, stage = _SLOT.unpack_from(self._memory, slot * _SLOT.size)
                found.append(Entry(id, token.hex(), Stage(stage)))
        return found

    def clear(self) -> None:
        self._memory[:] = bytes(len(self._memory))
        self._free = list(range(self._slots - 1, -1, -1))

"""
The crash ledger: a table of in-flight messages in memory that a process shares with its supervisor.

Each message has a slot for as long as the process holds its lease: id, token and how far it got.
When the process dies, the supervisor reads the table and charges an attempt only to messages whose
handlers were running. Three bytes behind the table say how far the process itself has got, whether
its supervisor lets it drain, and whether it has begun.
"""

from __future__ import annotations

import enum
import mmap
import struct
from dataclasses import dataclass

_SLOT = struct.Struct("<q8sBxH4x")
_FLAGS = struct.Struct("<H")
_SIZE = _SLOT.size
_STATE = 16  # offset of the state inside a slot
_STATUS = 18  # offset of the flags
_TOKEN = 8  # bytes of a token
_CLAIMS = 2  # one claim under way, one answered and not applied yet

#: Messages that a process can have in flight.
SLOTS = 4096


class SlotState(enum.IntEnum):
    """How far the message of a slot has got."""

    FREE = 0
    #: In the buffer; its handler was not called, or was cancelled.
    WAITING = 1
    #: Its handler has been called, and may have returned a result that is not stored yet.
    RUNNING = 2
    #: Its handler returned, no result is kept; not reported yet.
    DONE = 3
    #: Its handler raised; not reported yet.
    FAILED = 4
    #: Its handler returned and asked for the next stage; not reported yet.
    STAGED = 5


class Phase(enum.IntEnum):
    """How far a process has got. An exit code says less: any handler can exit with 0."""

    #: The phase of a process that dies without notice, too.
    WORKING = 0
    #: Wants to be replaced, and works until it may drain.
    ASKING = 1
    #: Claims no more and lets its handlers finish; another process may take its place.
    DRAINING = 2
    #: Ended normally, and another process is to follow.
    REPLACED = 3
    #: Ended normally and finally: there was nothing left to do.
    FINISHED = 4
    #: Ended before it began: the database answers but cannot be used.
    REFUSED = 5


_WAITING = int(SlotState.WAITING)


@dataclass(frozen=True)
class LedgerEntry:
    """One used slot of the ledger."""

    id: int
    token: str
    state: SlotState
    #: The flags of the message, if it is STAGED.
    flags: int = 0


class CrashLedger:
    """
    Fixed slots in anonymous shared memory. One process writes; its parent reads after its death.

    `side` is 0 or 1. It tells the ledger of a process from that of its replacement.
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
        """The number of free slots."""
        return len(self._free)

    def announce(self, *tokens: str) -> None:
        """Store the tokens of claims whose messages have no slots yet."""
        claims = b"".join(map(bytes.fromhex, tokens))
        self._memory[self._claiming : self._phase] = claims.ljust(_CLAIMS * _TOKEN, b"\0")

    @property
    def announced(self) -> list[str]:
        """The tokens of claims whose messages may not be among the entries."""
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
        """True if the supervisor fills the place of this process once it drains."""
        return bool(self._memory[self._phase + 1])

    def let_drain(self) -> None:
        """Allow the process to drain. Only the supervisor writes this byte."""
        self._memory[self._phase + 1] = 1

    @property
    def has_begun(self) -> bool:
        """True if the process found a database that it can use."""
        return bool(self._memory[self._phase + 2])

    def begin(self) -> None:
        self._memory[self._phase + 2] = 1

    def hold(self, id: int, token: str) -> int:
        """Write a message to a free slot; return the slot."""
        slot = self._free.pop()
        _SLOT.pack_into(self._memory, slot * _SIZE, id, bytes.fromhex(token), _WAITING, 0)
        return slot

    def mark(self, slot: int, state: SlotState) -> None:
        # A single byte: a reader never sees half of it.
        self._memory[slot * _SIZE + _STATE] = state

    def mark_staged(self, slot: int, flags: int) -> None:
        """Mark a finished stage. The flags are written first: the state makes them valid."""
        _FLAGS.pack_into(self._memory, slot * _SIZE + _STATUS, flags)
        self.mark(slot, SlotState.STAGED)

    def drop(self, *slots: int) -> None:
        memory = self._memory
        for slot in slots:
            memory[slot * _SIZE + _STATE] = 0
        self._free += slots

    def entries(self) -> list[LedgerEntry]:
        """Return the used slots, as the dead process left them."""
        found = []
        for slot in range(self._slots):
            if self._memory[slot * _SLOT.size + _STATE]:
                id, token, state, flags = _SLOT.unpack_from(self._memory, slot * _SLOT.size)
                found.append(LedgerEntry(id, token.hex(), SlotState(state), flags))
        return found

    def clear(self) -> None:
        self._memory[:] = bytes(len(self._memory))
        self._free = list(range(self._slots - 1, -1, -1))

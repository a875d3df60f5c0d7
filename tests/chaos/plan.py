"""Which faults, when, to whom? Decided by the seed alone, before anything is started."""

from __future__ import annotations

import random
from dataclasses import dataclass

WORKERS = 4
#: Seconds a lease lasts.
LEASE = 3.0
#: Seconds from one fault to the next, on the average.
RHYTHM = 0.8
#: Seconds at the beginning in which all goes well.
QUIET = 2.0

#: How likely a fault is, and how long it lasts: shorter and longer than a lease.
EVERYWHERE = {
    "kill": (5, 0.2, 1.5),
    "stop": (4, 0.5, 5.0),
    "policy": (2, 0.0, 0.0),
    "pause": (1, 0.5, 1.5),
    "retry": (4, 0.0, 0.0),
    "remove": (1, 0.0, 0.0),
}
ON_POSTGRESQL = {
    "terminate": (3, 0.0, 0.0),
    "cut_before": (3, 2.0, 2.0),
    "cut_after": (3, 2.0, 2.0),
    "hole": (2, 0.5, 5.0),
    "crash": (1, 0.2, 2.0),
    "kill_server": (1, 0.2, 2.0),
    "kill_backend": (1, 0.0, 0.0),
}
#: Faults that hit one worker; two of them do not hit the same one at once.
OF_A_WORKER = {"kill", "stop", "terminate", "cut_before", "cut_after", "hole"}
#: Faults of the server; it suffers one at a time, and has a moment to recover.
OF_THE_SERVER = {"crash", "kill_server", "kill_backend", "failover"}
RECOVERY = 2.5


@dataclass(frozen=True)
class Fault:
    """Begins `at` seconds after the start and is over after `lasts`."""

    at: float
    kind: str
    target: int
    lasts: float


def plan(seed: int, seconds: float, *, postgresql: bool) -> list[Fault]:
    """Return the faults of a run in order; the same for the same arguments."""
    chance = random.Random(seed)
    faults = EVERYWHERE | (ON_POSTGRESQL if postgresql else {})
    # Once, in the second half: from then on there is no other standby.
    failover = chance.uniform(0.5, 0.8) * seconds if postgresql else None
    free = dict.fromkeys(["server", "queue", *map(str, range(WORKERS))], 0.0)
    found: list[Fault] = []
    at = QUIET
    while at < seconds:
        if failover is not None and at >= failover and free["server"] <= at:
            kind, lasts, failover = "failover", 1.0, None
        else:
            kind = chance.choices(list(faults), [weight for weight, _, _ in faults.values()])[0]
            lasts = round(chance.uniform(*faults[kind][1:]), 2)
        target = chance.randrange(WORKERS)
        owner = _owner(kind, target)
        if free[owner] <= at:
            found.append(Fault(round(at, 2), kind, target, lasts))
            free[owner] = at + lasts + (RECOVERY if owner == "server" else 0.3)
        at += chance.expovariate(1 / RHYTHM)
    return found


def _owner(kind: str, target: int) -> str:
    if kind in OF_A_WORKER:
        return str(target)
    return "server" if kind in OF_THE_SERVER else "queue"

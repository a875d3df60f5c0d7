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
#: With a broker: those of its servers, and of the link between a relay process and the first one.
ON_BROKER = {
    "broker_kill": (2, 0.2, 2.0),
    "broker_restart": (1, 0.2, 1.0),
    "broker_halt": (2, 0.5, 5.0),
    "memory_alarm": (2, 0.5, 4.0),
    "link_cut": (2, 0.0, 0.0),
    "link_cut_before": (3, 1.0, 1.0),
    "link_cut_after": (4, 1.0, 1.0),
    # Longer than the lease of a lane.
    "freeze": (2, 5.5, 8.0),
}
ON_RABBITMQ = {"disk_alarm": (1, 0.5, 4.0)}
ON_CLUSTER = {"leader_kill": (4, 0.5, 4.0), "broker_kill": (1, 0.5, 2.0)}
OF_A_BROKER = {
    *("broker_kill", "broker_restart", "broker_halt", "leader_kill"),
    *("memory_alarm", "disk_alarm"),
}
#: Faults that hit one worker; two of them do not hit the same one at once.
OF_A_WORKER = {"kill", "stop", "freeze", "terminate", "cut_before", "cut_after", "hole"}
OF_A_LINK = {"link_cut", "link_cut_before", "link_cut_after"}
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


def plan(seed: int, seconds: float, *, postgresql: bool, broker: str | None = None) -> list[Fault]:
    """Return the faults of a run in order; the same for the same arguments."""
    chance = random.Random(seed)
    faults = EVERYWHERE | (ON_POSTGRESQL if postgresql else {}) | _of_a_broker(broker)
    # Once, in the second half: from then on there is no other standby.
    failover = chance.uniform(0.5, 0.8) * seconds if postgresql else None
    places = [place for n in range(WORKERS) for place in (str(n), f"link {n}")]
    free = dict.fromkeys(["server", "queue", "broker", *places], 0.0)
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
            free[owner] = at + lasts + (RECOVERY if owner in {"server", "broker"} else 0.3)
        at += chance.expovariate(1 / RHYTHM)
    return found


def _of_a_broker(kind: str | None) -> dict[str, tuple[float, float, float]]:
    if kind is None:
        return {}
    faults = ON_BROKER | (ON_RABBITMQ if kind.startswith("rabbitmq") else {})
    return faults | (ON_CLUSTER if kind == "rabbitmq-cluster" else {})


def _owner(kind: str, target: int) -> str:
    if kind in OF_A_WORKER:
        return str(target)
    if kind in OF_A_LINK:
        return f"link {target}"
    if kind in OF_A_BROKER:
        return "broker"
    return "server" if kind in OF_THE_SERVER else "queue"

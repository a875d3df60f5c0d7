"""What do the processes of a long run use? Samples of memory, files, threads and connections."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psycopg

from benchmarks.processes import memory

Sample = dict[str, float]

#: What may lie between an early and a late part of a flat run: a share, and what is always allowed.
SHARE = 0.05
ALLOWED = {"MB": 4.0, "files": 2, "threads": 2, "connections": 2}


class Watch:
    """Takes samples of some processes and of the database they work on."""

    def __init__(self, url: str, pids: Mapping[str, int]) -> None:
        self.pids = pids
        self.samples: list[Sample] = []
        self._began = time.monotonic()
        self._connection = psycopg.connect(url, autocommit=True)

    def look(self) -> Sample:
        sample: Sample = {"second": round(time.monotonic() - self._began, 1)}
        for name, pid in self.pids.items():
            sample[f"{name} MB"] = round(memory(pid), 1)
            sample[f"{name} files"] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            sample[f"{name} threads"] = len(list(Path(f"/proc/{pid}/task").iterdir()))
        sample["connections"] = self._ask(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        sample["messages"] = self._ask("SELECT count(*) FROM deadletter_message")
        sample["poison"] = self._ask("SELECT count(*) FROM deadletter_poison")
        self.samples.append(sample)
        return sample

    def counted(self) -> dict[str, int]:
        """What the counters say of the whole run."""
        row = self._connection.execute(
            "SELECT sum(sent), sum(completed), sum(failed), sum(poisoned) FROM deadletter_count"
        ).fetchone()
        assert row is not None
        names = ("sent", "completed", "failed", "poisoned")
        return {name: int(value or 0) for name, value in zip(names, row, strict=True)}

    def close(self) -> None:
        self._connection.close()

    def _ask(self, question: str) -> int:
        row = self._connection.execute(question.encode()).fetchone()
        assert row is not None
        return int(row[0])


def growth(samples: Sequence[Sample]) -> dict[str, tuple[float, float]]:
    """Compare the medians of the second and of the last fifth: the first is for warming up."""
    fifth = max(len(samples) // 5, 1)
    early, late = samples[fifth : 2 * fifth] or samples, samples[-fifth:]
    names = [name for name in samples[0] if name.split()[-1] in ALLOWED]
    return {
        name: (
            statistics.median(sample[name] for sample in early),
            statistics.median(sample[name] for sample in late),
        )
        for name in names
    }


def grown(samples: Sequence[Sample]) -> list[str]:
    """Say what did not stay flat."""
    return [
        f"{name} grew from {early:g} to {late:g}"
        for name, (early, late) in growth(samples).items()
        if late - early > max(early * SHARE, ALLOWED[name.split()[-1]])
    ]

"""The attack itself, in short: `make chaos` is the long one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import pairwise

import pytest

from . import __main__ as chaos
from .broker_sites import KINDS, missing_broker
from .plan import (
    EVERYWHERE,
    OF_THE_SERVER,
    ON_BROKER,
    ON_CLUSTER,
    ON_POSTGRESQL,
    ON_RABBITMQ,
    RECOVERY,
    plan,
)
from .producer import events, orders
from .sites import SQLiteSite
from .topics import REFUSED, TOPICS
from .workers import FOUR_RELAYS, ROOT, SUPERVISED, TWO_RELAYS

pytestmark = pytest.mark.process

SEED = 11
#: Seconds of faults; to start, to heal and to drain takes as long again.
SECONDS = 10


def test_nothing_is_lost_while_everything_breaks(vendor: str, tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"}

    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.chaos", "--database", vendor, "--history", tmp_path),
            *("--seed", str(SEED), "--seconds", str(SECONDS)),
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    print(done.stderr)  # shown by pytest on failure
    assert done.returncode == 0, done.stdout
    assert f"chaos: seed {SEED} on {vendor}: sent " in done.stdout
    assert (tmp_path / "journal").exists()


@pytest.mark.slow
@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_every_event_arrives_while_everything_breaks(vendor: str, broker: str, tmp_path):
    if reason := missing_broker(broker):
        pytest.skip(reason)
    environment = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"}

    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.chaos", "--database", vendor, "--history", tmp_path),
            *("--seed", str(SEED), "--seconds", str(SECONDS), "--broker", broker),
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    print(done.stderr)  # shown by pytest on failure
    assert done.returncode == 0, done.stdout
    assert f"chaos: seed {SEED} on {vendor} and {broker}: events stored " in done.stdout


@pytest.mark.parametrize("broker", KINDS)
def test_a_broker_that_is_not_installed_is_named_in_one_line(broker: str, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(chaos.signal, "signal", lambda number, act: None)

    assert chaos.main(["--broker", broker, "--seed", "1"]) == 2

    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"chaos: {broker}: ")


@pytest.mark.parametrize("postgresql", [True, False], ids=["postgresql", "sqlite"])
def test_a_seed_is_a_plan(postgresql: bool):
    first = plan(1, 60, postgresql=postgresql)

    assert plan(1, 60, postgresql=postgresql) == first
    assert plan(2, 60, postgresql=postgresql) != first
    assert len(first) > 30
    assert all(fault.at < 60 for fault in first)


def test_the_plans_of_twenty_seeds_have_every_fault():
    kinds = {fault.kind for seed in range(20) for fault in plan(seed, 60, postgresql=True)}
    on_sqlite = {fault.kind for seed in range(20) for fault in plan(seed, 60, postgresql=False)}

    assert kinds == {*EVERYWHERE, *ON_POSTGRESQL, "failover"}
    assert on_sqlite == {*EVERYWHERE}


@pytest.mark.parametrize("broker", KINDS)
def test_the_plans_of_forty_seeds_have_every_fault_of_a_broker(broker: str):
    faults = [f for n in range(40) for f in plan(n, 60, postgresql=True, broker=broker)]
    expected = {*EVERYWHERE, *ON_POSTGRESQL, "failover", *ON_BROKER}
    if broker.startswith("rabbitmq"):
        expected |= ON_RABBITMQ.keys()
    if broker == "rabbitmq-cluster":
        expected |= ON_CLUSTER.keys()

    assert {fault.kind for fault in faults} == expected
    assert plan(1, 60, postgresql=True, broker=broker) == plan(
        1, 60, postgresql=True, broker=broker
    )


def test_two_relays_or_four_share_the_lanes():
    for arguments, count in ((TWO_RELAYS, 2), (FOUR_RELAYS, 4)):
        relays = [0 if "--no-relay" in given else 1 for given in arguments]
        # A supervisor has two processes, and each of them a relay.
        relays[SUPERVISED] *= 2
        assert sum(relays) == count
        assert sum("--relay" in given for given in arguments) == 1


@pytest.mark.parametrize("seed", range(20))
def test_the_server_suffers_one_fault_at_a_time_and_fails_over_once(seed: int):
    faults = [f for f in plan(seed, 60, postgresql=True) if f.kind in OF_THE_SERVER]

    for before, after in pairwise(faults):
        assert after.at >= before.at + before.lasts + RECOVERY - 0.02
    assert sum(fault.kind == "failover" for fault in faults) == 1


def test_a_producer_sends_the_same_for_the_same_seed():
    first, again, other = (orders(0, 1), orders(0, 1), orders(1, 1))
    some = [next(first) for _ in range(50)]

    assert some == [next(again) for _ in range(50)]
    assert some != [next(other) for _ in range(50)]
    assert sum(rolled_back for _, rolled_back in some) > 0


def test_a_producer_publishes_the_same_for_the_same_seed():
    first, again, other = (events(0, 1), events(0, 1), events(1, 1))
    some = [next(first) for _ in range(50)]

    assert some == [next(again) for _ in range(50)]
    assert some != [next(other) for _ in range(50)]
    flat = [event for batch in some for event in batch]
    assert {event["topic"] for event in flat} == {*TOPICS, REFUSED}
    assert {event["key"] is None for event in flat} == {True, False}


def test_it_is_known_who_keeps_everybody_from_writing(tmp_path):
    writer = "import sqlite3, sys; f = sqlite3.connect(sys.argv[1], isolation_level=None)"
    writer += "; f.execute('PRAGMA journal_mode=WAL'); f.execute('CREATE TABLE t (id)'); {}"
    writer += "; print('there', flush=True); sys.stdin.read()"
    blocked = {}

    for name, statement in {"inside": "f.execute('BEGIN IMMEDIATE')", "outside": "0"}.items():
        place = tmp_path / name
        place.mkdir()
        site = SQLiteSite(place)
        file = site.url("anybody").removeprefix("sqlite:///")
        with subprocess.Popen(
            [sys.executable, "-c", writer.format(statement), file],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            blocked[name] = site.is_blocked_by([process.pid])
            assert not site.is_blocked_by([os.getpid()])
            process.communicate()

    assert blocked == {"inside": True, "outside": False}

"""A cluster of three nodes of RabbitMQ: the leader of a quorum queue dies, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from deadletter import OutgoingEvent, publish_many
from deadletter.models import OutboxMessage
from deadletter.worker import relay as relays
from tests.brokers import RabbitMQCluster, RabbitMQServer, missing
from tests.patience import wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
]

TOPIC = "orders.shipped"
QUEUE = "shipping"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RabbitMQServer]]:
    if reason := missing(RabbitMQServer):
        pytest.skip(reason)
    cluster = RabbitMQCluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster.nodes
    finally:
        cluster.close()


@pytest.fixture
def cluster(nodes: list[RabbitMQServer], settings) -> Iterator[list[RabbitMQServer]]:
    """Give the nodes, all of which run; the relay knows each of them."""
    with nodes[0].connection() as connection:
        connection.channel().queue_delete(QUEUE)
    options = {
        "url": nodes[0].url,
        "hosts": [f"127.0.0.1:{node.port}" for node in nodes[1:]],
        "declare": {"queues": {QUEUE: [TOPIC]}},
        "connect_timeout": 2,
    }
    settings.DEADLETTER = {"BROKERS": {"default": options}}
    yield nodes
    for node in nodes:
        node.ensure_running()


def leader(nodes: list[RabbitMQServer]) -> RabbitMQServer:
    alive = next(node for node in nodes if node.is_ready())
    said = alive.control("list_queues", "name", "leader", "--no-table-headers")
    names = dict(line.split("\t") for line in said.splitlines())
    return next(node for node in nodes if node.node == names[QUEUE])


def numbers(nodes: list[RabbitMQServer]) -> list[int]:
    """Take everything from the queue, in order."""
    found: list[int] = []
    alive = next(node for node in nodes if node.is_ready())
    with alive.connection() as connection:
        channel = connection.channel()
        while (message := channel.basic_get(QUEUE, no_ack=True)) is not None:
            found.append(json.loads(message.body))
    return found


def test_the_queue_has_a_member_on_each_node(cluster, new_relay):
    publish_many([OutgoingEvent(TOPIC, 1)])
    new_relay().turn()

    said = cluster[0].control("list_queues", "name", "members", "--no-table-headers")

    assert all(node.node in said for node in cluster)


@pytest.mark.parametrize("is_connected", [True, False], ids=["its node", "another node"])
def test_the_leader_is_killed_and_nothing_is_lost(
    cluster, new_relay, settings, monkeypatch, is_connected
):
    monkeypatch.setattr(relays, "FIRST_DELAY", 0.0)
    publish_many([OutgoingEvent(TOPIC, 0, "one")])
    new_relay(broker="default").turn()
    dying = leader(cluster)
    others = [node for node in cluster if node is not dying]
    order = [dying, *others] if is_connected else [*others, dying]
    relays_options = settings.DEADLETTER["BROKERS"]["default"] | {
        "url": order[0].url,
        "hosts": [f"127.0.0.1:{node.port}" for node in order[1:]],
    }
    settings.DEADLETTER = {"BROKERS": {"default": relays_options}}
    free_lanes()
    relay = new_relay()
    publish_many([OutgoingEvent(TOPIC, n, "one") for n in range(1, 500)])
    relay.turn()

    dying.kill()
    publish_many([OutgoingEvent(TOPIC, n, "one") for n in range(500, 1_000)])

    def is_empty() -> bool:
        relay.turn()
        return not OutboxMessage.objects.exists()

    wait_until(is_empty)
    assert leader(cluster) is not dying
    arrived = numbers(cluster)
    assert list(dict.fromkeys(arrived)) == list(range(1_000))
    dying.start()
    publish_many([OutgoingEvent(TOPIC, 1_000, "one")])
    wait_until(is_empty)
    assert numbers(cluster) == [1_000]


def test_a_batch_whose_leader_dies_meanwhile_arrives_in_order(cluster, new_relay, monkeypatch):
    """The confirms of a batch are open when the leader of its queue dies."""
    monkeypatch.setattr(relays, "FIRST_DELAY", 0.0)
    publish_many([OutgoingEvent(TOPIC, 0, "one")])
    relay = new_relay()
    relay.turn()
    dying = leader(cluster)
    publish_many([OutgoingEvent(TOPIC, n, "one") for n in range(1, 2_000)])
    transport = relay._transport
    publish = transport.publish

    def kill_meanwhile(events, report, *, timeout):
        def and_kill(index, refusal=None):
            report(index, refusal)
            # The first confirm has come, most others are on their way.
            dying.kill()

        return publish(events, and_kill, timeout=timeout)

    monkeypatch.setattr(transport, "publish", kill_meanwhile)

    def is_empty() -> bool:
        relay.turn()
        return not OutboxMessage.objects.exists()

    wait_until(is_empty)

    assert list(dict.fromkeys(numbers(cluster))) == list(range(2_000))


def free_lanes() -> None:
    """Let another relay take the lanes."""
    from deadletter.models import OutboxLane, OutboxRelay

    OutboxLane.objects.update(leased_until=None)
    OutboxRelay.objects.all().delete()

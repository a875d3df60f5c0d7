from __future__ import annotations

from dataclasses import dataclass

import pytest

from deadletter import handler, payload_types
from deadletter.instances import TIMER, Flow, Flows
from deadletter.worker.registry import Handler, Registry, discover, registry
from tests.sample.payloads import TYPED


@dataclass
class Unresolved:
    nothing: Nothing  # noqa: F821 - the error under test


def first(message):
    """A handler."""


def second(message):
    """Another handler."""


async def waiting(message):
    """An async handler."""


@pytest.fixture
def name():
    yield "tests.registry"
    registry.remove("tests.registry")


def test_the_decorator_registers_and_returns_the_function(name):
    assert handler(name, timeout=30, atomic=True)(first) is first

    registered = registry.get(name)
    assert (registered.function, registered.atomic, registered.is_async) == (first, True, False)
    assert registered.timeout.total_seconds() == 30


def test_an_async_function_is_known_as_such(name):
    handler(name)(waiting)

    assert registry.get(name).is_async is True


def test_a_second_handler_for_a_name_is_refused_naming_both(name):
    handler(name)(first)

    with pytest.raises(ValueError, match="has two handlers") as refused:
        handler(name)(second)

    assert f"{__name__}.first" in str(refused.value)
    assert f"{__name__}.second" in str(refused.value)
    assert registry.get(name).function is first


def test_the_same_function_may_be_registered_again(name):
    handler(name)(first)
    handler(name, timeout=5)(first)

    assert registry.get(name).timeout.total_seconds() == 5


@pytest.mark.parametrize("bad", ["", "a b", "a\n", "x" * 201, "'; --"])
def test_a_bad_name_is_refused(bad):
    with pytest.raises(ValueError, match="cannot be a message name"):
        handler(bad)


@pytest.mark.parametrize("timeout", [-1, "soon", float("inf")])
def test_a_bad_timeout_is_refused(name, timeout):
    with pytest.raises(ValueError, match="timeout"):
        handler(name, timeout=timeout)(first)


def test_names_are_sorted():
    own = Registry()
    for each in "ba":
        own.add(Handler(name=each, function=first))

    assert own.names() == ["a", "b"]
    own.remove("a")
    assert (own.get("a"), own.names()) == (None, ["b"])


def test_what_is_known_is_written_by_kind_name_and_version():
    flows = Flows()
    for version in ("2", "1"):
        flows.add(Flow(name="grow", version=version, function=first))
    own = Registry(flows)
    for each in ("b", "a", TIMER):
        own.add(Handler(name=each, function=first))

    assert own.known() == [
        ["message", "a"],
        ["message", "b"],
        ["message", TIMER],
        ["orchestration", TIMER],
        ["orchestration", "grow", "1"],
        ["orchestration", "grow", "2"],
    ]
    asked = [
        ("message", "a", None),
        ("activity", "a", None),
        ("orchestration", "a", None),
        ("orchestration", "grow", None),
        ("orchestration", "grow", "2"),
        ("orchestration", "grow", "3"),
        ("orchestration", TIMER, None),
        ("message", "grow", None),
    ]
    known = [own.knows(*one) for one in asked]
    assert known == [True, True, False, True, True, False, True, False]


def test_modules_named_handlers_are_discovered():
    discover()

    assert "demo.greet" in registry.names()


def test_the_payload_types_of_another_registry_are_its_own():
    own = Registry()
    own.add(Handler(name="tests.registry", function=first, payload=TYPED))

    assert payload_types.of_handlers.get("tests.registry") is None


def test_a_payload_class_that_cannot_be_resolved_is_an_error_of_discovery(name):
    handler(name, payload=Unresolved)(first)

    with pytest.raises(TypeError, match=f"^handler {name}: payload: Unresolved: name 'Nothing'"):
        discover()

from __future__ import annotations

import pytest

from deadletter import handler
from deadletter.worker.registry import Handler, Registry, discover, registry


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


def test_modules_named_handlers_are_discovered():
    discover()

    assert "demo.greet" in registry.names()

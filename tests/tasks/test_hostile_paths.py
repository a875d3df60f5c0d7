"""Names of rows that try to run code: only code that importing an installed package runs."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.utils.functional import SimpleLazyObject

from deadletter.models import Message
from deadletter.tasks import lookup
from tests.patience import PATIENCE
from tests.sample import tasks

Module = Callable[..., types.ModuleType]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    """Make a module of an installed app that is imported already."""

    def make(name: str, **values: Any) -> types.ModuleType:
        made = types.ModuleType(name)
        vars(made).update(values)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    return make


@pytest.fixture
def forget() -> Iterator[None]:
    before = dict(lookup._found)
    yield
    lookup._found.clear()
    lookup._found.update(before)


#: What was run although only a path was looked at. `find` would swallow an exception.
ran: list[Any] = []


def refuse(*args: Any) -> Any:
    ran.append(args)
    raise AssertionError("code was run")


@pytest.fixture(autouse=True)
def nothing_runs() -> Iterator[None]:
    ran.clear()
    yield
    assert ran == []


class Client:
    """An object of an application whose attributes do something."""

    connection = property(refuse)

    def __getattr__(self, name: str) -> Any:
        return refuse()


def test_no_attribute_of_an_object_is_read(module: Module, forget):
    module("tests.sample.services", client=Client(), Client=Client)

    assert lookup.find("tests.sample.services.client.connection") is None
    assert lookup.find("tests.sample.services.client.anything") is None
    assert lookup.find("tests.sample.services.Client.connection") is None


def test_no_hook_of_a_module_is_called(module: Module, forget):
    module("tests.sample.lazy", __getattr__=refuse)

    assert lookup.find("tests.sample.lazy.anything") is None


def test_a_lazy_object_is_not_evaluated(module: Module, forget, monkeypatch):
    module("tests.sample.lazy", client=SimpleLazyObject(refuse), add=tasks.add)
    monkeypatch.setattr(lookup, "task_modules", lambda: ["tests.sample.lazy"])

    assert lookup.find("tests.sample.lazy.client") is None
    lookup.discover()

    assert "tests.sample.tasks.add" in lookup.known_paths()


def test_something_that_says_it_is_a_task_is_none(module: Module, forget):
    class Liar:
        __class__ = type(tasks.add)
        module_path = "tests.sample.liar.one"

    module("tests.sample.liar", one=Liar())

    assert isinstance(Liar(), type(tasks.add))
    assert lookup.find("tests.sample.liar.one") is None


@pytest.mark.parametrize(
    "path",
    [
        "tests.chaos.__main__.x",
        "tests.chaos.__main__",
        "__main__.x",
        "tests.sample.tasks.add.__class__",
        "tests.sample.tasks/../more_tasks.outside",
        "tests.sample.a-b.c",
        "tests.sample..tasks.add",
    ],
)
def test_odd_names_import_nothing(path: str, monkeypatch: pytest.MonkeyPatch, forget):
    monkeypatch.setattr(lookup, "import_module", refuse)
    monkeypatch.setattr(lookup, "find_spec", refuse)

    assert lookup.find(path) is None


def test_a_task_in_a_class_is_found(module: Module, forget, monkeypatch):
    def run() -> None: ...

    run.__module__, run.__qualname__ = "tests.sample.classes", "Holder.run"
    from deadletter.tasks import task

    inner = task(run)
    module("tests.sample.classes", Holder=type("Holder", (), {"run": inner}))

    assert lookup.find("tests.sample.classes.Holder.run") is inner


def test_a_module_that_exits_when_it_is_imported_is_logged(forget, monkeypatch, caplog):
    def leave(name: str) -> Any:
        raise SystemExit(3)

    monkeypatch.setattr(lookup, "import_module", leave)
    monkeypatch.setattr(lookup, "task_modules", lambda: ["tests.sample.leaving"])
    monkeypatch.setattr(lookup, "_logged", set())

    assert lookup.find("tests.sample.tasks.gone") is None
    lookup.discover()

    assert [record.message.split()[1] for record in caplog.records] == [
        "tests.sample.tasks",
        "tests.sample.leaving",
    ]


def test_paths_that_lead_nowhere_are_not_remembered(forget):
    before = len(lookup._found)

    for number in range(100):
        assert lookup.find(f"tests.sample.tasks.gone_{number}") is None

    assert len(lookup._found) == before


def test_a_task_that_is_looked_for_while_its_module_is_imported_is_found_later(
    module: Module, forget
):
    half = module("tests.sample.half")

    first = lookup.find("tests.sample.half.run")

    def run() -> None: ...

    run.__module__, run.__qualname__ = "tests.sample.half", "run"
    from deadletter.tasks import task

    half.run = task(run)  # type: ignore[attr-defined]
    assert first is None
    assert lookup.find("tests.sample.half.run") is half.run


def test_threads_that_look_for_one_task_find_the_same(forget):
    lookup._found.pop("tests.sample.tasks.add", None)
    barrier, found = threading.Barrier(8), []

    def look() -> None:
        barrier.wait(PATIENCE)
        found.append(lookup.find("tests.sample.tasks.add"))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert [task is tasks.add for task in found] == [True] * 8


@pytest.mark.django_db
@pytest.mark.parametrize(
    "hostile", ["{user_id.__class__}", "{0}", "{", "}}", "%s", "{user_id.__init__.__globals__}"]
)
def test_an_argument_is_data_and_no_template(hostile: str, clock):
    result = tasks.welcome.enqueue(hostile)

    row = Message.objects.get(pk=result.id)

    assert (row.stream, row.key) == (f"user-{hostile}", f"welcome-{hostile}")

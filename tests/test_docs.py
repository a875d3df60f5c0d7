"""What the documentation says is true: samples run, names exist, links lead somewhere."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.core.management import load_command_class

from deadletter import FailureReason, Status, conf, sql, testing
from deadletter.models import (
    AuditEntry,
    Count,
    InboxMessage,
    Instance,
    InstanceEvent,
    Message,
    OnPoison,
    OutboxLane,
    OutboxMessage,
    OutboxPause,
    OutboxRelay,
    PoisonRecord,
    PublishedMessage,
    Queue,
    Result,
    Schedule,
    ScheduleRun,
    StreamPolicy,
)
from deadletter.tasks import frameworks, lookup
from deadletter.worker.registry import discover, registry

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

#: Words in capitals that are nobody's constant but ours to mention.
OTHER_CAPITALS = {"DEADLETTER", "DATABASE_URL", "INSTALLED_APPS", "LOGGING", "DATABASES", "NOTIFY"}
OTHER_CAPITALS |= {"TIME_ZONE", "DEBUG", "ATOMIC_REQUESTS", "MEDIA_ROOT"}
OTHER_CAPITALS |= {"WAGTAILIMAGES_FEATURE_DETECTION_ENABLED"}
OTHER_CAPITALS |= set(conf.RELEASE_VARIABLES)
#: Of Django Tasks and of other backends.
OTHER_CAPITALS |= {
    "TASKS",
    "OPTIONS",
    "TASK_MODULES",
    "TASK_OPTIONS",
    "DATABASE",
    "ENQUEUE_ON_COMMIT",
}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def prose(page: Path) -> str:
    """Return the text without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def quoted(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(page))


def table(page: Path, heading: str) -> list[list[str]]:
    """Return the cells of the rows of the table whose first column has this heading."""
    rows, inside = [], False
    for line in prose(page).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and cells[0] == heading:
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not cells[0].startswith("---"):
            rows.append(cells)
    assert rows, f"{page.name} has no table {heading!r}"
    return rows


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture
def quick_start(db: None) -> Any:
    """Run the samples of the README, file by file, as one module; forget its handlers after."""
    discover()  # what the site itself registers must not be forgotten below
    before = set(registry.names())
    samples: dict[str, str] = {}
    for block in blocks(README):
        file = re.match(r"# (\S+\.py)\n", block)
        assert file, f"a sample does not say which file it belongs to:\n{block}"
        samples[file[1]] = samples.get(file[1], "") + block
    space: dict[str, Any] = {"__name__": "shop.samples"}
    run_task_samples(samples, space)
    for file in ("shop/handlers.py", "shop/orders.py", "shop/tests.py"):
        exec(compile(samples.pop(file), file, "exec"), space)
    settings: dict[str, Any] = {}
    exec(samples.pop("settings.py"), settings)
    assert not samples, "samples nobody runs"
    space["settings"] = settings
    yield space
    for name in set(registry.names()) - before:
        registry.remove(name)


def run_task_samples(samples: dict[str, str], space: dict[str, Any]) -> None:
    """Run the samples with tasks; the module `shop.tasks` exists while they are imported."""
    module = ModuleType("shop.tasks")
    name = frameworks.primary().name
    source = samples.pop("shop/tasks.py").replace("from django.tasks", f"from {name}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "shop", ModuleType("shop"))
        patch.setitem(sys.modules, "shop.tasks", module)
        exec(compile(source, "shop/tasks.py", "exec"), vars(module))
        exec(compile(samples.pop("shop/people.py"), "shop/people.py", "exec"), space)


def test_the_task_of_the_quick_start_is_enqueued_and_run(quick_start, clock, monkeypatch) -> None:
    Queue.objects.create(name="mail")
    result = quick_start["register"]("Ada")
    monkeypatch.setattr(lookup, "find", lambda path: quick_start["greet"])

    assert testing.drain().completed == 1

    result.refresh()
    assert result.return_value == "Hello, Ada"
    assert quick_start["settings"]["TASKS"]["default"]["BACKEND"] == lookup.BACKEND


def test_the_settings_of_the_quick_start_are_valid(quick_start, settings) -> None:
    settings.DEADLETTER = quick_start["settings"]["DEADLETTER"]

    assert conf.problems() == []
    assert quick_start["settings"]["INSTALLED_APPS"] == ["deadletter"]


def test_the_quick_start_sends_and_handles(quick_start, counts, clock) -> None:
    Queue.objects.create(name="mail", **quick_start["settings"]["DEADLETTER"]["QUEUES"]["mail"])

    quick_start["place_order"](1, quantity=2)
    quick_start["place_many"]([2, 3])
    assert counts() == {"pending": 3, "scheduled": 1}
    clock.advance(301)

    assert testing.drain().completed == 4
    assert counts() == {}


def test_the_tests_of_the_quick_start_pass(quick_start) -> None:
    found = [name for name in quick_start if name.startswith("test_")]
    assert len(found) == 2

    for name in found:
        quick_start[name](None)
        Message.objects.all().delete()
        PoisonRecord.objects.all().delete()


@each_page
def test_every_sample_is_python(page: Path) -> None:
    for block in blocks(page):
        compile(block, str(page), "exec")


@each_page
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_file(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def worker_options() -> set[str]:
    parser = load_command_class("deadletter", "run_worker").create_parser("manage.py", "run_worker")
    return {option for action in parser._actions for option in action.option_strings}


def operator_parser() -> Any:
    command = load_command_class("deadletter", "deadletter")
    command._called_from_command_line = True
    return command.create_parser("manage.py", "deadletter")


def operator_parts() -> dict[str, set[str]]:
    """Return the sub-commands with their long options."""
    (parts,) = [a.choices for a in operator_parser()._actions if isinstance(a.choices, dict)]
    return {
        name: {o for action in part._actions for o in action.option_strings if o[:2] == "--"}
        - {"--help"}
        for name, part in parts.items()
    }


def operator_options() -> set[str]:
    return set().union(*operator_parts().values())


@each_page
def test_every_option_exists(page: Path) -> None:
    options = {re.split("[= ]", text)[0] for text in quoted(page) if re.match(r"--[a-z]", text)}

    assert options <= worker_options() | operator_options()


@each_page
def test_every_command_line_is_understood(page: Path) -> None:
    """What is to be copied must parse; ID and WHEN stand for values."""
    lines = [text for text in quoted(page) if text.startswith("manage.py deadletter ")]
    for block in blocks(page, "sh"):
        lines += [line for line in block.splitlines() if line.startswith("manage.py deadletter ")]
    for line in lines:
        words = ["1" if word == "ID" else word for word in shlex.split(line, comments=True)[2:]]
        if words == ["COMMAND"] or words == ["COMMAND", "--help"]:
            continue
        try:
            operator_parser().parse_args(words)
        except SystemExit:
            raise AssertionError(f"{page.name}: {line}") from None


def test_the_page_of_the_command_line_lists_every_part_and_option() -> None:
    page = ROOT / "docs" / "command-line.md"
    parts = operator_parts()

    assert {names(row[0])[0] for row in table(page, "command")} == set(parts)
    text = prose(page)
    shared = text.split("## list")[0]
    for part, options in parts.items():
        section = part if part not in ("release", "poison") else "release and poison"
        own = text.split(f"\n## {section}\n")[1].split("\n## ")[0]
        if part == "remove":  # "the same as retry"
            own += text.split("\n## retry\n")[1].split("\n## ")[0]
        missing = {option for option in options if option not in own + shared}
        assert not missing, f"{part}: {missing}"


def test_the_readme_lists_every_option_of_the_worker() -> None:
    listed = {name for row in table(README, "option") for name in names(row[0])}
    common = {"--help", "--version", "--verbosity", "--settings", "--pythonpath", "--traceback"}
    common |= {"--no-color", "--force-color", "--skip-checks"}

    assert listed == {name for name in worker_options() if name.startswith("--")} - common


def test_the_readme_lists_every_setting_and_its_default() -> None:
    listed = [name for row in table(README, "key") for name in names(row[0])]

    assert sorted(listed) == sorted(conf._READERS)
    defaults = conf.Settings()
    assert defaults.payload_limit == 262144
    assert defaults.stream_cap == 25
    assert defaults.handler_timeout is not None
    assert defaults.handler_timeout.total_seconds() == 3600


def test_the_readme_lists_every_field_of_a_queue() -> None:
    listed = [name for row in table(README, "field of a queue") for name in names(row[0])]
    fields = [field.name for field in Queue._meta.concrete_fields]

    assert sorted(listed) == sorted(set(fields) - {"id", "name"})


def test_the_readme_lists_every_stream_policy() -> None:
    assert [names(row[0])[0] for row in table(README, "policy")] == list(StreamPolicy)
    assert "quarantine" in OnPoison


@each_page
def test_every_constant_exists(page: Path) -> None:
    known = set(FailureReason.__members__) | set(Status.__members__) | set(conf._READERS)
    mentioned = {text for text in quoted(page) if re.fullmatch(r"[A-Z][A-Z_]{3,}", text)}

    assert mentioned <= known | OTHER_CAPITALS


@each_page
def test_every_dotted_name_exists(page: Path) -> None:
    modules = ("lifecycle", "operations", "testing", "signals", "models", "clock", "conf")
    for text in quoted(page):
        path = text.split("(")[0].removeprefix("deadletter.")
        module, _, name = path.partition(".")
        if module not in modules or "/" in text or text.endswith(".py") or not name:
            continue
        found: Any = importlib.import_module(f"deadletter.{module}")
        for part in name.split("."):
            assert hasattr(found, part), f"{page.name}: {text}"
            found = getattr(found, part)


@each_page
def test_every_file_named_exists(page: Path) -> None:
    for text in quoted(page):
        if re.fullmatch(r"[\w./-]+/[\w.-]+\.(py|sql|html|md)", text):
            assert (ROOT / text).exists() or (ROOT / "deadletter" / text).exists(), text


def test_every_statement_named_in_the_architecture_exists() -> None:
    page = ROOT / "docs" / "architecture.md"
    named = {name for row in table(page, "step") for name in names(row[2])}

    assert named <= set(sql.statements("postgresql"))
    # A statement nobody is told about is a verb nobody is told about.
    assert set(sql.statements("postgresql")) <= named


def test_every_index_is_described_in_the_architecture() -> None:
    page = ROOT / "docs" / "architecture.md"
    listed = {name for row in table(page, "index") for name in names(row[0])}
    outbox = (
        OutboxMessage,
        OutboxLane,
        OutboxRelay,
        OutboxPause,
        PublishedMessage,
        InboxMessage,
    )
    models = (Message, PoisonRecord, Result, Count, Instance, InstanceEvent, AuditEntry, *outbox)
    models = (*models, Schedule, ScheduleRun)
    real = {index.name for model in models for index in model._meta.indexes}
    unique = {c.name for m in models for c in m._meta.constraints if hasattr(c, "fields")}

    assert listed == real | unique

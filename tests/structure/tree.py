"""Names and sizes of the modules of the package, read from the source."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "deadletter"

#: Words that end like a gerund or a participle and are neither.
NOUNS = {"testing", "tracing", "string", "setting"}
#: Stems that Django gives a meaning of their own.
CONVENTIONS = {"__init__", "admin", "urls"}
#: Class names that Django looks up by themselves.
DJANGO_CLASSES = {"Command", "Media", "Meta", "Migration"}


@dataclass(frozen=True)
class Module:
    path: str
    stem: str
    #: The sub-package of `deadletter` that it is in; "" for the root.
    package: str
    lines: int
    tree: ast.Module


def modules(package: Path = PACKAGE) -> list[Module]:
    """Return the modules of the package, without migrations and empty files."""
    return list(_modules(package))


def _modules(package: Path) -> Iterator[Module]:
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package)
        text = path.read_text()
        if "migrations" in place.parts or not text:
            continue
        yield Module(
            path=place.as_posix(),
            stem=path.stem,
            package=place.parts[0] if len(place.parts) > 1 else "",
            lines=text.count("\n"),
            tree=ast.parse(text),
        )


def median_length(found: list[Module]) -> float:
    return median(module.lines for module in found)


def gerunds(found: list[Module]) -> list[str]:
    """Return the modules whose name is a gerund or a participle."""
    is_verbal = re.compile(r"(?:^|_)[a-z]{2,}(?:ing|ed)$")
    return [
        module.path
        for module in found
        if is_verbal.search(module.stem) and module.stem not in NOUNS
    ]


def duplicate_stems(found: list[Module]) -> dict[str, list[str]]:
    """Return the names that two modules of one sub-package have."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for module in found:
        if module.stem not in CONVENTIONS:
            places[module.package, module.stem].append(module.path)
    return {
        f"{package}: {stem}": paths for (package, stem), paths in places.items() if len(paths) > 1
    }


def duplicate_classes(found: list[Module]) -> dict[str, list[str]]:
    """Return the class names that two modules define, private ones included."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in found:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and node.name not in DJANGO_CLASSES:
                places[node.name].append(module.path)
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def hidden_modules(found: list[Module]) -> list[str]:
    """Return the modules that have the name of a function which their package exports."""
    exported: dict[str, set[str]] = defaultdict(set)
    for module in found:
        if module.stem == "__init__":
            for node in module.tree.body:
                if isinstance(node, ast.ImportFrom) and node.module:
                    exported[str(Path(module.path).parent)] |= {
                        alias.asname or alias.name for alias in node.names
                    }
    return [
        module.path for module in found if module.stem in exported[str(Path(module.path).parent)]
    ]


def questions(found: list[Module]) -> list[str]:
    """Return the docstrings of modules, classes and functions that open with a question."""
    return [
        f"{module.path}: {line}"
        for module in found
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for line in [(ast.get_docstring(node) or "").partition("\n")[0]]
        if re.match(r"[^.]*\?(?!\")", line)
    ]


def untyped_admins(found: list[Module]) -> int:
    """Count the functions of the admin that take their ModelAdmin as Any."""
    return sum(
        argument.arg == "model_admin"
        and isinstance(argument.annotation, ast.Name)
        and argument.annotation.id == "Any"
        for module in found
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef)
        for argument in node.args.args
    )

"""
Print the measures of the tree, and the walk of one message: `python -m tests.structure`.

With `-v` every name that is counted is printed too.
"""

from __future__ import annotations

import subprocess
import sys

from . import tree


def main(verbose: bool) -> None:
    found = tree.modules()
    measures = {
        "modules": len(found),
        "lines": sum(module.lines for module in found),
        "median length of a module": tree.median_length(found),
        "gerunds and participles": tree.gerunds(found),
        "stems twice in a sub-package": tree.duplicate_stems(found),
        "class names twice": tree.duplicate_classes(found),
        "modules hidden by a function": tree.hidden_modules(found),
        "docstrings that are questions": tree.questions(found),
        "functions with an untyped ModelAdmin": tree.untyped_admins(found),
    }
    for name, value in measures.items():
        print(f"{name:38} {value if isinstance(value, int | float) else len(value)}")
        if verbose and not isinstance(value, int | float):
            for item in value.items() if isinstance(value, dict) else value:
                print("   ", item)
    # In a process of its own: it is the one that runs a worker and opens a database.
    walk = [sys.executable, "-m", "tests.structure.walk", *(["-v"] if verbose else [])]
    run = subprocess.run(walk, capture_output=True, text=True, check=True)
    print(f"{'the walk of one message':38} {run.stdout.strip()}")


if __name__ == "__main__":
    main("-v" in sys.argv)

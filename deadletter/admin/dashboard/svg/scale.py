"""Which whole numbers label an axis that begins at 0?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

#: Steps between two labels, times a power of ten: what people count in.
_NICE = (1, 2, 5)
_UNITS = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def ticks(top: int, *, about: int = 4) -> tuple[int, ...]:
    """
    Return labels from 0 to the first nice number not below `top`, at most `about` steps.

    ticks(0) is (0, 1), ticks(7) is (0, 2, 4, 6, 8), ticks(130) is (0, 50, 100, 150).
    """
    step = next(step for step in _steps() if step * about >= top)
    last = max(-(-top // step), 1)
    return tuple(step * n for n in range(last + 1))


def compact(number: int) -> str:
    """Write a number in the room an axis has: 950, 1.5k, 12k, 3M."""
    for size, unit in _UNITS:
        if abs(number) >= size:
            whole = f"{number / size:.1f}".removesuffix(".0")
            return f"{whole}{unit}"
    return str(number)


def _steps() -> Iterator[int]:
    return (nice * 10**power for power in count() for nice in _NICE)

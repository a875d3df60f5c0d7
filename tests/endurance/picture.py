"""A picture of a long run: a panel for each quantity, a line for each process; plain SVG."""

from __future__ import annotations

from collections.abc import Sequence

WIDTH, HEIGHT, LEFT, GAP = 760, 130, 60, 46
COLORS = ("#b3261e", "#3b6ea5", "#8a8a8a")
#: Title of each panel, and how the names of its series end.
PANELS = {
    "memory of each worker, MB": " MB",
    "open files of each worker": " files",
    "connections to the database": "connections",
    "messages in the queue": "messages",
    "poison records (kept for five minutes)": "poison",
}


def draw(samples: Sequence[dict[str, float]]) -> str:
    """Draw every panel from zero, one below the other, over minutes."""
    parts = [_panel(title, end, n, samples) for n, (title, end) in enumerate(PANELS.items())]
    height = len(PANELS) * (HEIGHT + GAP) + 10
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _panel(title: str, end: str, place: int, samples: Sequence[dict[str, float]]) -> str:
    names = [name for name in samples[0] if name.endswith(end)]
    top = max((sample[name] for sample in samples for name in names), default=0) * 1.1 or 1
    last = samples[-1]["second"] or 1
    base = place * (HEIGHT + GAP) + 24 + HEIGHT - 20
    depth = HEIGHT - 20
    lines = [
        f'<text x="{LEFT}" y="{base - depth - 8}" font-weight="bold">{title}</text>',
        f'<path d="M{LEFT} {base - depth}V{base}H{WIDTH - 10}" fill="none" stroke="#999999"/>',
        f'<text x="{LEFT - 6}" y="{base}" text-anchor="end">0</text>',
        f'<text x="{LEFT - 6}" y="{base - depth + 10}" text-anchor="end">{top:.0f}</text>',
        f'<text x="{WIDTH - 10}" y="{base + 15}" text-anchor="end">{last / 60:.0f} min</text>',
    ]
    for name, color in zip(names, COLORS, strict=False):
        points = " ".join(
            f"{LEFT + sample['second'] / last * (WIDTH - 10 - LEFT):.1f},"
            f"{base - sample[name] / top * depth:.1f}"
            for sample in samples
        )
        lines.append(f'<polyline points="{points}" fill="none" stroke="{color}"/>')
    return "\n".join(lines)

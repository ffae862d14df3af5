"""The roofline plot of a run of `benchmarks.attention`, as SVG text: a function of its JSON alone.

Across: FLOP per byte of the case, upwards: TFLOP/s that a kernel reached; both logarithmic. The roof is the
measured read bandwidth up to where the measured matmul rate is lower. A point names its case and figures in its
tooltip; what was slower than the best of its kind (ours, FlashInfer, torch) in a case is not drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.attention_cases import Case

WIDTH, HEIGHT = 900, 560
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 50, 100
KINDS = {"Nightcap": "#0a66c2", "FlashInfer": "#d1720c", "torch": "#6b6b6b"}
"""The first word of a kernel's name, and the colour of its points."""

ASIDE = 10
"""Pixels that FlashInfer's points are moved to the right, and torch's twice, so as not to cover ours."""


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis: values `low` to `high` on pixels `start` to `stop`."""

    low: float
    high: float
    start: float
    stop: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.stop - self.start), 1)

    def ticks(self) -> list[float]:
        """1, 2 and 5 of every power of ten in the range."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        ticks = [step * 10.0**power for power in powers for step in (1, 2, 5)]
        return [tick for tick in ticks if self.low <= tick <= self.high]


def plot(run: dict[str, Any]) -> str:
    """SVG of the timed records of a run; an empty roof if there are none."""
    bandwidth, peak = run["limits"]["read_gb_per_s"] / 1e3, run["limits"]["matmul_tflop_per_s"]
    points = fastest(run["records"])
    intensities = [intensity(point) for point in points] or [1.0]
    rates = [point["tflop_per_s"] for point in points] or [peak / 10]
    across = Axis(min(intensities) / 2, max(*intensities, peak / bandwidth) * 2, LEFT, WIDTH - RIGHT)
    upwards = Axis(min(rates) / 2, peak * 1.5, HEIGHT - BOTTOM, TOP)
    title = f"{run['machine']['card']}, {run['date']}: decode attention under the roofline"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" role="img" aria-label="{escape(title, {chr(34): "&quot;"})}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 20, title, size=15),
        *_grid(across, upwards),
        _roof(across, upwards, bandwidth, peak),
        *_groups(points, across),
        *(_point(point, across, upwards) for point in points),
        *_legend(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def intensity(record: dict[str, Any]) -> float:
    """FLOP per byte that have to be read and written."""
    return float(record["tflop_per_s"] / record["gb_per_s"] * 1e3)


def fastest(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fastest timed record of every case and kind."""
    best: dict[tuple[Case, str], dict[str, Any]] = {}
    for record in records:
        if "us" in record:
            key = (Case.of(record), _kind(record))
            best[key] = min(best.get(key, record), record, key=lambda each: each["us"])
    return list(best.values())


def _kind(record: dict[str, Any]) -> str:
    return str(record["kernel"]).replace(",", " ").split()[0]


def _group(case: Case) -> str:
    heads = case.heads if case.family == "MLA" else f"{case.heads}/{case.kv_heads}"
    fp8 = ", fp8" if case.kv_dtype == "fp8" else ""
    return f"{case.family} {heads}, q {case.q_len}{fp8}"


def _grid(across: Axis, upwards: Axis) -> list[str]:
    left, right, low, high = across.start, across.stop, upwards.start, upwards.stop
    parts = []
    for tick in across.ticks():
        parts.append(_line([(across.at(tick), low), (across.at(tick), high)], "#e4e4e4"))
        parts.append(_text(across.at(tick), low + 16, f"{tick:g}"))
    for tick in upwards.ticks():
        parts.append(_line([(left, upwards.at(tick)), (right, upwards.at(tick))], "#e4e4e4"))
        parts.append(_text(left - 8, upwards.at(tick) + 4, f"{tick:g}", anchor="end"))
    middle = (low + high) / 2
    parts.append(_text((left + right) / 2, HEIGHT - 12, "FLOP per byte"))
    parts.append(f'<text transform="translate(18 {middle}) rotate(-90)" text-anchor="middle">TFLOP/s</text>')
    return parts


def _roof(across: Axis, upwards: Axis, bandwidth: float, peak: float) -> str:
    """The bandwidth line from where it enters the plot, then the matmul rate."""
    enters = max(across.low, upwards.low / bandwidth)
    corners = [(enters, enters * bandwidth), (peak / bandwidth, peak), (across.high, peak)]
    return _line([(across.at(x), upwards.at(y)) for x, y in corners], "black", 2)


def _groups(points: list[dict[str, Any]], across: Axis) -> list[str]:
    """Below the axis: which cases have about this intensity, in two rows so that neighbours do not meet."""
    groups: dict[str, list[float]] = {}
    for point in points:
        groups.setdefault(_group(Case.of(point)), []).append(intensity(point))
    ordered = sorted(groups.items(), key=lambda group: max(group[1]))
    return [
        _text(across.at(max(values)), HEIGHT - BOTTOM + 36 + 16 * (index % 2), name, colour="#444")
        for index, (name, values) in enumerate(ordered)
    ]


def _point(record: dict[str, Any], across: Axis, upwards: Axis) -> str:
    took = f"{record['us']:.1f} us, {100 * record['fraction_of_floor']:.0f} % of the floor"
    label = f"{Case.of(record)}: {record['kernel']}, {took}"
    kind = _kind(record)
    x, y = across.at(intensity(record)) + ASIDE * list(KINDS).index(kind), upwards.at(record["tflop_per_s"])
    return (
        f'<circle cx="{x:g}" cy="{y}" r="5" fill="{KINDS[kind]}" fill-opacity="0.75"><title>{escape(label)}</title>'
        "</circle>"
    )


def _legend() -> list[str]:
    parts = []
    for index, (kind, colour) in enumerate(KINDS.items()):
        y = TOP + 16 + 18 * index
        parts.append(f'<circle cx="{LEFT + 18}" cy="{y - 4}" r="5" fill="{colour}"/>')
        parts.append(_text(LEFT + 30, y, f"{kind}, its fastest kernel", anchor="start"))
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 12, colour: str = "black") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(text)}</text>'


def _line(points: list[tuple[float, float]], colour: str, width: int = 1) -> str:
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'

"""Reports as one page of HTML: rooflines, bars against peers, the table, and how it was measured.

The page holds all that it shows, runs no script and asks no network for anything; a policy in its head forbids both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import attrs as records

from oplet.bench import Report, Result, Timing, table

#: of a plot, in units of its own; the page scales it
WIDTH, HEIGHT = 560, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 544, 14, 330

_SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def render(reports: Sequence[Report]) -> str:
    """The page."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("oplet.bench", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("page.html.jinja")
    return template.render(sections=[_section(report) for report in reports], width=WIDTH, height=HEIGHT)


def _section(report: Report) -> dict[str, Any]:
    """What the template shows of one op."""
    numbered = list(enumerate(report.results, 1))
    ran = [(number, result) for number, result in numbered if result.device]
    bars = [bar for number, result in ran if (bar := Bars.of(number, result, report))]
    return {
        "report": report,
        "ceilings": table.ceilings(report),
        "plots": [plot for make in (_roofline, _traffic) if (plot := make(report, ran))],
        "bars": bars,
        "has_peers": any(len(one.bars) > 1 for one in bars),
        "columns": table.columns(report),
        "rows": list(enumerate(table.rows(report), 1)),
        "notes": list(table.notes(report)),
    }


# Plots -----------------------------------------------------------------------------------------------


@records.frozen
class Axis:
    """A logarithmic axis over whole decades.

    Attributes:
        low, high: its ends, powers of ten.
        start, end: where they are drawn.
        unit: of its values.
    """

    low: float
    high: float
    start: float
    end: float
    unit: str

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float, unit: str) -> Axis:
        """The decades that hold some values."""
        low = math.floor(math.log10(min(values)))
        high = max(math.ceil(math.log10(max(values))), low + 1)
        return cls(10.0**low, 10.0**high, start, end, unit)

    def __call__(self, value: float) -> float:
        """Where a value is drawn."""
        share = math.log10(value / self.low) / math.log10(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)

    @property
    def ticks(self) -> list[tuple[float, str]]:
        """Each decade: where it is drawn, and its label."""
        decades = round(math.log10(self.high / self.low))
        values = [self.low * 10**decade for decade in range(decades + 1)]
        step = 1 if decades <= 7 else 2
        return [(self(value), _si(value)) for value in values[::step]]


@records.frozen
class Point:
    """A case in a plot, with a place for its number that no other number takes."""

    x: float
    y: float
    number: int
    label_x: float
    label_y: float
    title: str


@records.frozen
class Plot:
    """Points under a roof: what the device reaches in the best case.

    Attributes:
        roof: corners of the line.
        names: of its parts: text, and where.
    """

    title: str
    caption: str
    x: Axis
    y: Axis
    roof: list[tuple[float, float]]
    names: list[tuple[str, float, float]]
    points: list[Point]


Numbered = Sequence[tuple[int, Result]]


def _roofline(report: Report, ran: Numbered) -> Plot | None:
    """Operations a second over operations a byte; the roof is the copy rate, then the rate of multiply-adds."""
    cases = [(number, one, one.flops / max(one.bytes, 1)) for number, one in ran if one.flops]
    if not cases:
        return None
    ridge = report.fma / report.copy
    x = Axis.over([ridge / 4, ridge * 4, *(intensity for *_, intensity in cases)], _LEFT, _RIGHT, "FLOP/byte")
    rates = [one.flops_per_second for _, one, _ in cases]
    # Down to where the roof meets the left edge, unless that is far below everything.
    y = Axis.over(
        [*rates, report.fma, report.fma * 1.5, max(report.copy * x.low, min(rates) / 10)], _BOTTOM, _TOP, "FLOP/s"
    )
    begin = max(x.low, y.low / report.copy)
    middle = math.sqrt(begin * ridge)
    roof = [(begin, begin * report.copy), (ridge, report.fma), (x.high, report.fma)]
    return Plot(
        "Roofline",
        "Each point is a case: its useful operations a second, over its operations for each byte of least traffic. "
        "The line is the most that this device reached in a plain copy, rising, and in float32 multiply-adds, level. "
        "Matrix units work above that level.",
        x,
        y,
        [(x(a), y(b)) for a, b in roof],
        [
            (f"copy {_si(report.copy)}B/s", x(middle) + 12, y(middle * report.copy) + 20),
            (f"FMA {_si(report.fma)}FLOP/s", x(ridge) - 44, y(report.fma) - 8),
        ],
        _points((number, one, x(intensity), y(one.flops_per_second)) for number, one, intensity in cases),
    )


def _traffic(report: Report, ran: Numbered) -> Plot | None:
    """Bytes a second over bytes, for cases whose operations are not counted."""
    cases = [(number, one) for number, one in ran if not one.flops and one.bytes]
    if not cases:
        return None
    x = Axis.over([*(one.bytes for _, one in cases)], _LEFT, _RIGHT, "bytes")
    y = Axis.over([report.copy * 1.5, *(one.bytes_per_second for _, one in cases)], _BOTTOM, _TOP, "B/s")
    return Plot(
        "Traffic",
        "Each point is a case that is a matter of memory: the rate at which it moves its least traffic, over how much "
        "that is. The line is the rate of a plain copy of a large buffer on this device.",
        x,
        y,
        [(x(x.low), y(report.copy)), (x(x.high), y(report.copy))],
        [(f"copy {_si(report.copy)}B/s", _LEFT + 6, y(report.copy) - 8)],
        _points((number, one, x(one.bytes), y(one.bytes_per_second)) for number, one in cases),
    )


def _points(cases: Iterator[tuple[int, Result, float, float]]) -> list[Point]:
    """Places each number beside its point, where it covers neither a point nor another number."""
    found = list(cases)
    taken = [(x, y) for *_, x, y in found]
    points = []
    for number, result, x, y in found:
        free = (
            (x + reach * math.cos(turn), y + reach * math.sin(turn))
            for reach in (13, 22, 32, 44)
            for turn in (math.tau * eighth / 8 for eighth in (0, 6, 2, 4, 7, 5, 1, 3))
        )
        place = next((one for one in free if _is_free(one, taken)), (x + 13, y))
        taken.append(place)
        title = f"{result.case}, {result.variant}: {table.seconds(result.device)}" if result.device else result.case
        points.append(Point(x, y, number, round(place[0], 1), round(place[1], 1), title))
    return points


def _is_free(place: tuple[float, float], taken: Sequence[tuple[float, float]]) -> bool:
    x, y = place
    inside = _LEFT + 8 < x < _RIGHT - 6 and _TOP + 6 < y < _BOTTOM - 6
    return inside and all(abs(x - a) > 14 or abs(y - b) > 11 for a, b in taken)


def _si(value: float) -> str:
    """`4.18 T`, to be followed by a unit."""
    scale, prefix = next((one for one in _SI if value >= one[0] * 0.9995), (1.0, ""))
    return f"{value / scale:.3g} {prefix}"


# Bars ------------------------------------------------------------------------------------------------


@records.frozen
class Bar:
    """One implementation's time, `share` of the longest in its case."""

    name: str
    text: str
    share: float
    ours: bool


@records.frozen
class Bars:
    """The times of one case.

    Attributes:
        least: the time in which the device could copy the case's traffic and do its operations, as a share too.
    """

    number: int
    case: str
    bars: list[Bar]
    least: float

    @classmethod
    def of(cls, number: int, result: Result, report: Report) -> Bars | None:
        """None for a case that did not run."""
        ours = result.device
        if ours is None:
            return None
        least = max(result.bytes / report.copy, result.flops / report.fma)
        peers = {name: time for name, time in result.peers.items() if isinstance(time, Timing)}
        longest = max(least, ours.median, *(time.median for time in peers.values()))

        def share(seconds: float) -> float:
            return round(100 * seconds / longest, 2)

        bars = [Bar(result.variant, table.seconds(ours), share(ours.median), ours=True)]
        for name, time in peers.items():
            words = f"{table.seconds(time)}, {time.median / ours.median:.2f}×"
            bars.append(Bar(name, words, share(time.median), ours=False))
        return cls(number, result.case, bars, share(least))

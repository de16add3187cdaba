"""Two runs of `oplet bench` side by side: what got faster or slower by more than the noise.

The noise of a time is what its quartiles span. Beside that a device may run at another clock in one of the runs,
which the rates of copying and multiplying tell: a device time has changed only by more than they have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import attrs as records

from oplet import strict
from oplet.bench import Report, Result, Timing, table
from oplet.errors import InputError

Verdict = Literal["faster", "slower", "within the noise"]

COLUMNS = ("case", "variant", "time", "before", "after", "change", "")


@records.frozen
class _File:
    reports: tuple[Report, ...]


def read_reports(path: Path) -> tuple[Report, ...]:
    """What `oplet bench --json` wrote.

    Raises:
        InputError: the file cannot be read, or is none of these.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return strict.parse(f'{{"reports": {text}}}', _File).reports
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: not a report of oplet bench\n{error}\npass a file that oplet bench --json has written"
        ) from error


@records.frozen
class Change:
    """One time in both runs.

    Attributes:
        case: its name.
        variant: what ran, `a → b` where another did.
        what: "device", or "host" for the time of the call.
        before, after: its times.
        drift: how far the device's rates differ between the runs, as a share; 0 for "host".
    """

    case: str
    variant: str
    what: Literal["device", "host"]
    before: Timing
    after: Timing
    drift: float = 0.0

    @property
    def ratio(self) -> float:
        """After over before: below 1 is faster."""
        return self.after.median / self.before.median

    @property
    def verdict(self) -> Verdict:
        """Whether the quartiles of the two lie apart, by more than the drift."""
        if self.after.high < self.before.low and self.ratio * (1 + self.drift) < 1:
            return "faster"
        if self.after.low > self.before.high and self.ratio > 1 + self.drift:
            return "slower"
        return "within the noise"


@records.frozen
class Comparison:
    """Two reports of one op."""

    before: Report
    after: Report

    @property
    def drift(self) -> float:
        """By how much the two rates of the device differ between the runs, the larger of them, as a share."""
        pairs = ((self.before.copy, self.after.copy), (self.before.fma, self.after.fma))
        return max(max(pair) / min(pair) - 1 for pair in pairs)

    def changes(self) -> Iterator[Change]:
        """A change for each time that both runs have."""
        for old, new in self._pairs():
            variant = new.variant if old.variant == new.variant else f"{old.variant} → {new.variant}"
            if old.device and new.device:
                yield Change(new.case, variant, "device", old.device, new.device, self.drift)
            if old.host and new.host:
                yield Change(new.case, variant, "host", old.host, new.host)

    def heading(self) -> Iterator[str]:
        """Lines that say what is compared."""
        yield f"{self.after.op} {_both(self.before.op_version, self.after.op_version)} on {self.after.adapter}"
        for name, one in (("before", self.before), ("after", self.after)):
            yield f"{name:6}  {f'{one.date}, ' if one.date else ''}{table.ceilings(one)}"

    def notes(self) -> Iterator[str]:
        """Lines that say what makes the two hard to compare, and what only one of them has."""
        for name in ("adapter", "implementation", "unchecked", "clock"):
            old, new = getattr(self.before, name), getattr(self.after, name)
            if old != new:
                yield f"NOT THE SAME {name}: {old} before, {new} after"
        for name in sorted({*self.before.versions, *self.after.versions}):
            old, new = (one.versions.get(name, "none") for one in (self.before, self.after))
            if old != new:
                yield f"{name}: {old} before, {new} after"
        pairs = list(self._pairs())
        for index, (when, report) in enumerate((("before", self.before), ("after", self.after))):
            for one in report.results:
                if not any(one is pair[index] for pair in pairs):
                    yield f"{one.case} {one.variant}: only {when}"
                elif one.fault:
                    yield f"{one.case} {when}: {one.fault}"

    def summary(self) -> str:
        """How many times got faster, slower and neither."""
        counts = Counter(change.verdict for change in self.changes())
        return ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("faster", "slower", "within the noise"))

    def _pairs(self) -> Iterator[tuple[Result, Result]]:
        """The results of one case: on the same variant, or on whichever one ran where a run has but one."""
        for new in self.after.results:
            same = [old for old in self.before.results if old.case == new.case]
            exact = [old for old in same if old.variant == new.variant]
            alone = len(same) == 1 == sum(other.case == new.case for other in self.after.results)
            if exact or alone:
                yield (exact or same)[0], new


def compare(before: Sequence[Report], after: Sequence[Report]) -> list[Comparison]:
    """A comparison for each op that both runs have."""
    return [Comparison(old, new) for new in after for old in before if old.op == new.op]


def rows(comparison: Comparison) -> Iterator[list[str]]:
    """The table, a row for each time."""
    for change in comparison.changes():
        yield [
            change.case,
            change.variant,
            change.what,
            table.seconds(change.before),
            table.seconds(change.after),
            f"{change.ratio - 1:+.1%}",
            change.verdict,
        ]


def _both(old: str, new: str) -> str:
    return new if old == new else f"{old} → {new}"

"""A report as text: a heading of how it was measured, and a table."""

from __future__ import annotations

from collections.abc import Iterator

from oplet.bench import Report, Result, Timing


def heading(report: Report) -> list[str]:
    """Lines that say what was measured, on what and how."""
    shaders = "unchecked shaders" if report.unchecked else "checked shaders"
    clock = {
        "timestamps": "device time at full clock, by timestamps, short runs back to back: median and quartile distance",
        "wall": "WALL TIME, submit and wait included: this device has no timestamps",
    }[report.clock]
    return [
        f"{report.op} {report.op_version} on {report.adapter} ({report.implementation}, {shaders})",
        clock,
        f"measured ceilings: {ceilings(report)}",
        *(["peers: the × tells how many of the op's times a peer takes"] if _peers(report) else []),
    ]


def _peers(report: Report) -> list[str]:
    """Those of any result: one that did not run has none."""
    return list(dict.fromkeys(name for result in report.results for name in result.peers))


def ceilings(report: Report) -> str:
    """The two rates of the device that everything is held against."""
    return f"copy {_rate(report.copy / 1e9)} GB/s, float32 FMA {_rate(report.fma / 1e12)} TFLOP/s"


def columns(report: Report) -> list[str]:
    """The header of the table."""
    return ["case", "variant", "time", "GB/s", "of copy", "TFLOP/s", "of FMA", "host", *_peers(report)]


def rows(report: Report) -> Iterator[list[str]]:
    """The table, a row for each result. A peer's cell tells its time, and how many of ours that is."""
    peers = _peers(report)
    for result in report.results:
        if result.device is None:
            yield [result.case, result.variant, "not run"]
            continue
        flops = result.flops_per_second
        yield [
            result.case,
            result.variant,
            seconds(result.device),
            _rate(result.bytes_per_second / 1e9),
            f"{result.bytes_per_second / report.copy:.0%}",
            _rate(flops / 1e12) if flops else "",
            f"{flops / report.fma:.0%}" if flops else "",
            seconds(result.host) if result.host else "",
            *(_peer(result, result.peers[name]) if name in result.peers else "" for name in peers),
        ]


def notes(report: Report) -> Iterator[str]:
    """A line for each case that did not run and each peer without a time, with the reason."""
    for result in report.results:
        if result.fault:
            yield f"{result.case}: {result.fault}"
    reasons = {(name, told) for one in report.results for name, told in one.peers.items() if isinstance(told, str)}
    for name, told in sorted(reasons):
        yield f"{name}: {told}"


def seconds(timing: Timing) -> str:
    """`12.3 µs ±4%`: the median and the larger distance of a quartile from it."""
    spread = max(timing.high - timing.median, timing.median - timing.low) / timing.median
    value = timing.median * 1e6
    text = f"{value:,.1f} µs" if value < 10_000 else f"{value / 1e3:,.1f} ms"
    return f"{text} ±{spread:.0%}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _peer(result: Result, peer: Timing | str) -> str:
    if isinstance(peer, str):
        return "—"
    if result.device is None:
        return seconds(peer)
    return f"{seconds(peer)} ({peer.median / result.device.median:.2f}×)"

"""Two runs of `oplet bench`: what counts as faster, and what of the files may not fit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oplet
import pytest
from attrs import evolve
from click.testing import CliRunner
from oplet.bench import Report, Result, Timing, compare
from oplet.cli import main


def result(case: str, device: tuple[float, float, float] | None, variant: str = "tiled", **more: Any) -> Result:
    """A result with quartiles and median in microseconds, as (low, median, high)."""
    timing = Timing(device[1] * 1e-6, device[0] * 1e-6, device[2] * 1e-6) if device else None
    return Result(case, variant, timing, None, 1 << 20, 1 << 26, **more)


def report(*results: Result, **more: Any) -> Report:
    usual = Report(
        op="com.acme.Gemm",
        op_version="1.0.0",
        adapter="Acme",
        implementation="wgpu",
        unchecked=False,
        clock="timestamps",
        copy=4e12,
        fma=50e12,
        versions={"oplet": "0.1.0"},
        results=results,
    )
    return evolve(usual, **more)


def verdicts(before: Report, after: Report) -> list[str]:
    return [change.verdict for change in compare.Comparison(before, after).changes()]


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        ((70, 71, 72), "faster"),
        ((110, 115, 120), "slower"),
        ((96, 98, 101), "within the noise"),  # its upper quartile reaches into what was before
        ((99, 106, 112), "within the noise"),
        ((98, 100, 102), "within the noise"),
    ],
)
def test_a_change_is_one_where_the_quartiles_lie_apart(after: tuple[float, float, float], verdict: str) -> None:
    assert verdicts(report(result("a", (98, 100, 102))), report(result("a", after))) == [verdict]


@pytest.mark.parametrize(("copy", "fma"), [(3.5e12, 50e12), (4e12, 43e12)])
def test_a_device_that_was_slower_as_a_whole_makes_no_op_slower(copy: float, fma: float) -> None:
    before = report(result("a", (98, 100, 102)))
    assert verdicts(before, report(result("a", (108, 110, 112)), copy=copy, fma=fma)) == ["within the noise"]
    assert verdicts(before, report(result("a", (128, 130, 132)), copy=copy, fma=fma)) == ["slower"]
    assert verdicts(report(result("a", (108, 110, 112)), copy=copy, fma=fma), before) == ["within the noise"]


def test_the_clock_of_the_device_says_nothing_of_the_host() -> None:
    before, after = (
        report(evolve(result("a", (98, 100, 102)), host=Timing(host, host * 0.99, host * 1.01)), copy=copy)
        for host, copy in ((40e-6, 4e12), (46e-6, 2e12))
    )
    device, host = compare.Comparison(before, after).changes()
    assert (device.what, device.verdict) == ("device", "within the noise")
    assert (host.what, host.verdict, host.drift) == ("host", "slower", 0)


def test_a_case_is_compared_with_itself() -> None:
    before = report(result("a", (1, 1, 1), "x"), result("a", (2, 2, 2), "y"), result("b", (3, 3, 3), "x"))
    after = report(result("a", (4, 4, 4), "y"), result("a", (5, 5, 5), "z"), result("b", (6, 6, 6), "y"))
    comparison = compare.Comparison(before, after)
    found = [(one.case, one.variant, round(one.ratio, 3)) for one in comparison.changes()]
    assert found == [("a", "y", 2), ("b", "x → y", 2)]
    assert list(comparison.notes()) == ["a x: only before", "a z: only after"]


def test_what_makes_two_runs_hard_to_compare_is_said() -> None:
    before = report(result("a", None, fault="no matrices here"), versions={"oplet": "0.1.0", "numpy": "2.0"})
    after = report(result("a", (1, 1, 1)), adapter="Other", unchecked=True)
    assert list(compare.Comparison(before, after).notes()) == [
        "NOT THE SAME adapter: Acme before, Other after",
        "NOT THE SAME unchecked: False before, True after",
        "numpy: 2.0 before, none after",
        "a before: no matrices here",
    ]


def test_ops_are_compared_with_themselves() -> None:
    both, other = report(result("a", (1, 1, 1))), report(result("a", (1, 1, 1)), op="com.acme.Other")
    assert [one.after.op for one in compare.compare([both, other], [other, both])] == [
        "com.acme.Other",
        "com.acme.Gemm",
    ]


def written(path: Path, *reports: Report) -> Path:
    path.write_text(json.dumps([one.as_json() for one in reports]))
    return path


def test_a_report_reads_back_as_it_was(tmp_path: Path) -> None:
    peers = {"torch": Timing(1.0, 1.0, 1.0), "fla": "is not installed"}
    one = report(result("a", (1, 2, 3), peers=peers), result("b", None, fault="why"), date="today")
    assert compare.read_reports(written(tmp_path / "a.json", one)) == (one,)
    assert json.loads((tmp_path / "a.json").read_text())[0]["results"][0]["peers"]["fla"] == "is not installed"


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "not JSON"), ('[{"op": 1}]', r"\$\.reports\[0\]\.op: expected str"), ("{}", "expected a list")],
)
def test_a_file_that_is_no_report_is_named(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "odd.json"
    file.write_text(text)
    with pytest.raises(oplet.InputError, match=rf"(?s)odd\.json: not a report of oplet bench.*{problem}.*--json"):
        compare.read_reports(file)
    with pytest.raises(oplet.InputError, match="absent"):
        compare.read_reports(tmp_path / "absent.json")


class TestCommand:
    def run(self, *arguments: str | Path) -> Any:
        return CliRunner().invoke(main, ["bench", *map(str, arguments)], prog_name="oplet")

    def test_what_is_measured_is_written_and_compared(self, install: Callable[[str], Path], tmp_path: Path) -> None:
        install("acme_measured")
        file, page_file = tmp_path / "a.json", tmp_path / "a.html"
        done = self.run("com.acme.Affine", "--rounds", "1", "--json", file, "--html", page_file)
        assert done.exit_code == 0, done.output
        page = page_file.read_text(encoding="utf-8")
        (measured,) = compare.read_reports(file)
        assert page.startswith("<!doctype html>")
        assert all(one.case in page and one.variant in page for one in measured.results)
        assert measured.date in page
        compared = self.run("--compare", file, file)
        assert compared.exit_code == 0, compared.output
        # Two cases, each with the times of the device and of the host.
        assert compared.output.endswith("0 faster, 0 slower, 4 within the noise\n")

    def test_a_gain_is_shown(self, tmp_path: Path) -> None:
        a = written(tmp_path / "a.json", report(result("square", (98, 100, 102))))
        b = written(tmp_path / "b.json", report(result("square", (49, 50, 51))))
        done = self.run("com.acme.Gemm", "--compare", a, b)
        assert "square   tiled     device   100.0 µs ±2%   50.0 µs ±2%   -50.0%   faster" in done.output
        assert done.output.endswith("1 faster, 0 slower, 0 within the noise\n")

    def test_what_cannot_be_compared_is_refused(self, tmp_path: Path) -> None:
        a = written(tmp_path / "a.json", report(result("a", (1, 1, 1))))
        b = written(tmp_path / "b.json", report(result("a", (1, 1, 1)), op="com.acme.Other"))
        done = self.run("--compare", a, b)
        assert done.exit_code == 2
        assert "no op in common: com.acme.Gemm in" in done.output
        assert "times nothing" in self.run("--compare", a, a, "--html", tmp_path / "a.html").output
        absent = self.run("--compare", a, tmp_path / "absent.json")
        assert (absent.exit_code, absent.output[:11]) == (1, "InputError:")

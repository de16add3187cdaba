"""Pages of the documentation that are made from something: from the ops, and from measurements."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import oplet
import pytest
from environments import PACKAGES, ROOT, entries
from oplet import errors
from oplet.bench import Report, Result, Timing
from oplet.errors import OpletError, PluginError

sys.path.append(str(ROOT / "docs"))

import measured_pages
import op_pages


def test_the_page_of_errors_has_them_all() -> None:
    told = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`)?", (ROOT / "docs/errors.md").read_text("utf-8"), re.MULTILINE)
    there = {
        (error.__name__, next((base.__name__ for base in error.__bases__ if base is not OpletError), ""))
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, OpletError) and error not in (OpletError, PluginError)
    }
    assert sorted(told) == sorted(there)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    written = op_pages.write(tmp_path_factory.mktemp("ops"))
    return {page.stem: page.read_text(encoding="utf-8") for page in written}


def rows(page: str, heading: str) -> list[list[str]]:
    """The table under a heading, without its header."""
    section = page.partition(f"### {heading}\n")[2].partition("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_every_op_has_a_page_of_its_own_and_a_line_in_the_index(pages: dict[str, str]) -> None:
    ops = {op.rpartition(".")[2] for package in PACKAGES for op in entries(package)}
    assert set(pages) == ops | {"index"}
    assert all(f"({op}.md)" in pages["index"] for op in ops)
    # What the README says before the contract is about this op, not about another of its distribution.
    beginnings = {pages[op].partition("## Contract")[0].partition("\n")[2] for op in ops}
    assert len(beginnings) == len(ops)


def test_a_page_has_the_whole_contract(pages: dict[str, str]) -> None:
    registry = oplet.Registry()
    for op in registry.ids:
        page = pages.get(op.rpartition(".")[2])
        if page is None:  # an op of the examples
            continue
        manifest = registry[op].manifest
        for heading, ports in (("Inputs", manifest.inputs), ("Outputs", manifest.outputs)):
            assert [row[0] for row in rows(page, heading)] == [
                "<br>".join(f"`{name}`" for name in port.names) for port in ports
            ]
            assert all(port.shape in row[1] for row, port in zip(rows(page, heading), ports, strict=True))
        assert [row[0] for row in rows(page, "Attributes")] == [f"`{one.name}`" for one in manifest.attributes]
        assert [row[0] for row in rows(page, "Variants")] == [f"`{one.name}`" for one in registry[op].variants]


def test_what_a_variant_needs_is_found_out(pages: dict[str, str]) -> None:
    needs = {name.strip("`"): needs for name, needs, _ in rows(pages["FusedGemm"], "Variants")}
    assert needs["tiled_scalar"] == "`shader-f16` for float16"
    assert needs["skinny"] == "`subgroups`, `shader-f16` for float16"
    assert needs["subgroup_matrix"].startswith("`shader-f16`, `subgroup-matrix`")


def test_a_measurement_becomes_a_page_and_a_report(tmp_path: Path) -> None:
    time = Timing(1e-5, 1e-5, 1e-5)
    results = (
        Result("even", "", None, None, 0, 0, fault="nothing takes it"),
        Result("square", "tiled", time, time, 1 << 20, 1 << 26, {"torch": Timing(2e-5, 2e-5, 2e-5)}),
        Result("odd", "", None, None, 0, 0, fault="nothing takes it"),
    )
    versions = {"oplet": "0.1.0"}
    report = Report("com.acme.Gemm", "1", "Acme", "wgpu", False, "timestamps", 4e12, 5e13, versions, results, "today")
    (tmp_path / "acme.json").write_text(json.dumps([report.as_json()]))
    measured_pages.write(tmp_path)
    page = (tmp_path / "acme.md").read_text()
    assert "| square | tiled | 10.0 µs ±0% |" in page
    assert "20.0 µs ±0% (2.00×) |" in page
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert table[0].endswith("| host | torch |")
    assert "- odd: nothing takes it" in page
    assert "\nacme\n" in (tmp_path / "index.md").read_text()
    measured_pages.write_reports(tmp_path, tmp_path / "out")
    assert "<!doctype html>" in (tmp_path / "out/acme-report.html").read_text()

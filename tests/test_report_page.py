"""The page of `oplet bench --html`, opened in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page, browse, find
from oplet.bench import Report, Result, Timing, page

PHONE = (390, 844)
DESKTOP = (1280, 900)


def timing(microseconds: float) -> Timing:
    return Timing(microseconds * 1e-6, microseconds * 0.97e-6, microseconds * 1.02e-6)


def report(op: str, *results: Result) -> Report:
    return Report(
        op=op,
        op_version="1.2.3",
        adapter="Acme <b>GPU</b> & Sons",
        implementation="wgpu",
        unchecked=False,
        clock="timestamps",
        copy=4e12,
        fma=50e12,
        versions={"python": "3.12.1", "oplet": "0.1.0"},
        results=results,
        date="2026-01-02 03:04 UTC",
    )


#: four cases below the roof, one that cannot run; a name that must not become markup; peers with and without a time
GEMM = report(
    "com.acme.Gemm",
    Result("small", "tiled", timing(10), timing(40), 1 << 20, 1 << 26, {"torch": timing(20), "fla": "no fla here"}),
    Result("large", "tiled", timing(900), timing(40), 1 << 28, 1 << 35, {"torch": timing(450), "fla": "no fla here"}),
    Result("<script>alert(1)</script>", "rows", timing(30), None, 1 << 26, 1 << 27, {"torch": "lost", "fla": "lost"}),
    Result("x" * 120, "rows", timing(31), timing(40), 1 << 26, 1 << 27, {"torch": timing(31), "fla": "no fla here"}),
    Result("matrix", "matrices", None, None, 0, 0, fault="matrices: needs subgroup-matrix"),
)
STREAM = report("com.acme.Stream", Result("long", "rows", timing(250), timing(40), 900_000_000, 0))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    chromium = find()
    if chromium is None:
        pytest.skip("the page of oplet bench --html in a browser: no Chromium here, apt-get install chromium")
    folder = tmp_path_factory.mktemp("page")
    file = folder / "report.html"
    file.write_text(page.render([GEMM, STREAM]), encoding="utf-8")
    with browse(chromium, folder / "profile") as tab:
        tab.open(file)
        yield tab


def test_it_asks_for_nothing_and_complains_of_nothing(opened: Page) -> None:
    opened.evaluate("document.title")  # whatever it had to say has come by now
    assert [url.rpartition("/")[2] for url in opened.requests if not url.startswith("data:")] == ["report.html"]
    assert opened.complaints == []


def test_a_complaint_and_a_request_would_be_seen(opened: Page, tmp_path: Path) -> None:
    chromium = find()
    assert chromium
    bad = tmp_path / "bad.html"
    bad.write_text("<script>console.error('no'); lost()</script><img src=other.png>")
    with browse(chromium, tmp_path / "profile") as tab:
        tab.open(bad)
        tab.evaluate("0")
        assert tab.requests == [bad.as_uri(), (tmp_path / "other.png").as_uri()]
        assert len(tab.complaints) >= 3


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_it_fits_the_screen(opened: Page, size: tuple[int, int]) -> None:
    opened.resize(*size)
    assert opened.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert opened.evaluate("innerWidth") == size[0]
    # Text in a plot shrinks with it, and must stay readable.
    assert opened.evaluate("13 * document.querySelector('svg').getBoundingClientRect().width / 560") >= 8
    assert len(opened.screenshot()) > 10_000  # an empty page has a fifth of that


def test_every_case_is_a_point_in_its_plot(opened: Page) -> None:
    opened.resize(*DESKTOP)
    inside = """[...document.querySelectorAll('svg')].map(svg => [...svg.querySelectorAll('circle')].filter(circle => {
        const a = svg.getBoundingClientRect(), b = circle.getBoundingClientRect();
        return b.width > 0 && a.left < b.left && b.right < a.right && a.top < b.top && b.bottom < a.bottom;
    }).length)"""
    assert opened.evaluate(inside) == [4, 1]


def test_bars_are_as_long_as_their_times(opened: Page) -> None:
    widths = opened.evaluate(
        "[...document.querySelectorAll('.bars')].map(one => [...one.querySelectorAll('.fill')]"
        ".map(bar => bar.getBoundingClientRect().width))"
    )
    small, large, lost, same, stream = widths
    assert small[0] / small[1] == pytest.approx(0.5, rel=0.02)
    assert large[0] / large[1] == pytest.approx(2, rel=0.02)
    assert same[0] == pytest.approx(same[1])
    assert (len(lost), len(stream)) == (1, 1)


def test_what_it_says(opened: Page) -> None:
    text = opened.evaluate("document.body.innerText")
    for words in (
        "Acme <b>GPU</b> & Sons",
        "<script>alert(1)</script>",
        "2026-01-02 03:04 UTC",
        "matrices: needs subgroup-matrix",
        "fla: no fla here",
        "torch: lost",
        "20.0 µs ±3%, 2.00×",
        "copy 4,000 GB/s, float32 FMA 50 TFLOP/s",
    ):
        assert words in text


def test_it_prints(opened: Page) -> None:
    assert opened.pdf().startswith(b"%PDF")
    opened.send("Emulation.setEmulatedMedia", media="print")
    assert opened.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
    opened.send("Emulation.setEmulatedMedia", media="")


def test_the_roof_is_the_copy_rate_and_then_the_rate_of_multiply_adds() -> None:
    (plot,) = [plot for plot in page._section(GEMM)["plots"] if plot.title == "Roofline"]
    ridge = 50e12 / 4e12
    assert plot.roof[1] == (plot.x(ridge), plot.y(50e12))
    assert plot.roof[0] == (plot.x(plot.x.low), plot.y(plot.x.low * 4e12))
    small = plot.points[0]
    assert (small.x, small.y) == (plot.x(64), plot.y((1 << 26) / 10e-6))


def test_numbers_in_a_plot_do_not_cover_one_another() -> None:
    crowd = report("com.acme.Crowd", *(Result(str(n), "v", timing(10), None, 1 << 20, 1 << 26) for n in range(8)))
    (plot,) = page._section(crowd)["plots"]
    places = [(point.label_x, point.label_y) for point in plot.points]
    assert all(abs(a - c) > 14 or abs(b - d) > 11 for i, (a, b) in enumerate(places) for c, d in places[:i])

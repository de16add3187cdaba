"""The layer between pytest and `oplet.testing.checks`: options, one test for each check, and the summary."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

# pytest loads this module wherever oplet is installed, so it imports the kit only when a test asks for it.
if TYPE_CHECKING:
    from oplet.testing.checks import Check
    from oplet.testing.kit import Devices, Kit

_kits: pytest.StashKey[dict[tuple[str, tuple[str, ...]], Kit]] = pytest.StashKey()
_devices: pytest.StashKey[Devices] = pytest.StashKey()

#: name of the user property that carries what was not run to the summary, through xdist too
_NOT_RUN = "oplet: not run"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of the kit."""
    group = parser.getgroup("oplet", "conformance of oplet ops")
    group.addoption("--oplet-webgpu", choices=("wgpu", "dawn"), help="WebGPU implementation; default OPLET_WEBGPU")
    group.addoption("--oplet-adapter", metavar="TEXT", help="part of the adapter's name; default OPLET_ADAPTER")
    group.addoption("--oplet-unchecked", action="store_true", help="compile shaders without bounds checks")
    group.addoption("--oplet-seed", type=int, metavar="N", help="seed of the random cases; default a fresh one")


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marker that `oplet.testing.conformance` sets."""
    config.addinivalue_line("markers", "oplet_conformance(op, expected, variants): every conformance check of an op")


def _kit(config: pytest.Config, op: str, variants: tuple[str, ...]) -> Kit:
    from oplet.testing.kit import Devices, Kit

    kits = config.stash.setdefault(_kits, {})
    key = op, variants
    if key not in kits:
        if _devices not in config.stash:
            config.stash[_devices] = Devices(
                webgpu=config.getoption("oplet_webgpu"),
                adapter=config.getoption("oplet_adapter"),
                unchecked=config.getoption("oplet_unchecked"),
            )
        seed = config.getoption("oplet_seed")
        kits[key] = Kit(op, devices=config.stash[_devices], seed=seed, variants=variants)
    return kits[key]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes one test for each check."""
    marker = metafunc.definition.get_closest_marker("oplet_conformance")
    if marker is None or "oplet_check" not in metafunc.fixturenames:
        return
    from oplet.errors import OpletError
    from oplet.testing.checks import checks

    op, expected, variants = marker.args
    try:
        found = checks(_kit(metafunc.config, op, variants))
    except OpletError as error:
        # Its message says it all; pytest would print every frame in between.
        raise pytest.Collector.CollectError(f"{type(error).__name__}: {error}") from None
    if unknown := sorted(set(expected) - {check.id for check in found}):
        raise pytest.Collector.CollectError(
            f"conformance({op!r}): expected names {unknown[0]!r}, which is no check\n"
            f"checks: {', '.join(check.id for check in found)}"
        )
    parameters = [
        pytest.param(
            check,
            id=check.id,
            marks=[pytest.mark.xfail(reason=expected[check.id], strict=True)] if check.id in expected else [],
        )
        for check in found
    ]
    metafunc.parametrize("oplet_check", parameters, indirect=True)


@pytest.fixture
def oplet_check(request: pytest.FixtureRequest) -> Callable[[], None]:
    """Runs one check of the kit: fails with its findings, skips with what it could not look at."""
    check: Check = request.param
    op, _, variants = request.node.get_closest_marker("oplet_conformance").args
    kit = _kit(request.config, op, variants)

    def run() -> None:
        __tracebackhide__ = True
        outcome = check.run(kit)
        if outcome.findings:
            pytest.fail(str(outcome), pytrace=False)
        if outcome.not_run:
            request.node.user_properties += [(_NOT_RUN, (op, check.setup, str(one))) for one in outcome.not_run]
            pytest.skip("; ".join(map(str, outcome.not_run)))

    return run


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says at the end what was not run, and why."""
    setups: dict[tuple[str, str], list[str]] = {}
    for report in terminalreporter.stats.get("skipped", ()):
        for name, value in report.user_properties:
            if name == _NOT_RUN:
                op, setup, text = value
                setups.setdefault((op, text), []).append(setup)
    if setups:
        terminalreporter.section("oplet: not run, and why")
        for (op, text), where in setups.items():
            devices = ", ".join(dict.fromkeys(filter(None, where)))
            terminalreporter.line(f"{op}: {text}" + (f" [{devices}]" if devices else ""))

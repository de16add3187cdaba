"""What a bug report needs: versions, adapters with their drivers, plugins, and the fault of each that has one.

Each WebGPU implementation is looked at in a process of its own, `python -m oplet.doctor wgpu`: a driver that is
missing or broken can end the process.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
from typing import Any

import attrs

from oplet.errors import InputError, OpletError
from oplet.opening import adapters, chosen_implementation, open_device
from oplet.registry import Registry
from oplet.webgpu import PACKAGES, Implementation

#: seconds that an implementation has to list its adapters and open a device
PATIENCE = 60

#: the distributions whose versions matter to a fault
DISTRIBUTIONS = ("oplet", "wgpu", "wgpudawn", "numpy", "pluggy", "jinja2", "attrs", "cattrs")

#: starts of the names of environment variables that change what is found
VARIABLES = ("OPLET_", "VK_", "WGPU_", "MESA_", "LP_", "LIBGL_")


@attrs.frozen
class ImplementationReport:
    """One WebGPU implementation on this machine.

    Attributes:
        name: "wgpu" or "dawn".
        adapters: name, backend, driver and features of each usable adapter, the preferred one first.
        device: capabilities of the device that would be opened, or None.
        fault: why there is none, or "".
    """

    name: Implementation
    adapters: list[dict[str, Any]] = attrs.field(factory=list)
    device: dict[str, Any] | None = None
    fault: str = ""


@attrs.frozen
class PluginReport:
    """One installed op.

    Attributes:
        op: the op id.
        plugins: the distributions that offer it or extend it, with their versions.
        variants: names of its variants, in order of preference.
        faults: what is wrong with it, or with an extension to it.
    """

    op: str
    plugins: list[str]
    variants: list[str] = attrs.field(factory=list)
    faults: list[str] = attrs.field(factory=list)


@attrs.frozen
class Report:
    """All of it.

    Attributes:
        python, platform: of this process.
        packages: version by distribution, None where it is not installed.
        environment: the variables that change what is found.
        default: the implementation that is used when nothing is said, or "" where `OPLET_WEBGPU` names none.
        fault: why there is no default, or "".
    """

    python: str
    platform: str
    packages: dict[str, str | None]
    environment: dict[str, str]
    default: str
    fault: str
    implementations: list[ImplementationReport]
    plugins: list[PluginReport]

    @property
    def healthy(self) -> bool:
        """Whether the default implementation has a device, and no plugin a fault."""
        device = any(one.device for one in self.implementations if one.name == self.default)
        return device and not any(plugin.faults for plugin in self.plugins)


def examine() -> Report:
    """Looks at everything. Imports every plugin, and opens a device on each implementation."""
    default, fault = "", ""
    try:
        default = chosen_implementation()
    except InputError as error:
        fault = _text(error)
    return Report(
        python=platform.python_version(),
        platform=platform.platform(),
        packages={name: _version(name) for name in DISTRIBUTIONS},
        environment={name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)},
        default=default,
        fault=fault,
        implementations=[_implementation(name, package) for name, package in PACKAGES.items()],
        plugins=_plugins(),
    )


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _plugins() -> list[PluginReport]:
    registry = Registry()
    reports = []
    for op in registry.ids:
        plugins = [f"{offer.dist} {offer.version}" for offer in registry.offers if offer.op == op]
        try:
            loaded = registry[op]
        except OpletError as error:
            reports.append(PluginReport(op, plugins, faults=[_text(error)]))
            continue
        variants = [variant.name for variant in loaded.variants]
        reports.append(PluginReport(op, plugins, variants, [_text(problem) for problem in loaded.problems]))
    return reports


def _implementation(name: Implementation, package: str) -> ImplementationReport:
    if importlib.util.find_spec(package) is None:
        return ImplementationReport(name, fault=f"{package} is not installed")
    try:
        child = subprocess.run(
            [sys.executable, "-m", "oplet.doctor", name],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ImplementationReport(name, fault=f"no answer within {PATIENCE} s")
    if child.returncode:
        return ImplementationReport(name, fault=f"{_ending(child.returncode)}\n{child.stderr[-2000:].strip()}".strip())
    # A driver may have written to stdout before.
    report = ImplementationReport(name, **json.loads(child.stdout.splitlines()[-1]))
    if report.fault and child.stderr:  # Dawn says there why it refuses an adapter
        report = attrs.evolve(report, fault=f"{report.fault}\n{child.stderr[-2000:].strip()}")
    return report


def _ending(status: int) -> str:
    if status < 0:
        return f"looking for adapters ended the process with {signal.Signals(-status).name}"
    return f"looking for adapters ended the process with status {status}"


def _look(implementation: Implementation) -> dict[str, Any]:
    """What the child process finds: the fields of an ImplementationReport but its name."""
    found: list[dict[str, Any]] = []
    try:
        for adapter, features in adapters(implementation):
            found.append({**attrs.asdict(adapter), "features": sorted(features)})
        capabilities = attrs.asdict(open_device(webgpu=implementation).capabilities)
    except OpletError as error:
        return {"adapters": found, "fault": _text(error)}
    return {"adapters": found, "device": {**capabilities, "features": sorted(capabilities["features"])}}


def _text(error: OpletError) -> str:
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    (only,) = sys.argv[1:]
    print(json.dumps(_look("dawn" if only == "dawn" else "wgpu")))

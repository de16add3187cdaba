"""The conformance kit: what every op has to pass, on every device there is.

A plugin's whole test file:

    \"\"\"Conformance of com.acme.Foo.\"\"\"

    from oplet.testing import conformance

    test_conformance = conformance("com.acme.Foo")

The cases lie in the op folder (`oplet.testing.suite`), results are compared by one rule
(`oplet.testing.compare`), and `oplet.testing.checks` lists what is checked. pytest options:
`--oplet-webgpu`, `--oplet-adapter`, `--oplet-unchecked`, `--oplet-seed`. `examine` does the same without pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oplet.testing.checks import Outcome
    from oplet.webgpu import Implementation

__all__ = ["conformance", "examine"]


def conformance(
    op: str, *, expected: Mapping[str, str] | None = None, variants: Sequence[str] = ()
) -> Callable[..., None]:
    """A test function that pytest multiplies: one test for each check, variant and device.

    Args:
        op: the op id; its plugin has to be installed.
        expected: checks that are known to fail, by their id, such as "runs-skinny-floor", each with the
            reason. One that passes fails the test.
        variants: for an extension: its variants, which alone are tested; default all, and the op itself.
    """
    import pytest

    @pytest.mark.oplet_conformance(op, dict(expected or {}), tuple(variants))
    def test_conformance(oplet_check: Callable[[], None]) -> None:
        oplet_check()

    return test_conformance


def examine(
    op: str,
    *,
    webgpu: Implementation | None = None,
    adapter: str | None = None,
    unchecked: bool = False,
    seed: int | None = None,
    variants: Sequence[str] = (),
) -> Iterator[Outcome]:
    """Runs every check of an op, outside pytest, and yields each outcome as it comes.

    Args:
        op: the op id.
        webgpu: as for `open_device`; default `OPLET_WEBGPU`.
        adapter: as for `open_device`; default `OPLET_ADAPTER`.
        unchecked: as for `open_device`.
        seed: of the random cases; default a fresh one, which outcomes tell.
        variants: the variants to test, and nothing of the op itself; default all.

    Raises:
        UnknownOpError, PluginError: there is no such op, or its plugin is at fault.
        DeviceError: there is no usable adapter.
    """
    from oplet.testing.checks import checks
    from oplet.testing.kit import Devices, Kit

    devices = Devices(webgpu=webgpu, adapter=adapter, unchecked=unchecked)
    kit = Kit(op, devices=devices, seed=seed, variants=variants)
    for check in checks(kit):
        yield check.run(kit)

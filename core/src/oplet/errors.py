"""Every exception that oplet raises on purpose.

A message has three parts: the first line says what is wrong and where, the lines after it give the
evidence, and the last line says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oplet.variant import Rejection


class OpletError(Exception):
    """Anything that oplet refuses or fails to do."""


class UnknownOpError(OpletError, LookupError):
    """No installed or registered plugin offers the op that was asked for."""


class PluginError(OpletError):
    """A plugin is at fault, not the caller.

    Attributes:
        op: the op id the plugin was asked for.
        dist: the distribution (or, for `Registry.register`, the module) that provides it.
        version: that distribution's version, or "" where it has none.
    """

    def __init__(self, message: str, *, op: str, dist: str, version: str = "") -> None:
        super().__init__(message)
        self.op = op
        self.dist = dist
        self.version = version


class PluginLoadError(PluginError):
    """Importing the plugin's op folder raised, or its distribution is for another oplet."""


class PluginContractError(PluginError):
    """The plugin does not follow `oplet.hookspecs`."""


class PluginConflictError(PluginError):
    """Which plugin to take is not clear: several offer the op, or the one that is preferred does not."""


class ManifestError(PluginError):
    """manifest.json does not describe an op.

    Attributes:
        problems: every problem found, each with its JSON path.
    """

    def __init__(self, message: str, *, problems: Sequence[str], op: str, dist: str, version: str = "") -> None:
        super().__init__(message, op=op, dist=dist, version=version)
        self.problems = tuple(problems)


class InputError(OpletError, ValueError):
    """The caller's request is not one that the op accepts.

    Attributes:
        op: the op id, or "" where the request is not for an op.
        argument: the input, attribute, output or keyword at fault.
    """

    def __init__(self, message: str, *, op: str = "", argument: str = "") -> None:
        super().__init__(message)
        self.op = op
        self.argument = argument

    def rename(self, names: Mapping[str, str]) -> None:
        """Puts other names in place of some, in `argument` and wherever the message has them as words."""
        if names:
            # After a dot it is no argument, but the end of an op id.
            words = rf"(?<![\w.])({'|'.join(map(re.escape, names))})(?!\w)"
            self.args = (re.sub(words, lambda found: names[found[0]], str(self)),)
            self.argument = names.get(self.argument, self.argument)


class NoVariantError(OpletError):
    """The request is valid, but no variant can serve it on this device.

    Attributes:
        rejections: one reason for each variant.
    """

    def __init__(self, message: str, *, rejections: Sequence[Rejection]) -> None:
        super().__init__(message)
        self.rejections = tuple(rejections)


class ShaderError(OpletError):
    """A template did not render, or its WGSL did not compile.

    Attributes:
        template: path of the template at fault, or "" where it is not known.
        line: line in that template, or 0.
        wgsl: the rendered WGSL, or "" where rendering failed.
    """

    def __init__(self, message: str, *, template: str = "", line: int = 0, wgsl: str = "") -> None:
        super().__init__(message)
        self.template = template
        self.line = line
        self.wgsl = wgsl

    def blame(self, variant: str, source: str) -> None:
        """Adds whose template it is to the evidence."""
        *lines, advice = str(self).split("\n")
        self.args = ("\n".join([*lines, f"the variant {variant} is of {source}", advice]),)


class DeviceError(OpletError, RuntimeError):
    """No usable adapter, a limit exceeded, memory refused (`OutOfMemoryError`), or a device that is gone."""


class OutOfMemoryError(DeviceError, MemoryError):
    """No memory is left for a tensor: the device's, the host's or a limit's. The next call that fits works."""


class MissingExtraError(OpletError, ImportError):
    """A part of oplet was imported whose extra is not installed."""

"""The kernels."""

from __future__ import annotations

import oplet

VARIANTS: tuple[oplet.Variant, ...] = ()

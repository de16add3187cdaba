"""The kernels.

`decode` streams the state once past tokens read straight from storage, `recurrent` keeps it in registers and
stages tokens in workgroup memory, `chunked` computes chunks of tokens in parallel and then scans them. Each has a
twin with the suffix `_nosg` for devices without subgroups.
"""

from __future__ import annotations

import oplet

from oplet_gated_delta_net.variants import chunked, decode, recurrent

#: the longer the requests a variant is for, the earlier it comes
VARIANTS: tuple[oplet.Variant, ...] = (*chunked.VARIANTS, *recurrent.VARIANTS, *decode.VARIANTS)

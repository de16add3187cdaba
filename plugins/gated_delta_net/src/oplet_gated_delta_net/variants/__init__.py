"""The kernels.

`decode` streams the state once past tokens read straight from storage, `recurrent` keeps it in registers and
stages tokens in workgroup memory, `chunked` computes chunks of tokens in parallel and then scans them. Each has a
twin with the suffix `_nosg` for devices without subgroups.
"""

from __future__ import annotations

import oplet

from oplet_gated_delta_net.variants import chunked, decode, recurrent
from oplet_gated_delta_net.variants.twins import twins

#: the longer the requests a variant is for, the earlier it comes
VARIANTS: tuple[oplet.Variant, ...] = (
    *twins(
        "chunked",
        chunked,
        "For many tokens: chunks in parallel, then a scan over them; scratch of 8.6 KB a chunk and head.",
        "As chunked, without sums over lanes.",
    ),
    *twins(
        "recurrent",
        recurrent,
        "Token by token: state rows in registers of a subgroup, tokens staged in workgroup memory.",
        "As recurrent, lanes add up through workgroup memory.",
    ),
    *twins(
        "decode",
        decode,
        "For few tokens: reads and writes each state once, lanes of a subgroup share a state row.",
        "As decode, lanes add up through workgroup memory.",
    ),
)

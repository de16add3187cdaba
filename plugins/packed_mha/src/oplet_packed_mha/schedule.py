"""The schedule's values, where the host has them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import oplet

from oplet_packed_mha.shapes import Attention


def check_schedule(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> None:
    """Refuses a schedule that does not fit, naming its first wrong entry.

    Only arrays are looked at: what lives on the device is never read back, and the kernels clamp it.

    Raises:
        InputError: naming the argument and the entry.
    """
    attention = Attention.of(request)
    if "cumulativeSequenceLengthT" in arrays:
        _check_cumulative(request, attention, arrays["cumulativeSequenceLengthT"])
    if "tokenOffsetT" in arrays:
        _check_offsets(request, attention, arrays["tokenOffsetT"], arrays.get("cumulativeSequenceLengthT"))


def _check_cumulative(request: oplet.Request, attention: Attention, cumulative: np.ndarray) -> None:
    name = "cumulativeSequenceLengthT"
    if cumulative[0] != 0:
        raise request.refusal(name, f"entry 0 is {cumulative[0]}, not 0", do="begin the prefix sums with 0")
    lengths = np.diff(cumulative.astype(np.int64))
    wrong = np.flatnonzero((lengths < 0) | (lengths > attention.length))
    if wrong.size:
        entry = int(wrong[0]) + 1
        before, after = cumulative[entry - 1], cumulative[entry]
        if after < before:
            raise request.refusal(
                name, f"entry {entry} is {after}, less than entry {entry - 1}, {before}", do="sums never decrease"
            )
        raise request.refusal(
            name,
            f"entry {entry} is {after}: sequence {entry - 1} has {after - before} tokens",
            f"entry {entry - 1} is {before}; a padded sequence of tokenOffsetT has {attention.length} places",
            do="pass lengths of at most sequence_length",
        )
    if cumulative[-1] != attention.tokens:
        entry = len(cumulative) - 1
        raise request.refusal(
            name,
            f"entry {entry}, the last, is {cumulative[-1]}",
            f"queryT has {attention.tokens} tokens",
            do="end the prefix sums with the number of tokens",
        )


def _check_offsets(
    request: oplet.Request, attention: Attention, offsets: np.ndarray, cumulative: np.ndarray | None
) -> None:
    name = "tokenOffsetT"
    do = "pass each token's flat place in the padded grid"
    places = attention.batch * attention.length
    used = offsets.reshape(-1)[: attention.tokens]
    wrong = np.flatnonzero((used < 0) | (used >= places))
    if wrong.size:
        entry = int(wrong[0])
        raise request.refusal(
            name,
            f"entry {entry} is {used[entry]}, outside the padded grid",
            f"({attention.batch}, {attention.length}) holds the places 0 to {places - 1}",
            do=do,
        )
    if cumulative is not None:
        sequences = np.repeat(np.arange(attention.batch), np.diff(cumulative))
        wrong = np.flatnonzero(used // max(attention.length, 1) != sequences)
        if wrong.size:
            entry = int(wrong[0])
            own = int(sequences[entry])
            first = own * attention.length
            raise request.refusal(
                name,
                f"entry {entry} is {used[entry]}, a place of sequence {used[entry] // attention.length}",
                f"the token is of sequence {own}, whose places are {first} to {first + attention.length - 1}",
                do=do,
            )
    if np.bincount(used).max(initial=0) > 1:
        holders: dict[int, int] = {}
        for entry, place in enumerate(used.tolist()):
            if place in holders:
                raise request.refusal(
                    name, f"entry {entry} is {place}, as entry {holders[place]} is: two tokens in one place", do=do
                )
            holders[place] = entry

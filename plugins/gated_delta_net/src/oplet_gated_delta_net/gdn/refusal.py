"""The errors for what a caller passes: each names the argument, and says last what to pass."""

from __future__ import annotations

from types import NoneType
from typing import NoReturn

import oplet


def refuse(where: str, argument: str, fault: str, do: str) -> NoReturn:
    """Refuses an argument.

    Args:
        where: what was called.
        argument: its name.
        fault: what is wrong with it, the rest of the first line.
        do: what to do, the last line.

    Raises:
        InputError: always.
    """
    raise oplet.InputError(f"{where}: {argument}: {fault}\n{do}", argument=argument)


def check_type(where: str, argument: str, value: object, kinds: type | tuple[type, ...], do: str) -> None:
    """Refuses an argument that is of none of these types.

    Raises:
        InputError: with the name of its type and of theirs.
    """
    if not isinstance(value, kinds):
        named = kinds if isinstance(kinds, tuple) else (kinds,)
        names = " or ".join("None" if kind is NoneType else kind.__name__ for kind in named)
        refuse(where, argument, f"{type(value).__name__} is not {names}", do)

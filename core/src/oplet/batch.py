"""What a context has open: batches, whose runs are recorded for one submit, and profiles, which time runs."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from oplet.buffers import Buffer
    from oplet.device import Device
    from oplet.profile import Profile, Stamps


class Recording:
    """Commands that will be submitted together, and the buffers that they use."""

    __slots__ = ("encoder", "keep", "owner", "pass_", "stamps", "state")

    def __init__(self, owner: Batch) -> None:
        self.owner = owner
        self.state: Literal["open", "submitted", "discarded"] = "open"
        self.keep: list[Buffer] = []
        self.encoder: Any = None
        self.pass_: Any = None
        self.stamps: dict[Profile, Stamps] = {}

    def end_pass(self) -> None:
        """Ends the compute pass, if one is open."""
        if self.pass_ is not None:
            self.pass_.end()
            self.pass_ = None

    def close(self, state: Literal["submitted", "discarded"]) -> None:
        """Lets go of all but the outcome, which the tensors it was to fill ask for."""
        self.state = state
        self.keep.clear()
        self.stamps.clear()
        self.encoder = self.pass_ = None


class Batch:
    """Runs recorded for one submit. See `Registry.batch`."""

    __slots__ = ("device", "recording")

    def __init__(self, device: Device) -> None:
        self.device = device
        self.recording: Recording = Recording(self)


# Innermost last. A thread starts with none.
open_batches: ContextVar[tuple[Batch, ...]] = ContextVar("oplet_open_batches", default=())
open_profiles: ContextVar[tuple[Profile, ...]] = ContextVar("oplet_open_profiles", default=())


def current_batch(device: Device) -> Batch | None:
    """The batch of a device that is open in this context."""
    for batch in reversed(open_batches.get()):
        if batch.device is device and batch.recording.state == "open":
            return batch
    return None


def current_profile(device: Device) -> Profile | None:
    """The innermost profile of a device that is open in this context."""
    for profile in reversed(open_profiles.get()):
        if profile.device is device:
            return profile
    return None

"""What a block remembers of the tokens it has seen."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import oplet
from oplet.request import shape_text

from oplet_gated_delta_net.gdn.config import GdnConfig
from oplet_gated_delta_net.gdn.refusal import check_type, refuse

#: on the host, or on a device
Array = np.ndarray | oplet.Tensor


def _typed(state: GdnState, attribute: attrs.Attribute[Array], value: object) -> None:
    wanted = ("float32",) if attribute.name == "recurrent" else ("float32", "float16")
    if isinstance(value, oplet.Tensor):
        dtype = value.spec.dtype
    elif isinstance(value, np.ndarray):
        dtype = value.dtype.name
    else:
        dtype = f"{type(value).__name__}, neither a numpy array nor a tensor"
    if dtype in wanted:
        return
    refuse("GdnState", attribute.name, f"it is {dtype}", f"pass np.asarray({attribute.name}, np.float32)")


@attrs.frozen(eq=False, repr=False)
class GdnState:
    """The state of a block, of one request or several. A call makes a new one and leaves the old one as it was.

    Its size does not depend on how many tokens there were. `np.asarray` of a field brings it to the host.

    Attributes:
        recurrent: (requests, Hv, dv, dk) float32, as com.microsoft.GatedDeltaNet takes it.
        conv: (requests, 2 · key_dim + value_dim, K − 1), the last projections to queries, keys and values, before
            the convolution, oldest first; in the dtype that the block computes in.

    Raises:
        InputError: on construction, naming a field of another type.
    """

    recurrent: Array = attrs.field(validator=_typed)
    conv: Array = attrs.field(validator=_typed)

    def __repr__(self) -> str:
        fields = (("recurrent", self.recurrent), ("conv", self.conv))
        return f"GdnState({', '.join(f'{name} {one.dtype.name} {shape_text(one.shape)}' for name, one in fields)})"

    @classmethod
    def zeros(cls, config: GdnConfig, requests: int = 1) -> GdnState:
        """The state before the first token, on the host.

        Raises:
            InputError: requests is not an int of at least 0, or config no GdnConfig.
        """
        check_type("GdnState.zeros", "config", config, GdnConfig, "pass the sizes, as GgufModel.config has them")
        if not isinstance(requests, int | np.integer) or isinstance(requests, bool) or requests < 0:
            refuse(
                "GdnState.zeros",
                "requests",
                f"{requests!r} is not an int of at least 0",
                "pass how many sequences there are",
            )
        heads = (config.num_value_heads, config.value_head_dim, config.key_head_dim)
        return cls(
            np.zeros((requests, *heads), np.float32),
            np.zeros((requests, config.channels, config.conv_kernel_size - 1), np.float32),
        )

    @classmethod
    def from_key_major(cls, recurrent: Array, conv: Array) -> GdnState:
        """A state whose matrices are stored keys first, as most models' code has them.

        Args:
            recurrent: (requests, Hv, dk, dv) float32.
            conv: as the attribute.

        Raises:
            InputError: recurrent is no array, or of another rank.
        """
        where = "GdnState.from_key_major"
        kinds = (np.ndarray, oplet.Tensor)
        check_type(where, "recurrent", recurrent, kinds, "pass np.asarray(recurrent, np.float32)")
        if recurrent.ndim != 4:
            refuse(
                where,
                "recurrent",
                f"has the shape {shape_text(recurrent.shape)}, not (requests, Hv, dk, dv)",
                "give it an axis of requests, of length 1 for one",
            )
        return cls(np.ascontiguousarray(np.asarray(recurrent).swapaxes(2, 3)), conv)

    def key_major(self) -> np.ndarray:
        """The matrices keys first: (requests, Hv, dk, dv) float32, on the host."""
        return np.ascontiguousarray(np.asarray(self.recurrent).swapaxes(2, 3))

    def numpy(self) -> GdnState:
        """This state on the host; waits for the device."""
        return GdnState(np.asarray(self.recurrent), np.asarray(self.conv))

    @property
    def requests(self) -> int:
        """Number of requests."""
        return self.recurrent.shape[0] if self.recurrent.ndim else 0


def check_state(where: str, state: GdnState, config: GdnConfig, dtype: np.dtype[Any]) -> None:
    """Holds a state against a configuration, and on a device against what the block computes in.

    Args:
        where: the function that was called.
        state, config, dtype: as that function got them; the dtype is the weights'.

    Raises:
        InputError: naming the field at fault.
    """
    requests = state.requests
    shapes = {
        "recurrent": (requests, config.num_value_heads, config.value_head_dim, config.key_head_dim),
        "conv": (requests, config.channels, config.conv_kernel_size - 1),
    }
    for name, shape in shapes.items():
        found = getattr(state, name).shape
        if found != shape:
            refuse(
                where,
                "state",
                f"{name} has the shape {shape_text(found)}, and the configuration says {shape_text(shape)}",
                "pass one that this block made, or GdnState.zeros(config, requests)",
            )
    if isinstance(state.conv, oplet.Tensor) and state.conv.dtype != dtype:
        refuse(
            where,
            "state",
            f"conv is {state.conv.dtype.name} on the device, and the weights are {dtype.name}",
            "pass state.numpy(), which is converted when it is uploaded",
        )

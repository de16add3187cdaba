"""The weights of a block: on the host, and on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import numpy as np
import oplet
from numpy.typing import DTypeLike
from oplet.request import shape_text

from oplet_gated_delta_net.gdn.config import GdnConfig
from oplet_gated_delta_net.gdn.refusal import check_type, refuse

GEMM = "com.microsoft.FusedGemm"

_WHERE = "GdnWeights"

#: what a block computes in
DTYPES = ("float32", "float16")

#: the weights that stay float32 whatever the block computes in
GATES = ("ssm_dt", "ssm_a")

#: offsets that a block on a device remembers; past it the oldest are forgotten
MOST_OFFSETS = 64


@attrs.frozen(eq=False, kw_only=True, repr=False)
class GdnWeights:
    """Weights on the host, with value heads in grouped order: head h uses key head h // (Hv / Hk).

    All but ssm_dt and ssm_a have one dtype, float32 or float16, which the block computes in.

    Attributes:
        attn_qkv: (2 · key_dim + value_dim, hidden_dim), the projection to queries, keys and values.
        attn_gate: (value_dim, hidden_dim), the projection to z, the gate of the norm.
        ssm_conv1d: (2 · key_dim + value_dim, K), taps of each channel, the last one that of the current token.
        ssm_dt: (Hv,) float32, added to alpha before the softplus.
        ssm_a: (Hv,) float32, factor of the softplus: −exp(A_log), so at most 0.
        ssm_beta: (Hv, hidden_dim), the projection to the update rate.
        ssm_alpha: (Hv, hidden_dim), the projection to the decay.
        ssm_norm: (dv,), factor of the norm, the same in all heads.
        ssm_out: (hidden_dim, value_dim), the output projection.

    Raises:
        InputError: on construction, naming the field: no such dtype, or ssm_a above 0.
    """

    attn_qkv: np.ndarray
    attn_gate: np.ndarray
    ssm_conv1d: np.ndarray
    ssm_dt: np.ndarray
    ssm_a: np.ndarray
    ssm_beta: np.ndarray
    ssm_alpha: np.ndarray
    ssm_norm: np.ndarray
    ssm_out: np.ndarray

    #: the fields
    names: ClassVar[tuple[str, ...]]

    def __attrs_post_init__(self) -> None:
        for name in self.names:
            array = getattr(self, name)
            if not isinstance(array, np.ndarray):
                refuse(
                    _WHERE, name, f"{type(array).__name__} is not a numpy array", f"pass np.asarray({name}, np.float32)"
                )
            wanted = ("float32",) if name in GATES else DTYPES
            if array.dtype.name not in wanted:
                refuse(_WHERE, name, f"is {array.dtype.name}", f"convert it with {name}.astype(np.{wanted[0]})")
            if name not in GATES and array.dtype != self.dtype:
                refuse(
                    _WHERE,
                    name,
                    f"is {array.dtype.name}, and attn_qkv {self.dtype.name}",
                    f"convert it with {name}.astype(np.{self.dtype.name})",
                )
        if not (self.ssm_a <= 0).all():  # also a NaN
            refuse(
                _WHERE,
                "ssm_a",
                f"{self.ssm_a[~(self.ssm_a <= 0)][0]} is above 0, so that the state would grow",
                "pass −exp(A_log), not A_log",
            )

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {shape_text(shape)}" for name, shape in self.shapes.items())
        return f"GdnWeights({self.dtype.name}: {shapes})"

    @property
    def dtype(self) -> np.dtype[Any]:
        """What the block computes in."""
        return self.attn_qkv.dtype

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each field."""
        return {name: getattr(self, name).shape for name in self.names}

    def astype(self, dtype: DTypeLike) -> GdnWeights:
        """These weights for a block that computes in another dtype.

        Args:
            dtype: float32 or float16, by name or as numpy's.

        Raises:
            InputError: it is neither, or a weight is past float16.
        """
        arrays = {name: getattr(self, name) for name in self.names}
        return GdnWeights(**{name: as_dtype(name, array, dtype) for name, array in arrays.items()})

    def to(self, registry: oplet.Registry) -> DeviceWeights:
        """Uploads them, once for any number of calls.

        Raises:
            InputError: it is no registry.
            UnknownOpError: an op that the block needs is not installed.
            DeviceError: memory was refused.
        """
        check_type("GdnWeights.to", "registry", registry, oplet.Registry, "pass oplet.Registry()")
        if GEMM not in registry:  # told before anything is uploaded
            raise oplet.UnknownOpError(
                f"the Gated DeltaNet block needs {GEMM}, which no plugin offers\n"
                f"  offered are {', '.join(registry.ids) or 'none'}\npip install oplet-fused-gemm"
            )
        upload = registry.tensor
        # The op takes A_log. Where ssm_a is 0 the smallest float32 serves as well: it is lost in exp(ssm_a · softplus).
        a_log = np.log(np.maximum(-self.ssm_a, np.finfo(np.float32).tiny))
        return DeviceWeights(
            shapes=self.shapes,
            attn_qkv=upload(self.attn_qkv),
            attn_gate=upload(self.attn_gate),
            ssm_conv1d=upload(self.ssm_conv1d[:, None, :]),
            ssm_dt=upload(self.ssm_dt),
            a_log=upload(a_log),
            ssm_beta=upload(self.ssm_beta),
            ssm_alpha=upload(self.ssm_alpha),
            ssm_norm=upload(self.ssm_norm),
            ssm_out=upload(self.ssm_out),
        )


GdnWeights.names = tuple(field.name for field in attrs.fields(GdnWeights))


@attrs.frozen(eq=False, kw_only=True)
class DeviceWeights:
    """Weights on a device. Made by `GdnWeights.to`, in the forms that the ops take.

    Attributes:
        shapes: those of the `GdnWeights`.
        ssm_conv1d: (2 · key_dim + value_dim, 1, K).
        a_log: (Hv,) float32, log(−ssm_a).
    """

    shapes: Mapping[str, tuple[int, ...]]
    attn_qkv: oplet.Tensor
    attn_gate: oplet.Tensor
    ssm_conv1d: oplet.Tensor
    ssm_dt: oplet.Tensor
    a_log: oplet.Tensor
    ssm_beta: oplet.Tensor
    ssm_alpha: oplet.Tensor
    ssm_norm: oplet.Tensor
    ssm_out: oplet.Tensor
    _offsets: dict[tuple[int, int], oplet.Tensor] = attrs.field(factory=dict, init=False, repr=False)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What the block computes in."""
        return self.attn_qkv.dtype

    def equal_offsets(self, registry: oplet.Registry, requests: int, tokens: int) -> oplet.Tensor:
        """Where equally long requests begin and end among the tokens: (requests + 1,) int32, made once for each size.

        An upload in every step would cost the device a copy and a barrier.
        """
        offsets = self._offsets.get((requests, tokens))
        if offsets is None:
            offsets = registry.tensor(np.linspace(0, tokens, requests + 1).astype(np.int32))
            if len(self._offsets) >= MOST_OFFSETS:
                self._offsets.pop(next(iter(self._offsets)), None)
            self._offsets[requests, tokens] = offsets
        return offsets


def as_dtype(name: str, array: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """A field of `GdnWeights` for a block that computes in a dtype; ssm_dt and ssm_a are float32 in any case.

    Raises:
        InputError: there is no such dtype, or a finite weight is past float16.
    """
    try:
        wanted = np.dtype(dtype).name
    except (TypeError, ValueError):
        wanted = ""
    if wanted not in DTYPES:
        raise oplet.InputError(
            f"dtype: {dtype!r:.60} is not one of {', '.join(DTYPES)}\npass one of these", argument="dtype"
        )
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(array, np.float32 if name in GATES else wanted)
    if wanted == "float16":
        lost = np.isinf(narrow) & np.isfinite(array)
        if lost.any():
            refuse(_WHERE, name, f"{array[lost][0]} is past float16", 'take dtype="float32"')
    return narrow


def check_weights(weights: GdnWeights | DeviceWeights, config: GdnConfig) -> None:
    """Holds weights against a configuration.

    Raises:
        InputError: naming the first field whose shape is another.
    """
    found, wanted = weights.shapes, config.weight_shapes
    if found == wanted:
        return
    for name, shape in wanted.items():
        if found[name] != shape:
            refuse(
                _WHERE,
                name,
                f"has the shape {shape_text(found[name])}, and the configuration says {shape_text(shape)}",
                f"pass weights that fit {config}",
            )

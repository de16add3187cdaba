"""The sizes of a block."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np

from oplet_gated_delta_net.gdn.refusal import refuse


def _plain(value: int | np.integer[Any]) -> int:
    # As sizes come from arrays and files; what is no integer at all is left for the validator to refuse.
    return int(value) if isinstance(value, np.integer) else value


def _positive(config: GdnConfig, attribute: attrs.Attribute[int], value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        refuse("GdnConfig", attribute.name, f"{value!r} is not an int of at least 1", "pass the model's")


@attrs.frozen(kw_only=True, slots=False)
class GdnConfig:
    """Sizes of a Gated DeltaNet block. Heads and head sizes of keys and values are four independent numbers.

    Attributes:
        hidden_dim: elements of a hidden vector.
        num_key_heads: query and key heads, Hk.
        num_value_heads: value heads, Hv: a multiple of Hk. Value head h uses key head h // (Hv / Hk).
        key_head_dim: elements of a query or key, dk.
        value_head_dim: elements of a value, dv.
        conv_kernel_size: taps of the convolution, K: the current token and the K − 1 before it.
        rms_norm_eps: added to the mean square inside the norm's root.

    Raises:
        InputError: on construction, naming the field.
    """

    hidden_dim: int = attrs.field(converter=_plain, validator=_positive)
    num_key_heads: int = attrs.field(converter=_plain, validator=_positive)
    num_value_heads: int = attrs.field(converter=_plain, validator=_positive)
    key_head_dim: int = attrs.field(converter=_plain, validator=_positive)
    value_head_dim: int = attrs.field(converter=_plain, validator=_positive)
    conv_kernel_size: int = attrs.field(default=4, converter=_plain, validator=_positive)
    rms_norm_eps: float = 1e-6

    def __attrs_post_init__(self) -> None:
        if self.num_value_heads % self.num_key_heads:
            refuse(
                "GdnConfig",
                "num_value_heads",
                f"{self.num_value_heads} is no multiple of num_key_heads, {self.num_key_heads}",
                "each key head serves equally many value heads",
            )
        if not isinstance(self.rms_norm_eps, int | float) or not 0 <= self.rms_norm_eps < math.inf:
            refuse(
                "GdnConfig",
                "rms_norm_eps",
                f"{self.rms_norm_eps!r} is no finite number of at least 0",
                "pass the model's",
            )

    @property
    def key_dim(self) -> int:
        """Elements of all query heads, and of all key heads: Hk · dk."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_dim(self) -> int:
        """Elements of all value heads: Hv · dv."""
        return self.num_value_heads * self.value_head_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, then keys, then values."""
        return 2 * self.key_dim + self.value_dim

    @cached_property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each field of `GdnWeights`."""
        return MappingProxyType(
            {
                "attn_qkv": (self.channels, self.hidden_dim),
                "attn_gate": (self.value_dim, self.hidden_dim),
                "ssm_conv1d": (self.channels, self.conv_kernel_size),
                "ssm_dt": (self.num_value_heads,),
                "ssm_a": (self.num_value_heads,),
                "ssm_beta": (self.num_value_heads, self.hidden_dim),
                "ssm_alpha": (self.num_value_heads, self.hidden_dim),
                "ssm_norm": (self.value_head_dim,),
                "ssm_out": (self.hidden_dim, self.value_dim),
            }
        )

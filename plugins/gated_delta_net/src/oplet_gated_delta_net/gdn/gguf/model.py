"""Gated DeltaNet layers of a model in GGUF files."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import oplet
import tqdm
from numpy.typing import DTypeLike
from oplet.request import shape_text

from oplet_gated_delta_net.gdn.config import GdnConfig
from oplet_gated_delta_net.gdn.gguf.file import GgufFile
from oplet_gated_delta_net.gdn.heads import split_ba, split_qkvz, untile
from oplet_gated_delta_net.gdn.weights import GdnWeights, as_dtype

#: whether the files of an architecture have their value heads tiled
TILED = {"qwen35": True, "qwen35moe": True, "qwen3next": False}

_SETTINGS = {
    "hidden_dim": "embedding_length",
    "num_key_heads": "ssm.group_count",
    "num_value_heads": "ssm.time_step_rank",
    "key_head_dim": "ssm.state_size",
    "conv_kernel_size": "ssm.conv_kernel",
}
_INNER = "ssm.inner_size"
_EPSILON = "attention.layer_norm_rms_epsilon"
_LAYER = re.compile(r"blk\.(\d+)\.ssm_conv1d\.weight")


class GgufModel:
    """A model whose Gated DeltaNet layers can be loaded. Its files are memory-mapped, and opening them reads no tensor.

    Attributes:
        architecture: "qwen35", "qwen35moe" or "qwen3next".
        config: the sizes of its Gated DeltaNet layers.
        layers: their numbers; a model has layers of other kinds between them.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens a file, and where it is a part of several its neighbours.

        Args:
            path: of the file; of several, …-00001-of-0000N.gguf, any.

        Raises:
            InputError: a file cannot be read or is damaged, its architecture is another, or its metadata give no
                configuration.
        """
        first = GgufFile(path)
        self._files = [first, *(GgufFile(other) for other in _neighbours(first))]
        self._holders = {name: file for file in self._files for name in file.tensors}
        metadata = {key: value for file in reversed(self._files) for key, value in file.metadata.items()}
        self._path = first.path
        architecture = metadata.get("general.architecture")
        if architecture not in TILED:
            raise self._fault(
                f"its architecture is {architecture!r}, not one of {', '.join(TILED)}",
                do="take a model with Gated DeltaNet layers",
            )
        self.architecture = str(architecture)
        self.config = self._config({key: value for key, value in metadata.items() if not isinstance(value, str)})
        found = map(_LAYER.fullmatch, self._holders)
        self.layers: tuple[int, ...] = tuple(sorted(int(match[1]) for match in found if match))

    def __repr__(self) -> str:
        return f"GgufModel({str(self._path)!r}, {self.architecture}, {len(self.layers)} Gated DeltaNet layers)"

    def weights(self, layer: int, *, dtype: DTypeLike = "float32") -> GdnWeights:
        """The weights of a layer, dequantised, with value heads in grouped order.

        Args:
            layer: one of `layers`.
            dtype: what the block is to compute in, float32 or float16, by name or as numpy's.

        Raises:
            InputError: it is not one of those, a tensor is missing or of another shape or an unknown type, or a
                weight is past float16.
        """
        if layer not in self.layers:
            known = ", ".join(map(str, self.layers)) or "none"
            raise oplet.InputError(
                f"layer: {layer!r} is no Gated DeltaNet layer of {self._path}\n  those are {known}\npass one of these",
                argument="layer",
            )
        return self._weights(f"blk.{int(layer)}.", dtype)

    def all_weights(self, *, dtype: DTypeLike = "float32", progress: bool | None = None) -> dict[int, GdnWeights]:
        """The weights of every Gated DeltaNet layer, by its number.

        Args:
            dtype: as for `weights`.
            progress: whether to show a progress bar; None: where standard error is a terminal.

        Raises:
            InputError: as `weights`.
        """
        disable = None if progress is None else not progress
        bar = tqdm.tqdm(self.layers, desc=self._path.name, unit="layer", disable=disable)
        return {layer: self.weights(layer, dtype=dtype) for layer in bar}

    def _config(self, metadata: dict[str, int | float | bool]) -> GdnConfig:
        def size(name: str) -> int:
            key = f"{self.architecture}.{name}"
            value = metadata.get(key)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                what = "there is no" if value is None else f"{value!r} is no size:"
                raise self._fault(f"{what} {key}", do="convert the model again, with a converter that writes it")
            return value

        sizes = {field: size(name) for field, name in _SETTINGS.items()}
        inner, heads = size(_INNER), sizes["num_value_heads"]
        if inner % heads:
            raise self._fault(
                f"{self.architecture}.{_INNER}, {inner}, is no multiple of the {heads} value heads",
                do="convert it again",
            )
        # Stored as float32; the shortest decimal that gives it is what the converter had.
        epsilon = float(str(np.float32(metadata.get(f"{self.architecture}.{_EPSILON}", 1e-6))))
        try:
            return GdnConfig(**sizes, value_head_dim=inner // heads, rms_norm_eps=epsilon)
        except oplet.InputError as error:
            raise self._fault(f"its metadata give no configuration: {error}", do="convert the model again") from error

    def _weights(self, prefix: str, dtype: DTypeLike) -> GdnWeights:
        config = self.config
        wanted = config.weight_shapes

        def take(names: Sequence[str], shape: tuple[int, ...]) -> np.ndarray:
            name = next((name for name in names if prefix + name in self._holders), None)
            if name is None:
                raise self._missing([prefix + name for name in names])
            file = self._holders[prefix + name]
            found = file.tensors[prefix + name].shape
            if found != shape:
                raise self._fault(
                    f"{prefix}{name}: it has the shape {shape_text(found)}, and the metadata say {shape_text(shape)}",
                    do="convert the model again",
                )
            return file.read(prefix + name)

        # The older files of qwen3next have Hugging Face's two interleaved projections.
        interleaved = self.architecture == "qwen3next"
        arrays: dict[str, np.ndarray] = {}
        if interleaved and f"{prefix}ssm_in.weight" in self._holders:
            rows = take(["ssm_in.weight"], (config.channels + config.value_dim, config.hidden_dim))
            arrays["attn_qkv"], arrays["attn_gate"] = split_qkvz(rows, config)
        if interleaved and f"{prefix}ssm_ba.weight" in self._holders:
            rows = take(["ssm_ba.weight"], (2 * config.num_value_heads, config.hidden_dim))
            arrays["ssm_beta"], arrays["ssm_alpha"] = split_ba(rows, config)
        spellings = {"ssm_a": ["ssm_a"], "ssm_dt": ["ssm_dt.bias", "ssm_dt"]}
        for field, shape in wanted.items():
            if field not in arrays:
                arrays[field] = take(spellings.get(field, [f"{field}.weight"]), shape)
        if TILED[self.architecture]:
            arrays |= _grouped(arrays, config)
        return GdnWeights(**{field: as_dtype(field, array, dtype) for field, array in arrays.items()})

    def _missing(self, names: Sequence[str]) -> oplet.InputError:
        near = difflib.get_close_matches(names[0], list(self._holders), 3)
        return self._fault(
            f"there is no tensor {' or '.join(names)}",
            f"near it: {', '.join(near) or 'nothing'}",
            do="convert the model again, with a converter that writes it",
        )

    def _fault(self, what: str, *evidence: str, do: str) -> oplet.InputError:
        lines = "".join(f"\n  {line}" for line in evidence)
        return oplet.InputError(f"path: {self._path}: {what}{lines}\n{do}", argument="path")


def _grouped(arrays: dict[str, np.ndarray], config: GdnConfig) -> dict[str, np.ndarray]:
    """The arrays that have value heads, from tiled to grouped order."""
    keys = 2 * config.key_dim
    axes = {"attn_gate": 0, "ssm_dt": 0, "ssm_a": 0, "ssm_beta": 0, "ssm_alpha": 0, "ssm_out": 1}
    return {
        **{field: untile(arrays[field], config, axis=axis) for field, axis in axes.items()},
        "attn_qkv": untile(arrays["attn_qkv"], config, before=keys),
        "ssm_conv1d": untile(arrays["ssm_conv1d"], config, before=keys),
    }


def _neighbours(first: GgufFile) -> list[Path]:
    """The other files of a model in several."""
    count = first.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return []
    match = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", first.path.name)
    if match is None or int(match[3]) != count:
        raise oplet.InputError(
            f"path: {first.path} is one of {count} files, and its name does not tell the others'\n"
            f"name them …-00001-of-{count:05}.gguf and so on, as they were made",
            argument="path",
        )
    names = [f"{match[1]}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    return [first.path.with_name(name) for name in names if name != first.path.name]

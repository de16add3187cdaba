"""Weights from GGUF files that the gguf package writes: both orders of heads, every kind of type, and damaged ones."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import oplet
import pytest
from oplet_gated_delta_net.gdn import GdnConfig, GdnState, GdnWeights, gdn_forward, grouped_from_tiled
from oplet_gated_delta_net.gdn.gguf import GgufFile, GgufModel

from .conftest import CONFIG, Writer, random_weights, settings_of, tensors_of

Kind = gguf.GGMLQuantizationType
SETTINGS = settings_of(CONFIG)
ARCHITECTURES = {"qwen35": True, "qwen35moe": True, "qwen3next": False}


def run(weights: GdnWeights, config: GdnConfig) -> np.ndarray:
    hidden = np.random.default_rng(9).standard_normal((12, config.hidden_dim)).astype(np.float32)
    return gdn_forward(weights, config, hidden, GdnState.zeros(config))[0]


def off(weights: GdnWeights, wanted: GdnWeights) -> float:
    """How far outputs are apart, as a part of their size."""
    got, want = run(weights, CONFIG), run(wanted, CONFIG)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_float32_is_read_bit_for_bit(weights: GdnWeights, write: Writer, architecture: str) -> None:
    other = random_weights(CONFIG, seed=1)
    layers = {
        layer: tensors_of(one, CONFIG, tile=ARCHITECTURES[architecture]) for layer, one in ((0, weights), (2, other))
    }
    layers[1] = {"attn_q.weight": np.ones((4, 32), np.float32)}  # full attention
    model = GgufModel(write(architecture, layers, SETTINGS))
    assert (model.architecture, model.config, model.layers) == (architecture, CONFIG, (0, 2))
    for layer, one in ((0, weights), (2, other)):
        read = model.weights(layer)
        for name in one.names:
            np.testing.assert_array_equal(getattr(read, name), getattr(one, name), err_msg=name)


@pytest.mark.parametrize("architecture", ["qwen35", "qwen3next"])
@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0], ids=lambda kind: kind.name)
def test_other_types_lose_what_they_round(weights: GdnWeights, write: Writer, architecture: str, kind: Kind) -> None:
    tensors = tensors_of(weights, CONFIG, tile=ARCHITECTURES[architecture])
    read = GgufModel(write(architecture, {0: tensors}, SETTINGS, kind)).weights(0)
    quantised = {}
    for name in weights.names:
        quantised[name] = getattr(weights, name)
        if quantised[name].ndim == 2 and name != "ssm_conv1d":
            quantised[name] = gguf.dequantize(gguf.quantize(quantised[name], kind), kind)
        if name != "ssm_out" or not ARCHITECTURES[architecture]:
            np.testing.assert_array_equal(getattr(read, name), quantised[name], err_msg=name)
    # The columns of ssm_out were in other blocks when they were quantised, which loses as much elsewhere.
    own = off(GdnWeights(**quantised), weights)
    assert 0 < own < 0.6
    assert off(read, weights) == pytest.approx(own, rel=0.1)


def test_the_orders_are_told_apart(weights: GdnWeights, write: Writer) -> None:
    """What the architecture decides: the same tensors, read as the other order, are another block."""
    slots = np.empty(6, int)
    slots[grouped_from_tiled(CONFIG)] = range(6)
    assert slots.tolist() == [0, 3, 1, 4, 2, 5]
    grouped, tile = (tensors_of(weights, CONFIG, tile=tile) for tile in (False, True))
    for architecture, right, wrong in (("qwen35", tile, grouped), ("qwen3next", grouped, tile)):
        assert off(GgufModel(write(architecture, {0: right}, SETTINGS)).weights(0), weights) == 0
        assert off(GgufModel(write(architecture, {0: wrong}, SETTINGS)).weights(0), weights) > 0.3


def test_one_key_head_has_one_order(write: Writer) -> None:
    config = GdnConfig(hidden_dim=32, num_key_heads=1, num_value_heads=4, key_head_dim=8, value_head_dim=8)
    weights = random_weights(config)
    tensors = tensors_of(weights, config, tile=True)
    read = GgufModel(write("qwen35", {0: tensors}, settings_of(config))).weights(0)
    np.testing.assert_array_equal(read.ssm_out, weights.ssm_out)
    np.testing.assert_array_equal(tensors["ssm_out.weight"], weights.ssm_out)


def test_alternative_name(weights: GdnWeights, write: Writer) -> None:
    tensors = tensors_of(weights, CONFIG, tile=True)
    tensors["ssm_dt"] = tensors.pop("ssm_dt.bias")
    read = GgufModel(write("qwen35", {0: tensors}, SETTINGS)).weights(0)
    np.testing.assert_array_equal(read.ssm_dt, weights.ssm_dt)


def interleaved(weights: GdnWeights) -> dict[str, np.ndarray]:
    """The tensors of older qwen3next files: by key head its query, key, values and gates; its betas and alphas."""
    tensors = tensors_of(weights, CONFIG, tile=False)
    query, key, value = np.split(tensors.pop("attn_qkv.weight"), [CONFIG.key_dim, 2 * CONFIG.key_dim])
    parts = [query, key, value, tensors.pop("attn_gate.weight")]
    tensors["ssm_in.weight"] = np.concatenate(
        [half for head in (0, 1) for half in (np.split(p, 2)[head] for p in parts)]
    )
    parts = [tensors.pop("ssm_beta.weight"), tensors.pop("ssm_alpha.weight")]
    tensors["ssm_ba.weight"] = np.concatenate(
        [half for head in (0, 1) for half in (np.split(p, 2)[head] for p in parts)]
    )
    return tensors


def test_interleaved_projections(weights: GdnWeights, write: Writer) -> None:
    read = GgufModel(write("qwen3next", {0: interleaved(weights)}, SETTINGS)).weights(0)
    for name in weights.names:
        np.testing.assert_array_equal(getattr(read, name), getattr(weights, name), err_msg=name)
    model = GgufModel(write("qwen35", {0: interleaved(weights)}, SETTINGS))
    with pytest.raises(oplet.InputError, match=r"there is no tensor blk\.0\.attn_qkv\.weight"):
        model.weights(0)


def test_float16(weights: GdnWeights, write: Writer) -> None:
    tensors = tensors_of(weights, CONFIG, tile=True)
    read = GgufModel(write("qwen35", {0: tensors}, SETTINGS)).weights(0, dtype="float16")
    assert (read.dtype, read.ssm_a.dtype, read.ssm_dt.dtype) == (np.float16, np.float32, np.float32)
    np.testing.assert_array_equal(read.ssm_out, weights.ssm_out.astype(np.float16))
    assert weights.astype(np.float16).dtype == weights.astype(np.dtype("float16")).dtype == np.float16
    tensors["ssm_norm.weight"] = np.full(CONFIG.value_head_dim, 1e5, np.float32)
    model = GgufModel(write("qwen35", {0: tensors}, SETTINGS))
    assert model.weights(0).ssm_norm[0] == 1e5
    with pytest.raises(oplet.InputError, match=r"ssm_norm: 100000\.0 is past float16"):
        model.weights(0, dtype="float16")
    assert model.weights(0, dtype=np.float32).dtype == np.float32
    for wrong, told in (("int8", "'int8'"), ("f32", "'f32'"), (np.float64, "<class 'numpy.float64'>"), (None, "None")):
        with pytest.raises(oplet.InputError, match=f"dtype: {told} is not one of float32, float16"):
            model.weights(0, dtype=wrong)


def test_several_files(weights: GdnWeights, write: Writer) -> None:
    tensors = tensors_of(weights, CONFIG, tile=True)
    halves = [dict(list(tensors.items())[:5]), dict(list(tensors.items())[5:])]
    paths = [
        write(
            "qwen35",
            {0: half},
            {**(SETTINGS if number == 1 else {}), "split.count": 2},
            name=f"m-0000{number}-of-00002.gguf",
        )
        for number, half in enumerate(halves, 1)
    ]
    for path in paths:
        np.testing.assert_array_equal(GgufModel(path).weights(0).ssm_out, weights.ssm_out)
    renamed = paths[0].rename(paths[0].with_name("first.gguf"))
    with pytest.raises(oplet.InputError, match="one of 2 files, and its name does not tell"):
        GgufModel(renamed)
    with pytest.raises(oplet.InputError, match=r"m-00001-of-00002\.gguf cannot be read"):
        GgufModel(paths[1])


def test_all_layers_and_their_progress(weights: GdnWeights, write: Writer, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = tensors_of(weights, CONFIG, tile=True)
    model = GgufModel(write("qwen35", dict.fromkeys((0, 1, 10), tensors), SETTINGS))
    assert list(model.all_weights()) == [0, 1, 10]
    assert capsys.readouterr().err == ""  # no terminal
    assert list(model.all_weights(progress=True)) == [0, 1, 10]
    assert "3/3" in capsys.readouterr().err
    with pytest.raises(oplet.InputError, match="layer: 2 is no Gated DeltaNet layer") as caught:
        model.weights(2)
    assert "those are 0, 1, 10" in str(caught.value)


def test_a_weight_that_is_not_asked_for_is_not_read(weights: GdnWeights, write: Writer) -> None:
    path = write("qwen35", {0: tensors_of(weights, CONFIG, tile=True)}, SETTINGS)
    file = GgufFile(path)
    view = file.read("blk.0.ssm_beta.weight")
    assert isinstance(view.base, np.memmap)  # of the file
    assert not view.flags.writeable


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("oplet_gated_delta_net.gdn.gguf")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(oplet.MissingExtraError, match=r"pip install 'oplet-gated-delta-net\[gguf\]'$"):
        __import__("oplet_gated_delta_net.gdn.gguf")


# Files that do not fit -------------------------------------------------------------------------------


def refused(path: Path, match: str) -> str:
    """The message of the one error that is allowed."""
    with pytest.raises(oplet.InputError, match=match) as caught:
        GgufModel(path).weights(0)
    assert "\n" in str(caught.value)
    return str(caught.value)


def test_missing_tensor(weights: GdnWeights, write: Writer) -> None:
    tensors = tensors_of(weights, CONFIG, tile=True)
    tensors["ssm_betta.weight"] = tensors.pop("ssm_beta.weight")
    message = refused(
        write("qwen35", {0: tensors}, SETTINGS), r"model\.gguf: there is no tensor blk\.0\.ssm_beta\.weight"
    )
    assert "near it: blk.0.ssm_betta.weight" in message
    del tensors["ssm_dt.bias"]
    tensors["ssm_beta.weight"] = tensors["ssm_betta.weight"]
    refused(write("qwen35", {0: tensors}, SETTINGS), r"there is no tensor blk\.0\.ssm_dt\.bias or blk\.0\.ssm_dt\n")


def test_wrong_shape(weights: GdnWeights, write: Writer) -> None:
    tensors = tensors_of(weights, CONFIG, tile=True)
    tensors["attn_gate.weight"] = tensors["attn_gate.weight"][:-1]
    refused(
        write("qwen35", {0: tensors}, SETTINGS),
        r"blk\.0\.attn_gate\.weight: it has the shape \(95, 64\), and the metadata say \(96, 64\)",
    )


def test_metadata(weights: GdnWeights, write: Writer) -> None:
    tensors = {0: tensors_of(weights, CONFIG, tile=True)}
    refused(write("llama", tensors, SETTINGS), "architecture is 'llama', not one of qwen35, qwen35moe, qwen3next")
    for key in SETTINGS:
        less = {name: value for name, value in SETTINGS.items() if name != key}
        if key == "attention.layer_norm_rms_epsilon":
            assert GgufModel(write("qwen35", tensors, less)).config.rms_norm_eps == 1e-6
        else:
            refused(write("qwen35", tensors, less), rf"there is no qwen35\.{key}")
    refused(write("qwen35", tensors, {**SETTINGS, "ssm.state_size": 0}), r"0 is no size: qwen35\.ssm\.state_size")
    refused(write("qwen35", tensors, {**SETTINGS, "ssm.state_size": 8.0}), r"8\.0 is no size")
    refused(write("qwen35", tensors, {**SETTINGS, "ssm.inner_size": 97}), "97, is no multiple of the 6 value heads")
    refused(write("qwen35", tensors, {**SETTINGS, "ssm.group_count": 4}), "no multiple of num_key_heads, 4")


def test_no_file_of_a_model(tmp_path: Path) -> None:
    refused(tmp_path / "none.gguf", "none.gguf cannot be read")
    refused(tmp_path, "cannot be read")
    refused(None, "None cannot be read")  # type: ignore[arg-type]
    path = tmp_path / "other.gguf"
    for content, match in (
        (b"", "truncated: the magic number needs 4 bytes more, and there are 0"),
        (b"GGUF", "truncated: the version"),
        (b"PK\3\4" + bytes(99), "does not begin with GGUF"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(99), "GGUF version 1, and 2 and 3 are supported"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(99), "big-endian"),
    ):
        path.write_bytes(content)
        refused(path, match)


def test_truncated_anywhere(weights: GdnWeights, write: Writer) -> None:
    path = write("qwen35", {0: tensors_of(weights, CONFIG, tile=True)}, SETTINGS)
    content = path.read_bytes()
    header = GgufFile(path).tensors["token_embd.weight"].start
    for size in [*range(0, header, 7), header, len(content) // 2, len(content) - 1]:
        path.write_bytes(content[:size])
        refused(path, "truncated")


def test_a_file_that_lies(weights: GdnWeights, write: Writer) -> None:
    """Whatever a file says, the answer is an error or weights, soon, and nothing large is made for it."""
    path = write("qwen35", {0: tensors_of(weights, CONFIG, tile=True)}, SETTINGS)
    content = path.read_bytes()
    header = GgufFile(path).tensors["token_embd.weight"].start
    rng = np.random.default_rng(0)
    outcomes = set()
    tracemalloc.start()
    for case in range(600):
        damaged = bytearray(content)
        if case < 300:
            # Counts, lengths, dimensions and offsets are 8 bytes each.
            at = int(rng.integers(8, header - 8))
            damaged[at : at + 8] = struct.pack(
                "<Q", [0, 1 << 20, 1 << 31, 1 << 40, (1 << 63) + 1, (1 << 64) - 1][case % 6]
            )
        else:
            for at in rng.integers(0, header, 3):
                damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            GgufModel(path).weights(0)
            outcomes.add("loaded")
        except oplet.InputError:
            outcomes.add("refused")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert outcomes == {"loaded", "refused"}
    assert peak < 8 * len(content)


def header(tensors: int, keys: int, body: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + body


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (header(0, 1 << 60), "truncated: the length of a metadata key"),
        (header(1 << 60, 0), "truncated: the length of a tensor's name"),
        (
            header(0, 1, struct.pack("<Q", 1 << 62)),
            "metadata key has 4611686018427387904 bytes, and 65535 are the most",
        ),
        (header(0, 1, text(b"k") + struct.pack("<IQ", 8, 1 << 62)), "truncated: k needs 4611686018427387904"),
        (
            header(0, 1, text(b"k") + struct.pack("<IIQ", 9, 4, 1 << 62)),
            "truncated: k needs 18446744073709551616 bytes",
        ),
        (header(0, 1, text(b"k") + struct.pack("<IIQ", 9, 8, 1 << 62)), "truncated: a length in k"),
        (header(0, 1, text(b"k") + struct.pack("<IIQ", 9, 9, 1)), "k is an array of the unknown type 9"),
        (header(0, 1, text(b"k") + struct.pack("<I", 77)), "k has the unknown type 77"),
        (header(0, 1, text(b"\xff") + bytes(9)), "a metadata key is not UTF-8"),
        (header(0, 2, 2 * (text(b"k") + struct.pack("<IB", 0, 1))), "k is there twice"),
        (
            header(0, 1, text(b"general.alignment") + struct.pack("<II", 4, 3)),
            "general.alignment is 3, not a power of 2",
        ),
        (header(1, 0, text(b"t") + struct.pack("<I", 5)), "t has 5 dimensions, and 4 are the most"),
        (header(1, 0, text(b"t") + struct.pack("<IQIQ", 1, 8, 0, 7)), "t begins at 7, which is no multiple of 32"),
        (header(1, 0, text(b"t") + struct.pack("<IQIQ", 1, 33, 8, 0)), "t has rows of 33, and Q8_0 has blocks of 32"),
        (
            header(1, 0, text(b"t") + struct.pack("<IQIQ", 1, 1 << 62, 0, 0)),
            "truncated: t ends 18446744073709551623 bytes",
        ),
        (header(2, 0, 2 * (text(b"t") + struct.pack("<IQIQ", 1, 0, 0, 0))), "the tensor t is there twice"),
    ],
    ids=range(16),
)
def test_damage(tmp_path: Path, content: bytes, match: str) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    assert "\n  at byte " in refused(path, match)


@pytest.mark.parametrize(("kind", "name"), [(Kind.I32, "I32"), (9999, "type 9999")], ids=["I32", "unknown"])
def test_a_type_without_dequantisation(tmp_path: Path, kind: int, name: str) -> None:
    path = tmp_path / "typed.gguf"
    body = text(b"t") + struct.pack("<IQIQ", 1, 4, kind, 0)
    content = header(1, 0, body)
    path.write_bytes(content + bytes(32 - len(content) % 32 + 16))
    file = GgufFile(path)
    assert file.tensors["t"].shape == (4,)
    with pytest.raises(oplet.InputError, match=f"t: it is {name}, which this gguf package cannot dequantise"):
        file.read("t")
    with pytest.raises(oplet.InputError, match="has no tensor 'x'"):
        file.read("x")

"""Random calls of an op: ones to serve, and ones to refuse.

A call begins as one of the op's own cases, with some of its lengths changed wherever they occur, and is then twisted
a few times: another layout, dtype, shape, name, attribute, list of outputs or variant. What a manifest lets vary comes
from the manifest. Many twisted calls are valid still, and which ones is for the op to say.
"""

from __future__ import annotations

import contextlib
import decimal
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import attrs
import numpy as np
from hypothesis import strategies as st
from oplet import Registry, TensorSpec
from oplet.errors import InputError
from oplet.manifest import Attribute
from oplet.testing.kit import Kit
from oplet.testing.suite import Case

#: elements of an input at most, but for those that are all one element
MOST = 1 << 14

#: elements of all inputs of a case that calls begin with
SMALL = 5000

#: those of tensors, and of what else numpy has
DTYPES = (
    *("float32", "float16", "int32", "uint32", "float64", "longdouble", "int8", "uint16", "int64", "bool"),
    *("complex64", "S3", "U2", "O", "M8[s]", "V4"),
)

#: around the sizes of tiles and workgroups, and no longer than the sums that tolerances are derived for
LENGTHS = st.integers(0, 20) | st.sampled_from((31, 32, 33, 63, 64, 65, 127, 128, 129))

Door = Literal["arrays", "batch", "tensors", "specs"]

#: how often each
DOORS: Sequence[Door] = ("arrays", "arrays", "batch", "tensors", "specs")

#: at and past every bound that an integer has on its way to a shader
HUGE = st.sampled_from(
    [sign * (1 << bits) + off for bits in (16, 31, 32, 53, 63, 64) for sign in (1, -1) for off in (-1, 0, 1)]
    + [10**400, -1]
)

ODD_TEXT = ("", " ", "\0", "\ud800", "\u202e", "%s", "__class__", "../../etc/passwd", "{{ 7 * 7 }}", "}; fn main() {")
TEXT = st.text(max_size=8) | st.sampled_from((*ODD_TEXT, "x" * 10000))

#: values that are no tensor
NO_TENSORS = st.sampled_from(
    [[1.0], 1, 1.5, "x", b"x", {}, (), object(), np.ma.masked_array([1.0]), np.dtype("f4"), np.array(None), ...]
)

#: values that are no attribute, or not one of most types
NO_ATTRIBUTES = st.sampled_from(
    [b"x", [1.0], (1,), {}, 1j, True, np.bool_(1), decimal.Decimal(1), np.array(1), np.array([1, 2]), object(), "1"]
)

FLOATS = st.floats(width=32) | st.sampled_from([0, 1, -1, 0.5, 2, 1e-5, np.float16(0.5), np.float64(3), np.int8(2)])
INTS = st.integers(-3, 9) | st.sampled_from([np.int32(1), np.uint8(2), np.int64(4)])


@attrs.define(eq=False)
class Call:
    """A call of `Registry.run` or `Registry.explain`.

    Attributes:
        op: the op id, as it is asked for.
        inputs: by the names that they are passed under.
        attrs, outputs, variant: as `run` takes them.
        out: shape and dtype of a tensor to make and pass for each name; None for no `out`.
        door: "arrays" runs it on the inputs as they are, "batch" inside a batch, "tensors" on uploaded ones; "specs"
            explains it.
    """

    op: str
    inputs: dict[str, Any]
    attrs: Any
    outputs: Any = None
    variant: Any = None
    out: dict[str, TensorSpec] | None = None
    door: Door = "arrays"

    def make(self, registry: Registry) -> Any:
        """Makes the call. Raises what it raises."""
        keywords = {"attrs": self.attrs, "outputs": self.outputs, "variant": self.variant}
        if self.door == "specs":
            specs = {name: _spec(value) for name, value in self.inputs.items()}
            return registry.explain(self.op, **keywords, **_apart(specs))
        inputs = self.inputs
        if self.door == "tensors":
            inputs = {name: registry.tensor(value) if _uploads(value) else value for name, value in inputs.items()}
        if self.out is not None:
            keywords["out"] = {name: registry.empty(spec.shape, spec.dtype) for name, spec in self.out.items()}
        with registry.batch() if self.door == "batch" else contextlib.nullcontext():
            return registry.run(self.op, **keywords, **_apart(inputs))

    def __repr__(self) -> str:
        inputs = ", ".join(f"{name!r}: {_describe(value)}" for name, value in self.inputs.items())
        rest = {name: getattr(self, name) for name in ("attrs", "outputs", "variant", "out")}
        words = "".join(f", {name}={value!r:.300}" for name, value in rest.items() if value is not None)
        return f"Call({self.op!r:.60}, {self.door}, {{{inputs}}}{words})"


def _apart(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs without those that Python itself would take for another keyword of `run`."""
    return {name: value for name, value in inputs.items() if name not in ("attrs", "out", "outputs", "variant")}


def _uploads(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.size <= MOST


def _spec(value: object) -> object:
    return TensorSpec(value.shape, value.dtype.name) if isinstance(value, np.ndarray) else value


def _describe(value: object) -> str:
    if not isinstance(value, np.ndarray):
        return f"{value!r:.40}"
    plain = value.flags.c_contiguous and value.dtype.isnative
    layout = "" if plain else f", {value.dtype.str}, strides {value.strides}"
    odd = ", not finite" if value.size <= MOST and value.dtype.kind == "f" and not np.isfinite(value).all() else ""
    return f"{value.dtype} {value.shape}{layout}{odd}"


Draw = Callable[[st.SearchStrategy[Any]], Any]


@st.composite
def calls(draw: Draw, kit: Kit) -> Call:
    """Calls of an op."""
    cases = _small_cases(kit)
    case = cases[draw(st.integers(0, len(cases) - 1))]
    call = Call(kit.id, dict(case.inputs), dict(case.attrs), door=draw(st.sampled_from(DOORS)))
    for twist in draw(st.lists(st.sampled_from(TWISTS), max_size=3)):
        twist(draw, kit, call)
    return call


@functools.cache
def _small_cases(kit: Kit) -> list[Case]:
    return [case for case in kit.suite.cases(kit.seed) if sum(array.size for array in case.inputs.values()) <= SMALL]


def _arrays(call: Call) -> list[str]:
    # A vast one of a single element would become that large by most twists.
    return sorted(name for name, value in call.inputs.items() if isinstance(value, np.ndarray) and value.size <= MOST)


def _some_array(draw: Draw, call: Call) -> str | None:
    names = _arrays(call)
    return draw(st.sampled_from(names)) if names else None


# Twists that a valid call may survive ----------------------------------------------------------------


def _resize(draw: Draw, kit: Kit, call: Call) -> None:
    """Another length wherever it occurs, so that shapes still fit together."""
    arrays = {name: call.inputs[name] for name in _arrays(call)}
    lengths = sorted({length for array in arrays.values() for length in array.shape})
    if not lengths:
        return
    old, new = draw(st.sampled_from(lengths)), draw(LENGTHS)
    shapes = {name: tuple(new if n == old else n for n in array.shape) for name, array in arrays.items()}
    if max(map(math.prod, shapes.values())) > MOST:
        return
    for name, array in arrays.items():
        call.inputs[name] = _stretched(array, shapes[name])
    if isinstance(call.attrs, dict):
        call.attrs = {
            name: new if type(value) is int and value == old > 1 else value for name, value in call.attrs.items()
        }


def _stretched(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Its values, repeated or cut off along each axis, and no row longer than it was as a vector."""
    if not array.size:
        return np.zeros(shape, array.dtype)
    width = array.shape[-1] if shape else 1
    for axis, length in enumerate(shape):
        array = array.take(np.arange(length), axis, mode="wrap")
    if array.dtype.kind != "f" or not shape:
        return array
    # Smaller by a random share: rounding errors of numbers that are repeated would not be random either.
    share = np.random.default_rng(0).uniform(0.5, 1, shape) * math.sqrt(min(width / max(shape[-1], 1), 1))
    return (array * share).astype(array.dtype)


def _shuffle(draw: Draw, kit: Kit, call: Call) -> None:
    """Other numbers of the same kind: rows in another order, zeros, a few values that are none."""
    name = _some_array(draw, call)
    if name is None or call.inputs[name].dtype.kind != "f" or not (call.inputs[name].ndim and call.inputs[name].size):
        return
    array = np.random.default_rng(draw(st.integers(0, 1 << 16))).permutation(call.inputs[name], axis=0)
    special = draw(st.sampled_from((None, None, 0.0, -0.0, math.nan, math.inf, -math.inf)))
    if special is not None:
        array.flat[draw(st.integers(0, array.size - 1))] = special
    call.inputs[name] = array


def _lay_out(draw: Draw, kit: Kit, call: Call) -> None:
    """The same values in memory of another order, byte order or alignment."""
    name = _some_array(draw, call)
    if name is None:
        return
    layout: Callable[[np.ndarray], np.ndarray] = draw(
        st.sampled_from((_fortran, _backwards, _strided, _big_endian, _unaligned, _read_only))
    )
    call.inputs[name] = layout(call.inputs[name])


def _fortran(array: np.ndarray) -> np.ndarray:
    return np.asfortranarray(array)


def _backwards(array: np.ndarray) -> np.ndarray:
    return np.flip(np.flip(array).copy()) if array.ndim else array


def _strided(array: np.ndarray) -> np.ndarray:
    return np.repeat(array, 3, axis=-1)[..., ::3] if array.ndim else array


def _big_endian(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder(">"))


def _unaligned(array: np.ndarray) -> np.ndarray:
    if array.dtype.hasobject:
        return array
    return np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:].view(array.dtype).reshape(array.shape)


def _read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def _convert(draw: Draw, kit: Kit, call: Call) -> None:
    """All inputs of a type variable in another of its dtypes."""
    manifest = kit.op.manifest
    if not manifest.types:
        return
    variable = draw(st.sampled_from(sorted(manifest.types)))
    dtype = draw(st.sampled_from(manifest.types[variable]))
    for name in _arrays(call):
        port = manifest.input(name)
        if port is not None and port.type == variable and call.inputs[name].dtype.kind == "f":
            call.inputs[name] = call.inputs[name].astype(dtype)


def _drop(draw: Draw, kit: Kit, call: Call) -> None:
    """An input less, or None in its place."""
    if call.inputs:
        name = draw(st.sampled_from(sorted(call.inputs)))
        if draw(st.booleans()):
            call.inputs[name] = None
        else:
            del call.inputs[name]


def _set_attribute(draw: Draw, kit: Kit, call: Call) -> None:
    """A value of an attribute's own type, or of none."""
    manifest = kit.op.manifest
    if not manifest.attributes or not isinstance(call.attrs, dict):
        return
    attribute = draw(st.sampled_from(manifest.attributes))
    call.attrs = {**call.attrs, attribute.name: draw(_values(attribute))}


def _values(attribute: Attribute) -> st.SearchStrategy[Any]:
    own = {"float": FLOATS, "int": INTS, "string": TEXT}[attribute.type]
    if attribute.choices:
        own = st.sampled_from(attribute.choices)
    # Twice its own values: most should be of use.
    return own | own | HUGE | TEXT | NO_ATTRIBUTES | st.none()


def _ask(draw: Draw, kit: Kit, call: Call) -> None:
    """A list of outputs, some of them the op's."""
    known = [name for port in kit.op.manifest.outputs for name in port.names]
    names = st.lists(st.sampled_from(known) | st.sampled_from(known) | TEXT, max_size=3)
    call.outputs = draw(names | names.map(tuple) | st.sampled_from([known[0], 0, {}, (None,), ((),), range(2), b"Y"]))


def _choose(draw: Draw, kit: Kit, call: Call) -> None:
    """One of the op's variants, or a name that none has."""
    names = st.sampled_from([variant.name for variant in kit.op.variants])
    call.variant = draw(names | names | names | TEXT | st.sampled_from(["reference", 1, True, [], b"x", np.str_("x")]))


def _give_out(draw: Draw, kit: Kit, call: Call) -> None:
    """Tensors to write to: of the right shape, or not."""
    specs = {name: TensorSpec(draw(_shapes()), "float32") for name in draw(st.lists(TEXT, max_size=1))}
    if draw(st.booleans()):
        try:
            given = {name: value for name, value in call.inputs.items() if isinstance(value, np.ndarray)}
            request = kit.op.bind({name: TensorSpec.of(value) for name, value in given.items()}, call.attrs, None)
            specs |= kit.op.infer(request)
        except InputError:
            pass  # a call that is wrong already has no right outputs
    call.out = specs


# Twists that few calls survive -----------------------------------------------------------------------


def _retype(draw: Draw, kit: Kit, call: Call) -> None:
    """One input in any dtype that numpy has."""
    name = _some_array(draw, call)
    if name is not None:
        call.inputs[name] = np.zeros(call.inputs[name].shape, draw(st.sampled_from(DTYPES)))


def _reshape(draw: Draw, kit: Kit, call: Call) -> None:
    """One input in any shape, small or past all memory."""
    name = _some_array(draw, call)
    if name is not None:
        array = call.inputs[name]
        if call.door == "specs" and draw(st.booleans()):
            call.inputs[name] = TensorSpec(draw(st.lists(LENGTHS | HUGE.map(abs), max_size=5)), array.dtype.name)
            return
        shape = draw(_shapes())
        one = array.flat[0] if array.size else np.zeros((), array.dtype)[()]
        call.inputs[name] = np.broadcast_to(np.asarray(one, array.dtype), shape)


def _shapes() -> st.SearchStrategy[tuple[int, ...]]:
    small = st.lists(st.integers(0, 5), max_size=5)
    # Of one element's memory; numpy allows as much as an address can tell.
    large = st.lists(st.sampled_from((0, 1, 3, 1 << 16, (1 << 16) + 1, (1 << 31) - 1)), max_size=3)
    vast = st.lists(st.sampled_from((0, 1, 1 << 32, (1 << 32) + 4, 1 << 57)), max_size=1)
    empty = st.sampled_from(((0, 1 << 32), ((1 << 40) + 1, 0), (0, 1 << 31, 2)))
    fits = (small | large | vast).map(tuple).filter(_is_addressable)
    return fits | empty


def _is_addressable(shape: tuple[int, ...]) -> bool:
    # numpy counts an empty dimension as one of 1 there; the largest element has 16 bytes.
    return math.prod(max(n, 1) for n in shape) * 16 < 1 << 63


def _rename(draw: Draw, kit: Kit, call: Call) -> None:
    """An input by another name, or by two."""
    if not call.inputs:
        return
    name = draw(st.sampled_from(sorted(call.inputs)))
    port = kit.op.manifest.input(name)
    names = st.sampled_from(port.names) if port else st.just(name)
    other = draw(names | names | TEXT | st.sampled_from([one.name for one in kit.op.manifest.inputs]))
    value = call.inputs[name] if draw(st.booleans()) else call.inputs.pop(name)
    call.inputs[other] = value


def _replace(draw: Draw, kit: Kit, call: Call) -> None:
    """What is no tensor, as an input."""
    if call.inputs:
        call.inputs[draw(st.sampled_from(sorted(call.inputs)))] = draw(NO_TENSORS)


def _misname_attribute(draw: Draw, kit: Kit, call: Call) -> None:
    """An attribute that the op does not have, or attributes that are no mapping."""
    if draw(st.booleans()) and isinstance(call.attrs, dict):
        call.attrs = {**call.attrs, draw(TEXT | st.sampled_from([None, 1, ("a",), b"alpha"])): draw(FLOATS | TEXT)}
    else:
        call.attrs = draw(st.sampled_from([[], "alpha", 0, [("alpha", 1)], np.zeros(2), object()]))


def _misname_op(draw: Draw, kit: Kit, call: Call) -> None:
    """Another op."""
    call.op = draw(TEXT | st.sampled_from([kit.id.lower(), kit.id + " ", 1, None]))


TWISTS: Sequence[Callable[[Draw, Kit, Call], None]] = (
    *(_resize, _resize, _resize, _shuffle, _shuffle, _lay_out, _lay_out, _convert, _drop, _set_attribute),
    *(_set_attribute, _set_attribute, _choose, _choose, _choose, _ask, _give_out),
    *(_retype, _reshape, _rename, _replace, _misname_attribute, _misname_op),
)

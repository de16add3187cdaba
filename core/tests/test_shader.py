"""Templates become WGSL behind a generated prologue, and every line knows the way back."""

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from oplet.capabilities import FLOOR, Adapter, Capabilities
from oplet.errors import ShaderError
from oplet.shader import FOLD_PARAMS, Shader, dump, fold, param_bytes, prologue, ranges
from oplet.templates import Templates
from oplet.variant import Binding

PLAIN = Capabilities(frozenset(), FLOOR, 0, (), "naga", Adapter("text only", "", "Vulkan", True))
RICH = attrs.evolve(
    PLAIN, features=frozenset({"shader-f16", "subgroups", "subgroup-matrix"}), subgroup_size=32, dialect="tint"
)
COPY = (Binding("x", "X", "read", "vec4<f32>"), Binding("y", "Y", "read_write", "f32"))


def render(
    folder: Path,
    template: str,
    *,
    context: Mapping[str, Any] | None = None,
    bindings: Sequence[Binding] = (),
    caps: Capabilities = PLAIN,
) -> Shader:
    templates = Templates({"acme": folder})
    return templates.render("acme", template, context=context or {}, bindings=bindings, params=FOLD_PARAMS, caps=caps)


def body(shader: Shader) -> list[str]:
    return [line for line, origin in zip(shader.wgsl.split("\n"), shader.origins, strict=True) if origin is not None]


def test_prologue_declares_what_the_launch_declares() -> None:
    lines = prologue(PLAIN, COPY, {"rows": "u32", "factor": "f32"})
    assert lines[:6] == [
        "struct Params {",
        "  rows: u32,",
        "  factor: f32,",
        "}",
        "@group(0) @binding(0) var<uniform> params: Params;",
        "@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;",
    ]
    assert lines[6] == "@group(0) @binding(2) var<storage, read_write> y: array<f32>;"


def test_prologue_enables_what_the_compiler_wants_enabled() -> None:
    enables = [line for line in prologue(RICH, (), FOLD_PARAMS) if line.startswith("enable")]
    assert enables == ["enable f16;", "enable subgroups;", "enable chromium_experimental_subgroup_matrix;"]
    naga = attrs.evolve(RICH, dialect="naga")
    assert [line for line in prologue(naga, (), FOLD_PARAMS) if line.startswith("enable")] == ["enable f16;"]
    assert not any(line.startswith("enable") for line in prologue(PLAIN, (), FOLD_PARAMS))


def test_a_template_sees_context_dialect_and_subgroup_size(tmp_path: Path) -> None:
    (tmp_path / "a.wgsl.jinja").write_text("{{ dtype }} {{ dialect }} {{ subgroup_size }}\n")
    assert body(render(tmp_path, "a.wgsl.jinja", context={"dtype": "f16"}, caps=RICH))[0] == "f16 tint 32"
    assert body(render(tmp_path, "a.wgsl.jinja", context={"dtype": "f32"}))[0] == "f32 naga 0"


def test_every_line_has_its_origin(tmp_path: Path) -> None:
    (tmp_path / "a.wgsl.jinja").write_text(
        "// first\n{% for i in range(2) %}\nlet v{{ i }} = {{ i }};\n{% endfor %}\n{% include 'part.wgsl' %}\n// last\n"
    )
    (tmp_path / "part.wgsl").write_text("// part 1\n// part 2\n")
    shader = render(tmp_path, "a.wgsl.jinja")
    lines = shader.wgsl.split("\n")
    assert len(lines) == len(shader.origins)
    assert not any("\x1f" in line for line in lines)
    main, part = str(tmp_path / "a.wgsl.jinja"), str(tmp_path / "part.wgsl")
    origin = dict(zip(lines, shader.origins, strict=True))
    assert origin["// first"] == (main, 1)
    assert origin["let v0 = 0;"] == origin["let v1 = 1;"] == (main, 3)
    assert origin["// part 2"] == (part, 2)
    assert origin["// last"] == (main, 6)
    assert origin["struct Params {"] is None


@pytest.mark.parametrize("message", ["error: unknown\n  ┌─ wgsl:{}:9\n", ":{}:9 error: unresolved value 'x'"])
def test_a_compiler_message_is_located(tmp_path: Path, message: str) -> None:
    (tmp_path / "a.wgsl.jinja").write_text("fn good() {}\nfn bad( {}\n")
    shader = render(tmp_path, "a.wgsl.jinja")
    line = shader.wgsl.split("\n").index("fn bad( {}") + 1
    assert shader.locate(message.format(line)) == (str(tmp_path / "a.wgsl.jinja"), 2)
    assert shader.locate(message.format(1)) is None, "the prologue is nobody's template"
    assert shader.locate(message.format(len(shader.origins) + 1)) is None
    assert shader.locate("device lost") is None


def test_an_undefined_name_is_an_error_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.wgsl.jinja").write_text("// one\n{{ dtpye }}\n")
    with pytest.raises(ShaderError, match="'dtpye' is undefined") as caught:
        render(tmp_path, "a.wgsl.jinja", context={"dtype": "f32"})
    assert (caught.value.template, caught.value.line) == (str(tmp_path / "a.wgsl.jinja"), 2)


def test_a_syntax_error_is_an_error_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.wgsl.jinja").write_text("// one\n// two\n{% if %}\n")
    with pytest.raises(ShaderError) as caught:
        render(tmp_path, "a.wgsl.jinja")
    assert (caught.value.template, caught.value.line) == (str(tmp_path / "a.wgsl.jinja"), 3)


def test_an_error_in_an_include_is_reported_there(tmp_path: Path) -> None:
    (tmp_path / "a.wgsl.jinja").write_text("{% include 'part.wgsl.jinja' %}\n")
    (tmp_path / "part.wgsl.jinja").write_text("\n\n{{ 1 // 0 }}\n")
    with pytest.raises(ShaderError, match="ZeroDivisionError") as caught:
        render(tmp_path, "a.wgsl.jinja")
    assert (caught.value.template, caught.value.line) == (str(tmp_path / "part.wgsl.jinja"), 3)


@pytest.mark.parametrize("name", ["absent.wgsl", "../outside.wgsl", "./a.wgsl", "/etc/passwd", "sub//a.wgsl", "..\\a"])
def test_templates_stay_inside_their_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "wgsl"
    (folder / "sub").mkdir(parents=True)
    for place in (tmp_path / "outside.wgsl", folder / "a.wgsl", folder / "sub" / "a.wgsl"):
        place.write_text("// here\n")
    (folder / "include.wgsl.jinja").write_text(f"{{% include {name!r} %}}\n")
    for template in (name, "include.wgsl.jinja"):
        with pytest.raises(ShaderError, match="does not exist"):
            render(folder, template)


def test_an_extension_cannot_include_the_ops_templates(tmp_path: Path) -> None:
    for folder, text in (("acme", "// acme's\n"), ("other", "// other's\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "part.wgsl").write_text(text)
        (tmp_path / folder / "a.wgsl.jinja").write_text("{% include 'part.wgsl' %}\n")
    templates = Templates({"acme": tmp_path / "acme", "other": tmp_path / "other"})
    shader = templates.render("other", "a.wgsl.jinja", context={}, bindings=(), params=FOLD_PARAMS, caps=PLAIN)
    assert "// other's" in shader.wgsl
    assert "// acme's" not in shader.wgsl


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ cycler.__init__.__globals__.os }}", "SecurityError"),
        ("{{ '{0.__class__}'.format(names) }}", "SecurityError"),
        ("{{ ('' | attr('__class__')).mro() }}", "SecurityError"),
        ("{% set _ = table.update(a=1) %}", "SecurityError"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "OverflowError"),
    ],
)
def test_templates_are_sandboxed(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "a.wgsl.jinja").write_text(text)
    with pytest.raises(ShaderError, match=error):
        render(tmp_path, "a.wgsl.jinja", context={"names": ("a",), "table": {"a": 0}})


@pytest.mark.parametrize("workgroups", [1, 7, 8, 9, 63, 64, 65, 511, 512])
def test_fold_covers_every_workgroup_within_the_limit(workgroups: int) -> None:
    folded = fold(workgroups, 8)
    assert max(folded) <= 8
    assert workgroups <= math.prod(folded)
    # what workgroup_index() in the prologue computes
    indices = {
        x + folded[0] * (y + folded[1] * z)
        for z in range(folded[2])
        for y in range(folded[1])
        for x in range(folded[0])
    }
    assert set(range(workgroups)) <= indices


def test_fold_leaves_small_launches_alone() -> None:
    assert fold(65535, 65535) == (65535, 1, 1)
    assert fold(65536, 65535) == (65535, 2, 1)


@pytest.mark.parametrize("workgroups", [1, 7, 8, 9, 63, 64, 65, 100, 512])
@pytest.mark.parametrize("most", [1, 3, 8, 9, 20, 64, 100, 512])
def test_ranges_hold_each_workgroup_once_whatever_is_folded(workgroups: int, most: int) -> None:
    seen = []
    for first, count in ranges(workgroups, 10 * workgroups, 10 * most, 8):
        assert 1 <= count <= most
        surplus = range(first, first + math.prod(fold(count, 8)))  # what workgroup_index() gives, in any order
        seen += [index for index in surplus if index < workgroups]
    assert sorted(seen) == list(range(workgroups))


def test_ranges_are_about_equal_and_no_more_than_needed() -> None:
    assert list(ranges(100, 0, 1, 65535)) == [(0, 100)]
    assert list(ranges(100, 700, 700, 65535)) == [(0, 100)]
    assert list(ranges(200_000, 700, 700, 65535)) == [(0, 200_000)], "one dispatch is folded with a surplus"
    assert list(ranges(100, 700, 699, 65535)) == [(0, 50), (50, 50)]
    assert list(ranges(3, 700, 1, 65535)) == [(0, 1), (1, 1), (2, 1)], "a workgroup is not split"
    rows = [(0, 65535), (65535, 65535), (131070, 65535), (196605, 3395)]
    assert list(ranges(200_000, 200_000, 199_999, 65535)) == rows


def test_param_bytes_are_the_fields_in_order_padded_to_16() -> None:
    params = {"rows": np.uint32(5), "shift": np.int32(-2), "factor": np.float32(0.5)}
    data = param_bytes(params, 70000, (65535, 2, 1), 9)
    assert struct.unpack("<IifIIII", data[:28]) == (5, -2, 0.5, 70000, 65535, 2, 9)
    assert len(data) == 32


def test_dump_names_the_shader_and_its_contents(tmp_path: Path) -> None:
    one, two = (Shader(text, (None,)) for text in ("// one", "// two"))
    first = dump(str(tmp_path / "new"), "com.acme.Foo: vec4", one)
    assert first.read_text() == "// one"
    assert first.name.startswith("com.acme.Foo-vec4-")
    assert dump(str(tmp_path / "new"), "com.acme.Foo: vec4", two) != first

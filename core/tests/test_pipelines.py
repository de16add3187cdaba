"""One pipeline for each code that runs, and a template's own line for each that does not compile."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import acme_scale
import numpy as np
import oplet
import pytest
from oplet import Binding, InputError, Launch, ShaderError, TensorSpec, Variant

SCALE = acme_scale.ID
WGSL = Path(str(acme_scale.templates()))
Y = Binding("y", "Y", "read_write", "f32")
ONES = np.ones(3, np.float32)


@pytest.fixture
def fresh() -> Iterator[oplet.Device]:
    """A device that has compiled nothing yet."""
    device = oplet.open_device()
    yield device
    device.gpu.destroy()


def launching(device: oplet.Device, *launches: Launch, folder: Path = WGSL) -> Callable[[], np.ndarray]:
    """Runs an op that has these launches."""
    registry = oplet.Registry(device=device, discover=False)
    variant = Variant("odd", lambda request, caps: launches)
    registry.register(SCALE, acme_scale.with_variants(variant, templates=lambda: folder))
    return lambda: registry.run(SCALE, X=ONES).numpy()


def launch(template: str, **fields: Any) -> Launch:
    return Launch(template, 1, bindings=[Y], **fields)


def set_to(folder: Path, value: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "set.wgsl.jinja").write_text(
        f"@compute @workgroup_size(4)\nfn main(@builtin(local_invocation_index) i: u32) {{ y[i] = {value}; }}\n"
    )


# The cache --------------------------------------------------------------------------------------------


def test_shapes_and_numbers_share_a_pipeline(fresh: oplet.Device) -> None:
    registry = oplet.Registry(device=fresh, discover=False)
    registry.register(SCALE, acme_scale)
    for shape in ((), (1,), (7, 3), (64,), (2, 3, 4, 5)):
        for factor in (0.5, -3):
            registry.run(SCALE, X=np.ones(shape, np.float32), attrs={"factor": factor, "shift": len(shape)})
    assert (len(fresh.pipelines), fresh.pipelines.compiled) == (1, 1)
    registry.run(SCALE, X=ONES, attrs={"mode": "absolute"})
    registry.run(SCALE, X=ONES.astype(np.int32))
    registry.run(SCALE, X=ONES, bias=ONES)
    registry.run(SCALE, X=ONES, outputs=("negated",))
    assert (len(fresh.pipelines), fresh.pipelines.compiled) == (5, 5)


class Choosing:
    """An op whose one launch has a context that the test chooses for each call."""

    def __init__(self, device: oplet.Device, folder: Path) -> None:
        self._context: dict[str, Any] = {}
        self._calls = 0
        self.registry = oplet.Registry(device=device, discover=False)
        variant = Variant("odd", lambda request, caps: [launch("set.wgsl.jinja", context=dict(self._context))])
        self.registry.register(SCALE, acme_scale.with_variants(variant, templates=lambda: folder))

    def __call__(self, value: Any) -> float:
        """Runs with `value` in the context, in a call that is planned anew."""
        self._calls += 1
        self._context["value"] = value
        return float(self.registry.run(SCALE, X=np.ones(self._calls, np.float32)).numpy()[0])


def test_equal_choices_of_another_type_are_another_text(device: oplet.Device, tmp_path: Path) -> None:
    set_to(tmp_path, "f32({{ '2' if value is true else '3' if value is integer else value }})")
    run = Choosing(device, tmp_path)
    assert [run(value) for value in (1.0, True, 1, True, 1.0, 1)] == [1, 2, 3, 2, 1, 3]


def test_the_cache_is_bounded_and_forgets_the_longest_unused(
    fresh: oplet.Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("oplet.pipelines.MAX_PIPELINES", 3)
    set_to(tmp_path, "f32({{ value }})")
    run = Choosing(fresh, tmp_path)
    compiled = []
    for value in (1, 2, 3, 1, 4, 1, 3):
        assert run(value) == value
        assert len(fresh.pipelines) <= 3
        compiled.append(fresh.pipelines.compiled)
    assert compiled == [1, 2, 3, 3, 4, 4, 4], "the fourth went in the place of the second"
    run.registry._calls.clear()  # a call keeps its own pipelines alive
    assert run(2) == 2
    assert fresh.pipelines.compiled == 5


def test_layers_that_hand_on_states_soon_meet_their_bind_groups_again(device: oplet.Device) -> None:
    registry = oplet.Registry(device=device, discover=False)
    registry.register(SCALE, acme_scale)
    x, states = registry.tensor(ONES), [registry.tensor(ONES) for _ in range(5)]
    counts = []
    for _ in range(12):
        with registry.batch():
            hidden, new = x, []
            for state in states:
                hidden = registry.run(SCALE, X=registry.run(SCALE, X=hidden))
                new.append(registry.run(SCALE, X=state))
        states = new
        counts.append(device.bind_group_count)
    assert counts[4:] == counts[4:5] * 8, counts
    np.testing.assert_array_equal(states[0].numpy(), 2.0**12 * ONES)


def test_bind_groups_are_cached_and_bounded(device: oplet.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = oplet.Registry(device=device, discover=False)
    registry.register(SCALE, acme_scale)
    x, y = registry.tensor(ONES), registry.empty(3)
    registry.run(SCALE, X=x, out={"Y": y})
    before = device.bind_group_count
    for _ in range(5):
        registry.run(SCALE, X=x, out={"Y": y})
    assert device.bind_group_count == before
    monkeypatch.setattr("oplet.device.MAX_BIND_GROUPS", 4)
    device._bind_groups.clear()
    tensors = [registry.empty(3) for _ in range(9)]
    for tensor in tensors * 2:
        registry.run(SCALE, X=x, out={"Y": tensor})
        assert device.bind_group_count <= 4
    assert all((tensor.numpy() == 2).all() for tensor in tensors)


def test_plugins_of_one_name_do_not_share_templates(device: oplet.Device, tmp_path: Path) -> None:
    """Two registries, one device, and under one id and name plugins that differ."""
    results = []
    for value in ("1.0", "2.0", "1.0"):
        set_to(tmp_path / value, value)
        results.append(launching(device, launch("set.wgsl.jinja"), folder=tmp_path / value)()[0])
    assert results == [1, 2, 1]


def test_equal_wgsl_is_compiled_once(fresh: oplet.Device, tmp_path: Path) -> None:
    runs = []
    for folder in ("one", "two"):
        set_to(tmp_path / folder, "1.0")
        runs.append(launching(fresh, launch("set.wgsl.jinja"), folder=tmp_path / folder))
    assert [run()[0] for run in runs] == [1, 1]
    assert fresh.pipelines.compiled == 1


# Faults -----------------------------------------------------------------------------------------------


def line_of(file: Path, text: str) -> int:
    return 1 + next(number for number, line in enumerate(file.read_text().splitlines()) if text in line)


@pytest.mark.parametrize(
    ("template", "file", "fault"),
    [
        ("error.wgsl.jinja", "error.wgsl.jinja", "v0 + 1.5"),
        ("includes_error.wgsl.jinja", "part_with_error.wgsl", "no_such_name"),
    ],
)
def test_a_compile_error_is_at_the_templates_line(device: oplet.Device, template: str, file: str, fault: str) -> None:
    run = launching(device, launch(template))
    for _ in range(2):
        with pytest.raises(ShaderError) as caught:
            run()
        path = WGSL / file
        assert (caught.value.template, caught.value.line) == (str(path), line_of(path, fault))
        first, *evidence, last = str(caught.value).splitlines()
        assert first == f"com.acme.Scale/odd: {path}:{caught.value.line}: the WGSL does not compile"
        assert len(evidence) > 1, "what the compiler says"
        assert evidence[-1] == "the variant odd is of acme_changed", "an installed one with its version"
        assert last == "mend the template; OPLET_DUMP_WGSL=dir writes the WGSL that was compiled"
        assert fault in caught.value.wgsl


def test_a_type_error_inside_a_function_is_at_its_own_line(device: oplet.Device, tmp_path: Path) -> None:
    # naga's validator names the function first.
    text = """fn product(a: i32, b: f32) -> f32 {
  let one = a + 1;
  return f32(one * b);
}
@compute @workgroup_size(1)
fn main() { y[0] = product(1, 2.0); }
"""
    (tmp_path / "types.wgsl.jinja").write_text(text)
    with pytest.raises(ShaderError, match="the WGSL does not compile") as caught:
        launching(device, launch("types.wgsl.jinja"), folder=tmp_path)()
    assert (caught.value.template, caught.value.line) == (str(tmp_path / "types.wgsl.jinja"), 3)


def test_a_fault_of_no_line_names_the_template(device: oplet.Device, tmp_path: Path) -> None:
    (tmp_path / "empty.wgsl.jinja").write_text("fn other() {}\n")
    with pytest.raises(ShaderError, match="the WGSL does not compile") as caught:
        launching(device, launch("empty.wgsl.jinja"), folder=tmp_path)()
    assert caught.value.template == "empty.wgsl.jinja"
    assert "fn other() {}" in caught.value.wgsl


def test_a_workgroup_past_the_limit_is_the_templates_fault(device: oplet.Device, tmp_path: Path) -> None:
    (tmp_path / "wide.wgsl.jinja").write_text("@compute @workgroup_size(4096)\nfn main() { y[0] = 1.0; }\n")
    with pytest.raises(ShaderError, match="4096"):
        launching(device, launch("wide.wgsl.jinja"), folder=tmp_path)()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (launch("absent.wgsl.jinja"), "template 'absent.wgsl.jinja' does not exist"),
        (launch("../manifest.json"), "does not exist"),
        (launch("scale.wgsl.jinja"), "'names' is undefined"),
        (launch("error.wgsl.jinja", params={"fn": np.uint32(1)}), "the WGSL does not compile"),
    ],
)
def test_other_faults_of_a_launch(device: oplet.Device, made: Launch, message: str) -> None:
    with pytest.raises(ShaderError, match=message):
        launching(device, made)()


def test_an_include_of_nothing_is_at_its_line(device: oplet.Device, tmp_path: Path) -> None:
    (tmp_path / "whole.wgsl.jinja").write_text('// one\n{% include "part.wgsl" %}\n')
    (tmp_path / "other.wgsl.jinja").write_text('{% include "oplet/copy.wgsl.jinja" %}\n')
    for file, line, part in (("whole", 2, "part.wgsl"), ("other", 1, "oplet/copy.wgsl.jinja")):
        with pytest.raises(ShaderError, match=f"template '{part}' does not exist") as caught:
            launching(device, launch(f"{file}.wgsl.jinja"), folder=tmp_path)()
        assert (caught.value.template, caught.value.line) == (str(tmp_path / f"{file}.wgsl.jinja"), line)
        assert f"{caught.value.template}:{line}: " in str(caught.value)


def test_a_run_after_a_shader_error_works(device: oplet.Device) -> None:
    registry = oplet.Registry(device=device, discover=False)
    bad = Variant("bad", lambda request, caps: [launch("error.wgsl.jinja")])
    good = Variant("good", acme_scale.plan)
    registry.register(SCALE, acme_scale.with_variants(bad, good))
    with pytest.raises(ShaderError), registry.batch():
        registry.run(SCALE, X=ONES)
    np.testing.assert_array_equal(registry.run(SCALE, X=ONES, variant="good").numpy(), 2 * ONES)


# OPLET_DUMP_WGSL --------------------------------------------------------------------------------------


def test_shaders_are_written_where_one_asks_for_them(
    device: oplet.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPLET_DUMP_WGSL", str(tmp_path / "wgsl"))
    launching(device, Launch("scale.wgsl.jinja", 1, *_scale_fields()))()
    with pytest.raises(ShaderError) as caught:
        launching(device, launch("error.wgsl.jinja"))()
    written = {file.read_text() for file in (tmp_path / "wgsl").glob("com.acme.Scale-odd-*.wgsl")}
    assert caught.value.wgsl in written, "also the one that does not compile"
    assert len(written) == 2
    assert not any("\x1f" in text for text in written)


def test_a_folder_that_cannot_be_written_to(
    device: oplet.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPLET_DUMP_WGSL", str(tmp_path / "file" / "wgsl"))
    with pytest.raises(InputError, match=r"OPLET_DUMP_WGSL: .* cannot be written to") as caught:
        launching(device, Launch("scale.wgsl.jinja", 1, *_scale_fields()))()
    assert caught.value.argument == "OPLET_DUMP_WGSL"


def _scale_fields() -> tuple[Any, ...]:
    context = {"scalar": "f32", "names": ("x", "y"), "absolute": False}
    params = {"size": np.uint32(3), "factor": np.float32(2), "shift": np.int32(0)}
    return context, params, [Binding("x", "X", "read", "f32"), Y]


# Params and scratch -----------------------------------------------------------------------------------


def test_params_of_every_type_arrive(device: oplet.Device, tmp_path: Path) -> None:
    (tmp_path / "params.wgsl.jinja").write_text(
        "@compute @workgroup_size(1)\nfn main() {\n"
        "  y[0] = f32(params.big == 4000000000u); y[1] = f32(params.low == -2); y[2] = params.half;\n}\n"
    )
    params = {"big": np.uint32(4_000_000_000), "low": np.int32(-2), "half": np.float32(0.5)}
    run = launching(device, launch("params.wgsl.jinja", params=params), folder=tmp_path)
    np.testing.assert_array_equal(run(), [1, 1, 0.5])


def test_launches_run_in_order_through_scratch(device: oplet.Device, tmp_path: Path) -> None:
    """Each launch has params of its own; the uniform buffer of the plan holds them at the device's alignment."""
    (tmp_path / "step.wgsl.jinja").write_text(
        "@compute @workgroup_size(4)\nfn main(@builtin(local_invocation_index) i: u32) {\n"
        "  if (i < 3u) { {{ to }}[i] = {{ source }}[i] * 10.0 + params.add; }\n}\n"
    )
    scratch = {"a": TensorSpec((3,), "float32"), "b": TensorSpec((3,), "float32")}
    path = [("X", "a", 1), ("a", "b", 2), ("b", "a", 3), ("a", "Y", 4)]
    launches = [
        Launch(
            "step.wgsl.jinja",
            1,
            {"source": source.lower(), "to": to.lower()},
            {"add": np.float32(add)},
            [Binding(source.lower(), source, "read", "f32"), Binding(to.lower(), to, "read_write", "f32")],
            scratch,
        )
        for source, to, add in path
    ]
    run = launching(device, *launches, folder=tmp_path)
    for _ in range(3):
        np.testing.assert_array_equal(run(), [11234, 11234, 11234])

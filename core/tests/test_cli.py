"""The `oplet` command, on a distribution that is made here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from oplet.cli import main

MANIFEST = {
    "schema": 1,
    "id": "com.acme.Scale",
    "since_version": 1,
    "summary": "Multiplies every element.",
    "inputs": [
        {"name": "X", "upstream": "data", "type": "T", "shape": "any", "doc": "The elements."},
        {"name": "bias", "type": "T", "shape": "as X", "optional": True},
    ],
    "outputs": [
        {"name": "Y", "type": "T", "shape": "as X"},
        {"name": "negated", "type": "T", "shape": "as X", "optional": True},
    ],
    "attributes": [
        {"name": "factor", "type": "float", "default": 2.0, "doc": "What it multiplies by."},
        {"name": "mode", "type": "string", "choices": ["plain", "fancy"]},
    ],
    "types": {"T": ["float32"]},
}

PLUGIN = """
from importlib.resources import files
import numpy as np
import oplet

@oplet.hookimpl
def manifest():
    return oplet.Manifest.read(__package__)

@oplet.hookimpl
def infer(request):
    return {name: request.inputs["X"] for name in request.outputs}

@oplet.hookimpl
def reference(request, arrays):
    y = arrays["X"] * np.float32(request.attrs["factor"]) + arrays.get("bias", np.float32(0))
    return {"Y": y, "negated": -y}

def plan(request, caps):
    count = request.inputs["X"].size
    if not count:
        return []
    bindings = [oplet.Binding("x", "X", "read", "f32")]
    if "bias" in request.inputs:
        bindings.append(oplet.Binding("bias", "bias", "read", "f32"))
    bindings += [oplet.Binding(name.lower(), name, "read_write", "f32") for name in request.outputs]
    return [oplet.Launch(
        "scale.wgsl.jinja", workgroups=-(-count // 64),
        context={"outputs": tuple(name.lower() for name in request.outputs), "bias": "bias" in request.inputs},
        params={"count": np.uint32(count), "factor": np.float32(request.attrs["factor"])}, bindings=bindings)]

@oplet.hookimpl
def variants():
    return [
        oplet.Variant("fancy", plan, doc="Never.", rejects=lambda request, caps: "it is not written yet"),
        oplet.Variant("plain", plan, doc="One element an invocation."),
    ]

@oplet.hookimpl
def templates():
    return files(__package__) / "wgsl"
"""

TEMPLATE = """
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) workgroup_id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let group = workgroup_index(workgroup_id);
  if (group >= params.workgroups) { return; }
  let i = group * 64u + lane;
  if (i >= params.count) { return; }
  let value = x[i] * params.factor{{ " + bias[i]" if bias else "" }};
{% for name in outputs %}
  {{ name }}[i] = {{ "-" if name == "negated" else "" }}value;
{% endfor %}
}
"""


def _install(site: Path, dist: str, op: str, folder: str, files: dict[str, str]) -> None:
    info = site / f"{dist.replace('-', '_')}-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.2.3\n")
    (info / "entry_points.txt").write_text(f"[oplet.ops]\n{op} = {folder}\n")
    for name, text in files.items():
        path = site / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on sys.path with the distribution `acme-scale` installed."""
    site = tmp_path / "site"
    site.mkdir()
    _install(
        site,
        "acme-scale",
        "com.acme.Scale",
        "acme_scale",
        {"__init__.py": PLUGIN, "manifest.json": json.dumps(MANIFEST), "wgsl/scale.wgsl.jinja": TEMPLATE},
    )
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    monkeypatch.delitem(sys.modules, "acme_scale", raising=False)
    monkeypatch.chdir(tmp_path)
    return site


def oplet(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, arguments, prog_name="oplet")
    assert result.exit_code == status, f"{result.output}\n{result.exception!r}"
    return result


@pytest.mark.usefixtures("site")
class TestList:
    def test_op_with_its_distribution_and_version(self) -> None:
        rows = [line.split() for line in oplet("list").stdout.splitlines()]
        assert rows[0] == ["op", "distribution", "version"]
        assert ["com.acme.Scale", "acme-scale", "1.2.3"] in rows

    def test_imports_no_plugin(self) -> None:
        oplet("list")
        assert "acme_scale" not in sys.modules

    def test_says_how_to_get_an_op_where_there_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        installed = {line.split()[1] for line in oplet("list").stdout.splitlines()[1:]}
        monkeypatch.setenv("OPLET_BLOCK", ",".join(installed))
        result = oplet("list")
        assert result.stdout == ""
        assert "pip install" in result.stderr


@pytest.mark.usefixtures("site")
class TestInfo:
    def test_everything_that_the_manifest_and_the_variants_say(self) -> None:
        text = oplet("info", "com.acme.Scale").stdout
        for word in ("Multiplies every element.", "acme-scale 1.2.3", "X (data)", "The elements", "optional"):
            assert word in text
        for word in ("factor", "2.0", "One of plain, fancy.", "T   float32", "plain   One element an invocation."):
            assert word in text

    def test_fits_in_80_columns(self) -> None:
        lines = oplet("info", "com.acme.Scale").stdout.splitlines()
        assert max(map(len, lines)) <= 80
        assert all(line == line.rstrip() for line in lines)

    def test_unknown_op_names_the_near_one(self) -> None:
        result = oplet("info", "com.acme.Scal", status=1)
        assert result.stderr.startswith("UnknownOpError: no plugin offers 'com.acme.Scal'\n")
        assert "did you mean 'com.acme.Scale'?" in result.stderr


@pytest.mark.usefixtures("site")
class TestExplain:
    def test_variant_and_the_reason_of_the_other(self) -> None:
        text = oplet("explain", "com.acme.Scale", "--X", "3x5:f32").stdout
        assert "X float32 (3, 5)" in text
        assert "→ Y float32 (3, 5)" in text
        assert "plain   runs" in text
        assert "rejects: it is not written yet" in text

    @pytest.mark.parametrize(("spec", "shown"), [("7:float32", "(7,)"), (":f32", "()"), ("0x4:f32", "(0, 4)")])
    def test_specs(self, spec: str, shown: str) -> None:
        assert f"X float32 {shown}" in oplet("explain", "com.acme.Scale", "--X", spec).stdout

    @pytest.mark.parametrize("spec", ["3x5", "3x5:f64", "3,5:f32", "-1:f32", "x3:f32", "3x:f32"])
    def test_a_bad_spec_is_a_usage_error_that_shows_a_good_one(self, spec: str) -> None:
        assert "1024x1024:f16" in oplet("explain", "com.acme.Scale", f"--X={spec}", status=2).stderr

    def test_onnx_name(self) -> None:
        assert "X float32 (4,)" in oplet("explain", "com.acme.Scale", "--data", "4:f32").stdout

    def test_two_names_of_one_input_are_refused(self) -> None:
        stderr = oplet("explain", "com.acme.Scale", "--data", "4:f32", "--X", "4:f32", status=1).stderr
        assert "two names of one input" in stderr

    def test_an_unknown_input_is_a_usage_error_that_names_the_near_one(self) -> None:
        stderr = oplet("explain", "com.acme.Scale", "--biass", "4:f32", status=2).stderr
        assert "No such option" in stderr
        assert "Did you mean" in stderr

    def test_optional_output(self) -> None:
        text = oplet("explain", "com.acme.Scale", "--X", "4:f32", "-o", "negated").stdout
        assert "→ negated float32 (4,)" in text
        assert "→ Y" not in text

    def test_named_variant_that_rejects(self) -> None:
        stderr = oplet("explain", "com.acme.Scale", "--X", "4:f32", "--variant", "fancy", status=1).stderr
        assert stderr.startswith("NoVariantError: ")
        assert "it is not written yet" in stderr

    def test_help_shows_the_inputs(self) -> None:
        text = oplet("explain", "com.acme.Scale", "--help").stdout
        assert "--bias SHAPE:DTYPE" in text
        assert "float32 any" in text

    def test_help_of_the_group_lists_the_ops_and_imports_none(self) -> None:
        assert "com.acme.Scale" in oplet("explain", "--help").stdout
        assert "acme_scale" not in sys.modules


@pytest.mark.usefixtures("site")
class TestRun:
    def test_saves_the_output(self) -> None:
        x = np.linspace(-2, 3, 15, dtype=np.float32).reshape(3, 5)
        np.save("x.npy", x)
        result = oplet("run", "com.acme.Scale", "--X", "x.npy", "-o", "y=1.npy", "--attr", "factor=-0.5")
        assert result.stdout == "Y float32 (3, 5) → y=1.npy\n"
        np.testing.assert_array_equal(np.load("y=1.npy"), x * np.float32(-0.5))

    def test_saves_the_outputs_that_are_named(self) -> None:
        x = np.arange(6, dtype=np.float32)
        np.save("x.npy", x)
        np.save("bias.npy", x[::-1])
        oplet("run", "com.acme.Scale", "--data=x.npy", "--bias=bias.npy", "-o", "negated=n.npy", "-o", "Y=y.npy")
        np.testing.assert_array_equal(np.load("y.npy"), 2 * x + x[::-1])
        np.testing.assert_array_equal(np.load("n.npy"), -(2 * x + x[::-1]))

    def test_prints_what_is_not_saved(self) -> None:
        np.save("x.npy", np.arange(3, dtype=np.float32))
        assert oplet("run", "com.acme.Scale", "--X", "x.npy").stdout == "Y float32 (3,)\n[0. 2. 4.]\n"

    def test_the_reference_opens_no_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        np.save("x.npy", np.arange(3, dtype=np.float32))
        monkeypatch.setenv("OPLET_ADAPTER", "no such adapter")
        arguments = ("run", "com.acme.Scale", "--X", "x.npy")
        assert "[0. 2. 4.]" in oplet(*arguments, "--variant", "reference").stdout
        assert "no such adapter" in oplet(*arguments, status=1).stderr

    def test_a_pickle_is_refused(self) -> None:
        np.save("x.npy", np.array([{}], dtype=object), allow_pickle=True)
        assert "x.npy cannot be read" in oplet("run", "com.acme.Scale", "--X", "x.npy", status=2).stderr

    @pytest.mark.parametrize("content", [None, b"", b"text"])
    def test_a_file_that_is_no_array_is_a_usage_error(self, content: bytes | None) -> None:
        if content is not None:
            Path("x.npy").write_bytes(content)
        assert "x.npy cannot be read" in oplet("run", "com.acme.Scale", "--X", "x.npy", status=2).stderr

    def test_a_refused_dtype_is_an_error_without_a_traceback(self) -> None:
        np.save("x.npy", np.arange(3.0))
        stderr = oplet("run", "com.acme.Scale", "--X", "x.npy", status=1).stderr
        assert stderr.startswith("InputError: com.acme.Scale: X: float64 is not one of float32\n")

    @pytest.mark.parametrize("value", ["factor", "factor=much", "=2"])
    def test_a_bad_attribute(self, value: str) -> None:
        np.save("x.npy", np.arange(3, dtype=np.float32))
        status = 1 if value == "=2" else 2
        assert "Error" in oplet("run", "com.acme.Scale", "--X", "x.npy", "--attr", value, status=status).stderr

    def test_an_unknown_attribute_names_the_near_one(self) -> None:
        np.save("x.npy", np.arange(3, dtype=np.float32))
        stderr = oplet("run", "com.acme.Scale", "--X", "x.npy", "--attr", "factr=2", status=1).stderr
        assert "did you mean 'factor'?" in stderr

    def test_an_output_written_twice(self) -> None:
        np.save("x.npy", np.arange(3, dtype=np.float32))
        stderr = oplet("run", "com.acme.Scale", "--X", "x.npy", "-o", "a.npy", "-o", "Y=b.npy", status=2).stderr
        assert "Y is written twice" in stderr

    def test_a_file_that_cannot_be_written(self) -> None:
        np.save("x.npy", np.arange(3, dtype=np.float32))
        stderr = oplet("run", "com.acme.Scale", "--X", "x.npy", "-o", "no/such/folder.npy", status=1).stderr
        assert "no/such/folder.npy" in stderr


class TestDevice:
    def test_what_was_granted(self) -> None:
        rows = dict(line.split(None, 1) for line in oplet("device").stdout.splitlines())
        assert rows["adapter"]
        assert rows["maxStorageBuffersPerShaderStage"].isdigit()

    def test_an_adapter_that_is_not_there(self) -> None:
        stderr = oplet("device", "--adapter", "no such adapter", status=1).stderr
        assert stderr.startswith("DeviceError: adapter: no adapter's name contains 'no such adapter'\n")


class TestDoctor:
    def test_healthy(self, site: Path) -> None:
        report = json.loads(oplet("doctor", "--json").stdout)
        assert report["packages"]["numpy"] == np.__version__
        (device,) = [one["device"] for one in report["implementations"] if one["name"] == report["default"]]
        assert device["limits"]["maxStorageBuffersPerShaderStage"] >= 8
        assert {
            "op": "com.acme.Scale",
            "plugins": ["acme-scale 1.2.3"],
            "variants": ["fancy", "plain"],
            "faults": [],
        } in (report["plugins"])

    def test_a_broken_plugin_is_a_fault_of_its_own_op_only(self, site: Path) -> None:
        _install(site, "acme-broken", "com.acme.Broken", "acme_broken", {"__init__.py": "import nowhere"})
        report = json.loads(oplet("doctor", "--json", status=1).stdout)
        faults = {plugin["op"]: plugin["faults"] for plugin in report["plugins"]}
        assert "No module named 'nowhere'" in faults["com.acme.Broken"][0]
        assert faults["com.acme.Scale"] == []

    def test_text_says_the_same(self, site: Path) -> None:
        _install(site, "acme-broken", "com.acme.Broken", "acme_broken", {"__init__.py": "import nowhere"})
        text = oplet("doctor", status=1).stdout
        for word in ("com.acme.Broken", "acme-broken 1.2.3", "No module named 'nowhere'", "variants: fancy, plain"):
            assert word in text

    def test_no_adapter(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("OPLET_ADAPTER", "no such adapter")
        report = json.loads(oplet("doctor", "--json", status=1).stdout)
        (default,) = [one for one in report["implementations"] if one["name"] == report["default"]]
        assert default["device"] is None
        assert "no such adapter" in default["fault"]
        assert report["environment"]["OPLET_ADAPTER"] == "no such adapter"

    def test_an_implementation_that_ends_the_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from oplet import doctor

        monkeypatch.setattr(sys, "executable", "false")
        report = doctor.examine()
        assert not report.healthy
        assert "ended the process with status 1" in report.implementations[0].fault


@pytest.mark.usefixtures("site")
def test_python_m_oplet() -> None:
    child = subprocess.run([sys.executable, "-m", "oplet", "list"], capture_output=True, text=True, check=True)
    assert "acme-scale" in child.stdout

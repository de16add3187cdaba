"""The `oplet` command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from oplet import doctor
from oplet.cli import main

OP = "com.acme.Affine"


@pytest.fixture
def affine(install: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """com.acme.Affine installed, and a working folder with x.npy (3 × 4) and bias.npy. Gives the op folder."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("bias.npy", BIAS)
    return install("affine")


# Exact in float16, and so are the results below.
X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
BIAS = np.array([1, 2, -3, 0.5], np.float32)


def oplet(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, arguments, prog_name="oplet")
    assert result.exit_code == status, f"{result.output}\n{result.exception!r}"
    return result


def offer(site: Path, op: str, package: str) -> None:
    """Installs a distribution that offers an op from a package."""
    info = site / f"{package}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[oplet.ops]\n{op} = {package}\n")


def break_plugin(site: Path) -> None:
    """Installs com.acme.Broken, which cannot be imported."""
    offer(site, "com.acme.Broken", "acme_broken")
    (site / "acme_broken.py").write_text("import nowhere\n")


def installed() -> list[tuple[str, str]]:
    """Ops and the distributions that offer them, as `oplet list` has them."""
    rows = [line.split() for line in oplet("list").stdout.splitlines()[1:]]
    return [(op, dist) for op, dist, *_ in rows]


@pytest.mark.usefixtures("affine")
class TestList:
    def test_op_with_its_distribution_and_version(self) -> None:
        rows = [line.split() for line in oplet("list").stdout.splitlines()]
        assert rows[0] == ["op", "distribution", "version"]
        assert [OP, "oplet-affine", "1.2.0"] in rows

    def test_imports_no_plugin(self) -> None:
        oplet("list")
        assert "affine" not in sys.modules

    def test_says_how_to_get_an_op_where_there_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPLET_BLOCK", ",".join(dist for _, dist in installed()))
        result = oplet("list")
        assert result.stdout == ""
        assert "pip install" in result.stderr


@pytest.mark.usefixtures("affine")
class TestInfo:
    def test_everything_that_the_manifest_and_the_variants_say(self) -> None:
        text = " ".join(oplet("info", OP).stdout.split())
        for words in (
            "Y = activation(factor * X + bias)",
            "oplet-affine 1.2.0",
            "X T (rows, columns).",
            "biasT (bias) T (columns,), optional.",
            "sums float32 (rows,), optional.",
            "T float32, float16",
            "factor float 1.0",
            'One of "", Relu.',
            "variants matrix vec4 scalar",
        ):
            assert words in text

    def test_fits_in_80_columns(self) -> None:
        lines = oplet("info", OP).stdout.splitlines()
        assert max(map(len, lines)) <= 80
        assert all(line == line.rstrip() for line in lines)

    def test_unknown_op_names_the_near_one(self) -> None:
        result = oplet("info", "com.acme.Afine", status=1)
        assert result.stderr.startswith("UnknownOpError: no plugin offers 'com.acme.Afine'\n")
        assert "did you mean 'com.acme.Affine'?" in result.stderr


@pytest.mark.usefixtures("affine")
class TestExplain:
    def test_variant_and_the_reason_of_the_others(self) -> None:
        text = " ".join(oplet("explain", OP, "--X", "3x5:f32").stdout.split())
        for words in (
            "X float32 (3, 5) → Y float32 (3, 5)",
            "scalar runs",
            "vec4 rejects: the number of columns is not a multiple of 4",
        ):
            assert words in text

    @pytest.mark.parametrize(("spec", "shown"), [("7x4:float32", "(7, 4)"), ("0x4:f32", "(0, 4)")])
    def test_specs(self, spec: str, shown: str) -> None:
        assert f"X float32 {shown}" in oplet("explain", OP, "--X", spec).stdout

    def test_a_scalar_has_no_dimensions(self) -> None:
        assert "has rank 0, shape ()" in oplet("explain", OP, "--X", ":f32", status=1).stderr

    @pytest.mark.parametrize("spec", ["3x5", "3x5:f64", "3,5:f32", "-1:f32", "x3:f32", "3x:f32"])
    def test_a_bad_spec_is_a_usage_error_that_shows_a_good_one(self, spec: str) -> None:
        assert "1024x1024:f16" in oplet("explain", OP, f"--X={spec}", status=2).stderr

    def test_onnx_name(self) -> None:
        assert "biasT float32 (4,)" in oplet("explain", OP, "--X", "3x4:f32", "--bias", "4:f32").stdout

    def test_two_names_of_one_input_are_refused(self) -> None:
        arguments = ("--X", "3x4:f32", "--bias", "4:f32", "--biasT", "4:f32")
        assert "two names of one input" in oplet("explain", OP, *arguments, status=1).stderr

    def test_an_unknown_input_is_a_usage_error_that_names_the_near_one(self) -> None:
        stderr = oplet("explain", OP, "--biass", "4:f32", status=2).stderr
        assert "No such option" in stderr
        assert "Did you mean" in stderr

    def test_optional_output(self) -> None:
        text = oplet("explain", OP, "--X", "3x4:f32", "-o", "sums").stdout
        assert "→ sums float32 (3,)" in text
        assert "→ Y" not in text

    def test_named_variant_that_rejects(self) -> None:
        stderr = oplet("explain", OP, "--X", "3x5:f32", "--variant", "vec4", status=1).stderr
        assert stderr.startswith("NoVariantError: ")
        assert "the number of columns is not a multiple of 4" in stderr

    def test_the_reference_opens_no_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPLET_ADAPTER", "no such adapter")
        text = oplet("explain", OP, "--X", "3x4:f32", "--variant", "reference").stdout
        assert "reference   runs in numpy on the host" in text

    def test_help_shows_the_inputs(self) -> None:
        text = " ".join(oplet("explain", OP, "--help").stdout.split())
        assert "--biasT SHAPE:DTYPE float32, float16 (columns,), optional." in text
        assert "--bias SHAPE:DTYPE ONNX's name of biasT." in text

    def test_help_of_the_group_lists_the_ops_and_imports_none(self) -> None:
        assert OP in oplet("explain", "--help").stdout
        assert "affine" not in sys.modules


@pytest.mark.usefixtures("affine")
class TestRun:
    def test_saves_the_output(self) -> None:
        result = oplet("run", OP, "--X", "x.npy", "-o", "./y=1.npy", "--attr", "factor=-0.5")
        assert result.stdout == "Y float32 (3, 4) → y=1.npy\n"
        np.testing.assert_array_equal(np.load("y=1.npy"), X * np.float32(-0.5))

    def test_saves_the_outputs_that_are_named(self) -> None:
        oplet("run", OP, "--X=x.npy", "--bias=bias.npy", "--attr=activation=Relu", "-o", "sums=s.npy", "-o", "Y=y.npy")
        wanted = np.maximum(X + BIAS, 0)
        np.testing.assert_array_equal(np.load("y.npy"), wanted)
        np.testing.assert_array_equal(np.load("s.npy"), wanted.sum(axis=1))

    def test_prints_what_is_not_saved(self) -> None:
        np.save("x.npy", np.array([[0, 1, 2]], np.float32))
        assert oplet("run", OP, "--X", "x.npy").stdout == "Y float32 (1, 3)\n[[0. 1. 2.]]\n"

    def test_the_reference_opens_no_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPLET_ADAPTER", "no such adapter")
        assert "Y float32 (3, 4)" in oplet("run", OP, "--X", "x.npy", "--variant", "reference").stdout
        assert "no such adapter" in oplet("run", OP, "--X", "x.npy", status=1).stderr

    def test_a_pickle_is_refused(self) -> None:
        np.save("x.npy", np.array([{}], dtype=object), allow_pickle=True)
        assert "x.npy cannot be read" in oplet("run", OP, "--X", "x.npy", status=2).stderr

    @pytest.mark.parametrize("content", [None, b"", b"text"])
    def test_a_file_that_is_no_array_is_a_usage_error(self, content: bytes | None) -> None:
        if content is not None:
            Path("other.npy").write_bytes(content)
        assert "other.npy cannot be read" in oplet("run", OP, "--X", "other.npy", status=2).stderr

    def test_a_refused_dtype_is_an_error_without_a_traceback(self) -> None:
        np.save("x.npy", X.astype(np.float64))
        stderr = oplet("run", OP, "--X", "x.npy", status=1).stderr
        assert stderr.startswith("InputError: com.acme.Affine: X: float64 is not one of float32, float16\n")

    @pytest.mark.parametrize(
        ("item", "fault"),
        [("factor", "'factor' is not of the form NAME=VALUE"), ("factor=much", "factor: 'much' is not of type float")],
    )
    def test_a_value_that_does_not_parse_is_a_usage_error(self, item: str, fault: str) -> None:
        assert f"--attr: {fault}" in oplet("run", OP, "--X", "x.npy", "--attr", item, status=2).stderr

    def test_an_unknown_attribute_names_the_near_one(self) -> None:
        stderr = oplet("run", OP, "--X", "x.npy", "--attr", "factr=2", status=1).stderr
        assert "did you mean 'factor'?" in stderr

    def test_an_output_written_twice(self) -> None:
        stderr = oplet("run", OP, "--X", "x.npy", "-o", "a.npy", "-o", "Y=b.npy", status=2).stderr
        assert "Y is written twice" in stderr

    def test_an_output_that_there_is_not(self) -> None:
        stderr = oplet("run", OP, "--X", "x.npy", "-o", "y=out.npy", status=2).stderr
        assert "'y' is no output; outputs: Y, sums; a file of that name is ./y=out.npy" in stderr
        assert not Path("y=out.npy").exists()

    def test_a_file_that_cannot_be_written(self) -> None:
        stderr = oplet("run", OP, "--X", "x.npy", "-o", "no/such/folder.npy", status=1).stderr
        assert "no/such/folder.npy" in stderr


class TestDevice:
    def test_what_was_granted(self) -> None:
        rows = dict(line.split(None, 1) for line in oplet("device").stdout.splitlines())
        assert rows["adapter"]
        assert rows["maxStorageBuffersPerShaderStage"].isdigit()

    def test_an_adapter_that_is_not_there(self) -> None:
        stderr = oplet("device", "--adapter", "no such adapter", status=1).stderr
        assert stderr.startswith("DeviceError: adapter: no adapter's name contains 'no such adapter'\n")


class TestCheck:
    def test_an_op_that_keeps_the_contract(self, affine: Path) -> None:
        oplet("metadata", OP, "--write")
        lines = oplet("check", OP, "--seed", "1").stdout.splitlines()
        assert any(line.startswith("passed   com.acme.Affine: runs-scalar-best") for line in lines)
        assert " passed, 0 failed, " in lines[-1]

    def test_one_that_does_not_fails_with_the_finding(self, affine: Path) -> None:
        template = affine / "wgsl/sums.wgsl.jinja"
        oplet("metadata", OP, "--write")
        template.write_text(template.read_text() + "// changed\n")
        result = oplet("check", OP, "--seed", "1", status=1)
        assert "failed   com.acme.Affine: metadata" in result.stdout
        assert "wgsl/sums.wgsl.jinja: changed" in result.stdout
        assert " 1 failed, " in result.stdout.splitlines()[-1]

    def test_a_plugin_that_cannot_be_loaded_is_an_error(self, affine: Path) -> None:
        break_plugin(affine.parent)
        assert "PluginLoadError" in oplet("check", "com.acme.Broken", status=1).stderr


class TestMetadata:
    def test_prints_it_and_writes_the_same(self, affine: Path) -> None:
        printed = json.loads(oplet("metadata", OP).stdout)
        assert not (affine / "metadata.json").exists()
        assert oplet("metadata", OP, "--write").stdout == f"{affine / 'metadata.json'}\n"
        assert json.loads((affine / "metadata.json").read_text()) == printed
        assert printed["variants"]["vec4"] == ["affine.wgsl.jinja", "sums.wgsl.jinja"]


class TestDoctor:
    def test_versions_adapters_and_plugins(self, affine: Path) -> None:
        report = json.loads(oplet("doctor", "--json").stdout)
        assert report["packages"]["numpy"] == np.__version__
        (device,) = [one["device"] for one in report["implementations"] if one["name"] == report["default"]]
        assert device["limits"]["maxStorageBuffersPerShaderStage"] >= 8
        (plugin,) = [plugin for plugin in report["plugins"] if plugin["op"] == OP]
        assert plugin == {
            "op": OP,
            "plugins": ["oplet-affine 1.2.0"],
            "variants": ["matrix", "vec4", "scalar"],
            "faults": [],
        }

    def test_a_broken_plugin_is_a_fault_of_its_own_op_only(self, affine: Path) -> None:
        break_plugin(affine.parent)
        report = json.loads(oplet("doctor", "--json", status=1).stdout)
        faults = {plugin["op"]: plugin["faults"] for plugin in report["plugins"]}
        assert "No module named 'nowhere'" in faults["com.acme.Broken"][0]
        assert faults[OP] == []

    def test_text_says_the_same(self, affine: Path) -> None:
        break_plugin(affine.parent)
        text = oplet("doctor", status=1).stdout
        for words in ("com.acme.Broken", "acme-broken 0.1", "No module named 'nowhere'", "variants: matrix, vec4"):
            assert words in text

    def test_no_adapter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPLET_ADAPTER", "no such adapter")
        report = json.loads(oplet("doctor", "--json", status=1).stdout)
        (default,) = [one for one in report["implementations"] if one["name"] == report["default"]]
        assert default["device"] is None
        assert "no such adapter" in default["fault"]
        assert report["environment"]["OPLET_ADAPTER"] == "no such adapter"

    def test_an_implementation_that_there_is_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "false")  # which of them work does not matter here
        monkeypatch.setenv("OPLET_WEBGPU", "vulkan")
        words = oplet("doctor", status=1).stdout.split()
        assert " ".join(words).count("no default InputError: OPLET_WEBGPU: 'vulkan' is not one of 'wgpu', 'dawn'") == 1

    def test_an_implementation_that_ends_the_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "executable", "false")
        report = doctor.examine()
        assert not report.healthy
        assert "ended the process with status 1" in report.implementations[0].fault


def test_bench_beside_a_peer_that_no_op_has() -> None:
    assert "no op has a peer 'zebra'; peers: " in oplet("bench", "--peer", "zebra", status=2).stderr


def test_bench_of_a_case_that_there_is_not(affine: Path) -> None:
    names = "".join(f"\n  {case['name']}" for case in json.loads((affine / "bench.json").read_text())["cases"])
    assert (
        f"no case has 'zebra' in its name; there are{names}" in oplet("bench", OP, "--case", "zebra", status=2).stderr
    )


def test_bench_writes_its_report_before_it_shows_it(affine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("oplet.cli._print_table", fail)
    oplet("bench", OP, "--case", "64", "--rounds", "1", "--json", "report.json", "--html", "report.html", status=1)
    (report,) = json.loads(Path("report.json").read_text())
    assert report["results"][0]["case"] == "64×64"
    assert "64×64" in Path("report.html").read_text()


def test_bench_of_a_variant_that_cannot_run_before_one_that_can(affine: Path) -> None:
    variants = ("--variant", "vec4", "--variant", "scalar")
    lines = oplet("bench", OP, "--X", "3x5:f32", *variants, "--peer", "numpy", "--rounds", "1").stdout.splitlines()
    header, vec4, scalar, reason = lines[-4:]
    assert header.split()[-2:] == ["host", "numpy"]
    assert vec4.split() == ["X", "3x5:f32", "vec4", "not", "run"]
    assert scalar.endswith("×)")
    assert reason == "X 3x5:f32: vec4: the number of columns is not a multiple of 4"


class TestBenchOfEveryOp:
    """One whose plugin is at fault does not keep the others from being timed."""

    BEFORE = "com.acme.Aback"  # in order of their ids, it has its turn before com.acme.Affine

    @pytest.fixture
    def other(self, affine: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        """The two ops and no others installed. Gives the folder of the one that is timed first."""
        site = affine.parent
        folder = site / "acme_aback"
        shutil.copytree(affine, folder)
        for file in folder.glob("*.[pj]*"):
            file.write_text(file.read_text().replace(OP, self.BEFORE))
        offer(site, self.BEFORE, "acme_aback")
        monkeypatch.setenv("OPLET_BLOCK", ",".join(dist for op, dist in installed() if "com.acme" not in op))
        yield folder
        for name in [name for name in sys.modules if name.partition(".")[0] == "acme_aback"]:
            del sys.modules[name]

    @staticmethod
    def timed(*arguments: str, status: int) -> tuple[list[str], str]:
        """The ops that are timed, and what is printed."""
        few = ("--case", "64", "--rounds", "1", "--json", "reports.json")
        printed = oplet("bench", *few, *arguments, status=status).stdout
        return [report["op"] for report in json.loads(Path("reports.json").read_text())], printed

    def test_both(self, other: Path) -> None:
        ops, printed = self.timed(status=0)
        assert ops == [self.BEFORE, OP]
        assert "failed" not in printed

    @pytest.mark.parametrize(
        ("file", "text", "fault"),
        [
            ("__init__.py", "import nowhere", "PluginLoadError: "),
            ("bench.json", None, "PluginContractError: com.acme.Aback: acme-aback 0.1 has no bench.json"),
            ("bench.json", "{", "PluginContractError: com.acme.Aback: bench.json cannot be used"),
            ("peers.py", "import nowhere", "PluginContractError: com.acme.Aback: peers.py cannot be used"),
            ("wgsl/affine.wgsl.jinja", "fn main() { no }", "ShaderError: "),
        ],
    )
    def test_a_faulty_one(self, other: Path, file: str, text: str | None, fault: str) -> None:
        if text is None:
            (other / file).unlink()
        else:
            (other / file).write_text(text)
        ops, printed = self.timed("--peer", "numpy", status=1)
        assert ops == [OP]
        assert f"failed   {self.BEFORE}: {fault}" in printed
        assert "64×64   vec4 " in printed
        alone = oplet("bench", self.BEFORE, "--case", "64", "--rounds", "1", "--peer", "numpy", status=1)
        assert fault in alone.stderr


@pytest.mark.usefixtures("affine")
class TestBenchOfACallOfOnesOwn:
    def test_it_is_named_by_its_inputs(self) -> None:
        call = ("--X", "8x4:f32", "--bias", "4:f32", "--attr", "factor=3", "-o", "Y", "--rounds", "1")
        rows = oplet("bench", OP, *call, "--peer", "absent").stdout.splitlines()
        assert rows[-2].startswith("X 8x4:f32, bias 4:f32, factor=3   vec4 ")
        assert rows[-1] == "absent: a_package_that_nobody_has is not installed"

    def test_help_shows_the_inputs_of_the_op(self) -> None:
        assert "--X SHAPE:DTYPE" in oplet("bench", OP, "--help").stdout
        assert "SHAPE:DTYPE" not in oplet("bench", "--help").stdout

    @pytest.mark.parametrize(
        ("arguments", "fault"),
        [
            (("--X", "8,4:f32"), "'8,4:f32' is not a shape and a dtype"),
            (("--X", "8x4:f32", "--case", "64"), "--case is for the op's cases"),
            (("--attr", "factor=3"), "give its inputs too"),
            (("--X", "8x4:i32"), "'--X': its integers say what the call does"),
        ],
    )
    def test_what_is_no_call_is_refused(self, arguments: tuple[str, ...], fault: str) -> None:
        assert fault in oplet("bench", OP, *arguments, status=2).stderr

    def test_what_the_op_refuses_is_told_before_anything_is_timed(self) -> None:
        result = oplet("bench", OP, "--bias", "4:f32", status=1)
        assert result.stderr.startswith(f"InputError: {OP}: X: is required and was not given")


class TestAnInputWithTheNameOfAnOption:
    """Its option is --input-NAME."""

    @staticmethod
    def name_bias(affine: Path, name: str) -> None:
        manifest = affine / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"upstream": "bias"', f'"upstream": "{name}"'))

    @pytest.mark.parametrize("name", ["output", "attr", "adapter", "webgpu", "help"])
    def test_of_explain_and_run(self, affine: Path, name: str) -> None:
        self.name_bias(affine, name)
        arguments = ("--attr", "factor=3", "-o")
        assert "biasT float32 (4,)" in (
            oplet("explain", OP, "--X", "3x4:f32", f"--input-{name}", "4:f32", *arguments, "sums").stdout
        )
        oplet("run", OP, "--X", "x.npy", f"--input-{name}", "bias.npy", *arguments, "y.npy")
        np.testing.assert_array_equal(np.load("y.npy"), 3 * X + BIAS)
        assert f"--input-{name} FILE" in oplet("run", OP, "--help").stdout

    @pytest.mark.parametrize("name", ["output", "adapter", "case", "json", "peer", "rounds"])
    def test_of_bench(self, affine: Path, name: str) -> None:
        self.name_bias(affine, name)
        call = ("--X", "8x4:f32", f"--input-{name}", "4:f32", "--rounds", "1")
        assert f"X 8x4:f32, {name} 4:f32   vec4 " in oplet("bench", OP, *call).stdout
        assert f"--input-{name} SHAPE:DTYPE" in oplet("bench", OP, "--help").stdout
        integers = oplet("bench", OP, "--X", "8x4:f32", f"--input-{name}", "4:i32", status=2).stderr
        assert f"'--input-{name}': its integers say" in integers

    def test_an_option_of_another_command_only_leaves_the_name(self, affine: Path) -> None:
        self.name_bias(affine, "json")
        assert "biasT float32 (4,)" in oplet("explain", OP, "--X", "3x4:f32", "--json", "4:f32").stdout


def test_python_m_oplet(affine: Path) -> None:
    command = [sys.executable, "-m", "oplet", "list"]
    environment = {**os.environ, "PYTHONPATH": str(affine.parent)}
    child = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "oplet-affine" in child.stdout


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_bench_looks_for_the_folder_of_its_report_before_it_times_anything(option: str) -> None:
    result = oplet("bench", OP, option, "nowhere/report", status=1)
    assert "nowhere/report" in result.stderr
    assert "there is no such folder" in result.stderr
    assert result.stdout == ""

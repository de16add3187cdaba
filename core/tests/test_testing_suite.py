"""test.json and cases.py are read strictly, with every problem and its JSON path."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from oplet.errors import PluginContractError
from oplet.testing.suite import MOST_CASES, Suite

GOOD: dict[str, Any] = {
    "schema": 1,
    "tolerance": {"float32": {"rtol": 1e-6, "atol": 0, "why": "two roundings"}},
    "cases": [
        {
            "name": "one",
            "inputs": {
                "X": {"shape": [2, 2], "dtype": "float32", "data": [1, "NaN", "Infinity", "-Infinity"]},
                "n": {"shape": [], "dtype": "int32", "data": [7]},
            },
            "attrs": {"alpha": 0.5, "mode": "row", "axis": 1},
            "outputs": {"Y": {"shape": [1], "dtype": "float32", "data": [0.1]}},
            "source": "by hand",
        }
    ],
}


def changed(*path: str | int, to: Any) -> str:
    document: Any = copy.deepcopy(GOOD)
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return json.dumps(document)


def test_reads_a_case() -> None:
    suite = Suite.parse(json.dumps(GOOD), "acme")
    (case,) = suite.literal
    x = case.inputs["X"]
    assert x.dtype == np.float32
    assert x.shape == (2, 2)
    np.testing.assert_array_equal(x, [[1, np.nan], [np.inf, -np.inf]])
    assert case.inputs["n"].dtype == np.int32
    assert case.inputs["n"].shape == ()
    assert case.attrs == {"alpha": 0.5, "mode": "row", "axis": 1}
    assert case.outputs is not None
    assert case.outputs["Y"].tolist() == [0.1], "outputs are not rounded to their dtype"
    assert case.dtypes == {"Y": "float32"}
    assert suite.tolerance["float32"].rtol == 1e-6


CASE = ("cases", 0)
X = (*CASE, "inputs", "X")


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("schema",), 2, "$.schema: 2 is not a schema that this oplet reads (1)"),
        (("cases",), [], "$.cases: no case"),
        (("tolerances",), {}, "$.tolerances: unknown key; did you mean 'tolerance'?"),
        (("tolerance", "float32", "why"), " ", "$.tolerance.float32.why: says nothing"),
        (("tolerance", "float32", "rtol"), -1, "$.tolerance.float32.rtol: -1 is not a finite number of at least 0"),
        (("tolerance", "float32", "atol"), "0", "$.tolerance.float32.atol: expected float, not str '0'"),
        (("tolerance", "int32"), GOOD["tolerance"]["float32"], "$.tolerance.int32: only float32 and float16"),
        (("tolerance",), {}, "$.cases[0].outputs.Y: $.tolerance has no float32"),
        ((*CASE, "output"), {}, "$.cases[0].output: unknown key; did you mean 'outputs'?"),
        ((*CASE, "outputs"), {}, "$.cases[0].outputs: no output"),
        ((*CASE, "attrs", "alpha"), True, "$.cases[0].attrs.alpha: expected float or int or str, not bool True"),
        ((*X, "dtype"), "float64", "$.cases[0].inputs.X.dtype: 'float64' is not one of float32"),
        ((*X, "shape"), [2, 3], "$.cases[0].inputs.X.data: 4 numbers, and the shape holds 6"),
        ((*X, "shape"), [-2, -2], "$.cases[0].inputs.X.shape: a dimension is negative"),
        ((*X, "shape"), [2, 2.0], "$.cases[0].inputs.X.shape[1]: expected int, not float 2.0"),
        ((*X, "data", 0), "1", "$.cases[0].inputs.X.data[0]: '1' is not a number or one of NaN, Infinity, -Infinity"),
        ((*X, "data", 0), [1], "$.cases[0].inputs.X.data[0]: expected float or int or str, not list"),
        ((*CASE, "inputs", "n", "data", 0), 7.0, "$.cases[0].inputs.n.data[0]: 7.0 is not an int32"),
        ((*CASE, "inputs", "n", "data", 0), "NaN", "$.cases[0].inputs.n.data[0]: 'NaN' is not an integer"),
        ((*CASE, "inputs", "n", "data", 0), 2**31, "$.cases[0].inputs.n.data[0]: 2147483648 is not an int32"),
        (("cases",), GOOD["cases"] * 2, "$.cases[1].name: 'one' is given twice"),
    ],
)
def test_names_the_problem_and_its_path(path: tuple[str | int, ...], value: Any, problem: str) -> None:
    with pytest.raises(PluginContractError) as caught:
        Suite.parse(changed(*path, to=value), "acme")
    first, *problems, last = str(caught.value).splitlines()
    assert first == "acme: test.json is not what the conformance kit reads"
    assert any(line.strip().startswith(problem) for line in problems), problems
    assert last.startswith("mend it")


def test_bare_nan_is_not_json() -> None:
    text = json.dumps(GOOD).replace('"NaN"', "NaN")
    with pytest.raises(PluginContractError, match="NaN is not a JSON number"):
        Suite.parse(text, "acme")


def test_an_input_is_rounded_to_its_dtype() -> None:
    half = {"shape": [2], "dtype": "float16", "data": [0.1, 1e5]}
    (case,) = Suite.parse(changed(*X, to=half), "acme").literal
    assert case.inputs["X"].tolist() == [float(np.float16(0.1)), np.inf]


def test_read_takes_both_files_of_a_folder() -> None:
    suite = Suite.read("acme_affine")
    assert [case.name for case in suite.literal] == ["by hand", "not finite", "float16 overflows"]
    assert suite.scale is not None
    generated = list(suite.cases(5))[3:]
    assert len(generated) == 20
    assert generated[0].name == "cases.py 0"
    assert generated[0].outputs is None


def test_a_seed_gives_the_same_cases_again() -> None:
    suite = Suite.read("acme_affine")
    first, again, other = (list(suite.cases(seed))[7].inputs["X"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_folders_that_lack_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "acme_suite"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginContractError, match=r"test\.json .*\n.*cannot be read"):
        Suite.read("acme_suite")
    (folder / "test.json").write_text(json.dumps(GOOD))
    assert Suite.read("acme_suite").generate is None
    (folder / "cases.py").write_text("raise RuntimeError('broken')")
    with pytest.raises(PluginContractError, match=r"import raised RuntimeError: broken\n  .*cases\.py:1, in <module>"):
        Suite.read("acme_suite")
    (folder / "cases.py").write_text("def cases(rng):\n    yield {}, {}\n    rng.unifrom()\n")
    suite = Suite.read("acme_suite")
    with pytest.raises(PluginContractError, match=r"cases\(rng\) raised AttributeError: .*\n.*cases\.py:3, in cases"):
        list(suite.cases(1))


def test_cases_of_extensions_come_after_the_ops_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("acme_without_cases", "acme_with_cases"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "acme_with_cases/cases.py").write_text(
        "def cases(rng):\n    yield {'X': rng.standard_normal(2)[0]}, {'factor': 3.0}\n"
    )
    own = list(Suite.read("acme_affine").cases(1))
    *before, last = Suite.read("acme_affine", ("acme_without_cases", "acme_with_cases")).cases(1)
    assert [case.name for case in before] == [case.name for case in own]
    assert last.name == "cases.py of acme_with_cases 0"
    assert last.attrs == {"factor": 3.0}
    assert isinstance(last.inputs["X"], np.ndarray)


@pytest.mark.parametrize("case", [None, {}, ({"X": [1.0]}, {}), ({"X": np.zeros(1)},), ({"X": np.zeros(1)}, None)])
def test_a_generator_that_gives_something_else(case: Any) -> None:
    suite = attrs.evolve(Suite.parse(json.dumps(GOOD), "acme"), generate=lambda rng: [case])
    with pytest.raises(PluginContractError, match=r"case 0 is not \(inputs, attrs\)"):
        list(suite.cases(0))


def test_a_generator_that_never_ends() -> None:
    def endless(rng: np.random.Generator) -> Iterator[tuple[dict[str, np.ndarray], dict[str, float]]]:
        while True:
            yield {}, {}

    suite = attrs.evolve(Suite.parse(json.dumps(GOOD), "acme"), generate=endless)
    with pytest.raises(PluginContractError, match=f"more than {MOST_CASES} cases"):
        list(suite.cases(0))

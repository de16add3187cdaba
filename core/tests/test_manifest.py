"""manifest.json is read strictly, and every problem is reported at once, with its JSON path."""

import copy
import json
from typing import Any

import pytest
from oplet.errors import ManifestError
from oplet.manifest import RESERVED_NAMES, Attribute, Manifest, Port

SCALE: dict[str, Any] = {
    "schema": 1,
    "id": "com.acme.Scale",
    "since_version": 1,
    "summary": "Multiplies each row by its weight.",
    "inputs": [
        {"name": "X", "type": "T", "shape": "(rows, columns)", "rank": 2},
        {"name": "weightT", "upstream": "weight", "type": "T", "shape": "(rows,)", "rank": 1, "optional": True},
    ],
    "outputs": [
        {"name": "Y", "type": "T", "shape": "as X"},
        {"name": "count", "type": "int32", "shape": "()", "optional": True},
    ],
    "attributes": [
        {"name": "factor", "type": "float", "default": 1},
        {"name": "mode", "type": "string", "default": "row", "choices": ["row", "column"]},
        {"name": "axis", "type": "int", "required": True},
    ],
    "types": {"T": ["float32", "float16"]},
}


def changed(*path: str | int, to: Any) -> str:
    """SCALE as JSON with one value changed."""
    document: Any = copy.deepcopy(SCALE)
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return json.dumps(document)


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ManifestError) as caught:
        Manifest.parse(text, "acme_scale")
    return caught.value.problems


def test_reads_every_field() -> None:
    manifest = Manifest.parse(json.dumps(SCALE), "acme_scale")
    assert manifest.id == "com.acme.Scale"
    assert manifest.inputs[0] == Port("X", "T", "(rows, columns)", rank=2)
    assert manifest.inputs[1] == Port("weightT", "T", "(rows,)", upstream="weight", rank=1, optional=True)
    assert manifest.attributes == (
        Attribute("factor", "float", default=1),
        Attribute("mode", "string", default="row", choices=("row", "column")),
        Attribute("axis", "int", required=True),
    )
    assert manifest.types == {"T": ("float32", "float16")}


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_an_attribute_may_be_named_as_a_keyword_of_run(name: str) -> None:
    manifest = Manifest.parse(changed("attributes", 0, "name", to=name), "acme_scale")
    assert manifest.attributes[0].name == name


def test_ports_answer_to_both_names() -> None:
    manifest = Manifest.parse(json.dumps(SCALE), "acme_scale")
    assert manifest.input("weight") is manifest.input("weightT") is manifest.inputs[1]
    assert manifest.input("Y") is None
    assert manifest.output("Y") is manifest.outputs[0]


def test_dtypes_of_a_type_variable_and_of_a_dtype() -> None:
    manifest = Manifest.parse(json.dumps(SCALE), "acme_scale")
    assert manifest.dtypes(manifest.outputs[0]) == ("float32", "float16")
    assert manifest.dtypes(manifest.outputs[1]) == ("int32",)


def test_equal_manifests_hash_alike() -> None:
    first, second = (Manifest.parse(json.dumps(SCALE), source) for source in "ab")
    assert first == second
    assert hash(first) == hash(second)


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("summmary",), "", "$.summmary: unknown key; did you mean 'summary'?"),
        (("inputs", 0, "rnak"), 2, "$.inputs[0].rnak: unknown key; did you mean 'rank'?"),
        (("inputs", 0, "rank"), "2", "$.inputs[0].rank: expected int or null, not str '2'"),
        (("inputs", 0, "rank"), True, "$.inputs[0].rank: expected int or null, not bool True"),
        (("inputs", 0, "rank"), 2.0, "$.inputs[0].rank: expected int or null, not float 2.0"),
        (("inputs", 1, "optional"), 1, "$.inputs[1].optional: expected bool, not int 1"),
        (("inputs",), "X", "$.inputs: expected a list, not str 'X'"),
        (("inputs", 0), "X", "$.inputs[0]: expected an object, not str 'X'"),
        (("types", "T"), "float32", "$.types.T: expected a list, not str 'float32'"),
        (("types", "T"), [], "$.types.T: no dtype"),
        (("types", "T", 1), "float64", "$.types.T: 'float64' is not one of float32, float16, int32, uint32"),
        (("schema",), 2, "$.schema: 2 is not a schema that this oplet reads (1)"),
        (("id",), "Scale", "$.id: 'Scale' is not a domain and an operator name, such as com.acme.Foo"),
        (("id",), "com.acme.Scale\n", "$.id: 'com.acme.Scale\\n' is not a domain and"),
        (("inputs", 0, "name"), "out", "$.inputs[0].name: 'out' is a keyword of run()"),
        (("outputs", 0, "name"), "lambda", "$.outputs[0].name: 'lambda' is a keyword of Python"),
        (("inputs", 1, "upstream"), "attrs", "$.inputs[1].name: 'attrs' is a keyword of run()"),
        (("inputs", 0, "name"), "a-b", "$.inputs[0].name: 'a-b' is not an identifier"),
        (("inputs", 0, "name"), "weight", "$.inputs[1].name: 'weight' is already the name of $.inputs[0]"),
        (("outputs", 0, "name"), "X", "$.outputs[0].name: 'X' is already the name of $.inputs[0]"),
        (("inputs", 0, "type"), "U", "$.inputs[0].type: 'U' is neither in $.types nor one of"),
        (("outputs",), [], "$.outputs: an op has at least one output"),
        (("outputs", 0, "optional"), True, "$.outputs: at least one output must not be optional"),
        (("attributes", 0, "type"), "tensor", "$.attributes[0].type: "),
        (("attributes", 0, "default"), "1", "$.attributes[0].default: '1' is not of type float"),
        (("attributes", 0, "default"), True, "$.attributes[0].default: expected float or int or str or null, not bool"),
        (("attributes", 1, "default"), "both", "$.attributes[1].default: 'both' is not one of the choices"),
        (("attributes", 1, "choices"), ["row", 2], "$.attributes[1].choices: 2 is not of type string"),
        (("attributes", 2, "default"), 0, "$.attributes[2].default: a required attribute has none"),
        (("attributes", 2, "name"), "mode", "$.attributes[2].name: 'mode' is given twice"),
    ],
)
def test_names_the_problem_and_its_path(path: tuple[str | int, ...], value: Any, problem: str) -> None:
    found = problems(changed(*path, to=value))
    assert any(line.startswith(problem) for line in found), found


def test_reports_all_problems_at_once() -> None:
    document = copy.deepcopy(SCALE)
    del document["summary"]
    document["inputs"][0]["rank"] = "2"
    document["inputs"][1]["optinal"] = True
    document["outputs"][0]["name"] = 7
    document["version"] = 3
    found = problems(json.dumps(document))
    assert len(found) == 5
    for path in ("$.summary", "$.inputs[0].rank", "$.inputs[1].optinal", "$.outputs[0].name", "$.version"):
        assert any(line.startswith(path) for line in found), path


def test_an_output_dtype_that_nothing_decides() -> None:
    document = copy.deepcopy(SCALE)
    document["types"]["U"] = ["float32"]
    document["outputs"][0]["type"] = "U"
    assert problems(json.dumps(document)) == ("$.types.U: no input has it, so an output's dtype cannot be told",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "not JSON: "), ('{"id": 1, "id": 2}', "not JSON: duplicate key 'id'"), ("[]", "$: expected an object")],
)
def test_not_an_object(text: str, problem: str) -> None:
    assert problems(text)[0].startswith(problem)


def test_the_message_names_the_source_and_says_what_to_do() -> None:
    with pytest.raises(ManifestError) as caught:
        Manifest.parse(changed("schema", to=2), "acme_scale")
    first, *_, last = str(caught.value).splitlines()
    assert first == "acme_scale: manifest.json is not a valid op manifest"
    assert last.startswith("mend the manifest")


def test_read_takes_the_file_beside_the_package(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "acme_manifest_on_disk"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ManifestError, match="cannot be read"):
        Manifest.read("acme_manifest_on_disk")
    (folder / "manifest.json").write_text(json.dumps(SCALE), encoding="utf-8")
    assert Manifest.read("acme_manifest_on_disk").id == "com.acme.Scale"

"""Faults of a third party's op that show when it is called: each is told with its plugin, and no other op notices."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import numpy as np
import oplet
import pytest
from fakes import Site, op_files

GOOD, BAD = "com.acme.Good", "com.acme.Bad"
ONES = np.ones(3, np.float32)

Files = dict[str, bytes]


@pytest.fixture
def registry(site: Site, device: oplet.Device) -> Iterator[oplet.Registry]:
    """A registry with an op that works; which it has to do after the test as before."""
    site.op(GOOD, "good")
    registry = oplet.Registry(device=device)
    yield registry
    np.testing.assert_array_equal(registry.run(GOOD, X=ONES).numpy(), 2 * ONES)


def install(site: Site, change: Callable[[Files], None]) -> None:
    files = op_files(BAD)
    change(files)
    site.package("bad", files)
    site.distribution("oplet-bad", version="1.4.0", ops={BAD: "bad"})


def replaced(file: str, old: str, new: str) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        assert files[file].count(old.encode()) == 1
        files[file] = files[file].replace(old.encode(), new.encode())

    return change


def test_a_manifest_with_five_mistakes(site: Site, registry: oplet.Registry) -> None:
    def change(files: Files) -> None:
        manifest = json.loads(files["manifest.json"])
        manifest |= {"schema": "1", "author": "me"}
        del manifest["summary"]
        manifest["inputs"][0] |= {"rank": "2"}
        manifest["outputs"][0] |= {"dtype": "float32"}
        files["manifest.json"] = json.dumps(manifest).encode()

    install(site, change)
    with pytest.raises(oplet.ManifestError) as caught:
        registry.run(BAD, X=ONES)
    assert (caught.value.dist, caught.value.version) == ("oplet-bad", "1.4.0")
    assert sorted(problem.partition(":")[0] for problem in caught.value.problems) == [
        "$.author",
        "$.inputs[0].rank",
        "$.outputs[0].dtype",
        "$.schema",
        "$.summary",
    ]
    assert all(problem in str(caught.value) for problem in caught.value.problems)


@pytest.mark.parametrize("kind", ["rejects", "yields"])
def test_a_predicate_that_raises(site: Site, registry: oplet.Registry, kind: str) -> None:
    install(
        site, replaced("__init__.py", 'Variant("scalar", plan)', f'Variant("scalar", plan, {kind}=lambda r, c: 1 / 0)')
    )
    with pytest.raises(oplet.PluginContractError) as caught:
        registry.run(BAD, X=ONES)
    module = site.folder / "bad/__init__.py"
    source = module.read_text(encoding="utf-8")
    line = source[: source.index("1 / 0")].count("\n") + 1
    assert str(caught.value).splitlines() == [
        f"{BAD}: oplet-bad 1.4.0: scalar: {kind} raised ZeroDivisionError: division by zero",
        f"  {module}:{line}, in <lambda>",
        "the plugin is at fault; report it to its author",
    ]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('"x", "X"', '"x", "Z"', "multiply.wgsl.jinja binds 'Z', which the call does not have"),
        ('"X", "read"', '"X", "read_write"', "multiply.wgsl.jinja binds the input X for writing"),
        ('"Y", "read_write"', '"Y", "read"', "no launch writes the output Y"),
        ('jinja", size', 'jinja", 0', "plan raised ValueError: workgroups must be at least 1, not 0"),
        ('"f32")]', '"f64")]', "plan raised ValueError: element 'f64' is not one of f32, f16"),
    ],
)
def test_a_plan_with_a_wrong_launch(site: Site, registry: oplet.Registry, old: str, new: str, fault: str) -> None:
    install(site, replaced("__init__.py", old, new))
    with pytest.raises(oplet.PluginContractError) as caught:
        registry.run(BAD, X=ONES)
    assert str(caught.value).startswith(f"{BAD}: oplet-bad 1.4.0: scalar: {fault}")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("// one\n{{ scale }}\n", "'scale' is undefined"),
        ("// one\n{% if %}\n", "Expected an expression, got 'end of statement block'"),
        ("// one\nfn main() -> {}\n", "the WGSL does not compile"),
    ],
)
def test_a_fault_in_a_template(site: Site, registry: oplet.Registry, text: str, fault: str) -> None:
    install(site, lambda files: files.update({"wgsl/multiply.wgsl.jinja": text.encode()}))
    with pytest.raises(oplet.ShaderError) as caught:
        registry.run(BAD, X=ONES)
    first, *evidence, _ = str(caught.value).splitlines()
    path = site.folder / "bad/wgsl/multiply.wgsl.jinja"
    assert f"{path}:2: " in first
    assert fault in first
    assert evidence[-1] == "the variant scalar is of oplet-bad 1.4.0"
    assert (caught.value.template, caught.value.line) == (str(path), 2)

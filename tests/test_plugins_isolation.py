"""A broken plugin breaks its own op, when that op is asked for, and nothing else."""

import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import oplet
import pytest
from fakes import Site, op_files
from oplet import ManifestError, PluginContractError, PluginError, PluginLoadError

GOOD, BAD = "com.acme.Good", "com.acme.Bad"
ONES = np.ones(3, np.float32)


Files = dict[str, bytes]


def hook(name: str, body: str) -> Callable[[Files], None]:
    """Replaces the body of a hook."""

    def change(files: Files) -> None:
        text = files["__init__.py"].decode()
        head, found, rest = text.partition(f"def {name}():\n")
        assert found
        files["__init__.py"] = f"{head}{found}    {body}\n{rest.partition(chr(10))[2]}".encode()

    return change


def init(text: str) -> Callable[[Files], None]:
    """Puts text in front of the plugin."""

    def change(files: Files) -> None:
        files["__init__.py"] = text.encode() + b"\n" + files["__init__.py"]

    return change


def replaced(old: str, new: str) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        assert old.encode() in files["__init__.py"]
        files["__init__.py"] = files["__init__.py"].replace(old.encode(), new.encode())

    return change


def manifest(**changes: Any) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        files["manifest.json"] = json.dumps({**json.loads(files["manifest.json"]), **changes}).encode()

    return change


BREAKAGES: dict[str, tuple[Callable[[Files], Any], type[PluginError], str]] = {
    "import error": (init("import no_such_module"), PluginLoadError, "ModuleNotFoundError: No module named 'no_such_"),
    "relative import": (init("from . import no_such_part"), PluginLoadError, "ImportError: cannot import name"),
    "any exception": (init("raise LookupError('broken')"), PluginLoadError, "failed to load: LookupError: broken"),
    "exit": (init("import sys; sys.exit(3)"), PluginLoadError, "failed to load: SystemExit: 3"),
    "recursion": (init("def f(): f()\nf()"), PluginLoadError, "failed to load: RecursionError"),
    "syntax error": (
        lambda files: files.update({"__init__.py": b"import bad.part", "part.py": b"\ndef broken(:"}),
        PluginLoadError,
        r"failed to load: SyntaxError: .*\n  .*/bad/part\.py:2\n",
    ),
    "null bytes": (init("\0"), PluginLoadError, "failed to load: (SyntaxError|ValueError)"),
    "no package": (lambda files: files.clear(), PluginLoadError, "failed to load: ModuleNotFoundError"),
    "empty package": (
        lambda files: files.update({"__init__.py": b""}),
        PluginContractError,
        "does not implement the hook manifest",
    ),
    "missing hook": (
        replaced("def reference", "def referance"),
        PluginContractError,
        "implements the hook referance, which oplet",
    ),
    "unmarked hook": (
        replaced("@oplet.hookimpl\ndef infer", "def infer"),
        PluginContractError,
        "does not implement the hook infer",
    ),
    "unknown argument": (
        replaced("def infer(request)", "def infer(request, device)"),
        PluginContractError,
        "the hook infer takes the argument device, which oplet",
    ),
    "no manifest": (lambda files: files.pop("manifest.json"), ManifestError, "bad: .*\n.*cannot be read"),
    "manifest is no JSON": (lambda files: files.update({"manifest.json": b"{"}), ManifestError, "not JSON"),
    "manifest is no UTF-8": (
        lambda files: files.update({"manifest.json": b"\xff{"}),
        ManifestError,
        "cannot be read: 'utf-8'",
    ),
    "unknown key": (manifest(extra=1), ManifestError, r"\$\.extra: unknown key"),
    "wrong schema": (manifest(schema=2), ManifestError, r"\$\.schema: 2 is not a schema that this oplet reads"),
    "another id": (
        manifest(id="com.acme.Other"),
        PluginContractError,
        "the manifest of bad 1.0.0 is of com.acme.Other",
    ),
    "manifest raises": (hook("manifest", "return 1 // 0"), PluginContractError, "manifest raised ZeroDivisionError"),
    "manifest is none": (hook("manifest", "return None"), PluginContractError, "the manifest of bad 1.0.0 is of None"),
    "variants raise": (hook("variants", "return 1 // 0"), PluginContractError, "variants raised ZeroDivisionError"),
    "variants are none": (hook("variants", "return [None]"), PluginContractError, "None, which is not a Variant"),
    "bad variant name": (
        replaced('Variant("scalar"', 'Variant("not-a-name"'),
        PluginContractError,
        "variants raised ValueError: name 'not-a-name'",
    ),
    "templates raise": (hook("templates", "return 1 // 0"), PluginContractError, "templates raised ZeroDivisionError"),
    "templates are text": (hook("templates", "return 'wgsl'"), PluginContractError, "templates returned"),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_plugin_breaks_its_own_op_only(site: Site, breakage: str) -> None:
    change, error, message = BREAKAGES[breakage]
    broken = op_files(BAD)
    change(broken)
    site.op(GOOD, "good")
    site.package("bad", broken)
    site.distribution("bad", ops={BAD: "bad"})

    registry = oplet.Registry()
    assert {GOOD, BAD} <= set(registry.ids), "listed, broken or not"
    assert site.imported == set()
    for _ in range(2):
        for call in (lambda: registry[BAD], lambda: registry.run(BAD, X=ONES), lambda: registry.explain(BAD, X=ONES)):
            with pytest.raises(error, match=message) as caught:
                call()
            assert (caught.value.op, caught.value.dist, caught.value.version) == (BAD, "bad", "1.0.0")
            lines = str(caught.value).splitlines()
            assert "bad" in lines[0].lower()
            assert len(lines) >= 2, "evidence and advice"
        np.testing.assert_array_equal(registry.run(GOOD, X=ONES, variant="reference").numpy(), 2 * ONES)


@pytest.mark.parametrize(
    "entry", ["bad:plugin", "bad.no_such_part", ".bad", "", "bad bad", "os.path", "__main__", "json"]
)
def test_an_entry_point_that_names_no_op_folder(site: Site, entry: str) -> None:
    site.op(GOOD, "good")
    site.package("bad", op_files(BAD))
    site.distribution("bad", ops={BAD: entry})
    registry = oplet.Registry()
    with pytest.raises((PluginLoadError, PluginContractError)) as caught:
        registry[BAD]
    assert caught.value.dist == "bad"
    assert registry.run(GOOD, X=ONES, variant="reference").numpy()[0] == 2


def test_an_interrupt_is_no_fault_of_the_plugin(site: Site) -> None:
    broken = op_files(BAD)
    init("raise KeyboardInterrupt")(broken)
    site.package("bad", broken)
    site.distribution("bad", ops={BAD: "bad"})
    with pytest.raises(KeyboardInterrupt):
        oplet.Registry()[BAD]


def test_a_plugin_for_another_oplet_is_not_imported(site: Site) -> None:
    site.op(GOOD, "good")
    site.package("bad", op_files(BAD))
    site.distribution("bad", ops={BAD: "bad"}, requires=("numpy", "oplet>=99,<100"))
    registry = oplet.Registry()
    with pytest.raises(
        PluginLoadError, match=r"bad 1\.0\.0 requires oplet(>=99,<100|<100,>=99), and this is oplet 0"
    ) as e:
        registry[BAD]
    assert str(e.value).splitlines()[-1] == "pip install --upgrade bad oplet"
    assert site.imported == set()
    assert registry.run(GOOD, X=ONES, variant="reference").numpy()[0] == 2


def test_a_plugin_that_is_mended_works_without_a_new_registry(site: Site) -> None:
    broken = op_files(BAD)
    site.package("bad", {**broken, "manifest.json": b"{"})
    site.distribution("bad", ops={BAD: "bad"})
    registry = oplet.Registry()
    with pytest.raises(ManifestError):
        registry[BAD]
    site.package("bad", broken)
    assert registry.run(BAD, X=ONES, variant="reference").numpy()[0] == 2


def test_a_fault_at_run_time_is_that_of_the_call(site: Site, device: oplet.Device) -> None:
    broken = op_files(BAD)
    broken["wgsl/multiply.wgsl.jinja"] = b"fn main( {\n"
    site.op(GOOD, "good")
    site.package("bad", broken)
    site.distribution("bad", ops={BAD: "bad"})
    registry = oplet.Registry(device=device)
    with pytest.raises(oplet.ShaderError, match=r"multiply.wgsl.jinja:1"):
        registry.run(BAD, X=ONES)
    np.testing.assert_array_equal(registry.run(GOOD, X=ONES).numpy(), 2 * ONES)
    np.testing.assert_array_equal(registry.run(BAD, X=ONES, variant="reference").numpy(), 2 * ONES)


def test_several_ops_in_one_distribution_load_one_by_one(site: Site) -> None:
    site.package("pair", {"__init__.py": b""})
    for name, op in (("pair/good", GOOD), ("pair/bad", BAD)):
        folder = op_files(op)
        if op == BAD:
            init("raise RuntimeError")(folder)
        site.package(name, folder)
    site.distribution("pair", ops={GOOD: "pair.good", BAD: "pair.bad"})
    registry = oplet.Registry()
    assert registry[GOOD].module == "pair.good"
    assert "pair.bad" not in sys.modules
    with pytest.raises(PluginLoadError):
        registry[BAD]
    assert registry.run(GOOD, X=ONES, variant="reference").numpy()[0] == 2


def test_threads_load_a_plugin_once(site: Site) -> None:
    slow = op_files(GOOD)
    init("import time; time.sleep(0.05)\ncount = globals().get('count', 0) + 1")(slow)
    site.package("slow", slow)
    site.distribution("slow", ops={GOOD: "slow"})
    registry = oplet.Registry()
    start = threading.Barrier(4)

    def load(_: int) -> oplet.registry.Op:
        start.wait()
        return registry[GOOD]

    with ThreadPoolExecutor(4) as pool:
        assert len({id(op) for op in pool.map(load, range(4))}) == 1
    assert sys.modules["slow"].count == 1


def test_without_discovery_nothing_is_found(site: Site) -> None:
    site.op(GOOD, "good")
    registry = oplet.Registry(discover=False)
    assert (registry.offers, registry.ids) == ((), ())
    with pytest.raises(oplet.UnknownOpError, match="installed: none"):
        registry[GOOD]
    assert site.imported == set()

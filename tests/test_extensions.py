"""A third party adds variants to somebody else's op, and cannot do it harm."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import oplet
import pytest
from fakes import Site, extension_files, op_files
from oplet import TensorSpec

OP = "com.acme.Foo"
ONES = np.ones(3, np.float32)


@pytest.fixture
def op(site: Site) -> Site:
    """The op that is extended: it doubles."""
    site.op(OP, "foo", dist="oplet-foo", value=2.0)
    return site


def names(registry: oplet.Registry) -> list[str]:
    return [variant.name for variant in registry[OP].variants]


def value(registry: oplet.Registry, variant: str | None = None) -> float:
    return float(registry.run(OP, X=ONES, variant=variant).numpy()[0])


def broken(site: Site, package: str, files: dict[str, bytes], **changes: bytes) -> None:
    """An extension with files replaced."""
    site.package(package, {**files, **{f"{name}.py": text for name, text in changes.items()}})
    site.distribution(package.replace("_", "-"), extensions={OP: package})


def only_warning(registry: oplet.Registry) -> str:
    """The one warning of loading the op, which works all the same."""
    with pytest.warns(RuntimeWarning) as caught:
        registry[OP]
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registry.run(OP, X=ONES, variant="reference").numpy()[0] == 2, "the op itself works, and is silent"
    (problem,) = registry[OP].problems
    assert str(caught[0].message) == f"left out: {problem}"
    return str(problem)


# Extensions that work ---------------------------------------------------------------------------------


def test_its_variants_come_before_the_ops_own(op: Site, device: oplet.Device) -> None:
    op.extension(OP, "faster", "fast", value=3.0)
    registry = oplet.Registry(device=device)
    assert [(offer.group, offer.dist) for offer in registry.offers if offer.op == OP] == [
        ("oplet.extensions", "faster"),
        ("oplet.ops", "oplet-foo"),
    ]
    assert names(registry) == ["fast", "scalar"]
    assert value(registry) == 3
    assert value(registry, "scalar") == 2, "each has the template of its own folder, though of one name"
    assert value(registry, "fast") == 3
    assert registry.explain(OP, X=ONES).rejections == (oplet.Rejection("scalar", "later", "fast is preferred"),)
    assert registry[OP].dist == "oplet-foo"


@pytest.mark.parametrize("order", [("beta", "Alpha", "zeta"), ("zeta", "beta", "Alpha")])
def test_several_come_in_the_order_of_their_distributions(op: Site, order: tuple[str, ...]) -> None:
    for dist in order:
        op.extension(OP, f"{dist.lower()}_package", f"of_{dist}", dist=dist)
    assert names(oplet.Registry()) == ["of_Alpha", "of_beta", "of_zeta", "scalar"]


def test_an_op_registered_by_hand_is_extended_too(site: Site, device: oplet.Device) -> None:
    site.extension(OP, "faster", "fast", value=3.0)
    site.package("by_hand", op_files(OP, 7.0))
    registry = oplet.Registry(device=device)
    registry.register(OP, __import__("by_hand"))
    assert names(registry) == ["fast", "scalar"]
    assert (value(registry), value(registry, "scalar")) == (3, 7)


def test_a_distribution_may_extend_its_own_op(site: Site, device: oplet.Device) -> None:
    site.package("foo", op_files(OP, 2.0))
    site.package("foo_fast", extension_files("fast", 3.0))
    site.distribution("oplet-foo", ops={OP: "foo"}, extensions={OP: "foo_fast"})
    registry = oplet.Registry(device=device)
    assert (value(registry, "fast"), value(registry, "scalar")) == (3, 2)


def test_a_blocked_extension_is_not_there(op: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    op.extension(OP, "faster", "fast")
    assert names(oplet.Registry(block=["faster"])) == ["scalar"]
    monkeypatch.setenv("OPLET_BLOCK", "Faster")
    assert names(oplet.Registry()) == ["scalar"]
    assert "faster" not in op.imported


def test_without_discovery_there_are_no_extensions(op: Site) -> None:
    op.extension(OP, "faster", "fast")
    registry = oplet.Registry(discover=False)
    registry.register(OP, __import__("foo"))
    assert names(registry) == ["scalar"]


def test_an_extension_makes_no_op(site: Site) -> None:
    site.extension(OP, "faster", "fast")
    registry = oplet.Registry()
    assert OP not in registry.ids
    with pytest.raises(oplet.UnknownOpError, match=r"no plugin offers 'com\.acme\.Foo'"):
        registry[OP]
    assert site.imported == set()


def test_an_extension_that_rejects_or_yields_leaves_the_op_its_own(op: Site, device: oplet.Device) -> None:
    for package, predicate in (("one", "rejects"), ("two", "yields")):
        files = extension_files(package, 3.0)
        text = files["__init__.py"].decode().replace("plan)]", f"plan, {predicate}=lambda request, caps: 'not now')]")
        broken(op, package, files, __init__=text.encode())
    registry = oplet.Registry(device=device)
    assert value(registry) == 2
    assert [(one.variant, one.kind, one.reason) for one in registry.explain(OP, X=ONES).rejections] == [
        ("one", "rejects", "not now"),
        ("two", "yields", "not now"),
    ]
    assert value(registry, "two") == 3


# Extensions that are left out -------------------------------------------------------------------------

INFER = b"""
@oplet.hookimpl
def infer(request):
    raise AssertionError("an extension has no say in this")
"""


@pytest.mark.parametrize("hook", ["manifest", "infer", "check", "reference"])
def test_any_other_hook_is_refused(op: Site, hook: str) -> None:
    files = extension_files("fast", 3.0)
    text = files["__init__.py"] + INFER.replace(b"infer", hook.encode())
    if hook == "manifest":
        text = text.replace(b"manifest(request)", b"manifest()")
    broken(op, "faster", files, __init__=text)
    registry = oplet.Registry()
    problem = only_warning(registry)
    assert f"com.acme.Foo: the extension faster 1.0.0 implements the hook {hook}" in problem
    assert problem.splitlines()[-1] == "an extension implements variants and templates, nothing else"
    assert names(registry) == ["scalar"]


def changes() -> Iterator[tuple[str, dict[str, bytes], str]]:
    files = extension_files("fast", 3.0)
    init = files["__init__.py"]
    yield "import error", {"__init__": b"import no_such_module"}, "failed to load: ModuleNotFoundError"
    yield "exit", {"__init__": b"raise SystemExit"}, "failed to load: SystemExit"
    yield "empty", {"__init__": b""}, "templates returned [], not one Traversable"
    yield "unknown hook", {"__init__": init.replace(b"def variants", b"def variantz")}, "implements the hook variantz"
    yield "the op's variant name", {"__init__": init.replace(b'"fast"', b'"scalar"')}, "offers the variant scalar"
    yield "reference", {"__init__": init.replace(b'"fast"', b'"reference"')}, "a variant is named reference"
    yield "variants raise", {"__init__": init.replace(b"return [", b"raise OSError; [")}, "variants raised OSError"
    yield "no templates", {"__init__": init.replace(b"@oplet.hookimpl\ndef templates", b"def templates")}, "templates"


@pytest.mark.parametrize(("change", "message"), [pytest.param(*rest, id=name) for name, *rest in changes()])
def test_a_broken_extension_is_left_out_with_one_warning(op: Site, change: Any, message: str) -> None:
    op.extension(OP, "alright", "alright")
    broken(op, "faster", extension_files("fast", 3.0), **change)
    registry = oplet.Registry()
    problem = only_warning(registry)
    assert message in problem
    assert "faster 1.0.0" in problem
    assert names(registry) == ["alright", "scalar"]
    (error,) = registry[OP].problems
    assert isinstance(error, oplet.PluginError)
    assert (error.op, error.dist, error.version) == (OP, "faster", "1.0.0")


def test_a_name_that_another_extension_has_is_refused(op: Site) -> None:
    op.extension(OP, "first", "fast", value=3.0)
    op.extension(OP, "second", "fast", value=4.0)
    registry = oplet.Registry()
    problem = only_warning(registry)
    assert "the extension second 1.0.0 offers the variant fast, which first 1.0.0 has" in problem
    assert names(registry) == ["fast", "scalar"]


def test_an_extension_for_another_oplet_is_left_out(op: Site) -> None:
    op.package("faster", extension_files("fast", 3.0))
    op.distribution("faster", extensions={OP: "faster"}, requires=("oplet>=99",))
    registry = oplet.Registry()
    assert "faster 1.0.0 requires oplet>=99" in only_warning(registry)
    assert "faster" not in op.imported


def test_each_broken_extension_has_its_warning(op: Site) -> None:
    for package in ("one", "two"):
        broken(op, package, {"__init__.py": b"raise RuntimeError"})
    registry = oplet.Registry()
    with pytest.warns(RuntimeWarning) as caught:
        assert names(registry) == ["scalar"]
    assert [message.split()[3] for message in (str(warning.message) for warning in caught)] == ["one", "two"]


def test_a_broken_op_is_broken_with_extensions_or_without(site: Site) -> None:
    site.package("foo", {"__init__.py": b"raise RuntimeError('broken')"})
    site.distribution("oplet-foo", ops={OP: "foo"})
    site.extension(OP, "faster", "fast")
    with pytest.raises(oplet.PluginLoadError, match=r"oplet-foo 1.0.0 failed to load: RuntimeError: broken"):
        oplet.Registry()[OP]
    assert "faster" not in site.imported


# Extensions at fault in a call ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"plan)]", b"plan, rejects=lambda request, caps: 1 // 0)]", "fast: rejects raised ZeroDivisionError"),
        (b"plan)]", b"plan, yields=lambda request, caps: False)]", "fast: yields returned False"),
        (b"size = ", b"size = -1 * ", "fast: plan raised ValueError"),
        (b'"Y", "read_write"', b'"Y", "read"', "fast: no launch writes the output Y"),
    ],
)
def test_a_fault_in_a_call_names_the_extension(
    op: Site, device: oplet.Device, old: bytes, new: bytes, message: str
) -> None:
    files = extension_files("fast", 3.0)
    broken(op, "faster", files, __init__=files["__init__.py"].replace(old, new))
    registry = oplet.Registry(device=device)
    with pytest.raises(oplet.PluginContractError, match=f"com.acme.Foo: faster 1.0.0: {message}") as caught:
        registry.explain(OP, X=TensorSpec((3,), "float32"))
    assert (caught.value.dist, caught.value.version) == ("faster", "1.0.0")
    assert value(oplet.Registry(device=device, block=[caught.value.dist])) == 2, "blocking it helps"


def test_a_shader_error_names_the_extensions_file(op: Site, device: oplet.Device) -> None:
    files = extension_files("fast", 3.0)
    op.package("faster", {**files, "wgsl/multiply.wgsl.jinja": b"\nfn main( {\n"})
    op.distribution("faster", extensions={OP: "faster"})
    registry = oplet.Registry(device=device)
    with pytest.raises(oplet.ShaderError) as caught:
        registry.run(OP, X=ONES)
    assert caught.value.template == str(op.folder / "faster" / "wgsl" / "multiply.wgsl.jinja")
    assert caught.value.line == 2
    assert value(registry, "scalar") == 2

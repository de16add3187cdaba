"""Two distributions that offer one op are named, and the choice between them is the user's."""

import numpy as np
import oplet
import pytest
from fakes import Site, op_files
from oplet import PluginConflictError

OP = "com.acme.Foo"
ONES = np.ones(3, np.float32)


@pytest.fixture
def two(site: Site) -> Site:
    """One op, offered twice: by acme-foo, which doubles, and by Other.Foo, which triples."""
    site.op(OP, "acme_foo", dist="acme-foo", value=2.0, version="1.4.0")
    site.op(OP, "other_foo", dist="Other.Foo", value=3.0, version="2.0.1")
    site.op("com.acme.Alone", "alone", value=5.0)
    return site


def value(registry: oplet.Registry, op: str = OP) -> float:
    return float(registry.run(op, X=ONES, variant="reference").numpy()[0])


def test_a_conflict_names_both_when_the_op_is_asked_for(two: Site) -> None:
    registry = oplet.Registry()
    assert [offer.dist for offer in registry.offers if offer.op == OP] == ["acme-foo", "Other.Foo"]
    assert registry.ids.count(OP) == 1
    for _ in range(2):
        with pytest.raises(PluginConflictError) as caught:
            registry.run(OP, X=ONES)
        assert str(caught.value).splitlines() == [
            "com.acme.Foo is offered by acme-foo 1.4.0 (acme_foo) and Other.Foo 2.0.1 (other_foo)",
            "uninstall all but one, or choose: Registry(prefer={'com.acme.Foo': 'acme-foo'}) "
            "or OPLET_PREFER=com.acme.Foo=acme-foo",
        ]
        assert caught.value.op == OP
    assert two.imported == set(), "neither was imported"
    assert value(registry, "com.acme.Alone") == 5


@pytest.mark.parametrize("spelling", ["Other.Foo", "other-foo", "OTHER_FOO"])
def test_prefer_settles_it(two: Site, spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert value(oplet.Registry(prefer={OP: spelling})) == 3
    assert two.imported == {"other_foo"}, "the other one was not imported"
    monkeypatch.setenv("OPLET_PREFER", f"com.acme.Alone=alone,{OP}={spelling}")
    assert value(oplet.Registry()) == 3
    assert value(oplet.Registry(prefer={OP: "acme-foo"})) == 2, "the argument comes before the environment"


def test_prefer_has_to_name_one_of_them(two: Site) -> None:
    with pytest.raises(PluginConflictError) as caught:
        oplet.Registry(prefer={OP: "third-foo"})[OP]
    assert str(caught.value).splitlines() == [
        "com.acme.Foo: prefer names third-foo, which does not offer it",
        "offered by acme-foo 1.4.0 (acme_foo) and Other.Foo 2.0.1 (other_foo)",
        "name one of these, or take the op out of prefer and OPLET_PREFER",
    ]
    assert value(oplet.Registry(prefer={"com.acme.Absent": "third-foo"}), "com.acme.Alone") == 5


@pytest.mark.parametrize("spelling", ["Other.Foo", "other_foo"])
def test_blocking_one_leaves_the_other(two: Site, spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = oplet.Registry(block=[spelling])
    assert value(registry) == 2
    assert [offer.dist for offer in registry.offers if offer.op == OP] == ["acme-foo"]
    monkeypatch.setenv("OPLET_BLOCK", spelling)
    assert value(oplet.Registry()) == 2
    with pytest.raises(oplet.UnknownOpError):
        oplet.Registry(block=["acme-foo"])[OP]  # with the environment's, both


def test_blocking_the_op_leaves_none(two: Site) -> None:
    registry = oplet.Registry(block=[OP])
    assert OP not in registry.ids
    with pytest.raises(oplet.UnknownOpError, match=r"^'com\.acme\.Foo' is blocked\nleave it out of block="):
        registry[OP]
    assert value(registry, "com.acme.Alone") == 5


def test_what_is_registered_comes_before_what_is_installed(two: Site) -> None:
    two.package("by_hand", op_files(OP, 7.0))
    module = __import__("by_hand")
    for registry in (oplet.Registry(), oplet.Registry(block=[OP]), oplet.Registry(prefer={OP: "acme-foo"})):
        registry.register(OP, module)
        assert value(registry) == 7
        assert OP in registry.ids
    chosen = oplet.Registry(prefer={OP: "acme-foo"})
    assert value(chosen) == 2
    chosen.register(OP, module)
    assert value(chosen) == 7, "also after the installed one was loaded"


def test_a_call_that_ran_before_registering_runs_the_new_plugin(two: Site, device: oplet.Device) -> None:
    two.package("by_hand", op_files(OP, 7.0))
    registry = oplet.Registry(device=device, prefer={OP: "acme-foo"})
    x = registry.tensor(ONES)
    assert registry.run(OP, X=x).numpy()[0] == 2
    registry.register(OP, __import__("by_hand"))
    assert registry.run(OP, X=x).numpy()[0] == 7


def test_registries_choose_for_themselves(two: Site, device: oplet.Device) -> None:
    """One device, one op id, two plugins whose templates have the same names."""
    registries = [oplet.Registry(device=device, prefer={OP: dist}) for dist in ("acme-foo", "other-foo")]
    for _ in range(2):
        assert [registry.run(OP, X=ONES).numpy()[0] for registry in registries] == [2, 3]


def test_one_distribution_that_offers_an_op_twice_is_at_fault(site: Site) -> None:
    for package in ("one", "two"):
        site.package(package, op_files(OP))
    site.distribution("acme-foo", ops={OP: "one"})
    entry_points = site.folder / "acme_foo-1.0.0.dist-info" / "entry_points.txt"
    entry_points.write_text(entry_points.read_text() + f"[oplet.ops]\n{OP} = two\n")
    for registry in (oplet.Registry(), oplet.Registry(prefer={OP: "acme-foo"})):
        with pytest.raises(
            PluginConflictError, match=r"acme-foo 1\.0\.0 \(one\) and acme-foo 1\.0\.0 \(two\)\n.* twice"
        ):
            registry[OP]

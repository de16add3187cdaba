"""Offers are read from metadata, and one distribution's damage hides no other's."""

from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest
from oplet import discovery
from oplet.discovery import EXTENSIONS, OPS, Offer
from oplet.errors import InputError


class Fake(Distribution):
    """A distribution that is only its metadata."""

    def __init__(self, metadata: str, entry_points: str | None) -> None:
        self._files = {"METADATA": metadata, "entry_points.txt": entry_points}

    def read_text(self, filename: str) -> str | None:
        return self._files.get(filename)

    def locate_file(self, path: Any) -> Path:
        raise NotImplementedError


def fake(name: str, entry_points: str | None, *, version: str = "1.0", requires: str = "oplet") -> Fake:
    metadata = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nRequires-Dist: {requires}\n"
    return Fake(metadata, entry_points)


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> list[Distribution]:
    """The distributions on sys.path, in its order."""
    found: list[Distribution] = []
    monkeypatch.setattr("importlib.metadata.distributions", lambda: iter(found))
    return found


def test_an_offer_is_what_the_metadata_says(path: list[Distribution]) -> None:
    path.append(fake("Oplet_Foo", "[oplet.ops]\ncom.acme.Foo = foo.ops\n", version="1.2.3", requires="oplet<2"))
    assert discovery.installed() == [Offer("com.acme.Foo", OPS, "Oplet_Foo", "1.2.3", "foo.ops", ("oplet<2",))]


def test_other_groups_are_not_ours(path: list[Distribution]) -> None:
    path += [fake("tool", "[console_scripts]\ntool = tool:main\n"), fake("plain", None)]
    assert discovery.installed() == []


def test_the_order_is_that_of_names_and_never_of_sys_path(path: list[Distribution]) -> None:
    entries = "[oplet.ops]\ncom.acme.B = b\ncom.acme.A = a\n[oplet.extensions]\ncom.acme.A = fast\n"
    path += [fake(name, entries) for name in ("zeta", "Alpha", "beta")]
    offers = discovery.installed()
    path.reverse()
    assert discovery.installed() == offers
    assert [(offer.op, offer.group, offer.dist) for offer in offers] == [
        (op, group, dist)
        for op, group in (("com.acme.A", EXTENSIONS), ("com.acme.A", OPS), ("com.acme.B", OPS))
        for dist in ("Alpha", "beta", "zeta")
    ]


def test_the_first_of_two_installations_counts(path: list[Distribution]) -> None:
    path += [
        fake("oplet-foo", "[oplet.ops]\ncom.acme.Foo = new\n", version="2.0"),
        fake("Oplet.Foo", "[oplet.ops]\ncom.acme.Foo = old\n", version="1.0"),
    ]
    assert [offer.entry for offer in discovery.installed()] == ["new"]


@pytest.mark.parametrize(
    ("damaged", "fault"),
    [
        (fake("oplet-bad", "[oplet.ops]\nno equals sign\n"), "TypeError|ValueError"),
        (Fake("", "[oplet.ops]\ncom.acme.Bar = bar\n"), "it has no name"),
    ],
    ids=["entry_points.txt", "no name"],
)
def test_damaged_metadata_is_left_out_with_a_warning(path: list[Distribution], damaged: Fake, fault: str) -> None:
    path += [damaged, fake("oplet-foo", "[oplet.ops]\ncom.acme.Foo = foo\n")]
    with pytest.warns(RuntimeWarning, match=fault) as caught:
        offers = discovery.installed()
    assert [offer.op for offer in offers] == ["com.acme.Foo"]
    assert len(caught) == 1


def test_what_is_installed_here_can_be_read() -> None:
    assert all(offer.dist and offer.entry for offer in discovery.installed())


# The requirement on oplet ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requirement", "unmet"),
    [
        ("oplet", False),
        ("oplet>=0.1,<0.2", False),
        ("oplet>=99", True),
        ("Oplet [dawn] >= 99", True),
        ("oplet>=99; python_version < '3'", False),
        ("oplet>=99; extra == 'future'", False),
        ("numpy>=99", False),
        ("oplet is great!", False),
    ],
)
def test_unmet_requirement(monkeypatch: pytest.MonkeyPatch, requirement: str, unmet: bool) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.1.0")
    offer = Offer("com.acme.Foo", OPS, "oplet-foo", "1.0", "foo", ("attrs", requirement))
    assert discovery.unmet_requirement(offer) == (requirement if unmet else None)


def test_a_prerelease_of_oplet_meets_what_its_release_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.1.1.dev3")
    assert discovery.unmet_requirement(Offer("com.acme.Foo", OPS, "d", "1", "foo", ("oplet>=0.1,<0.2",))) is None


# prefer and block -------------------------------------------------------------------------------------


def test_preferences_of_the_call_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPLET_PREFER", " com.acme.A = one , com.acme.B=two,")
    assert discovery.preferences(None) == {"com.acme.A": "one", "com.acme.B": "two"}
    assert discovery.preferences({"com.acme.A": "three"}) == {"com.acme.A": "three", "com.acme.B": "two"}


@pytest.mark.parametrize("text", ["com.acme.A", "com.acme.A=", "=dist", "com.acme.A=one,two"])
def test_a_bad_preference_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("OPLET_PREFER", text)
    with pytest.raises(InputError, match=r"OPLET_PREFER: .* is not of the form op=distribution") as caught:
        discovery.preferences(None)
    assert caught.value.argument == "OPLET_PREFER"


def test_prefer_names_ops_with_their_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"^prefer: 'Foo' is not an op id\nop ids have a domain"):
        discovery.preferences({"Foo": "oplet-acme-foo"})
    monkeypatch.setenv("OPLET_PREFER", "Foo=oplet-acme-foo")
    with pytest.raises(InputError, match=r"^OPLET_PREFER: 'Foo' is not an op id"):
        discovery.preferences(None)


@pytest.mark.parametrize("prefer", ["com.acme.A=one", ["com.acme.A"], {"com.acme.A": 1}, {1: "one"}, 7])
def test_prefer_is_a_mapping_of_names(prefer: Any) -> None:
    with pytest.raises(InputError, match=r"prefer: .* is not a mapping from op ids to distributions"):
        discovery.preferences(prefer)


def test_blocked_names_are_canonical_and_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPLET_BLOCK", "com.acme.A, Oplet_B,")
    blocked = discovery.blocked(name for name in ["Oplet.C"])
    assert {"com.acme.A", "oplet-b", "oplet-c"} <= blocked


@pytest.mark.parametrize("block", ["oplet-foo", [1], 7, [None]])
def test_block_is_a_list_of_names(block: Any) -> None:
    with pytest.raises(InputError, match=r"block: .* is not a list of op ids and distributions"):
        discovery.blocked(block)


def test_listing_imports_no_plugin_and_no_webgpu(child: Any) -> None:
    plugins = {offer.entry for offer in discovery.installed()}
    result = child("import sys, oplet\noffers = oplet.Registry().offers\nprint(len(offers), *sys.modules)")
    count, *modules = result.stdout.split()
    assert result.returncode == 0, result.stderr
    assert int(count) >= len(plugins) > 0
    assert not plugins & set(modules)
    assert not {"wgpu", "wgpudawn", "jinja2", "cattrs"} & set(modules)

"""Every check of the conformance kit catches the fault that it is there for: com.acme.Affine, one thing broken."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import acme_affine
import attrs
import numpy as np
import oplet
import pytest
from oplet import hookspecs
from oplet.loading import REQUIRED_HOOKS
from oplet.testing import checks
from oplet.testing.checks import Findings
from oplet.testing.kit import Devices, Finding, Kit, NotRun
from oplet.testing.suite import Case, Suite

OP = "com.acme.Affine"
WGSL = Path(acme_affine.__file__).parent / "wgsl"
SUITE = Suite.read("acme_affine")
NUMBERS = itertools.count()

#: one case of each kind that a fault may need
BY_HAND = attrs.evolve(SUITE, literal=SUITE.literal[:1], generate=None)
Y_ONLY = Case("Y only", {"X": np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5)})
HALF = Case("half", {"X": np.linspace(-1, 1, 15, dtype=np.float16).reshape(3, 5)})


@pytest.fixture(scope="module")
def devices() -> Devices:
    return Devices()


@pytest.fixture
def affine(devices: Devices, tmp_path: Path) -> Callable[..., Kit]:
    """Makes a kit for com.acme.Affine with hooks replaced and lines of affine.wgsl.jinja changed."""

    def make(
        *cases: Case,
        wgsl: Mapping[str, str] | None = None,
        suite: Suite = BY_HAND,
        registry: type[oplet.Registry] = oplet.Registry,
        **hooks: Callable[..., Any],
    ) -> Kit:
        folder = tmp_path / "wgsl"
        shutil.copytree(WGSL, folder, dirs_exist_ok=True)
        template = folder / "affine.wgsl.jinja"
        text = template.read_text()
        for old, new in (wgsl or {}).items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        template.write_text(text)
        plugin: Any = ModuleType(f"affine_{next(NUMBERS)}")
        for name in REQUIRED_HOOKS:
            setattr(plugin, name, getattr(acme_affine, name))
        plugin.templates = oplet.hookimpl(lambda: folder)
        for name, hook in hooks.items():
            assert hasattr(hookspecs, name)
            setattr(plugin, name, oplet.hookimpl(hook))

        def on(device: oplet.Device | None) -> oplet.Registry:
            made = registry(device=device, discover=False)
            made.register(OP, plugin)
            return made

        if cases:
            suite = attrs.evolve(suite, literal=cases)
        return Kit(OP, devices=devices, registry=on, suite=suite, seed=1)

    return make


def scalar(**changes: Any) -> Callable[[], list[oplet.Variant]]:
    """The hook `variants` with the scalar variant only, changed."""
    return lambda: [attrs.evolve(acme_affine.variants()[-1], **changes)]


def found(findings: Findings) -> list[Finding]:
    """The findings; a check that could not run is a failure of the test."""
    results = list(findings)
    assert not [one for one in results if isinstance(one, NotRun)]
    return [one for one in results if isinstance(one, Finding)]


def only(findings: Findings) -> Finding:
    (finding,) = found(findings)
    return finding


EXTENSION = """
import importlib.resources
import oplet

@oplet.hookimpl
def variants():
    return [oplet.Variant("none", lambda request, caps: [], rejects=lambda request, caps: "it is made up")]

@oplet.hookimpl
def templates():
    return importlib.resources.files(__package__) / "wgsl"
"""

# The correct op --------------------------------------------------------------------------------------


def test_a_correct_op_passes_every_check(devices: Devices, install: Callable[..., Path]) -> None:
    install("acme_correct")
    kit = Kit(OP, devices=devices)
    assert [offer.dist for offer in kit.offers] == ["oplet-acme-correct"]
    assert len(kit.calls) == 43
    outcomes = {check.id: check.run(kit) for check in checks.checks(kit) if check.id != "metadata"}
    assert not [outcome for outcome in outcomes.values() if outcome.findings]
    assert set(outcomes) >= {"infer", "errors", "plans-bare", "served-best", "runs-vec4-floor", "runs-scalar-best"}
    ran = {name for name, outcome in outcomes.items() if name.startswith("runs") and not outcome.not_run}
    assert ran >= {f"runs-{variant}-{setup}" for variant in ("vec4", "scalar") for setup in ("best", "bare", "floor")}


def test_only_some_variants(devices: Devices, install: Callable[..., Path]) -> None:
    """What an extension tests: nothing of the op itself."""
    install("acme_partial")
    kit = Kit(OP, devices=devices, variants=("scalar",))
    setups = ("best", "bare", "floor")
    assert [check.id for check in checks.checks(kit)] == [
        "cases",
        "metadata",
        *(f"plans-{setup}" for setup in setups),
        *(f"runs-scalar-{setup}" for setup in setups),
    ]
    with pytest.raises(oplet.InputError, match=r"'scaler' is not a known variant\n.*\ndid you mean 'scalar'"):
        Kit(OP, devices=devices, variants=("scaler",))


def test_files_that_are_not_as_they_were_made(devices: Devices, install: Callable[..., Path]) -> None:
    """The op's, and those of an extension, whose digests are written by another command."""
    site = install("acme_unsigned").parent
    (site / "acme_more").mkdir()
    (site / "acme_more/__init__.py").write_text(EXTENSION)
    info = site / "oplet_acme_more-0.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: oplet-acme-more\nVersion: 0.5\n")
    (info / "entry_points.txt").write_text(f"[oplet.extensions]\n{OP} = acme_more\n")
    (check,) = (one for one in checks.checks(Kit(OP, devices=devices)) if one.id == "metadata")
    found = [finding.message.splitlines() for finding in check.run(Kit(OP, devices=devices)).findings]
    assert [(first, last) for first, *_, last in found] == [
        (
            "oplet-acme-more 0.5 is not as it was made",
            f"after a change: oplet metadata {OP} --dist oplet-acme-more --write",
        ),
        ("oplet-acme-unsigned 1.2.0 is not as it was made", f"after a change: oplet metadata {OP} --write"),
    ]


def test_a_variant_that_never_ran_is_named_with_the_reasons(affine: Callable[..., Kit]) -> None:
    (told,) = checks.runs(affine(), variant="matrix", setup="bare")
    assert told == NotRun("variant matrix", "needs the device feature subgroup-matrix (1 case)")


def test_cases_that_nothing_serves_are_named_with_the_reasons(affine: Callable[..., Kit]) -> None:
    (told,) = checks.served(affine(HALF, attrs.evolve(HALF, name="other")), setup="bare")
    assert isinstance(told, NotRun)
    assert told.what == "case 'half' and 3 more"
    assert told.why == (
        "needs the device feature subgroup-matrix (matrix); "
        "the number of columns is not a multiple of 4 (vec4); "
        "float16 needs the device feature shader-f16 (scalar)"
    )


def test_an_outcome_in_words(affine: Callable[..., Kit]) -> None:
    kit = affine(wgsl={"* params.factor": "* params.factor + 0.001"}, variants=scalar())
    outcomes = {check.id: check.run(kit) for check in checks.checks(kit) if check.id in ("infer", "runs-scalar-bare")}
    assert not outcomes["infer"].findings
    first, finding, call, last = str(outcomes["runs-scalar-bare"]).splitlines()[:4]
    assert first.startswith(f"{OP}: runs-scalar-bare on ")
    assert "features=[]" in first
    assert finding.startswith("results: variant scalar, case 'by hand': Y[")
    assert call.strip() == (
        "X float32 (2, 3), biasT float32 (3,), attrs {'factor': 2, 'activation': 'Relu'}, outputs Y, sums"
    )
    assert "sums" in last or last == "the random cases again: --seed=1, with pytest --oplet-seed=1"


def test_long_reports_are_cut() -> None:
    finding = Finding("results", "wrong", case="one")
    text = str(checks.Outcome("runs", OP, "", 7, (finding,) * 20, ()))
    assert text.count("results: case 'one': wrong") == checks.SHOWN
    assert text.splitlines()[-2:] == [
        "and 14 more of results",
        "the random cases again: --seed=7, with pytest --oplet-seed=7",
    ]


# Runs ------------------------------------------------------------------------------------------------


RUN_FAULTS = {
    "results": {"* params.factor;": "* params.factor + 0.001;"},
    "guards": {"  if (i >= params.size) { return; }\n": ""},
    "unwritten": {"if (i >= params.size)": "if (i + 1u >= params.size)"},
    "scratch": {"z[i] = value;": "z[i] += value;\n  y[i] = z[i];"},
    "overread": {"* params.factor;": "* params.factor + params.zero * x[i + 1u];"},
    "accepts": {"var value =": "let value ="},
}


@pytest.mark.parametrize("check", RUN_FAULTS)
def test_a_faulty_shader(affine: Callable[..., Kit], check: str) -> None:
    kit = affine(attrs.evolve(Y_ONLY, attrs={"activation": "Relu"}), wgsl=RUN_FAULTS[check], variants=scalar())
    calls = kit.calls[:1]
    assert calls[0].request.outputs == ("Y",)
    kit._prepared = (calls, ())
    findings = found(checks.runs(kit, variant="scalar", setup="bare"))
    assert {one.check for one in findings} == {check}
    assert {(one.variant, one.setup, one.case) for one in findings} == {("scalar", "bare", "Y only")}


def test_guard_words_behind_scratch(affine: Callable[..., Kit]) -> None:
    kit = affine(wgsl={"  z[i] = value;": "  z[i] = value;\n  z[i + params.size] = value;"}, variants=scalar())
    finding = only(checks.runs(kit, variant="scalar", setup="bare"))
    assert finding.check == "guards"
    assert finding.message == "the word 0 bytes behind scratch wide was overwritten"


def test_guard_words_catch_a_copy_of_poison(affine: Callable[..., Kit]) -> None:
    # What lies behind X is copied behind Y: both are NaN, and yet not the same.
    kit = affine(Y_ONLY, wgsl={"  if (i >= params.size) { return; }\n": ""}, variants=scalar())
    assert {one.check for one in found(checks.runs(kit, variant="scalar", setup="bare"))} == {"guards"}


def test_bits_that_depend_on_old_memory(affine: Callable[..., Kit]) -> None:
    # Poison differs from run to run; as much as eight units in the last place are within the tolerance.
    nearly = "1.0 + f32((bitcast<u32>(z[i]) >> 1u) & 7u) * 1.2e-7"
    changes = {"  y[i] = {{ element }}(value);": f"  y[i] = {{{{ element }}}}(value * ({nearly}));"}
    kit = affine(Y_ONLY, wgsl=changes, variants=scalar())
    calls = kit.calls[:1]
    assert calls[0].request.outputs == ("Y",)
    kit._prepared = (calls, ())
    finding = only(checks.runs(kit, variant="scalar", setup="bare"))
    assert (finding.check, finding.message) == (
        "repeatable",
        "Y: the same call gave other bits the second time, in a batch",
    )


@pytest.mark.parametrize("operations", [1000, 0])
@pytest.mark.parametrize(("code", "splits"), [("workgroup_index(workgroup_id)", True), ("workgroup_id.x", False)])
def test_a_launch_that_is_folded_and_split(
    affine: Callable[..., Kit], code: str, splits: bool, operations: int
) -> None:
    def plan(request: oplet.Request, caps: oplet.Capabilities) -> list[oplet.Launch]:
        return [attrs.evolve(launch, operations=operations) for launch in acme_affine.plan(request, caps)]

    long = Case("long", {"X": np.linspace(-1, 1, 500, dtype=np.float32).reshape(100, 5)})
    kit = affine(long, wgsl={"workgroup_index(workgroup_id)": code}, variants=scalar(plan=plan))
    findings = found(checks.runs(kit, variant="scalar", setup="bare"))
    assert {one.check for one in findings} == (set() if splits else {"split"})


def test_surplus_workgroups_that_do_not_return(affine: Callable[..., Kit]) -> None:
    changes = {"  if (group >= params.workgroups) { return; }\n": "", "  if (i >= params.size) { return; }\n": ""}
    # Seven workgroups: in rows of two a layer of four, and three in the place of four.
    whole = Case("whole", {"X": np.linspace(-1, 1, 448, dtype=np.float32).reshape(64, 7)})
    kit = affine(whole, wgsl=changes, variants=scalar())
    findings = found(checks.runs(kit, variant="scalar", setup="bare"))
    assert {one.check for one in findings} == {"split"}
    assert all("surplus workgroups have to return" in one.message for one in findings)


def test_a_feature_that_is_used_without_asking(affine: Callable[..., Kit]) -> None:
    kit = affine(HALF, variants=scalar(rejects=lambda request, caps: None))
    findings = found(checks.runs(kit, variant="scalar", setup="bare"))
    assert {one.check for one in findings} == {"accepts"}
    assert "it did not reject the call, and then ShaderError" in findings[0].message


def test_more_than_the_floor_allows(affine: Callable[..., Kit]) -> None:
    kit = affine(wgsl={"@workgroup_size(64)": "@workgroup_size(512)", "group * 64u": "group * 512u"}, variants=scalar())
    finding = only(checks.runs(kit, variant="scalar", setup="floor"))
    assert finding.check == "accepts"
    assert "512" in finding.message


@pytest.mark.parametrize(
    "plan",
    [
        lambda request, caps: 1 // 0,
        lambda request, caps: [oplet.Launch("affine.wgsl.jinja", 1, bindings=[oplet.Binding("x", "Z", "read", "f32")])],
    ],
)
def test_a_plan_that_fails(affine: Callable[..., Kit], plan: Callable[..., Any]) -> None:
    assert only(checks.runs(affine(variants=scalar(plan=plan)), variant="scalar", setup="bare")).check == "accepts"


@pytest.mark.parametrize(
    ("plans", "check", "message"),
    [
        (2, "results", "; run again to find the cause, PluginContractError: "),
        (3, "accepts", "planned it before, and now: "),
        (4, "split", "run again to fold and split its launches, PluginContractError: "),
        (5, "split", "run again to fold and split its launches, PluginContractError: "),
    ],
)
def test_a_run_that_fails_when_it_is_repeated(affine: Callable[..., Kit], plans: int, check: str, message: str) -> None:
    """A plan that works so often and no longer, wherever the check has come to by then."""
    count = itertools.count()

    def plan(request: oplet.Request, caps: oplet.Capabilities) -> list[oplet.Launch]:
        assert next(count) < plans
        return acme_affine.plan(request, caps)

    long = Case("long", {"X": np.linspace(-1, 1, 500, dtype=np.float32).reshape(100, 5)})
    changes = {"* params.factor;": "* params.factor + 0.001;"} if check == "results" else {}
    kit = affine(long, wgsl=changes, variants=scalar(plan=plan))
    kit._prepared = (kit.calls[:1], ())
    finding = only(checks.runs(kit, variant="scalar", setup="bare"))
    assert finding.check == check
    assert message in finding.message


# Plans -----------------------------------------------------------------------------------------------


def with_context(**context: Callable[[oplet.Request], object]) -> Callable[..., list[oplet.Launch]]:
    """The scalar plan with more in its context."""

    def plan(request: oplet.Request, caps: oplet.Capabilities) -> list[oplet.Launch]:
        return [
            attrs.evolve(launch, context={**launch.context, **{name: f(request) for name, f in context.items()}})
            for launch in acme_affine.plan(request, caps)
        ]

    return plan


@pytest.mark.parametrize(
    "size",
    [
        lambda request: request.inputs["X"].shape[1],
        lambda request: request.inputs["X"].size,
        lambda request: -(-request.inputs["X"].shape[0] // 16),
    ],
)
def test_a_size_in_the_context(affine: Callable[..., Kit], size: Callable[[oplet.Request], object]) -> None:
    kit = affine(variants=scalar(plan=with_context(count=size)))
    finding = only(checks.plans(kit, setup="bare"))
    assert finding.check == "plans"
    assert "a size is in the context" in finding.message
    assert "count differ each time" in finding.message


def test_a_size_that_is_tied_to_another_in_the_context(affine: Callable[..., Kit]) -> None:
    def infer(request: oplet.Request) -> dict[str, oplet.TensorSpec]:
        rows, columns = request.inputs["X"].shape
        if columns != 2 * rows:
            raise oplet.InputError(f"{OP}: X: ({rows}, {columns}) is not (N, 2 N)\npass that", argument="X")
        return acme_affine.infer(request)

    case = Case("tied", {"X": np.ones((3, 6), np.float32)})
    size = with_context(count=lambda request: request.inputs["X"].shape[0])
    kit = affine(case, infer=infer, variants=scalar(plan=size))
    assert "with 3 in X lengthened by 1024, 1280, 1536, count differ" in only(checks.plans(kit, setup="bare")).message


@pytest.mark.parametrize(
    "choice",
    [
        lambda request: request.inputs["X"].shape[1] % 4 == 0,
        lambda request: 1 << (request.inputs["X"].shape[1] - 1).bit_length(),
        lambda request: min(64, request.inputs["X"].shape[0]),
        lambda request: request.attrs["activation"],
    ],
)
def test_a_choice_in_the_context(affine: Callable[..., Kit], choice: Callable[[oplet.Request], object]) -> None:
    assert found(checks.plans(affine(variants=scalar(plan=with_context(choice=choice))), setup="bare")) == []


def changing(*answers: object) -> Callable[..., Any]:
    """A hook or predicate that answers something else each time."""
    remaining = iter(answers)
    return lambda *_: next(remaining)


@pytest.mark.parametrize(
    ("rejects", "message"),
    [
        (lambda request, caps: "", "'' is no reason"),
        (lambda request, caps: "two\nlines", "is no reason"),
        (lambda request, caps: True, "True is no reason"),
        (lambda request, caps: 1 // 0, "a predicate raised ZeroDivisionError"),
        (changing(None, "not now"), "its predicates are not pure"),
    ],
)
def test_a_predicate_that_lies(affine: Callable[..., Kit], rejects: Callable[..., Any], message: str) -> None:
    finding = only(checks.plans(affine(variants=scalar(rejects=rejects)), setup="bare"))
    assert message in finding.message
    assert finding.variant == "scalar"


def test_a_plan_that_changes(affine: Callable[..., Kit]) -> None:
    factors = iter(np.arange(1000, dtype=np.float32))

    def plan(request: oplet.Request, caps: oplet.Capabilities) -> list[oplet.Launch]:
        launches = acme_affine.plan(request, caps)
        return [attrs.evolve(one, params={**one.params, "factor": next(factors)}) for one in launches]

    assert "plan is not pure" in only(checks.plans(affine(variants=scalar(plan=plan)), setup="bare")).message


def test_one_fault_is_told_once(affine: Callable[..., Kit]) -> None:
    kit = affine(suite=SUITE, variants=scalar(rejects=lambda request, caps: ""))
    assert len(kit.calls) > 1
    only(checks.plans(kit, setup="bare"))


# The op ----------------------------------------------------------------------------------------------


def infer_with(change: Callable[[oplet.Request, dict[str, Any]], object]) -> Callable[..., Any]:
    """The hook `infer` with its answer changed."""

    def infer(request: oplet.Request) -> object:
        specs = acme_affine.infer(request)
        return change(request, specs) or specs

    return infer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda request, specs: {**specs, "sums": oplet.TensorSpec((9,), "float32")},
            "infer makes sums (9,), and the stored result is (2,)",
        ),
        (lambda request, specs: {**specs, "extra": specs["Y"]}, "infer returned"),
        (lambda request, specs: {**specs, "Y": oplet.TensorSpec(specs["Y"].shape, "int32")}, "infer returned int32"),
        (lambda request, specs: {**specs, "Y": "(2, 3)"}, "infer returned '(2, 3)' for Y"),
    ],
)
def test_infer_that_answers_something_else(
    affine: Callable[..., Kit], change: Callable[..., Any], message: str
) -> None:
    kit = affine(infer=infer_with(change), suite=SUITE)
    findings = found(checks.infer(kit))
    assert {one.check for one in findings} == {"infer"}
    assert any(message in one.message for one in findings), findings


def test_infer_that_depends_on_other_outputs(affine: Callable[..., Kit]) -> None:
    change = infer_with(
        lambda request, specs: {"Y": oplet.TensorSpec((1, 1), "float32")} if request.outputs == ("Y",) else None
    )
    assert "asked for Y alone" in only(checks.infer(affine(infer=change))).message


def test_infer_that_remembers(affine: Callable[..., Kit]) -> None:
    seen: list[oplet.Request] = []

    def change(request: oplet.Request, specs: dict[str, Any]) -> object:
        seen.append(request)
        return (
            {name: oplet.TensorSpec((7, 7)[: spec.rank], spec.dtype) for name, spec in specs.items()}
            if len(seen) > 1
            else None
        )

    findings = found(checks.infer(affine(infer=infer_with(change))))
    assert "is not pure" in findings[0].message


def test_infer_that_changes_the_request(affine: Callable[..., Kit]) -> None:
    def change(request: oplet.Request, specs: dict[str, Any]) -> None:
        request.attrs["factor"] = 0.0  # type: ignore[index]  # that it must not is the point

    messages = [one.message for one in found(checks.infer(affine(infer=infer_with(change))))]
    assert "changes the request" in messages


def test_a_reference_that_is_wrong(affine: Callable[..., Kit]) -> None:
    def reference(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = acme_affine.reference(request, arrays)
        return {**results, "sums": results["sums"] + 1}

    finding = only(checks.reference(affine(reference=reference)))
    assert finding.check == "reference"
    assert finding.message.startswith("sums[")


def test_a_reference_that_raises(affine: Callable[..., Kit]) -> None:
    def reference(request: oplet.Request, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        raise KeyError("biasT")

    findings = found(checks.reference(affine(reference=reference, suite=SUITE)))
    assert {one.check for one in findings} == {"reference"}


@pytest.mark.parametrize(
    ("complaint", "message"),
    [
        (None, "infer accepts it with biasT (3,) → (4,), and then: com.acme.Affine"),
        (oplet.InputError("com.acme.Affine: biasT: wrong length"), "InputError.argument is ''"),
        (oplet.InputError("bad length", argument="biasT"), "its first line does not name biasT"),
        (oplet.InputError("C: bad", argument="C"), "InputError.argument is 'C', no input, output or attribute"),
        (ValueError("operands could not be broadcast"), "infer raised ValueError"),
    ],
)
def test_a_wrong_shape_that_is_not_refused_by_name(
    affine: Callable[..., Kit], complaint: Exception | None, message: str
) -> None:
    def infer(request: oplet.Request) -> dict[str, oplet.TensorSpec]:
        try:
            return acme_affine.infer(request)
        except oplet.InputError:
            if complaint is not None:
                raise complaint from None
        x = request.inputs["X"]
        return {name: {"Y": x, "sums": oplet.TensorSpec(x.shape[:1], "float32")}[name] for name in request.outputs}

    findings = found(checks.shapes(affine(infer=infer)))
    assert {one.check for one in findings} == {"shapes"}
    assert any(message in one.message for one in findings), findings


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case("bad", {"X": np.zeros(3, np.float32)}), "the op refuses it: com.acme.Affine: X: has rank 1"),
        (Case("bad", {"X": np.zeros((1, 1), np.float32)}, {"factr": 2}), "factr"),
        (Case("bad", {"X": np.zeros((1, 1), np.float32)}, {}, {"Z": np.zeros(1)}, {"Z": "float32"}), "Z"),
        (
            Case("bad", {"X": np.zeros((1, 1), np.float32)}, {}, {"Y": np.zeros((1, 1))}, {"Y": "float16"}),
            "Y is float16 there, and the op makes float32",
        ),
    ],
)
def test_a_case_that_the_op_refuses(affine: Callable[..., Kit], case: Case, message: str) -> None:
    finding = only(checks.cases(affine(case)))
    assert finding.case == "bad"
    assert message in finding.message


def test_a_stored_result_of_another_shape(affine: Callable[..., Kit]) -> None:
    case = Case("bad", {"X": np.zeros((1, 1), np.float32)}, {}, {"Y": np.zeros((1, 2))}, {"Y": "float32"})
    assert "infer makes Y (1, 1), and the stored result is (1, 2)" in only(checks.infer(affine(case))).message


def test_a_dtype_without_tolerance(affine: Callable[..., Kit]) -> None:
    suite = attrs.evolve(SUITE, tolerance={"float32": SUITE.tolerance["float32"]})
    messages = {one.message for one in found(checks.cases(affine(suite=suite)))}
    assert messages == {"Y: test.json has no tolerance for float16"}


def test_a_scale_that_raises(affine: Callable[..., Kit]) -> None:
    suite = attrs.evolve(BY_HAND, scale=lambda request, arrays: {"Y": np.zeros(7)})
    assert "scale of cases.py raised ValueError" in only(checks.cases(affine(suite=suite))).message


def test_without_cases_nothing_passes_for_tested(affine: Callable[..., Kit]) -> None:
    kit = affine(suite=attrs.evolve(SUITE, literal=(), generate=None))
    assert "no case at all" in only(checks.cases(kit)).message
    outcomes = {check.id: check.run(kit) for check in checks.checks(kit)}
    assert [name for name, outcome in outcomes.items() if not outcome.not_run] == ["cases"]


def test_where_every_case_is_at_fault_the_check_tells(affine: Callable[..., Kit], devices: Devices) -> None:
    def infer(request: oplet.Request) -> dict[str, oplet.TensorSpec]:
        right = acme_affine.infer(request)
        return {name: oplet.TensorSpec((*spec.shape[:-1], 77), spec.dtype) for name, spec in right.items()}

    kit = affine(infer=infer, suite=SUITE)
    assert not kit.calls
    outcomes = {check.id: check.run(kit) for check in checks.checks(kit)}
    assert {name for name, outcome in outcomes.items() if outcome.findings} == {"infer"}
    assert {name for name, outcome in outcomes.items() if not outcome.not_run} == {"cases", "infer"}
    part = Kit(OP, devices=devices, registry=kit._make_registry, suite=kit.suite, variants=("scalar",))
    assert {one.check for one in found(checks.cases(part))} == {"infer"}


# Errors ----------------------------------------------------------------------------------------------


class Careless(oplet.Registry):
    """A registry that runs whatever it is given."""

    def run(self, op: str, /, **arguments: Any) -> Any:
        try:
            return super().run(op, **arguments)
        except oplet.InputError as error:
            return self.instead(error)

    def instead(self, error: oplet.InputError) -> Any:
        return None


class Vague(Careless):
    """A registry whose errors name nothing."""

    def instead(self, error: oplet.InputError) -> Any:
        raise oplet.InputError("something is wrong")


class Terse(Careless):
    """A registry whose messages do not name what the error's attribute does."""

    def instead(self, error: oplet.InputError) -> Any:
        raise oplet.InputError("something is wrong", argument=error.argument)


class Crude(Careless):
    """A registry that raises what it happens to meet."""

    def instead(self, error: oplet.InputError) -> Any:
        raise KeyError(error.argument)


class Brittle(Careless):
    """A registry that a refused call breaks."""

    broken = False

    def run(self, op: str, /, **arguments: Any) -> Any:
        if self.broken:
            raise oplet.DeviceError("the device is lost")
        return super().run(op, **arguments)

    def instead(self, error: oplet.InputError) -> Any:
        self.broken = True
        raise error


@pytest.mark.parametrize(
    ("registry", "message"),
    [
        (Careless, "is not refused"),
        (Vague, "InputError.argument is ''"),
        (Terse, "the first line does not name"),
        (Crude, "KeyError instead of InputError"),
        (Brittle, "after the refusal of an unknown input: it did not reject the call, and then DeviceError"),
    ],
)
def test_an_error_that_is_not_as_documented(
    affine: Callable[..., Kit], registry: type[oplet.Registry], message: str
) -> None:
    findings = found(checks.errors(affine(registry=registry)))
    assert any(message in one.message for one in findings), findings


def test_every_documented_error_is_tried(affine: Callable[..., Kit]) -> None:
    findings: Sequence[Finding] = found(checks.errors(affine(registry=Careless)))
    tried = {one.message.partition(":")[0] for one in findings}
    assert tried >= {
        "an unknown input",
        "an unknown variant",
        "an unknown output",
        "an unknown attribute",
        "X missing",
        "X as a list",
        "X as float64",
        "X as int32",
        "X of rank 3",
        "biasT given as bias too",
        "biasT as float16 among float32",
        "factor='1.0'",
        "factor=True",
        "activation=1",
        "activation='NoSuchChoice'",
    }
    assert "biasT missing" not in tried, "it is optional"


@pytest.fixture(autouse=True)
def _no_pending_gpu_errors(devices: Devices) -> Iterator[None]:
    yield
    for setup in devices._open:
        # A device that a faulty shader has broken would make later tests fail for no reason of their own.
        devices[setup].read(devices[setup].upload(np.zeros(1, np.uint32)), 4)  # type: ignore[arg-type]

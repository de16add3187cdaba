"""The checks of the conformance kit, as plain functions: pytest and `oplet check` are layers on top.

Each takes a `Kit` and yields a `Finding` for everything that is wrong and a `NotRun` for what it could not
look at on this machine. What each protects from:

    cases          a case that the op itself refuses, a missing tolerance, a test.json that cannot be read
    infer          shapes that differ from the reference's, other outputs than asked for, answers that change
    reference      a reference that differs from the results stored in test.json
    errors         a fault of the caller's that is not refused by the name of the argument, or that breaks
                   the calls after it
    shapes         a wrong shape that passes, or that fails somewhere deep inside
    metadata       installed files that differ from metadata.json
    plans          a predicate or plan that changes its answer, a reason that says nothing, and a size
                   in a template's context, which compiles a pipeline for every shape
    served         cases that nothing on this device can serve
    runs           one variant on one device, every case that it does not reject, twice, the second time in a
                   batch, in poisoned memory:
      accepts        it did not reject the call and then could not serve it
      results        a wrong number
      unwritten      an element that nobody wrote
      scratch        memory read before anybody wrote it: zeroed in an idle process, anything in a busy one
      overread       an input's end passed, and what lies there counted in
      guards         words behind a tensor overwritten
      repeatable     other bits the second time
      split          other bits, or words overwritten, where a launch is folded or several dispatches
      indices        integers on the device, which no `check` sees, that lead out of the tensors
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs
import numpy as np

from oplet import metadata
from oplet.capabilities import Capabilities
from oplet.discovery import EXTENSIONS
from oplet.errors import InputError, NoVariantError, OpletError
from oplet.manifest import Attribute, Manifest
from oplet.op import Op
from oplet.registry import Registry
from oplet.request import DTYPES, Request, TensorSpec
from oplet.testing.guard import GuardPool, Seen
from oplet.testing.indices import indices
from oplet.testing.kit import SETUP_WORDS, SETUPS, Call, Finding, Kit, NotRun
from oplet.variant import Launch, Plan, Variant

Findings = Iterator[Finding | NotRun]

#: findings that a report shows; the rest is counted
SHOWN = 6

#: what is added to a dimension to see whether it enters a template: multiples of 256, so that it divides as before
STEPS = (1024, 1280, 1536)

#: calls whose shapes are bent one dimension at a time
BENT = 24

#: calls of a variant that are run with their launches split
SPLIT = 3

#: dispatches of a split launch, about
DISPATCHES = 3

#: workgroups in a row, and rows in a layer, of a folded launch
ROW = 2


@attrs.frozen
class Outcome:
    """What came of one check.

    Attributes:
        check: its id.
        op: the op id.
        place: the device it ran on, in words, or "".
        seed: of the random cases.
        findings: what is wrong; nothing if the check passed.
        not_run: what it could not look at, and why.
    """

    check: str
    op: str
    place: str
    seed: int
    findings: tuple[Finding, ...]
    not_run: tuple[NotRun, ...]

    def __str__(self) -> str:
        where = f" on {self.place}" if self.place else ""
        if not self.findings:
            return "\n  ".join([f"{self.op}: {self.check}{where}", *map(str, self.not_run)])
        count = len(self.findings)
        lines = [f"{self.op}: {self.check}{where}: {count} finding{'s' if count > 1 else ''}"]
        lines += [str(finding) for finding in self.findings[:SHOWN]]
        if count > SHOWN:
            rest = Counter(finding.check for finding in self.findings[SHOWN:])
            lines.append("and " + ", ".join(f"{number} more of {name}" for name, number in rest.items()))
        if any(finding.case for finding in self.findings):
            lines.append(f"the random cases again: --seed={self.seed}, with pytest --oplet-seed={self.seed}")
        return "\n".join(lines)


@attrs.frozen
class Check:
    """One thing to look at.

    Attributes:
        id: unique in the op: "infer", "runs-tiled_vec4-floor".
        setup: the device it runs on, or "".
        needs_cases: whether it looks at nothing where there are none.
    """

    id: str
    function: Callable[[Kit], Findings] = attrs.field(repr=False)
    setup: str = ""
    needs_cases: bool = True

    def run(self, kit: Kit) -> Outcome:
        """Runs it to its end.

        Raises:
            DeviceError: there is no usable adapter.
        """
        found: list[Finding | NotRun]
        if self.needs_cases and not kit.calls:
            # Each case may be at fault in a way that is this check's to tell.
            found = [fault for fault in kit.faults if fault.check == self.id]
            found = found or [NotRun("what needs cases", "there is none without a fault; see the checks that failed")]
        else:
            found = list(self.function(kit))
        place = ""
        if self.setup:
            device = kit.registry(self.setup).device
            place = f'"{device.capabilities.adapter.name}" ({device.implementation}, {SETUP_WORDS[self.setup]})'
        return Outcome(
            check=self.id,
            op=kit.id,
            place=place,
            seed=kit.seed,
            findings=tuple(one for one in found if isinstance(one, Finding)),
            not_run=tuple(one for one in found if isinstance(one, NotRun)),
        )


def checks(kit: Kit) -> list[Check]:
    """Every check of an op, or of the variants that the kit is for; the cheap ones first."""
    found = [
        Check("cases", cases, needs_cases=False),
        Check("infer", infer),
        Check("reference", reference),
        Check("shapes", shapes),
        Check("errors", errors, "best"),
    ]
    devices = {"plans": plans, "served": served}
    if kit.partial:
        found = found[:1]
        del devices["served"]
    if kit.offers:
        found.append(Check("metadata", metadata_is_current, needs_cases=False))
    for name, function in devices.items():
        found += [Check(f"{name}-{setup}", partial(function, setup=setup), setup) for setup in SETUPS]
    found += [
        Check(f"runs-{variant.name}-{setup}", partial(runs, variant=variant.name, setup=setup), setup)
        for variant in kit.variants
        for setup in SETUPS
    ]
    return found


# The op ----------------------------------------------------------------------------------------------


def cases(kit: Kit) -> Findings:
    """Every case of test.json and cases.py is one that the op accepts."""
    # A kit for some variants has no check `infer` or `reference` to tell the others.
    yield from (fault for fault in kit.faults if kit.partial or fault.check == "cases")


def infer(kit: Kit) -> Findings:
    """The requested outputs and no others, of the reference's shapes, the same whenever asked."""
    yield from (fault for fault in kit.faults if fault.check == "infer")
    op = kit.op
    # Backwards: an answer that depends on an earlier call comes out differently.
    for call in reversed(kit.calls):
        request = call.request_copy()
        try:
            again = op.infer(request)
        except OpletError as error:
            yield _finding("infer", call, f"accepted it before, and now: {error}")
            continue
        if again != call.specs:
            yield _finding("infer", call, f"is not pure: {_specs_text(call.specs)}, later {_specs_text(again)}")
        if request != call.request:
            yield _finding("infer", call, "changes the request")
        for name in (port.name for port in op.manifest.outputs):
            try:
                alone = op.infer(op.bind(request.inputs, call.case.attrs, (name,)))
            except InputError:
                continue  # an output that this call cannot have
            except OpletError as error:
                yield _finding("infer", call, f"asked for {name} alone: {error}")
                continue
            if name in call.specs and alone[name] != call.specs[name]:
                yield _finding("infer", call, f"asked for {name} alone: {alone[name]}, with others {call.specs[name]}")


def reference(kit: Kit) -> Findings:
    """The reference gives the results that test.json stores; those come from somewhere else."""
    yield from (fault for fault in kit.faults if fault.check == "reference")
    for call in kit.calls:
        if call.case.outputs is None:
            continue
        try:
            results = kit.op.reference(call.request, call.arrays)
        except OpletError as error:
            yield _finding("reference", call, str(error))
            continue
        for name, spec in call.specs.items():
            if results[name].shape != spec.shape:
                yield _finding("infer", call, f"{name} is {spec.shape}, and the reference's is {results[name].shape}")
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                got = results[name].astype(spec.dtype)
            if mismatch := kit.compare(call, name, Seen.of(got)):
                yield _finding("reference", call, mismatch.describe(name, kit.tolerance(spec)))


def shapes(kit: Kit) -> Findings:
    """A shape that does not fit is refused by name; one that is accepted is also computed."""
    op = kit.op
    for call in kit.calls[:BENT]:
        for name, spec in call.request.inputs.items():
            for shape in _bent(op, name, spec.shape):
                inputs = {**call.request.inputs, name: TensorSpec(shape, spec.dtype)}
                told = f"with {name} {spec.shape} → {shape}"
                try:
                    request = op.bind(inputs, call.case.attrs, call.request.outputs)
                    inferred = op.infer(request)
                    arrays = {**call.arrays, name: np.resize(call.arrays[name], shape)}
                    op.check(request, arrays)
                except InputError as error:
                    if fault := _names_nothing(error, op):
                        yield _finding("shapes", call, f"{told} is refused, but {fault}")
                    continue
                except OpletError as error:
                    yield _finding("shapes", call, f"{told}: {error}")
                    continue
                try:
                    results = op.reference(request, arrays)
                except OpletError as error:
                    yield _finding("shapes", call, f"infer accepts it {told}, and then: {error}")
                    continue
                for output, made in inferred.items():
                    if results[output].shape != made.shape:
                        fault = f"infer makes {output} {made.shape}, the reference {results[output].shape}"
                        yield _finding("shapes", call, f"{told}: {fault}")


def _bent(op: Op, name: str, shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for axis, length in enumerate(shape):
        yield (*shape[:axis], length + 1, *shape[axis + 1 :])
        if length > 0:
            yield (*shape[:axis], 0, *shape[axis + 1 :])
    port = op.manifest.input(name)
    if port is not None and port.rank is None:
        yield (*shape, 1)
        yield (2, *shape)


def _names_nothing(error: InputError, op: Op) -> str | None:
    """What an InputError fails to say, if anything."""
    manifest = op.manifest
    known = {name for port in (*manifest.inputs, *manifest.outputs) for name in port.names}
    known |= {attribute.name for attribute in manifest.attributes}
    if error.argument not in known:
        return f"InputError.argument is {error.argument!r}, no input, output or attribute: {error}"
    if not _told(error, op.id):
        return f"its first line does not name {error.argument}: {error}"
    return None


def _told(error: InputError, op: str) -> bool:
    """Whether the first line has the argument as a word of its own; "A" is in most op ids."""
    first = str(error).split("\n")[0].replace(op, "")
    return error.argument in re.findall(r"\w+", first)


def metadata_is_current(kit: Kit) -> Findings:
    """The installed files are those that metadata.json lists."""
    for offer in kit.offers:
        whose = f" --dist {offer.dist}" if offer.group == EXTENSIONS else ""
        if problems := metadata.verify(offer):
            lines = "".join(f"\n  {problem}" for problem in problems)
            advice = f"after a change: oplet metadata {kit.id}{whose} --write"
            yield Finding("metadata", f"{offer.dist} {offer.version} is not as it was made{lines}\n{advice}")


# Errors ----------------------------------------------------------------------------------------------


@attrs.frozen
class _Misuse:
    """A call that has to be refused.

    Attributes:
        told: what is wrong with it.
        names: the arguments that the error may name.
        arguments: for `Registry.run`.
    """

    told: str
    names: tuple[str, ...]
    arguments: dict[str, object]


def errors(kit: Kit) -> Findings:
    """Every documented error names its argument, and the registry goes on."""
    registry = kit.registry("best")
    call = max(kit.calls, key=lambda one: (len(one.request.inputs), len(one.case.attrs)))
    probe = _served_call(kit, registry)
    if probe is None:
        yield NotRun("a valid call after each error", "no variant serves any case on this device; see the check served")
    elif _once(kit, registry, probe, None, "best")[1]:
        yield NotRun("a valid call after each error", "a valid call fails already before one; see the checks runs")
        probe = None
    finding = partial(Finding, "errors", case=call.case.name)
    for misuse in _misuses(kit.op.manifest, call):
        try:
            registry.run(kit.id, **misuse.arguments)  # type: ignore[arg-type]  # that they are wrong is the point
        except InputError as error:
            if error.argument not in misuse.names:
                told = f"InputError.argument is {error.argument!r}, not {' or '.join(misuse.names)}: {error}"
                yield finding(f"{misuse.told}: {told}")
            elif not _told(error, kit.id):
                yield finding(f"{misuse.told}: the first line does not name {error.argument}: {error}")
        except Exception as error:
            yield finding(f"{misuse.told}: {type(error).__name__} instead of InputError: {error}")
        else:
            yield finding(f"{misuse.told}: is not refused")
        if probe is not None:
            for broken in _once(kit, registry, probe, None, "best")[1]:
                yield attrs.evolve(broken, message=f"after the refusal of {misuse.told}: {broken.message}")
                probe = None  # once is enough


def _served_call(kit: Kit, registry: Registry) -> Call | None:
    op, caps = registry[kit.id], registry.device.capabilities
    for call in kit.calls:
        try:
            op.choose(call.request, caps)
        except OpletError:
            continue
        return call
    return None


def _misuses(manifest: Manifest, call: Call) -> Iterator[_Misuse]:
    inputs = dict(call.arrays)
    base: dict[str, object] = {**inputs, "attrs": dict(call.case.attrs), "outputs": call.request.outputs}
    yield _Misuse("an unknown input", ("noSuchInput",), {**base, "noSuchInput": np.zeros(1, np.float32)})
    yield _Misuse("an unknown variant", ("variant",), {**base, "variant": "no_such_variant"})
    yield _Misuse("an unknown output", ("outputs", "noSuchOutput"), {**base, "outputs": ("noSuchOutput",)})
    yield _Misuse("an unknown attribute", ("noSuchAttribute",), {**base, "attrs": {"noSuchAttribute": 1}})
    for port in manifest.inputs:
        name = port.name
        if name not in inputs:
            continue
        array = inputs[name]
        if not port.optional:
            yield _Misuse(f"{name} missing", port.names, {key: base[key] for key in base if key != name})
        yield _Misuse(f"{name} as a list", port.names, {**base, name: array.tolist()})
        for dtype in ("float64", *(dtype for dtype in DTYPES if dtype not in manifest.dtypes(port))):
            wrong = np.zeros(array.shape, dtype)
            yield _Misuse(f"{name} as {dtype}", port.names, {**base, name: wrong})
        if port.rank is not None:
            yield _Misuse(f"{name} of rank {port.rank + 1}", port.names, {**base, name: array[np.newaxis]})
        for other in port.names[1:]:
            yield _Misuse(f"{name} given as {other} too", port.names, {**base, other: array})
        alike = [one for one in manifest.inputs if one.type == port.type and one.name in inputs]
        mixed = [dtype for dtype in manifest.dtypes(port) if dtype != array.dtype.name]
        if len(alike) > 1 and mixed:
            names = tuple(word for one in alike for word in one.names)
            wrong = np.zeros(array.shape, mixed[0])
            yield _Misuse(f"{name} as {mixed[0]} among {array.dtype.name}", names, {**base, name: wrong})
    for attribute in manifest.attributes:
        given = dict(call.case.attrs)
        for value in _wrong_values(attribute):
            changed = {**base, "attrs": {**given, attribute.name: value}}
            yield _Misuse(f"{attribute.name}={value!r}", (attribute.name,), changed)
        if attribute.required:
            rest = {name: value for name, value in given.items() if name != attribute.name}
            yield _Misuse(f"{attribute.name} missing", (attribute.name,), {**base, "attrs": rest})


def _wrong_values(attribute: Attribute) -> list[object]:
    kinds: dict[str, list[object]] = {"float": ["1.0", True], "int": ["1", 1.5, True], "string": [1, True]}
    wrong = kinds[attribute.type]
    if attribute.choices is not None:
        wrong.append("NoSuchChoice" if attribute.type == "string" else 123456789)
    return wrong


# Plans -----------------------------------------------------------------------------------------------


def plans(kit: Kit, *, setup: str) -> Findings:
    """Predicates and plans are pure and give reasons, and no size enters a template's context."""
    registry = kit.registry(setup)
    op, caps = registry[kit.id], registry.device.capabilities
    for variant in kit.variants:
        told: set[str] = set()
        for call in kit.calls:
            found = list(_plan_findings(op, caps, call, variant.name))
            # The same fault in every case is one fault.
            yield from (attrs.evolve(one, setup=setup) for one in found if one.message not in told)
            told.update(one.message for one in found)


def _plan_findings(op: Op, caps: Capabilities, call: Call, name: str) -> Iterator[Finding]:
    variant = next(one for one in op.variants if one.name == name)
    finding = partial(_finding, call=call, variant=name)
    try:
        answers = [_answers(variant, call.request, caps) for _ in range(2)]
    except Exception as error:  # a plugin's predicate may raise anything
        yield finding("plans", message=f"a predicate raised {type(error).__name__}: {error}")
        return
    if answers[0] != answers[1]:
        yield finding("plans", message=f"its predicates are not pure: {answers[0]}, then {answers[1]}")
        return
    for reason in answers[0]:
        if reason is not None and not (isinstance(reason, str) and reason.strip() and "\n" not in reason):
            yield finding("plans", message=f"{reason!r} is no reason: one line of text, or None")
            return
    if answers[0][0] is not None:
        return
    try:
        first, second = (op.plan(call.request, caps, name).launches for _ in range(2))
    except OpletError as error:
        yield finding("accepts", message=str(error))
        return
    if [_exactly(launch) for launch in first] != [_exactly(launch) for launch in second]:
        yield finding("plans", message="plan is not pure: two equal requests are planned differently")
        return
    yield from _sizes_in_context(op, caps, call, name)


def _answers(variant: Variant, request: Request, caps: Capabilities) -> tuple[str | None, str | None]:
    """What its predicates say; the second is not asked where the first rejects, as in a call."""
    rejected = variant.rejects(request, caps)
    return rejected, None if rejected is not None else variant.yields(request, caps)


def _sizes_in_context(op: Op, caps: Capabilities, call: Call, name: str) -> Iterator[Finding]:
    """Lengthens one dimension wherever it occurs and looks whether every length makes a pipeline of its own.

    A choice settles: a tile size, a vector width or a head size rounded up is the same for lengths that
    far apart, or has no more than a few values. A size never does.
    """
    specs = call.request.inputs
    lengths = {length for spec in specs.values() for length in spec.shape if length > 1}
    for length in sorted(lengths):
        # Alone, or with those that are tied to it, as a head's size is to half a head.
        for tied in ({length}, {other for other in lengths if other % length == 0}):
            contexts = list(_longer_contexts(op, caps, call, name, {n: n // length for n in tied}))
            if len(contexts) == len(STEPS):
                break
        if len(set(contexts)) == len(STEPS):
            choices: list[set[Any]] = [
                {(template, *choice) for template, context, *_ in codes for choice in context} for codes in contexts
            ]
            changing = sorted({name for _, name, _ in set.union(*choices) - set.intersection(*choices)})
            ports = ", ".join(port for port, spec in specs.items() if tied & set(spec.shape))
            yield _finding(
                "plans",
                call,
                f"a size is in the context: with {length} in {ports} lengthened by {', '.join(map(str, STEPS))}, "
                f"{', '.join(changing) or 'its declarations'} differ each time, and so does the pipeline; "
                "make it a param",
                variant=name,
            )
            return


def _longer_contexts(
    op: Op, caps: Capabilities, call: Call, name: str, multiples: Mapping[int, int]
) -> Iterator[frozenset[Any]]:
    """What decides the code, for each of `STEPS` added to a length and, as often, to its multiples.

    It ends where the op, or the variant, refuses the longer call.
    """
    for step in STEPS:
        longer = {
            port: TensorSpec(tuple(n + step * multiples.get(n, 0) for n in spec.shape), spec.dtype)
            for port, spec in call.request.inputs.items()
        }
        try:
            request = op.bind(longer, call.case.attrs, call.request.outputs)
            launches = op.plan(request, caps, name).launches
        except OpletError:
            return
        yield frozenset(_code(launch) for launch in launches)


def _code(launch: Launch) -> tuple[str, frozenset[tuple[str, object]], object, object]:
    """What decides a launch's WGSL."""
    return (
        launch.template,
        frozenset(launch.context.items()),
        tuple((binding.name, binding.access, binding.element) for binding in launch.bindings),
        tuple((name, value.dtype.name) for name, value in launch.params.items()),
    )


def _exactly(launch: Launch) -> tuple[object, ...]:
    # Params by their bytes: NaN equals itself, and 0.0 is not -0.0.
    params = tuple((name, value.tobytes()) for name, value in launch.params.items())
    sizes = (launch.workgroups, launch.operations)
    return _code(launch), sizes, params, tuple(launch.bindings), tuple(launch.scratch.items())


# Runs ------------------------------------------------------------------------------------------------


def served(kit: Kit, *, setup: str) -> Findings:
    """Each case has a variant that serves it here; those that have none are named."""
    registry = kit.registry(setup)
    op, caps = registry[kit.id], registry.device.capabilities
    unserved: dict[str, list[tuple[str, str]]] = {}
    for call in kit.calls:
        try:
            op.choose(call.request, caps)
        except NoVariantError as error:
            variants: dict[str, list[str]] = {}
            for one in error.rejections:
                variants.setdefault(one.reason, []).append(one.variant)
            told = "; ".join(f"{reason} ({', '.join(names)})" for reason, names in variants.items())
            unserved.setdefault(_form(told), []).append((call.case.name, told))
        except OpletError as error:
            yield _finding("plans", call, str(error), setup=setup)
    for alike in unserved.values():
        name, told = alike[0]
        others = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        yield NotRun(f"case {name!r}{others}", told)


def runs(kit: Kit, *, variant: str, setup: str) -> Findings:
    """Every case that the variant does not reject, twice, in poisoned memory with guard words."""
    registry = kit.registry(setup)
    op, caps = registry[kit.id], registry.device.capabilities
    reasons: dict[str, Counter[str]] = {}
    told: set[str] = set()
    ran = split = 0
    for call in kit.calls:
        try:
            op.choose(call.request, caps, variant)
        except NoVariantError as error:
            reason = error.rejections[0].reason
            reasons.setdefault(_form(reason), Counter())[reason] += 1
            continue
        except OpletError as error:
            yield _finding("accepts", call, str(error), variant=variant, setup=setup)
            continue
        ran += 1
        found = list(_twice(kit, registry, call, variant, setup))
        # A template that does not compile fails every case, with one message.
        yield from (one for one in found if one.check != "accepts" or one.message not in told)
        told.update(one.message for one in found)
        if not found and split < SPLIT:
            try:
                plan = op.plan(call.request, caps, variant)
            except OpletError as error:
                yield _finding("accepts", call, f"planned it before, and now: {error}", variant=variant, setup=setup)
                continue
            most = max((launch.workgroups for launch in plan.launches), default=0)
            if ROW < most <= ROW * ROW * caps.limits["maxComputeWorkgroupsPerDimension"]:
                split += 1
                yield from _split(kit, call, plan, setup)
    if ran:
        yield from indices(kit, variant=variant, setup=setup)
    else:
        alike = sorted(reasons.values(), key=lambda counts: -counts.total())
        yield NotRun(f"variant {variant}", "; ".join(map(_counted, alike)))


def _counted(reasons: Counter[str]) -> str:
    """Reasons of one form, by the first of them, and how many cases they are for."""
    others = " and alike" if len(reasons) > 1 else ""
    count = reasons.total()
    return f"{next(iter(reasons))}{others} ({count} case{'s' if count > 1 else ''})"


def _form(reason: str) -> str:
    """What reasons that differ in numbers only have in common; the 16 of float16 is no such number."""
    return re.sub(r"\b\d+\b", "#", reason)


def _twice(kit: Kit, registry: Registry, call: Call, variant: str, setup: str) -> Iterator[Finding]:
    """Runs a call alone, and in a batch."""
    alone, found = _once(kit, registry, call, variant, setup)
    if found:
        yield from found
        return
    batched, found = _once(kit, registry, call, variant, setup, batched=True)
    yield from found
    for name in [] if found else _differing(call, alone, batched):
        told = f"{name}: the same call gave other bits the second time, in a batch"
        yield _finding("repeatable", call, told, variant=variant, setup=setup)


def _split(kit: Kit, call: Call, plan: Plan, setup: str) -> Iterator[Finding]:
    """Runs a call as it is, and as a long one would be: folded over dimensions and split over several dispatches."""
    registry = kit.registry(setup, "split")
    device = registry.device
    before = device.max_operations, device.max_row
    operations = [launch.operations for launch in plan.launches if launch.operations]
    finding = partial(_finding, "split", call, variant=plan.variant, setup=setup)
    failed = ""
    try:
        whole = _guarded_run(kit, kit.registry(setup), call, plan.variant)
        device.max_row = ROW
        if operations:
            device.max_operations = max(min(operations) // DISPATCHES, 1)
        seen = _guarded_run(kit, registry, call, plan.variant)
    except OpletError as error:
        failed = f"run again to fold and split its launches, {type(error).__name__}: {error}"
    finally:
        device.max_operations, device.max_row = before
    if failed:
        yield finding(failed)
        return
    for name in _differing(call, whole, seen):
        yield finding(f"{name}: other bits where its launches are folded and split, each a range of workgroups")
    for name, memory in seen.items():
        if memory.overwritten is not None:
            yield finding(
                f"{name}: the word {memory.overwritten} bytes behind it was overwritten where its launches are "
                "folded; surplus workgroups have to return: if (group >= params.workgroups) { return; }"
            )


def _differing(call: Call, one: Mapping[str, Seen], other: Mapping[str, Seen]) -> list[str]:
    """The outputs that are not the same, bit for bit."""
    return [name for name in call.request.outputs if one[name].array.tobytes() != other[name].array.tobytes()]


def _once(
    kit: Kit, registry: Registry, call: Call, variant: str | None, setup: str, *, batched: bool = False
) -> tuple[dict[str, Seen], list[Finding]]:
    """Runs a call. What its memory holds afterwards, and what is wrong with that."""
    finding = partial(_finding, call=call, variant=variant or "", setup=setup)
    try:
        seen = _guarded_run(kit, registry, call, variant, batched=batched)
    except OpletError as error:
        return {}, [finding("accepts", message=f"it did not reject the call, and then {type(error).__name__}: {error}")]
    found = [
        finding("guards", message=f"the word {memory.overwritten} bytes behind {name} was overwritten")
        for name, memory in seen.items()
        if memory.overwritten is not None
    ]
    for name, spec in call.specs.items():
        mismatch = kit.compare(call, name, seen[name])
        if mismatch is None:
            continue
        told = mismatch.describe(name, kit.tolerance(spec))
        if mismatch.unwritten:
            found.append(finding("unwritten", message=told))
        else:
            check, why = _cause(kit, registry, call, variant, name)
            found.append(finding(check, message=told + why))
    return seen, found


def _guarded_run(
    kit: Kit, registry: Registry, call: Call, variant: str | None, *, batched: bool = False
) -> dict[str, Seen]:
    """Runs a call and looks at its outputs, by name, and at its scratch, as "scratch name"."""
    device, pool = registry.device, registry.device.pool
    assert isinstance(pool, GuardPool)
    scratch = registry[kit.id].plan(call.request, device.capabilities, variant).scratch
    outputs, inputs = call.request.outputs, dict[str, Any](call.arrays)
    with pool.watch() as taken:
        with registry.batch() if batched else contextlib.nullcontext():
            made = registry.run(kit.id, attrs=call.case.attrs, outputs=outputs, variant=variant, **inputs)
        seen = {}
        for name, tensor in zip(outputs, made if len(outputs) > 1 else (made,), strict=True):
            memory = next((one for one in taken if one.buffer is tensor.buffer), None)
            seen[name] = memory.look(device, tensor.spec) if memory else Seen.of(tensor.numpy())
        # A run takes its scratch last.
        for (name, spec), memory in zip(scratch.items(), taken[len(taken) - len(scratch) :], strict=True):
            seen[f"scratch {name}"] = memory.look(device, spec)
    return seen


def _cause(kit: Kit, registry: Registry, call: Call, variant: str | None, name: str) -> tuple[str, str]:
    """Why a number is wrong: runs again in memory that flatters, and sees whether it comes out right."""
    pool = registry.device.pool
    assert isinstance(pool, GuardPool)
    for check, part, why in (
        ("scratch", "contents", "; right once all memory is zero before the run: it reads what it has not written"),
        ("overread", "beyond", "; right once what lies behind the tensors is zero: it reads past an end"),
    ):
        try:
            with pool.zeroed(**{part: True}):
                seen = _guarded_run(kit, registry, call, variant)
        except OpletError as error:
            return "results", f"; run again to find the cause, {type(error).__name__}: {error}"
        if kit.compare(call, name, Seen.of(seen[name].array)) is None:
            return check, why
    return "results", ""


# ------------------------------------------------------------------------------------------------------


def _finding(check: str, call: Call, message: str, *, variant: str = "", setup: str = "") -> Finding:
    return Finding(check, message, variant=variant, setup=setup, case=call.case.name, call=call.describe())


def _specs_text(specs: Mapping[str, TensorSpec]) -> str:
    return ", ".join(f"{name} {spec}" for name, spec in specs.items())

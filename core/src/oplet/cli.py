"""The `oplet` command.

`explain` and `run` are groups whose commands are the installed ops: `oplet run OP --help` shows the op's own
inputs as options, `--input-NAME` where the command has a `--NAME` of its own. Only what a command needs is imported
and opened, so that `oplet list` imports no plugin and touches no GPU.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import attrs
import click
import numpy as np
from rich.console import Console
from rich.table import Table

import oplet
from oplet.discovery import EXTENSIONS, OPS
from oplet.errors import InputError, OpletError, PluginError, ShaderError
from oplet.loading import REFERENCE
from oplet.manifest import Attribute, Manifest, Port
from oplet.request import TensorSpec

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from oplet.bench import Case, Report
    from oplet.bench.peers import Build
    from oplet.doctor import Report as DoctorReport
    from oplet.webgpu import Implementation

# Printing --------------------------------------------------------------------------------------------


def _print(text: str, style: str = "") -> None:
    # Messages hold brackets and file names: no markup, no colouring of numbers, no emoji.
    Console(markup=False, highlight=False, emoji=False).print(text, style=style, soft_wrap=True)


def _print_table(
    rows: Iterable[Sequence[str]], header: Sequence[str] = (), indent: int = 0, width: int | None = None
) -> None:
    """Prints columns without lines, the last one wrapped at the terminal's width (80 in a pipe) or at `width`."""
    table = Table(box=None, show_header=bool(header), pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    rows = list(rows)
    count = max((len(row) for row in rows), default=len(header))
    for column in range(count):
        last = column == count - 1
        table.add_column(header[column] if header else "", no_wrap=not last, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console(markup=False, highlight=False, emoji=False)
    console.width = max((width or console.width) - indent, 40)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        # rich fills every cell up with spaces; click.echo takes colours out where there is no terminal.
        click.echo((" " * indent + line).rstrip())


def _tell_that_none_is_installed() -> None:
    click.echo("No op is installed. To get one: pip install oplet-fused-gemm", err=True)


class _Failure(click.ClickException):
    """An OpletError as the command line shows it: its message, and no traceback."""

    exit_code = 1

    def __init__(self, error: OpletError) -> None:
        super().__init__(f"{type(error).__name__}: {error}")

    def show(self, file: Any = None) -> None:
        click.echo(self.message, file=file, err=file is None)


class _Main(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OpletError as error:
            raise _Failure(error) from error


@contextmanager
def _telling_faults(counts: Counter[str], alone: bool, op: str) -> Iterator[None]:
    """Tells what is wrong with an op's plugin and counts it as failed, so that other ops have their turn.

    Raises:
        PluginError, ShaderError: the op is alone.
    """
    try:
        yield
    except (PluginError, ShaderError) as error:
        if alone:
            raise
        counts["failed"] += 1
        _print(f"failed   {op}: {type(error).__name__}: {error}", "bold red")


# Values ----------------------------------------------------------------------------------------------


def _spec(text: str) -> TensorSpec:
    """`1024x1024:f16`; `:f32` is a scalar."""
    try:
        return TensorSpec.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None  # of a ValueError click shows the text only


def _random_spec(text: str) -> str:
    """The same as it is written, of an input that random numbers are for."""
    if _spec(text).dtype in ("int32", "uint32"):
        raise click.BadParameter(
            "its integers say what the call does, and random ones nothing; take a case of the op's with --case, "
            "or give oplet.bench.bench a Case with values"
        )
    return text


def _array(file: str) -> np.ndarray:
    """What numpy.save wrote to a file."""
    from oplet import npy

    try:
        return npy.read(Path(file))
    except InputError as error:
        raise click.BadParameter(str(error)) from None  # of a ValueError click shows the text only


def _attributes(manifest: Manifest, items: Sequence[str]) -> dict[str, float | int | str]:
    """`NAME=VALUE` items, each value as its attribute's type. Unknown names are left for the registry to refuse."""
    types = {attribute.name: attribute.type for attribute in manifest.attributes}
    values: dict[str, float | int | str] = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals:
            raise click.BadParameter(f"{item!r} is not of the form NAME=VALUE", param_hint="--attr")
        kind = types.get(name, "string")
        try:
            values[name] = {"float": float, "int": int, "string": str}[kind](text)
        except ValueError:
            raise click.BadParameter(f"{name}: {text!r} is not of type {kind}", param_hint="--attr") from None
    return values


def _output_files(manifest: Manifest, items: Sequence[str]) -> dict[str, Path]:
    """`FILE` or `NAME=FILE` items, by output name; a FILE with a `=` in its name has its folder before it."""
    required = [port.name for port in manifest.outputs if not port.optional]
    files: dict[str, Path] = {}
    for item in items:
        name, equals, path = item.partition("=")
        port = manifest.output(name) if equals else None
        if equals and port is None and Path(name).name == name:
            known = ", ".join(name for port in manifest.outputs for name in port.names)
            raise click.BadParameter(
                f"{name!r} is no output; outputs: {known}; a file of that name is ./{item}", param_hint="--output"
            )
        if port is None and len(required) > 1:
            raise click.BadParameter(
                f"{item!r} does not say which output: write {required[0]}=FILE", param_hint="--output"
            )
        key = port.name if port else required[0]
        if key in files:
            raise click.BadParameter(f"{key} is written twice", param_hint="--output")
        files[key] = Path(path if port else item)
    return files


# Commands --------------------------------------------------------------------------------------------


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="oplet")
def main() -> None:
    """WebGPU operators for Python, as plugins."""


def _device_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["--webgpu"],
            type=click.Choice(["wgpu", "dawn"]),
            help="WebGPU implementation; default OPLET_WEBGPU, else wgpu.",
        ),
        click.Option(["--adapter"], help="Part of the adapter's name; default OPLET_ADAPTER, else any."),
    ]


def _registry(webgpu: Implementation | None, adapter: str | None) -> oplet.Registry:
    if webgpu is None and adapter is None:
        return oplet.Registry()  # which opens its device only if it needs one
    return oplet.Registry(device=oplet.open_device(webgpu=webgpu, adapter=adapter))


@main.command("list")
def list_() -> None:
    """List the installed ops. Imports none of them."""
    offers = oplet.Registry().offers
    if not offers:
        _tell_that_none_is_installed()
    rows = [
        (offer.op, offer.dist, offer.version + (" (adds variants)" if offer.group == EXTENSIONS else ""))
        for offer in offers
    ]
    if rows:
        _print_table(rows, ("op", "distribution", "version"))


@main.command()
@click.argument("op")
def info(op: str) -> None:
    """Show what an op takes, returns and has variants for."""
    loaded = oplet.Registry()[op]
    manifest = loaded.manifest
    _print(manifest.id, "bold")
    _print_table([(manifest.summary,)])
    _print(f"{loaded.dist} {loaded.version}; in ONNX's domain since version {manifest.since_version}")
    sections: dict[str, Sequence[Sequence[str]]] = {
        "inputs": [_port_row(port) for port in manifest.inputs],
        "outputs": [_port_row(port) for port in manifest.outputs],
        "types": [(name, ", ".join(dtypes)) for name, dtypes in manifest.types.items()],
        "attributes": [_attribute_row(attribute) for attribute in manifest.attributes],
        "variants": [(variant.name, variant.doc) for variant in loaded.variants],
    }
    for title, rows in sections.items():
        if rows:
            _print(f"\n{title}", "bold")
            _print_table(rows, indent=2)


def _port_row(port: Port) -> tuple[str, str, str]:
    name = port.name if len(port.names) == 1 else f"{port.name} ({port.upstream})"
    return name, port.type, f"{port.shape}{', optional' if port.optional else ''}. {port.doc}".strip()


def _attribute_row(attribute: Attribute) -> tuple[str, str, str, str]:
    default = "required" if attribute.required else "—" if attribute.default is None else str(attribute.default)
    choices = ", ".join(str(choice) or '""' for choice in attribute.choices or ())
    return attribute.name, attribute.type, default, f"{attribute.doc}{f' One of {choices}.' if choices else ''}".strip()


@main.command(params=_device_options())
def device(webgpu: Implementation | None, adapter: str | None) -> None:
    """Open the device that a call would run on, and show its limits."""
    opened = _registry(webgpu, adapter).device
    caps = opened.capabilities
    configs = [f"{one.component}→{one.result} {one.m}×{one.n}×{one.k}" for one in caps.subgroup_matrix_configs]
    rows = [
        ("adapter", caps.adapter.name),
        ("driver", f"{caps.adapter.backend}, {caps.adapter.driver}" if caps.adapter.driver else caps.adapter.backend),
        ("software", "yes" if caps.adapter.is_cpu else "no"),
        ("implementation", f"{opened.implementation}, WGSL by {caps.dialect}"),
        ("features", ", ".join(sorted(caps.features)) or "none"),
        ("subgroup size", str(caps.subgroup_size or "—")),
        *([("subgroup matrices", ", ".join(configs))] if configs else []),
        *((name, f"{value:,}") for name, value in sorted(caps.limits.items())),
    ]
    _print_table(rows)


class _PerOp(click.Group):
    """A group whose commands are the installed ops, each built when it is asked for."""

    def __init__(self, *, build: Callable[[str, Manifest], click.Command], **attributes: Any) -> None:
        super().__init__(**attributes)
        self._build = build

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(oplet.Registry().ids)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Names only: a group's help asks every command for its own, which would import every plugin.
        ids = self.list_commands(ctx)
        with formatter.section("Ops"):
            formatter.write_text("\n\n".join(ids) if ids else "none is installed")

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        return self._build(cmd_name, oplet.Registry()[cmd_name].manifest)


def _input_options(
    manifest: Manifest, convert: Callable[[str], Any], metavar: str, others: Iterable[click.Parameter]
) -> list[click.Parameter]:
    """An option for each name of each input, apart from the command's others.

    Two names of one input are for the registry to refuse.
    """
    taken = {"--help", *(word for option in others for word in option.opts)}
    return [
        click.Option(
            [f"input_{name}", f"--input-{name}" if f"--{name}" in taken else f"--{name}"],
            type=convert,
            metavar=metavar,
            help=f"{', '.join(manifest.dtypes(port))} {port.shape}{', optional' if port.optional else ''}."
            if name == port.name
            else f"ONNX's name of {port.name}.",
        )
        for port in manifest.inputs
        for name in port.names
    ]


def _call_options(manifest: Manifest) -> list[click.Parameter]:
    names = ", ".join(attribute.name for attribute in manifest.attributes)
    return [
        click.Option(["--attr"], multiple=True, metavar="NAME=VALUE", help=f"Attributes: {names or 'it has none'}."),
        click.Option(["--variant"], metavar="NAME", help="The variant to take, whether or not it yields to another."),
        *_device_options(),
    ]


def _inputs(options: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("input_"): value for name, value in options.items() if name.startswith("input_")}


def _call_registry(variant: str | None, options: dict[str, Any]) -> oplet.Registry:
    # The reference needs no device, so none is looked for.
    return oplet.Registry() if variant == REFERENCE else _registry(options["webgpu"], options["adapter"])


def _explain_command(op: str, manifest: Manifest) -> click.Command:
    def explain(attr: Sequence[str], variant: str | None, output: Sequence[str], **options: Any) -> None:
        registry = _call_registry(variant, options)
        explanation = registry.explain(
            op,
            attrs=_attributes(manifest, attr),
            outputs=tuple(output) or None,
            variant=variant,
            **_inputs(options),
        )
        _print(str(explanation))

    outputs = ", ".join(name for port in manifest.outputs for name in port.names)
    ask = click.Option(["-o", "--output"], multiple=True, metavar="NAME", help=f"Outputs to ask for: {outputs}.")
    others = [ask, *_call_options(manifest)]
    params = [*_input_options(manifest, _spec, "SHAPE:DTYPE", others), *others]
    return click.Command(op, callback=explain, params=params, help=manifest.summary)


def _run_command(op: str, manifest: Manifest) -> click.Command:
    def run(attr: Sequence[str], variant: str | None, output: Sequence[str], **options: Any) -> None:
        files = _output_files(manifest, output)
        registry = _call_registry(variant, options)
        results = registry.run(
            op,
            attrs=_attributes(manifest, attr),
            outputs=tuple(files) or None,
            variant=variant,
            **_inputs(options),
        )
        names = registry[op].bind_outputs(tuple(files) or None)
        for name, tensor in zip(names, results if isinstance(results, tuple) else (results,), strict=True):
            array = tensor.numpy()
            if name in files:
                with _create(files[name]) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
                _print(f"{name} {TensorSpec.of(array)} → {files[name]}")
            else:
                _print(f"{name} {TensorSpec.of(array)}\n{array}")

    required = " and ".join(port.name for port in manifest.outputs if not port.optional)
    save = click.Option(
        ["-o", "--output"],
        multiple=True,
        metavar="[NAME=]FILE",
        help=f"Where to save an output, as .npy; without it {required} is printed.",
    )
    others = [save, *_call_options(manifest)]
    params = [*_input_options(manifest, _array, "FILE", others), *others]
    return click.Command(op, callback=run, params=params, help=manifest.summary)


def _create(path: Path) -> BinaryIO:
    try:
        return path.open("wb")
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from None


@main.group(cls=_PerOp, build=_explain_command, subcommand_metavar="OP [--INPUT SHAPE:DTYPE]...")
def explain() -> None:
    """Tell which variant would run a call, and why no other would.

    The op's inputs are options, --input-NAME where another option has the NAME: see oplet explain OP --help.

    Example: oplet explain com.microsoft.FusedGemm --A 64x32:f32 --B 32x16:f32 --attr activation=Relu
    """


@main.group(cls=_PerOp, build=_run_command, subcommand_metavar="OP [--INPUT FILE]...")
def run() -> None:
    """Run an op on arrays in .npy files.

    The op's inputs are options, --input-NAME where another option has the NAME: see oplet run OP --help.

    Example: oplet run com.microsoft.FusedGemm --A a.npy --B b.npy -o y.npy
    """


@main.command(params=_device_options())
@click.argument("op", required=False)
@click.option("--variant", "variants", multiple=True, help="Check this variant, repeatable; default all, and the op.")
@click.option("--unchecked", is_flag=True, help="Compile shaders without bounds checks.")
@click.option("--seed", type=int, help="Seed of the random cases.")
def check(
    op: str | None,
    webgpu: Implementation | None,
    adapter: str | None,
    variants: Sequence[str],
    unchecked: bool,
    seed: int | None,
) -> None:
    """Run the conformance checks of an op, or of every op.

    Exits with status 1 where one fails.
    """
    from oplet.testing import examine

    counts = Counter[str]()
    ids = (op,) if op else oplet.Registry().ids
    for one in ids:
        with _telling_faults(counts, bool(op), one):
            for outcome in examine(
                one, webgpu=webgpu, adapter=adapter, unchecked=unchecked, seed=seed, variants=variants
            ):
                verdict = "failed" if outcome.findings else "not run" if outcome.not_run else "passed"
                counts[verdict] += 1
                _print(f"{verdict:7}  {outcome}", "bold red" if verdict == "failed" else "")
    if not ids:
        _tell_that_none_is_installed()
    _print(", ".join(f"{counts[verdict]} {verdict}" for verdict in ("passed", "failed", "not run")), "bold")
    sys.exit(1 if counts["failed"] else 0)


class _WithInputs(click.Command):
    """A command that takes an op, or none, and has an option for each of the op's inputs."""

    _KEY = f"{__name__}.inputs"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        registry = oplet.Registry()
        if op := next((arg for arg in args if arg in registry.ids), None):
            others = super().get_params(ctx)
            ctx.meta[self._KEY] = _input_options(registry[op].manifest, _random_spec, "SHAPE:DTYPE", others)
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*ctx.meta.get(self._KEY, ()), *super().get_params(ctx)]


def _advance(bar: Progress, task: TaskID, what: str, done: int, total: int) -> None:
    bar.update(task, description=what, completed=done, total=total)


@main.command(cls=_WithInputs, params=_device_options())
@click.argument("op", required=False)
@click.option("--case", "only", metavar="TEXT", help="Only cases whose name contains this; × may be x, and ³ 3.")
@click.option("--attr", multiple=True, metavar="NAME=VALUE", help="Attributes, beside inputs.")
@click.option("-o", "--output", multiple=True, metavar="NAME", help="Outputs to ask for, beside inputs.")
@click.option("--variant", "variants", multiple=True, help="Time this variant, repeatable; default the one that runs.")
@click.option("--peer", "peers", multiple=True, help="numpy, onnxruntime or one of an op's own; repeatable.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Groups of samples for each case.")
@click.option("--experimental", is_flag=True, help="Also use features that no standard has: subgroup matrices on Dawn.")
@click.option("--unchecked", is_flag=True, help="Compile shaders without bounds checks.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write the reports to this file.")
@click.option("--html", "page_file", type=click.Path(dir_okay=False, path_type=Path), help="Write them as a page.")
@click.option(
    "--compare",
    type=(click.Path(path_type=Path), click.Path(path_type=Path)),
    metavar="BEFORE AFTER",
    help="Time nothing, and tell what is faster or slower in the second of two files that --json has written.",
)
def bench(
    op: str | None,
    webgpu: Implementation | None,
    adapter: str | None,
    only: str | None,
    attr: Sequence[str],
    output: Sequence[str],
    variants: Sequence[str],
    peers: Sequence[str],
    rounds: int,
    experimental: bool,
    unchecked: bool,
    file: Path | None,
    page_file: Path | None,
    compare: tuple[Path, Path] | None,
    **inputs: str | None,
) -> None:
    """Time an op, or every op, beside what the device can do.

    That is its rates in a plain copy and in multiplying. Timed are the op's own cases, or a call of yours with random
    numbers, whose inputs are options, --input-NAME where another option has the NAME: see oplet bench OP --help. Peers,
    other implementations of the op, are timed where you name them.

    Without OP, exits with status 1 where a plugin is at fault, after the other ops are timed.

    Examples:

        oplet bench com.microsoft.FusedGemm --case 4096x4096 --html report.html

        oplet bench com.microsoft.FusedGemm --A 512x512:f32 --B 512x512:f32 --attr activation=Relu --peer onnxruntime
    """
    if compare:
        if file or page_file:
            raise click.UsageError("--compare times nothing, so it has no report for --json or --html")
        _compare(*compare, op)
        return
    for path in filter(None, (file, page_file)):
        if not path.parent.is_dir():  # now, not after minutes of timing
            raise click.FileError(str(path), "there is no such folder")
    own = {name: text for name, text in _inputs(inputs).items() if text is not None}
    if own and only is not None:
        raise click.UsageError("--case is for the op's cases, and inputs are a call of your own: give one of them")
    if (attr or output) and not own:
        raise click.UsageError("--attr and --output are of a call of your own: give its inputs too")
    from rich.progress import Progress

    from oplet.bench import bench as measure
    from oplet.bench import table
    from oplet.bench.peers import known_to

    counts = Counter[str]()
    telling_faults = partial(_telling_faults, counts, bool(op))
    registry = oplet.Registry()
    if op and own:
        cases = _own_case(registry, op, own, attr, output)
    else:
        cases = _cases(registry, (op,) if op else registry.ids, only, telling_faults)
    known: dict[str, Mapping[str, Build]] = {}
    for one in cases:
        with telling_faults(one):
            known[one] = known_to(registry[one]) if peers else {}
    for peer in peers:
        if not any(peer in theirs for theirs in known.values()):
            names = ", ".join(sorted(set().union(*known.values())))
            raise click.BadParameter(f"no op has a peer {peer!r}; peers: {names}", param_hint="'--peer'")
    device = oplet.open_device(webgpu=webgpu, adapter=adapter, experimental=experimental, unchecked=unchecked)
    registry = oplet.Registry(device=device)
    reports: list[Report] = []
    for one, theirs in known.items():
        # What a peer says may hold brackets.
        console = Console(stderr=True, markup=False, highlight=False, emoji=False)
        with telling_faults(one):
            with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
                task = bar.add_task(one)
                report = measure(
                    registry,
                    one,
                    cases=cases[one],
                    variants=variants,
                    peers=[peer for peer in peers if peer in theirs],
                    rounds=rounds,
                    progress=partial(_advance, bar, task),
                    note=partial(console.print, soft_wrap=True),
                )
            reports.append(report)
            _write(reports, file, page_file)  # what took minutes is kept, whatever comes next
            for line in table.heading(report):
                _print(line)
            _print_table(table.rows(report), table.columns(report), width=1000)
            for line in table.notes(report):
                _print(line)
    if counts["failed"]:
        sys.exit(1)


def _write(reports: Sequence[Report], file: Path | None, page_file: Path | None) -> None:
    """Writes reports as JSON and as a page."""
    from oplet.bench import page

    if file:
        with _create(file) as opened:
            plain = [report.as_json() for report in reports]
            opened.write(json.dumps(plain, indent=2, ensure_ascii=False).encode())
    if page_file:
        with _create(page_file) as opened:
            opened.write(page.render(reports).encode())


def _cases(
    registry: oplet.Registry,
    ops: Sequence[str],
    only: str | None,
    telling_faults: Callable[[str], AbstractContextManager[None]],
) -> dict[str, Sequence[Case]]:
    """The cases of each op whose name has a text in it."""
    from oplet.bench import read_cases

    known: dict[str, Sequence[Case]] = {}
    for one in ops:
        with telling_faults(one):
            known[one] = read_cases(registry[one])
    if only is None:
        return known
    found = {one: [case for case in cases if case.is_named(only)] for one, cases in known.items()}
    if not any(found.values()):
        names = "".join(f"\n  {case.name}" for cases in known.values() for case in cases)
        raise click.BadParameter(f"no case has {only!r} in its name; there are{names}", param_hint="'--case'")
    return {one: cases for one, cases in found.items() if cases}


def _own_case(
    registry: oplet.Registry, op: str, inputs: dict[str, str], attr: Sequence[str], output: Sequence[str]
) -> dict[str, Sequence[Case]]:
    """A case that the command line describes, by its op."""
    from oplet.bench import Case

    attrs = _attributes(registry[op].manifest, attr)
    named = ", ".join([*(f"{name} {text}" for name, text in inputs.items()), *attr])
    return {op: [Case(named, inputs, attrs, tuple(output) or None)]}


def _compare(before: Path, after: Path, op: str | None) -> None:
    from oplet.bench import compare

    files = [[report for report in compare.read_reports(path) if op in (None, report.op)] for path in (before, after)]
    comparisons = compare.compare(*files)
    if not comparisons:
        ops = ["; ".join(report.op for report in reports) or f"no {op or 'op'}" for reports in files]
        raise click.UsageError(f"the files have no op in common: {ops[0]} in {before}, {ops[1]} in {after}")
    for one in comparisons:
        for line in one.heading():
            _print(line)
        _print_table(compare.rows(one), compare.COLUMNS, width=1000)
        for line in one.notes():
            _print(line)
        _print(one.summary(), "bold")


@main.command()
@click.argument("op")
@click.option("--into", type=click.Path(path_type=Path), default=Path(), help="Folder to make the package in.")
def new(op: str, into: Path) -> None:
    """Make a package that offers an op, to write your own from.

    Example: oplet new com.acme.Foo
    """
    from oplet.scaffold import create

    folder = create(op, into)
    path = str(folder)
    # Without the ./ pip would look for a distribution of that name.
    project = shlex.quote(path if folder.is_absolute() else f"./{path}")
    _print(f"{folder} offers {op}, a product of two tensors for now. Next:\n")
    _print(f"  pip install pytest --editable {project}\n  pytest {shlex.quote(path)}")


@main.command()
@click.argument("op")
@click.option("--write", is_flag=True, help="Write it into the op's folder instead of printing it.")
@click.option("--dist", help="The distribution whose file it is, where it is an extension's; default the op's.")
def metadata(op: str, write: bool, dist: str | None) -> None:
    """Make the metadata.json of an op.

    It has the digest of each file of the op's folder, and the templates of each variant.
    """
    from oplet.discovery import canonical
    from oplet.testing.metadata import build
    from oplet.testing.metadata import write as write_file

    registry = oplet.Registry()
    loaded = registry[op]
    offers = {canonical(offer.dist): offer for offer in registry.offers_of(op) if offer.group == EXTENSIONS}
    offers[canonical(loaded.dist)] = next(
        offer for offer in registry.offers_of(op) if (offer.dist, offer.group) == (loaded.dist, OPS)
    )
    offer = offers.get(canonical(dist or loaded.dist))
    if offer is None:
        raise click.BadParameter(f"{dist!r} is not one of {', '.join(offers)}", param_hint="--dist")
    if write:
        _print(str(write_file(loaded, offer)))
    else:
        click.echo(json.dumps(attrs.asdict(build(loaded, offer)), indent=2, ensure_ascii=False))


@main.command()
@click.argument("op", required=False)
def verify(op: str | None) -> None:
    """Compare installed files with the digests in metadata.json.

    Those of an op and its extensions, or of all. Imports nothing of them. Exits with status 1 where something differs.
    """
    from oplet.metadata import verify as differences

    registry = oplet.Registry()
    offers = registry.offers_of(op) if op else registry.offers
    if not offers:
        _tell_that_none_is_installed()
    failed = False
    for offer in offers:
        found = differences(offer)
        failed = failed or bool(found)
        _print(
            f"{'differs' if found else 'as made':7}  {offer.op}: {offer.dist} {offer.version}", "bold" if found else ""
        )
        for line in found:
            _print(f"  {line}")
    sys.exit(1 if failed else 0)


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> None:
    """Show versions, adapters, drivers and plugins with their faults.

    Paste it into a bug report. Exits with status 1 where there is no device, or a plugin has a fault.
    """
    from oplet.doctor import examine

    report = examine()
    if as_json:
        click.echo(json.dumps(attrs.asdict(report), indent=2, ensure_ascii=False))
    else:
        _print_report(report)
    sys.exit(0 if report.healthy else 1)


def _print_report(report: DoctorReport) -> None:
    installed = [f"{name} {version}" for name, version in report.packages.items() if version]
    environment = [f"{name}={value}" for name, value in report.environment.items()]
    _print_table(
        [
            ("python", f"{report.python}, {report.platform}"),
            ("packages", ", ".join(installed)),
            ("environment", "\n".join(environment) or "nothing that matters is set"),
            *([("no default", report.fault)] if report.fault else []),
        ]
    )
    for one in report.implementations:
        _print(f"\n{one.name}{' (default)' if one.name == report.default else ''}", "bold")
        rows = [
            (
                adapter["name"],
                ", ".join(filter(None, (adapter["backend"], adapter["driver"])))
                + f", features: {', '.join(adapter['features']) or 'none'}",
            )
            for adapter in one.adapters
        ]
        _print_table([*rows, *([("no device", one.fault)] if one.fault else [])], indent=2)
        if one.device:
            _print(f"  opens {one.device['adapter']['name']}, subgroup size {one.device['subgroup_size'] or '—'}")
    _print("\nplugins", "bold")
    for plugin in report.plugins:
        _print(f"  {plugin.op}: {', '.join(plugin.plugins)}")
        for line in plugin.faults or [f"variants: {', '.join(plugin.variants)}"]:
            _print_table([(line,)], indent=4)
    if not report.plugins:
        _print("  none is installed")

"""Timing: what bench.json may say, what a report holds, and how it reads. No test here judges a time."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs as records
import numpy as np
import onnxruntime
import oplet
import pytest
from onnx import helper
from oplet.bench import Case, Report, Result, Timing, bench, page, peers, read_cases, table
from oplet.bench.meter import Meter

OP = "com.acme.Affine"
PEERS = ["numpy", "second", "result", "absent", "tires", "none", "untimed", "onnxruntime"]


@pytest.fixture(scope="module")
def registry() -> oplet.Registry:
    registry = oplet.Registry(discover=False, device=oplet.open_device())
    registry.register(OP, importlib.import_module("acme_affine"))
    return registry


@pytest.fixture(scope="module")
def report(registry: oplet.Registry) -> Report:
    return bench(registry, OP, peers=PEERS, rounds=1)


def test_a_case_knows_its_data(registry: oplet.Registry) -> None:
    square, lengths = read_cases(registry[OP])
    arrays = square.arrays(np.random.default_rng(0))
    assert {name: array.shape for name, array in arrays.items()} == {"X": (64, 64), "bias": (64,)}
    assert arrays["X"].std() == pytest.approx(1, abs=0.1)
    assert lengths.arrays(np.random.default_rng(0))["X"].tolist() == [[1, 2, 3, 4]]
    bounded = Case("bounded", {"X": "1000:f32"}, uniform={"X": (-0.25, -0.125)})
    data = bounded.arrays(np.random.default_rng(0))["X"]
    assert -0.25 <= data.min() < data.max() <= -0.125


@pytest.mark.parametrize("text", ["4096x4096", "F16", "4096×4096 + BIAS", "4095³", "40953 ", ""])
def test_a_case_is_found_as_one_types_its_name(text: str) -> None:
    assert Case("f16 4095³ 4096×4096 + bias", {}).is_named(text)
    assert not Case("f32 1024³", {}).is_named("10243 ")


def test_a_large_input_repeats_a_block() -> None:
    data = Case("large", {"X": "1048577x3:f16"}).arrays(np.random.default_rng(0))["X"]
    assert data.shape == (1048577, 3)
    assert data.dtype == np.float16
    assert data.std(dtype=np.float64) == pytest.approx(1, abs=0.01)


def test_a_report_has_every_case_beside_the_ceilings(report: Report) -> None:
    assert [result.case for result in report.results] == ["64×64", "lengths"]
    square, lengths = report.results
    assert square.variant == "vec4"
    assert square.bytes == 64 * 64 * 4 * 2 + 64 * 4
    assert (square.flops, lengths.flops, lengths.bytes) == (8192, 0, 20)
    assert report.copy > 0
    assert report.fma > 0
    for result in report.results:
        assert 0 < result.device.low <= result.device.median <= result.device.high
        assert result.host.median > 0
    assert report.clock == "timestamps"


def test_a_peer_in_a_graph_runs_in_a_chain() -> None:
    def nodes(x: str, y: str) -> list[Any]:
        return [helper.make_node("Mul", [x, "factor"], [y])]

    constants = {"X": np.full((2, 3), 5, np.float16), "factor": np.array(2, np.float16)}
    # What the peer would run on the provider that the tests' onnxruntime has not.
    session = onnxruntime.InferenceSession(peers._chain(constants, nodes, 3), providers=["CPUExecutionProvider"])
    (corner,) = session.run(None, {"zero": np.zeros((1, 1), np.float16)})
    assert corner.tolist() == [[5 * 2**3]]


def test_a_peer_on_a_provider_that_is_not_there_says_so() -> None:
    with pytest.raises(RuntimeError, match="this onnxruntime has no WebGpuExecutionProvider: install"):
        peers.timed_on_onnxruntime_webgpu({"X": np.ones(1, np.float32)}, lambda x, y: [])


def test_peers_stand_beside_it(report: Report) -> None:
    for result in report.results:
        assert list(result.peers) == PEERS
        assert result.peers["numpy"].median > 0
        assert result.peers["second"] == Timing(1.0, 1.0, 1.0)
        assert 0 < result.peers["result"].median < 1, "what a function returns is no time"


def test_a_peer_that_cannot_be_made_or_fails_later_is_out_with_its_reason(report: Report) -> None:
    assert list(table.notes(report)) == [
        "absent: a_package_that_nobody_has is not installed",
        "none: TypeError: its builder returned None, not a function to time or a Timed",
        "onnxruntime: RuntimeError: its CPU provider does not take such a call: "
        "Fatal error: com.acme:Affine(-1) is not a registered function/op",
        "tires: MemoryError: no memory is left",
        "untimed: TypeError: its Timed returned True, not seconds as a float",
    ]


def test_what_is_known_of_a_peer_before_a_case_is_timed_is_told_then(
    registry: oplet.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    sample = Meter.sample

    def spy(self: Meter, *arguments: Any) -> list[float]:
        told.append("sample")
        return sample(self, *arguments)

    monkeypatch.setattr(Meter, "sample", spy)
    cases = [Case("a", {"X": "4x4:f32"}), Case("b", {"X": "8x4:f32"})]
    bench(registry, OP, cases=cases, peers=["absent", "tires"], rounds=1, note=told.append)
    # The two ceilings, then the cases.
    assert told == ["sample", "sample", "absent: a_package_that_nobody_has is not installed", "sample", "sample"]


def test_a_time_that_is_a_difference_may_be_none(registry: oplet.Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    builders = {"noise": lambda case: peers.Timed(lambda: -1e-9)}
    monkeypatch.setattr("oplet.bench.builders_of", lambda op, names: builders)
    (result,) = bench(registry, OP, cases=[Case("a", {"X": "4x4:f32"})], rounds=1).results
    assert result.peers == {"noise": "its time is lost in the noise"}


def test_the_table_has_a_cell_for_each_column(report: Report) -> None:
    header = table.columns(report)
    assert header[-len(PEERS) :] == PEERS
    rows = list(table.rows(report))
    assert [len(row) for row in rows] == [len(header)] * 2
    ratio = 1.0 / report.results[0].device.median
    assert rows[0][header.index("second")].endswith(f"({ratio:.2f}×)")
    assert rows[0][header.index("absent")] == "—"
    *_, ceilings, times = table.heading(report)
    assert ceilings.startswith("measured ceilings: copy ")
    assert times == "peers: the × tells how many of the op's times a peer takes"


def test_a_peer_has_its_column_whichever_results_have_it(report: Report) -> None:
    time = Timing(1e-5, 1e-5, 1e-5)
    results = (
        Result("faulted", "", None, None, 0, 0, fault="nothing takes it"),
        Result("one", "scalar", time, time, 1, 1, {"first": time}),
        Result("other", "scalar", time, time, 1, 1, {"second": "no memory", "first": time}),
        Result("neither", "scalar", time, time, 1, 1),
    )
    mixed = records.evolve(report, results=results)
    assert table.columns(mixed)[-3:] == ["host", "first", "second"]
    cell = "10.0 µs ±0% (1.00×)"
    faulted, *others = table.rows(mixed)
    assert faulted == ["faulted", "", "not run"]
    assert [row[-2:] for row in others] == [[cell, ""], [cell, "—"], ["", ""]]
    assert f'<td data-column="first">{cell}</td>' in page.render([mixed])


def test_a_report_is_plain_json(report: Report) -> None:
    document = json.loads(json.dumps(report.as_json()))
    assert document["results"][0]["device"]["median"] == report.results[0].device.median


def test_without_timestamps_wall_time_is_said_to_be_wall_time() -> None:
    registry = oplet.Registry(discover=False, device=oplet.open_device(features=[]))
    registry.register(OP, importlib.import_module("acme_affine"))
    report = bench(registry, OP, cases=[Case("one", {"X": "4x4:f32"})], rounds=1)
    assert report.clock == "wall"
    assert any("WALL TIME" in line for line in table.heading(report))
    with pytest.raises(oplet.DeviceError, match="no timestamps"):
        registry.device.time([])


def test_each_named_variant_is_timed_and_one_that_cannot_run_says_why(registry: oplet.Registry) -> None:
    report = bench(registry, OP, cases=[Case("odd", {"X": "3x5:f32"})], variants=["scalar", "vec4"], rounds=1)
    scalar, vec4 = report.results
    assert scalar.device is not None
    assert vec4.device is None
    assert vec4.fault == "vec4: the number of columns is not a multiple of 4"
    assert "odd: vec4: the number of columns is not a multiple of 4" in list(table.notes(report))


def test_a_case_that_is_too_large_says_so_and_the_others_are_timed() -> None:
    registry = oplet.Registry(discover=False, device=oplet.open_device(limits="floor"))
    registry.register(OP, importlib.import_module("acme_affine"))
    limits = registry.device.capabilities.limits
    rows = limits["maxStorageBufferBindingSize"] // 16 + 1
    cases = [Case("too large", {"X": f"{rows}x4:f32"}), Case("small", {"X": "4x4:f32"})]
    large, small = bench(registry, OP, cases=cases, rounds=1).results
    assert large.device is None
    assert f"X: {16 * rows} bytes are needed in one binding" in large.fault
    assert "\n" not in large.fault
    assert small.device is not None


def test_a_case_that_the_op_refuses_is_told_before_any_is_timed(registry: oplet.Registry) -> None:
    cases = [Case("right", {"X": "4x4:f32"}), Case("wrong", {"X": "4x4:f32", "bias": "5:f32"})]
    told: list[str] = []
    with pytest.raises(oplet.InputError, match="bias"):
        bench(registry, OP, cases=cases, progress=lambda what, done, total: told.append(what))
    assert told == []


def test_names_that_do_not_exist_are_refused(registry: oplet.Registry) -> None:
    with pytest.raises(oplet.InputError, match=r"peers: 'torhc' is not one of numpy, onnxruntime, second, result"):
        bench(registry, OP, peers=["torhc"])
    with pytest.raises(oplet.InputError, match=r"variant: 'vec8' is not a known variant"):
        bench(registry, OP, variants=["vec8"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not JSON"),
        ('{"schema": 1, "cases": [{"name": "a", "inputs": {"X": "4,4"}}]}', "'4,4' is not a shape and a dtype"),
        ('{"schema": 1, "cases": [{"name": "a", "input": {}}]}', r"\$\.cases\[0\]\.input: unknown key"),
        ('{"schema": 2, "cases": []}', r"\$\.schema: 2 is not a schema that this oplet reads"),
        (
            '{"schema": 1, "cases": [{"name": "a", "inputs": {"X": "4x4:f32", "bias": "5:f32"}}]}',
            "case 'a': com.acme.Affine: bias: ",
        ),
        ('{"schema": 1, "cases": [{"name": "a", "inputs": {"Z": "4x4:f32"}}]}', "case 'a': .*Z"),
    ],
)
def test_a_faulty_bench_json_is_named(install: Callable[[str], Path], text: str, problem: str) -> None:
    folder = install("acme_slow")
    (folder / "bench.json").write_text(text)
    with pytest.raises(oplet.PluginContractError, match=problem):
        read_cases(oplet.Registry()[OP])


def test_an_op_without_bench_json_says_so(install: Callable[[str], Path]) -> None:
    folder = install("acme_untimed")
    (folder / "bench.json").unlink()
    with pytest.raises(oplet.PluginContractError) as caught:
        read_cases(oplet.Registry()[OP])
    first, where, do = str(caught.value).splitlines()
    assert first == f"{OP}: oplet-acme-untimed 1.2.0 has no bench.json, so there are no cases to time"
    assert where == f"  {folder / 'bench.json'}"
    assert "oplet bench com.acme.Affine --help" in do


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "import no_such_package\n",
            "ModuleNotFoundError: No module named 'no_such_package'\n  .*peers.py:1, in <module>",
        ),
        ("PEER = {}\n", "AttributeError: .* has no attribute 'PEERS'"),
        ("PEERS = 7\n", "TypeError: "),
    ],
)
def test_a_faulty_peers_py_is_named(install: Callable[[str], Path], text: str, fault: str) -> None:
    folder = install("acme_peerless")
    (folder / "peers.py").write_text(text)
    with pytest.raises(oplet.PluginContractError, match=f"peers.py cannot be used: {fault}"):
        bench(oplet.Registry(), OP, peers=["second"])

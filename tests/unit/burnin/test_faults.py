"""The table of faults: each row is judged, and no fault makes a bad verdict better."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from sentinel.burnin.checks.check import Status
from sentinel.burnin.checks.peers import judge_rate, peers_of
from sentinel.burnin.checks.recorded_run import CHECKS
from sentinel.burnin.formats import FORMATS
from sentinel.burnin.report import judge_run, report_object
from sentinel.burnin.run_folder import RunFolder
from sentinel.burnin.verdict import EXIT_CODES, Verdict
from sentinel.errors import ConfigError
from tests.harness.fault_changes import BAD, MIDDLE
from tests.harness.faults import KINDS, ROWS, Fault
from tests.harness.parameters import mostly_long
from tests.harness.recorded_node import A100, GEFORCE, H100, RecordedNode

#: The rows with a bad exit code, and kinds that another number of GPUs makes good.
BAD_ROWS = [row for row in ROWS if not row.kind.exempt and EXIT_CODES[Verdict(row.right)]]
BY_NUMBER = {"record-alone", "memory-clock-maximum-zero", "dead-link-v100-8"}
NAMES = [row.name for row in ROWS]
#: One row of each reason for each verdict, that of the fewest GPUs, which is judged fastest; those
#: of the others are found by the same code.
QUICK = {
    (row.kind.group, row.kind.by, row.right, row.kind.exempt): row.name
    for row in sorted(ROWS, key=lambda row: row.gpus, reverse=True)
}.values()


def test_the_table_is_whole() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    assert len(set(NAMES)) == len(NAMES)
    assert len([kind for kind in KINDS if not kind.exempt]) >= 60
    assert len(ROWS) >= 150
    assert all(kind.source for kind in KINDS)
    assert {row.gpus for row in ROWS} >= {1, 2, 4, 8}


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name, marks=[] if row.name in QUICK else pytest.mark.long)
        for row in ROWS
    ],
)
def test_each_fault_has_its_verdict(row: Fault, tmp_path: Path) -> None:
    judged = row.node().judge(tmp_path / "run")
    bad = next(gpu for gpu in judged.gpus if gpu.record.index == BAD)
    verdict = judged.verdict if row.kind.of_node else bad.verdict
    reasons = [*bad.reasons, *(result.id for result in judged.node if result.status == "warn")]
    assert verdict == row.right, reasons
    assert not row.kind.by or any(row.kind.by in reason for reason in reasons), reasons
    assert EXIT_CODES[judged.verdict] >= EXIT_CODES[Verdict(row.right)], judged.verdict


@pytest.mark.parametrize("model", [H100, A100, GEFORCE])
@mostly_long("gpus", [1, 2, 8])
def test_a_healthy_node_passes_whatever_its_model_and_size(
    model: str, gpus: int, tmp_path: Path
) -> None:
    judged = RecordedNode(gpus=gpus, model=model, seed=gpus).judge(tmp_path / "run")
    assert judged.verdict is Verdict.PASS, [gpu.reasons for gpu in judged.gpus]


@pytest.mark.parametrize(
    ("model", "gpus", "said"),
    [
        (H100, 1, "(rates compared with reference only: no peers)"),
        (A100, 4, "(rates compared with peers only: no reference)"),
        (GEFORCE, 1, "(rates not compared: no peers, no reference)"),
    ],
)
def test_a_pass_says_what_the_rates_were_not_compared_with(
    model: str, gpus: int, said: str, tmp_path: Path
) -> None:
    judged = RecordedNode(gpus=gpus, model=model).judge(tmp_path / "run")
    assert said in report_object(judged)["meaning"]


@pytest.mark.parametrize(("gpus", "verdict"), [(1, Verdict.PASS), (2, Verdict.INCOMPLETE)])
def test_a_gpu_that_is_the_only_one_needs_no_links_and_its_pass_says_that_it_has_none(
    gpus: int, verdict: Verdict, tmp_path: Path
) -> None:
    """The driver of a virtual machine with one GPU of a board with NVLinks supports none."""
    node = RecordedNode(gpus=gpus, model=H100)
    node.counters["pci_devices"] = [row["pci_bus_id"] for row in node.before]
    for row in (*node.before, *node.after):
        row["nvlinks"] = None
    judged = node.judge(tmp_path / "run")
    assert judged.verdict is verdict, [gpu.reasons for gpu in judged.gpus]
    assert "NVLink not judged: n" in report_object(judged)["meaning"]
    node.counters["pci_devices"] = None  # others may be there
    assert node.judge(tmp_path / "again").verdict is Verdict.INCOMPLETE


def test_a_pass_of_the_only_gpu_says_that_no_link_is_active(tmp_path: Path) -> None:
    node = RecordedNode(gpus=1, model=H100)
    for row in (*node.before, *node.after):
        for link in row["nvlinks"]:
            link["active"] = False
    said = report_object(node.judge(tmp_path / "run"))["meaning"]
    assert "NVLink not judged: none is active" in said


def test_a_slowdown_that_its_counter_lacks_has_both_figures(tmp_path: Path) -> None:
    row = next(row for row in ROWS if row.kind.name == "sw-thermal-unlike")
    bad = row.node().judge(tmp_path / "run").gpus[BAD]
    (reason,) = (one for one in bad.reasons if one.startswith("throttle.software_thermal"))
    assert "readings under load" in reason
    assert "; its counter has 0 s in " in reason
    assert "no counter" not in reason


def test_a_job_beside_the_run_changes_no_verdict(tmp_path: Path) -> None:
    kind = next(kind for kind in KINDS if kind.name == "only-nvml")
    healthy = Fault(kind=kind, moment=MIDDLE, gpus=4, beside=True)
    judged = healthy.node().judge(tmp_path / "run")
    assert judged.verdict is Verdict.PASS, [gpu.reasons for gpu in judged.gpus]


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed < 2 else pytest.mark.long) for seed in range(60)]
)
def test_no_second_fault_makes_the_exit_code_better(seed: int, tmp_path: Path) -> None:
    """Nor a sample, a counter or a file that is taken away; excuses are exempt."""
    dice = random.Random(seed)
    row = any_row(dice)
    before = EXIT_CODES[row.node().judge(tmp_path / "one").verdict]
    assert before != 0
    node = row.node()
    other = dice.choice(
        [
            kind
            for kind in KINDS
            if not kind.exempt
            and not kind.of_node
            and kind.phases is row.kind.phases
            and min(kind.sizes) <= row.gpus
            and kind.model == row.kind.model
        ]
    )
    other.apply(node, other.moments[0])
    assert EXIT_CODES[node.judge(tmp_path / "two").verdict] != 0, (row.name, other.name)
    node = row.node()
    match dice.randrange(3):
        case 0:
            names = [name for name, value in node.after[BAD].items() if value is not None] or [""]
            for name in dice.sample(names, min(5, len(names))):
                if name not in {"uuid", "index", "name", "at", "failed"}:
                    node.after[BAD].pop(name, None)
        case 1:
            node.written = len(node.samples)
            node.samples[:] = [one for one in node.samples if dice.random() < 0.7]
        case 2:
            node.samples[:] = [one for one in node.samples if one["event"] != "telemetry"]
    assert EXIT_CODES[node.judge(tmp_path / "three").verdict] != 0, row.name


def any_row(dice: random.Random) -> Fault:
    """Draw a row with a bad exit code; every second one is one of four GPUs."""
    row = dice.choice(BAD_ROWS)
    four = replace(row, gpus=4)
    fits = row.kind.name not in BY_NUMBER and dice.random() < 0.5
    return four if fits else row


def code_of(folder: RunFolder) -> int:
    """Judge a run as a command does; return its exit code."""
    try:
        return EXIT_CODES[judge_run(folder).verdict]
    except ConfigError as error:
        return error.exit_code


def take_away(folder: RunFolder, dice: random.Random) -> str:
    """Take a file, a key, a GPU or lines from the folder of a run; describe what."""
    file = dice.choice(sorted(folder.path.iterdir()))
    if file == folder.report or dice.random() < 0.2:
        file.unlink()
        return file.name
    if file in {folder.events, folder.samples}:
        rows = file.read_text().splitlines(keepends=True)
        names = sorted({json.loads(row)["event"] for row in rows})
        gone = dice.choice(names)
        file.write_text("".join(row for row in rows if json.loads(row)["event"] != gone))
        return f"{gone} of {file.name}"
    content = json.loads(file.read_text())
    key = dice.choice(sorted(content))
    if isinstance(content[key], list) and content[key] and dice.random() < 0.5:
        content[key].pop(dice.randrange(len(content[key])))
    else:
        del content[key]
    file.write_text(json.dumps(content))
    return f"{key} of {file.name}"


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[] if seed < 2 else pytest.mark.long) for seed in range(60)]
)
def test_nothing_that_is_taken_from_the_folder_makes_the_exit_code_better(
    seed: int, tmp_path: Path
) -> None:
    """Nor two things together, of any row of the table, and of a node of four GPUs."""
    dice = random.Random(seed)
    row = any_row(dice)
    folder = row.node().write(tmp_path / "run")
    folder.write(folder.report, report_object(judge_run(folder)))
    for number in range(8):
        shutil.copytree(folder.path, tmp_path / str(number))
        copy = RunFolder(path=tmp_path / str(number))
        gone = [take_away(copy, dice) for _ in range(2)]
        assert code_of(copy) != 0, (row.name, gone)


@pytest.mark.long
def test_no_key_that_is_taken_from_the_files_makes_the_exit_code_better(tmp_path: Path) -> None:
    """A node is at fault by its expectation alone, or by its PCI bus alone."""
    for name in ("fewer", "unlisted"):
        row = next(row for row in ROWS if row.kind.name == name and row.gpus == 4)
        folder = row.node().write(tmp_path / name)
        for file in (folder.header, folder.counters):
            whole = json.loads(file.read_text())
            for key in whole:
                file.write_text(json.dumps({one: whole[one] for one in whole if one != key}))
                assert code_of(folder) != 0, (name, key)
            file.write_text(json.dumps(whole))


@mostly_long("right", ["FAIL", "INCOMPLETE", "WARN", "PASS"], quick=2)
def test_all_formats_have_one_answer(right: str, tmp_path: Path) -> None:
    rows = [row for row in ROWS if row.name in QUICK and row.right == right and row.gpus < 8]
    for number, row in enumerate(random.Random(right).sample(rows, min(3, len(rows)))):
        judged = row.node().judge(tmp_path / str(number))
        report = report_object(judged)
        texts = {
            name: FORMATS[name](judged, report) for name in ("text", "junit", "ocp", "summary")
        }
        verdict = judged.verdict.value
        assert texts["text"].startswith(f"{verdict}  ")
        assert json.loads(texts["summary"])["verdict"] == report["verdict"] == verdict
        suites = ET.fromstring(texts["junit"])  # noqa: S314 - our own
        failures, errors = (int(suites.get(name, "0")) for name in ("failures", "errors"))
        assert (failures > 0) is (verdict == "FAIL"), row.name
        assert errors > 0 or verdict != "INCOMPLETE", row.name
        messages = [json.loads(line) for line in texts["ocp"].splitlines()]
        end = messages[-1]["testRunArtifact"]["testRunEnd"]
        wanted = {"FAIL": "FAIL", "INCOMPLETE": "NOT_APPLICABLE"}.get(verdict, "PASS")
        assert end["result"] == wanted, row.name
        if verdict != "PASS":
            assert report["meaning"].partition(": ")[2], row.name


#: The standard deviation of the rates of five good H100s.
SPREAD = 0.023


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_good_cards_as_different_as_they_are_pass(gpus: int, part: int, tmp_path: Path) -> None:
    """Whole records: noise within a run, an offset for each card, every format and check."""
    nodes, dice = 250, random.Random(10 * gpus + part)
    found: Counter[Verdict] = Counter()
    for number in range(part * nodes, (part + 1) * nodes):
        offsets = {index: dice.gauss(0, SPREAD) for index in range(gpus)}
        node = RecordedNode(gpus=gpus, every_s=6.0, seed=number, offsets=offsets)
        found[node.judge(tmp_path / "run").verdict] += 1
        shutil.rmtree(tmp_path / "run")
    assert not found[Verdict.FAIL], found
    assert found[Verdict.WARN] <= nodes / 50, found
    assert not found[Verdict.INCOMPLETE], found


@pytest.mark.long
def test_of_many_good_cards_few_are_below_the_limits_of_peers() -> None:
    limits = CHECKS["rate.peers"].limits
    dice = random.Random(1)
    for gpus in (4, 8):
        found: Counter[Status] = Counter()
        for _ in range(4000):
            rates = [dice.gauss(1, SPREAD) for _ in range(gpus)]
            peers = peers_of(rates)
            assert peers is not None
            statuses = [judge_rate(rate, peers, limits).status for rate in rates]
            found[worst_of(statuses)] += 1
        assert found[Status.FAIL] < 4, found
        assert found[Status.WARN] < 80, found


def worst_of(statuses: list[Status]) -> Status:
    return min(statuses, key=list(Status).index)

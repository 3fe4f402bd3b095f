"""What is drained in Slurm and taken back, by a fleet run and by the health check of a node."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from sentinel.errors import ConfigError
from sentinel.fleet import drain
from sentinel.fleet.drain import (
    DrainRecord,
    NodeAdmin,
    drain_nodes,
    next_step,
    parse_nodes,
    reason_text,
    recorded,
    undrain_nodes,
    why_not_drained,
    why_not_undrained,
)
from sentinel.fleet.engine import EngineError
from sentinel.fleet.run_folder import FleetFolder
from sentinel.protocol.api_types import GpuStatus, GpuVerdict

OURS = "gpu-sentry: memory.remap_failed on GPU 3 (GPU-1)"
#: As Slurm 22.05 prints it with --oneliner.
LINES = f"""\
NodeName=n1 Arch=x86_64 State=IDLE+DRAIN ThreadsPerCore=1 Partitions=a,b ExtSensorsTemp=n/s \
Reason={OURS} [root@2026-11-23T11:48:57]
NodeName=n2 State=IDLE ThreadsPerCore=1 ExtSensorsTemp=n/s
NodeName=n3 State=DOWN* Reason=Not responding [slurm@2026-11-23T11:00:00]
NodeName=n5 State=DOWN Reason=from slurm.conf Comment=x
NodeName=n4 State=MIXED+DRAIN Reason=a=b [x] c [ops@2026-11-23T11:00:00] Comment=d [e@f]
"""


def test_what_slurm_prints_is_parsed() -> None:
    assert dict(parse_nodes(LINES)) == {
        "n1": NodeAdmin(is_drained=True, reason=OURS),
        "n2": NodeAdmin(is_drained=False, reason=""),
        "n3": NodeAdmin(is_drained=False, reason="Not responding"),
        "n5": NodeAdmin(is_drained=False, reason="from slurm.conf Comment=x"),
        "n4": NodeAdmin(is_drained=True, reason="a=b [x] c"),
    }


@pytest.mark.parametrize(
    ("is_drained", "reason", "drains", "undrains"),
    [
        (False, "", True, False),
        (True, "", False, False),
        (False, "Not responding", False, False),
        (True, "fan", False, False),
        (True, OURS, False, True),
        (False, OURS, False, False),
        (True, f"{OURS}, and a fan", False, False),
    ],
)
def test_a_reason_that_is_there_stays_and_only_the_own_one_is_taken_back(
    *, is_drained: bool, reason: str, drains: bool, undrains: bool
) -> None:
    node = NodeAdmin(is_drained=is_drained, reason=reason)
    assert (why_not_drained(node) is None) == drains
    assert (why_not_undrained(node, OURS) is None) == undrains


def test_a_reason_has_no_character_that_would_end_it() -> None:
    assert reason_text('a\n"b"\\c') == "gpu-sentry: a b c"
    assert reason_text("x [a@b] \x9b2J\ud800") == "gpu-sentry: x a@b 2J"
    assert len(reason_text("GPU-1" * 10**5)) < 1000


class FakeSlurm:
    """Answers scontrol from a table of nodes, and notes what was updated."""

    def __init__(self, nodes: dict[str, tuple[str, str]]) -> None:
        self.nodes = nodes
        self.refuses = ""

    def run(self, words: Sequence[str], text: str = "") -> str:
        if words[1] == "update":
            fields = dict(word.split("=", 1) for word in words[2:])
            if fields["NodeName"] == self.refuses:
                raise EngineError("scontrol failed: Invalid node name")
            drained = fields["State"] == "DRAIN"
            state = "IDLE+DRAIN" if drained else "IDLE"
            self.nodes[fields["NodeName"]] = (state, fields.get("Reason", ""))
            return ""
        assert list(words[:4]) == ["scontrol", "--oneliner", "show", "node"]
        lines = []
        for name in words[4].split(","):
            state, reason = self.nodes[name]
            shown = f" Reason={reason} [root@2026-11-23T11:48:57]" if reason else ""
            lines.append(f"NodeName={name} State={state}{shown}")
        return "\n".join(lines)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm({"n1": ("IDLE", ""), "n2": ("IDLE+DRAIN", "fan"), "n3": ("MIXED", "")})
    monkeypatch.setattr(drain, "run_tool", fake.run)
    return fake


def test_nodes_are_drained_and_taken_back(folder: FleetFolder, slurm: FakeSlurm) -> None:
    assert drain_nodes(folder, {"n1": OURS, "n2": OURS}, again=False) == {
        "n1": None,
        "n2": "it has a reason already: fan",
    }
    assert slurm.nodes["n1"] == ("IDLE+DRAIN", OURS)
    assert slurm.nodes["n2"] == ("IDLE+DRAIN", "fan")
    assert recorded(folder) == {"n1": OURS}
    # A second time, also by another terminal, changes nothing.
    assert drain_nodes(folder, {"n1": OURS}, again=True)["n1"] is not None
    assert recorded(folder) == {"n1": OURS}
    assert undrain_nodes(folder) == {"n1": None}
    assert slurm.nodes["n1"] == ("IDLE", "")
    assert undrain_nodes(folder) == {}


def test_what_an_operator_has_added_since_stays(folder: FleetFolder, slurm: FakeSlurm) -> None:
    drain_nodes(folder, {"n1": OURS}, again=False)
    slurm.nodes["n1"] = ("IDLE+DRAIN", "ticket 7")
    found = undrain_nodes(folder)
    assert found == {"n1": "its reason is not that of this run: ticket 7"}
    assert slurm.nodes["n1"] == ("IDLE+DRAIN", "ticket 7")


def test_a_refusal_in_the_middle_leaves_a_record_of_what_was_drained(
    folder: FleetFolder, slurm: FakeSlurm
) -> None:
    slurm.refuses = "n1"
    found = drain_nodes(folder, {"n1": OURS, "n3": OURS}, again=False)
    assert found == {"n1": "scontrol failed: Invalid node name", "n3": None}
    assert slurm.nodes["n3"] == ("IDLE+DRAIN", OURS)
    assert recorded(folder) == {"n3": OURS}
    slurm.refuses = ""
    assert drain_nodes(folder, {"n1": OURS, "n3": OURS}, again=False)["n1"] is None
    assert undrain_nodes(folder) == {"n1": None, "n3": None}


@pytest.mark.parametrize("how", ["undrain", "scontrol"])
def test_a_node_that_was_made_usable_since_is_drained_again_only_on_request(
    folder: FleetFolder, slurm: FakeSlurm, how: str
) -> None:
    drain_nodes(folder, {"n1": OURS}, again=False)
    if how == "undrain":
        undrain_nodes(folder)
    else:
        slurm.nodes["n1"] = ("IDLE", "")
    found = drain_nodes(folder, {"n1": OURS, "n3": OURS}, again=False)
    assert str(found["n1"]).startswith("this run has drained it before")
    assert found["n3"] is None
    assert slurm.nodes["n1"] == ("IDLE", "")
    assert drain_nodes(folder, {"n1": OURS}, again=True) == {"n1": None}
    assert slurm.nodes["n1"] == ("IDLE+DRAIN", OURS)


def test_a_node_that_scontrol_does_not_show_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "run_tool", lambda *_: "NodeName=other State=IDLE\n")
    with pytest.raises(EngineError, match="does not show node n1"):
        drain.read_nodes(["n1"])


def test_without_failing_nodes_slurm_is_not_asked(
    folder: FleetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(words: Sequence[str], text: str = "") -> str:
        raise AssertionError(words)

    monkeypatch.setattr(drain, "run_tool", never)
    assert drain_nodes(folder, {}, again=False) == {}
    assert undrain_nodes(folder) == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((text, r"drained\.json cannot be read") for text in ("[]", "", "[" * 100_000)),
        ('{"n1": "fan 3 is loud"}', "n1: 'fan 3 is loud' is not a reason that a run has"),
    ],
    ids=["list", "empty", "deep", "of an operator"],
)
def test_an_invalid_record_takes_nothing_back(folder: FleetFolder, text: str, why: str) -> None:
    folder.drained.write_text(text)
    with pytest.raises(ConfigError, match=why):
        undrain_nodes(folder)


@pytest.mark.parametrize(
    ("faulty", "good", "drained", "step"),
    [
        ("", "AB", None, "nothing"),
        ("A", "B", None, "drain"),
        ("A", "B", "A", "nothing"),
        ("AB", "", "A", "drain"),
        ("", "AB", "A", "undrain"),
        # A GPU that is missing, or whose last burn-in was cut off, has not recovered.
        ("", "B", "A", "nothing"),
        ("", "A", "AB", "nothing"),
        ("B", "A", "A", "drain"),
        ("B", "A", "AB", "nothing"),
    ],
)
def test_the_next_step(faulty: str, good: str, drained: str | None, step: str) -> None:
    record = None if drained is None else DrainRecord(reason="gpu-sentry: x", gpus=tuple(drained))
    assert next_step(set(faulty), set(good), record) == step


@pytest.mark.parametrize(
    ("verdict", "good"),
    [
        (GpuVerdict(verdict="WARN", plan="standard", run="1"), {"GPU-1"}),
        (GpuVerdict(verdict="WARN", plan="screen", run="1", no_proof="a screen"), set()),
        (GpuVerdict(verdict="N/A", plan="screen", run="1", no_proof="a screen"), set()),
        (None, set()),
    ],
)
def test_a_run_that_proves_nothing_makes_no_gpu_good(
    verdict: GpuVerdict | None, good: set[str]
) -> None:
    gpu = SimpleNamespace(uuid="GPU-1", index=0, verdict=verdict, verified=None, faults=())
    assert drain.passed([cast("GpuStatus", gpu)]) == good

"""``sentinel workloads`` lists every registered workload, even if the import of one fails."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from sentinel.diagnostics.one_shot import Timeouts
from sentinel.diagnostics.workload_catalog import describe_workloads
from sentinel.stressor.loader import Wanted
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.programs import run_program
from tests.harness.timing import MACHINE_SLOWNESS, TIMEOUT_S


@pytest.mark.long
def test_a_workload_that_cannot_be_imported_hangs_or_crashes_does_not_hide_the_others() -> None:
    places = [
        "bad_workloads:WellBehaved",
        "bad_workloads.failing_import:work",
        "bad_workloads.hanging_import:work",
        "bad_workloads.crashing_import:work",
        "bad_workloads.exiting_import:work",
        "bad_workloads:WithoutRun",
        "bad_workloads:well_behaved",
    ]
    timeouts = Timeouts(opening=TIMEOUT_S, call=2.0 * MACHINE_SLOWNESS)
    wanted = [Wanted(number=number, target=place) for number, place in enumerate(places)]
    infos, stuck = describe_workloads(wanted, timeouts)
    assert not stuck
    assert [info.number for info in infos] == list(range(len(places)))
    warm, broken, hanging, crashing, missing, unruly, good = infos
    assert warm.error is None
    assert warm.summary == "Follow every rule, as a class."
    (rest,) = warm.options
    assert (rest.name, rest.kind, rest.default) == ("rest", "a number", "0.02")
    assert rest.text == "Seconds between two rounds."
    assert "RuntimeError: this module never worked" in str(broken.error)
    assert re.fullmatch(r"its import did not return within [\d.]+ s", str(hanging.error))
    ended = "its import did not return: its process was ended by SIGKILL ("
    assert str(crashing.error).startswith(ended)
    assert "ModuleNotFoundError" in str(missing.error)
    assert "is a class without a method `run`" in str(unruly.error)
    assert good.error is None


def install(folder: Path, name: str, workloads: dict[str, str]) -> None:
    """Create the metadata of an installed package that registers these workloads."""
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    lines = [f"{key} = {place}" for key, place in workloads.items()]
    (info / "entry_points.txt").write_text("\n".join(["[sentinel.workloads]", *lines, ""]))


@pytest.mark.long
def test_a_registered_workload_is_listed_with_its_package(
    simulated: SimulatedHost, tmp_path: Path
) -> None:
    places = {"warm": "bad_workloads:WellBehaved", "broken": "bad_workloads.failing_import:work"}
    install(tmp_path, "one", {**places, "twice": "bad_workloads:well_behaved"})
    others = {
        "twice": "bad_workloads:queues_very_long_quanta",
        "gemm": "x:y",
        "words": "just words",
    }
    install(tmp_path, "other", others)
    words = [sys.executable, "-m", "sentinel", "workloads", "--json"]
    done = run_program(
        *words, env=simulated.environment(PYTHONPATH=str(tmp_path)), timeout=4 * TIMEOUT_S
    )
    assert done.returncode == 1, done.stderr
    rows = json.loads(done.stdout)["workloads"]
    names = [row["name"] for row in rows]
    assert names == sorted(names)
    assert {"elementwise", "gemm", "hold", "warm", "broken"} <= set(names)
    assert names.count("twice") == 2
    shadowed = [row for row in rows if row["place"] == "x:y"]
    assert ["is that of a built-in workload" in row["error"] for row in shadowed] == [True]
    found = {row["name"]: row for row in rows if row not in shadowed}
    assert found["gemm"]["package"] == "gpu-sentry"
    options = {option["name"]: option for option in found["gemm"]["options"]}
    assert options["dtype"]["text"].endswith("`auto` is bf16, on older GPUs fp16 or fp32.")
    warm = found["warm"]
    assert (warm["package"], warm["version"], warm["place"]) == (
        "one",
        "1.2",
        "bad_workloads:WellBehaved",
    )
    assert warm["error"] is None
    assert "this module never worked" in found["broken"]["error"]
    assert "registered twice" in found["twice"]["error"]
    malformed = found["words"]
    assert (malformed["package"], malformed["place"]) == ("other", "just words")
    assert malformed["error"] == "its entry point 'just words' is not module:attribute"

"""A run: its settings, its end, what a resumption leaves of it, and when that is refused."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, cast

import pytest

from sentinel.burnin.checks.check import CheckResult, Status, Thresholds, above
from sentinel.burnin.formats import FORMATS, text_lines, write_reports
from sentinel.burnin.report import judge_run, report_object
from sentinel.burnin.request import RunRequest
from sentinel.burnin.resume import (
    check_settings,
    earlier_work,
    flags_to_resume,
    single_to_resume,
)
from sentinel.burnin.run import recorded_settings, until_end
from sentinel.burnin.run_files import complete, reopen
from sentinel.burnin.run_folder import RunFolder, read_object
from sentinel.burnin.verdict import Verdict
from sentinel.client.client import Client
from sentinel.client.event_stream import EventInfo, EventStream
from sentinel.config.changes import text_of
from sentinel.config.sources import Sources, from_flags, read_saved
from sentinel.diagnostics.counters import CountersResult
from sentinel.errors import ConfigError
from sentinel.host.procfs import boot_id
from sentinel.protocol import __version__
from sentinel.protocol.api_types import Settings
from sentinel.protocol.codec import from_json
from sentinel.protocol.commands import Given
from sentinel.protocol.counters import Counters, HostCounters
from sentinel.protocol.gpu import Gpu
from tests.harness.check_evidence import HEALTHY, PEER
from tests.harness.example_run import COPY, STARTED, ExampleRun, judged
from tests.harness.report_formats import SCHEMA, Parsed, closed, schema_problems


def test_only_what_differs_from_the_default_is_recorded_with_its_source(tmp_path: Path) -> None:
    request = RunRequest(
        folder=str(tmp_path), state=str(tmp_path), plan="", gpus=("0", "1"), fail_fast=True
    )
    given = (
        Given(key="gpus", text="3", source="SENTINEL_GPUS"),
        Given(key="workload", text="hold", source="--workload"),
        Given(key="rearm", text="7s", source="--rearm"),
        Given(key="poll", text="1s", source="/etc/sentinel/config.toml: poll"),
        Given(key="grace", text="5s", source="default"),
        Given(key="api.tcp", text="0.0.0.0:1", source="SENTINEL_TCP"),
        Given(key="memory.target", text="88%", source="file: gpu.1.memory.target", gpu="1"),
        Given(key="memory.target", text="50%", source="file: gpu.2.memory.target", gpu="2"),
        Given(key="memory.target", text="50%", source="--memory for GPU-2", gpu="GPU-2"),
    )
    gpus = [
        Gpu(uuid=f"GPU-{n}", index=n, name="Fake", pci_bus_id=f"0{n}:00.0", memory_total=1)
        for n in (0, 1)
    ]
    found = recorded_settings(Settings(settings=given), request, gpus)
    assert {(one["key"], one["value"], one["source"], one["gpu"]) for one in found} == {
        ("rearm", "7s", "--rearm", None),
        ("memory.target", "88%", "file: gpu.1.memory.target", "1"),
        ("gpus", "0,1", "--gpus", None),
        ("fail-fast", "on", "--fail-fast", None),
    }


def test_every_report_shows_the_settings(tmp_path: Path) -> None:
    run = ExampleRun(settings={"rearm": "7s", "memory/1": "<half>"}, resumed={"grace": "9s"})
    found = judged(run, tmp_path / "run")
    report = json.loads(json.dumps(report_object(found)))
    assert schema_problems(closed(SCHEMA), report) == []
    assert [one["key"] for one in report["run"]["settings"]] == ["rearm", "memory"]
    lines = list(text_lines(report))
    assert "setting rearm = 7s (--rearm)" in lines
    assert "setting memory of GPU 1 = <half> (--memory)" in lines
    assert any(line.startswith("resumed 2026") and "grace = 9s" in line for line in lines)
    page = FORMATS["html"](found, report)
    assert "<code>rearm</code>" in page
    assert "&lt;half&gt;" in page
    assert "Resumed at" in page


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (ExampleRun(gpus=1, cut=frozenset({0})), "SIGINT"),
        (ExampleRun(gpus=1, given_up={0: "the driver is too old"}), "the driver is too old"),
    ],
)
def test_a_report_lists_once_what_was_not_done_with_its_reason(
    run: ExampleRun, why: str, tmp_path: Path
) -> None:
    found = judged(run, tmp_path / "run")
    report = report_object(found)
    (gpu,) = report["gpus"]
    assert any(COPY in reason for reason in gpu["reasons"]), "programs have it as well"
    lines = [line for line in text_lines(report) if line.startswith(" ")]
    assert [line.split()[:3] for line in lines if COPY in line] == [[COPY, "not", "done"]]
    assert [why in line for line in lines if COPY in line] == [True]
    page = Parsed(FORMATS["html"](found, report)).text
    section = page.partition("Serial")[2].partition("Interruptions")[2].partition("Checks")[0]
    assert section.count(why) == 1, section


class IdleDaemon:
    """The client of a daemon in which no burn-in runs any more."""

    def __init__(self) -> None:
        self.daemon = self
        self.pid = 1
        self.burnin = None

    def status(self) -> IdleDaemon:
        return self


class Stream(list[EventInfo]):
    """The stream of a daemon."""

    daemon, newest = "one", 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


def test_a_record_ends_if_the_end_of_the_run_is_lost() -> None:
    lost = EventInfo(id=None, name="lost", fields={"count": 5})
    events = [EventInfo(id=2, name="gpu.idle", fields={}), lost]
    stream = Stream([*events, EventInfo(id=9, name="gpu.idle", fields={})])
    found = until_end(cast("Client", IdleDaemon()), cast("EventStream", stream), "run")
    assert [next(found), next(found)] == events
    with pytest.raises(StopIteration):
        next(found)


NOW = STARTED + timedelta(minutes=5)
CUT = ExampleRun(cut=frozenset({0, 1}))


def rewrite(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def counters_of(folder: RunFolder) -> tuple[Counters, ...]:
    found = json.loads(folder.counters.read_text())["before"]
    return tuple(from_json(Counters, one, "counters") for one in found)


def read_of(folder: RunFolder, **changed: Any) -> CountersResult:
    """Read the GPUs of a run again, with these changes."""
    counters = tuple(replace(one, **changed) for one in counters_of(folder))
    return CountersResult(counters=counters, driver_error=None, stuck=False)


def resumable(run: ExampleRun, path: Path) -> RunFolder:
    """Write the folder of a run of this version and boot."""
    folder = run.write(path)
    rewrite(folder.header, version=__version__, boot=boot_id())
    return folder


def refusal(folder: RunFolder, thresholds: Thresholds) -> str:
    with pytest.raises(ConfigError) as error:
        earlier_work(folder, NOW, counters_of(folder), thresholds)
    return error.value.what


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("version", "0.0.1", "it was begun by version 0.0.1"),
        ("boot", "another", "the host was started again"),
        ("started", "2020-01-01T00:00:00+00:00", "h ago"),
        ("node", {"hostname": "n", "driver": None, "torch": "1.0"}, "begun with torch 1.0, this"),
    ],
)
def test_a_run_is_not_resumed_after_a_change(
    tmp_path: Path, key: str, value: Any, why: str
) -> None:
    folder = resumable(CUT, tmp_path)
    rewrite(folder.header, **{key: value})
    assert why in refusal(folder, Thresholds())
    assert judge_run(folder, Thresholds()).resume_command is None, "a line that is printed works"


def test_a_run_of_a_level_that_has_other_phases_now_is_not_resumed(tmp_path: Path) -> None:
    folder = resumable(replace(CUT, name="standard"), tmp_path)
    assert "the level standard has other phases now" in refusal(folder, Thresholds())
    assert judge_run(folder, Thresholds()).resume_command is None


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (ExampleRun(), "the run is complete"),
        (ExampleRun(given_up={0: "no power"}), "has done its phases, but for those that it could"),
    ],
)
def test_a_run_with_nothing_left_is_not_resumed(tmp_path: Path, run: ExampleRun, why: str) -> None:
    assert why in refusal(resumable(run, tmp_path), Thresholds())


def settings_of(**values: str) -> tuple[Given, ...]:
    """Build settings that flags have given, by key."""
    return from_flags({key.replace("__", "."): text for key, text in values.items()})


@pytest.mark.parametrize(
    ("begun", "given", "wanted"),
    [
        ({}, {}, ["--memory=88%", "--keep-free=0", "--throttle=critical"]),
        ({"memory__target": "10%"}, {}, ["--memory=10%"]),
        ({"memory__target": "10%"}, {"memory__target": "9%"}, "--memory=9%: the run was begun"),
        ({"memory__target": "10%"}, {"memory__target": "10 %"}, ["--memory=10%"]),
        ({}, {"memory__target": "10%"}, "begun with 88%"),
        ({}, {"memory__keep_free": "1GiB"}, "begun with 0"),
        ({"rearm": "7s", "for": "1h"}, {}, ["--rearm=7s"]),
        ({"rearm": "7s"}, {"rearm": "9s"}, []),
        ({"rearm@file": "7s"}, {}, ["--rearm=7s"]),
    ],
)
def test_a_private_daemon_goes_on_with_what_the_run_was_begun_with(
    tmp_path: Path, begun: dict[str, str], given: dict[str, str], wanted: list[str] | str
) -> None:
    """A file that gave a setting may be gone: it was named by --config."""
    recorded = {key.replace("__", ".").removesuffix("@file"): text for key, text in begun.items()}
    folder = ExampleRun(settings=recorded).write(tmp_path / "run")
    settings = [_as_flag(one) for one in read_object(folder.header)["settings"]]
    if "rearm@file" in begun:
        settings = [{**one, "source": "/gone: rearm"} for one in settings]
    rewrite(folder.header, settings=settings)
    sources = Sources(given=settings_of(**given))
    if isinstance(wanted, str):
        with pytest.raises(ConfigError, match=re.escape(wanted)):
            flags_to_resume(folder, sources)
        return
    flags = flags_to_resume(folder, sources)
    assert set(wanted) <= set(flags)
    names = [flag.partition("=")[0] for flag in flags]
    assert "--for" not in names
    assert ("--rearm" in names) == ("--rearm=7s" in wanted)


def test_a_new_limit_of_the_host_stays_in_force(tmp_path: Path) -> None:
    """It is in a file, and so was the value that the run was begun with."""
    folder = ExampleRun(settings={"rearm": "7s", "rearm/1": "6s"}).write(tmp_path / "run")
    settings = read_object(folder.header)["settings"]
    rewrite(folder.header, settings=[{**one, "source": "/a: rearm"} for one in settings])
    now = Given(key="rearm", text="9s", source="/a: rearm")
    assert not {flag for flag in flags_to_resume(folder, Sources(given=(now,))) if "rearm" in flag}
    single = replace(now, gpu="1")
    assert single_to_resume(folder, Sources(given=(single,))) == []


def test_a_private_daemon_has_the_settings_of_single_gpus(tmp_path: Path) -> None:
    """What the work depends on is as it was, whatever a file says now."""
    begun = {"memory.target/1": "10%", "rearm/1": "6s"}
    folder = ExampleRun(settings=begun).write(tmp_path / "run")
    now = Given(key="memory.target", text="9%", source="/a: gpu.1.memory.target", gpu="1")
    saved = tmp_path / "settings.toml"
    saved.write_text(text_of(single_to_resume(folder, Sources(given=(now,)))))
    found = {(value.gpu, value.key): value.text for value in read_saved(saved)}
    assert found == {("1", "memory.target"): "10%", ("1", "rearm"): "6s"}


def _as_flag(value: dict[str, Any]) -> dict[str, Any]:
    """Give a recorded setting the source of its flag."""
    return {**value, "source": from_flags({value["key"]: ""})[0].source}


@pytest.mark.parametrize(
    ("begun", "now", "why"),
    [
        ({"memory.target": "10%"}, {"memory.target": "10%", "rearm": "7s"}, None),
        ({"memory.target": "0.5GiB"}, {"memory.target": "512MiB"}, None),
        ({"memory.target": "10%"}, {}, "begun with memory.target = 10%, and that is the default"),
        ({}, {"throttle.pace": "full"}, "= the default, and that is full now"),
        ({"memory.target/1": "10%"}, {"memory.target": "10%"}, "memory.target = the default"),
    ],
)
def test_a_daemon_with_which_the_work_would_be_another_is_refused(
    tmp_path: Path, begun: dict[str, str], now: dict[str, str], why: str | None
) -> None:
    folder = ExampleRun(settings=begun).write(tmp_path / "run")
    settings = read_object(ExampleRun(settings=now).write(tmp_path / "now").header)["settings"]
    if why is None:
        check_settings(folder, __version__, settings)
        with pytest.raises(ConfigError, match="the daemon has version"):
            check_settings(folder, "0.0.1", settings)
        return
    with pytest.raises(ConfigError, match=re.escape(why)):
        check_settings(folder, __version__, settings)


def test_a_resumed_run_that_is_killed_has_neither_report_nor_counters(tmp_path: Path) -> None:
    """The last part of this run has done its phases, and was killed before its counters."""
    folder = ExampleRun().write(tmp_path)
    whole = judge_run(folder, Thresholds())
    assert whole.verdict is Verdict.PASS
    write_reports(folder, whole)
    reopen(folder, [], read_of(folder), {})
    assert not folder.report.exists()
    found = judge_run(folder, Thresholds())
    assert found.verdict is Verdict.INCOMPLETE
    (reason,) = found.gpus[0].reasons
    assert "counters after the run are not known" in reason


@pytest.mark.parametrize(
    ("known", "status"),
    [
        ({"ignored_devices": "CUDA ignores '1-2'"}, Status.WARN),
        ({"held_elsewhere": {PEER.uuid: "pid 5 (x)"}}, Status.NOT_TESTED),
    ],
)
def test_a_resumed_run_still_knows_which_gpus_were_left_out(
    tmp_path: Path, known: dict[str, Any], status: Status
) -> None:
    folder = ExampleRun().write(tmp_path)
    counters = json.loads(folder.counters.read_text())
    gpus = [counters["before"][0], asdict(PEER)]
    folder.write(folder.counters, {**counters, "before": gpus, "selected": True, **known})

    def tested() -> Status:
        node = judge_run(folder, Thresholds()).node
        return next(result.status for result in node if result.id == "node.tested")

    assert tested() is status
    reopen(folder, [], read_of(folder), {})
    recorded = json.loads(folder.counters.read_text())
    assert {name: recorded.get(name) for name in known} == known
    assert tested() is status


#: A GPU whose handle could not be had.
BLIND = {"uuid": "", "failed": HEALTHY.unread("no permission").failed}


@pytest.mark.parametrize(
    ("after", "wanted", "reason"),
    [
        ({"uuid": "GPU-other"}, Verdict.FAIL, "it is not listed any more after the run"),
        ({"uuid": "", "lost": "it fell off"}, Verdict.FAIL, "it is not listed any more"),
        (BLIND, Verdict.INCOMPLETE, "after the run are not known: no permission"),
    ],
)
def test_a_gpu_that_cannot_be_opened_after_a_run_is_not_one_that_is_gone(
    tmp_path: Path, after: dict[str, object], wanted: Verdict, reason: str
) -> None:
    folder = ExampleRun(moved={0: after}).write(tmp_path)
    found = judge_run(folder, Thresholds())
    assert found.gpus[0].verdict is wanted
    assert reason in found.gpus[0].reasons[0]


@pytest.mark.parametrize("unread", [None, "the kernel's log is not whole any more"])
def test_the_log_of_a_killed_part_is_read_by_the_one_after_it(
    tmp_path: Path, unread: str | None
) -> None:
    """The first part ends, the second one is killed, and the third one ends."""
    folder = ExampleRun().write(tmp_path)
    after = read_of(folder)
    reopen(folder, [], after, {})
    complete(folder, after, None, HostCounters())
    assert json.loads(folder.counters.read_text())["kernel_log_error"] is None
    reopen(folder, [], after, {})
    reopen(folder, [], after, {})
    complete(folder, after, unread, HostCounters())
    found = judge_run(folder, Thresholds()).gpus[0]
    (xid,) = (result for result in found.results if result.id == "xid")
    assert xid.status is (Status.PASS if unread is None else Status.NOT_TESTED)
    assert json.loads(folder.counters.read_text())["kernel_log_error"] == unread


def test_what_each_part_counted_is_judged_whatever_was_reset_in_between(tmp_path: Path) -> None:
    """The parts count 7, 20 - 15 and then nothing known: the last one is killed."""
    folder = ExampleRun(moved={0: {"ecc_corrected_total": 7}}).write(tmp_path)

    def corrected() -> CheckResult:
        results = judge_run(folder, Thresholds()).gpus[0].results
        return next(result for result in results if result.id == "ecc.corrected_new")

    assert corrected().status is Status.PASS
    reopen(folder, [], read_of(folder, ecc_corrected_total=15), {})
    assert corrected().status is Status.NOT_TESTED
    complete(folder, read_of(folder, ecc_corrected_total=20), None, HostCounters())
    assert (corrected().status, corrected().value) == (Status.WARN, 12)
    assert corrected().evidence == "ecc_corrected_total from 0 to 7, from 15 to 20"
    reopen(folder, [], read_of(folder), {})
    assert (corrected().status, corrected().value) == (Status.WARN, 12)
    reopen(folder, [], read_of(folder, ecc_corrected_total=3), {})
    complete(folder, read_of(folder, ecc_corrected_total=2), None, HostCounters())
    assert corrected().evidence.endswith("from 15 to 20, from 0 to 3, from 3 to 2")
    assert corrected().value == 7 + 5 + 3 + 2


def test_a_fault_by_other_limits_stays_final(tmp_path: Path) -> None:
    """The report has failed the run by a file of thresholds, which is not given again."""
    folder = resumable(CUT, tmp_path)
    earlier_work(folder, NOW, counters_of(folder), Thresholds())
    strict = Thresholds(replaced={"load.power": {"fail": above(0)}})
    assert "GPU 0 has failed" in refusal(folder, strict)
    write_reports(folder, judge_run(folder, strict))
    assert "GPU 0 has failed" in refusal(folder, Thresholds())


def test_a_run_goes_on_by_the_limits_that_are_given(tmp_path: Path) -> None:
    """What fails by the default limits does not by those of the file, as in its report."""
    run = ExampleRun(cut=frozenset({0, 1}), moved={0: {"ecc_uncorrected_total": 1}})
    folder = resumable(run, tmp_path)
    assert "GPU 0 has failed" in refusal(folder, Thresholds())
    lenient = Thresholds(replaced={"ecc.uncorrected_new": {"fail": above(5)}})
    _, burnins = earlier_work(folder, NOW, counters_of(folder), lenient)
    assert [burnin.phase for burnin in burnins.values()] == [2, 2]

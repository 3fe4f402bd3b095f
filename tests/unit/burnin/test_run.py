"""A run: its settings, what differs from the defaults and from where; and its end."""

from __future__ import annotations

from pathlib import Path
from typing import Self, cast

import pytest

from sentinel.burnin.formats import FORMATS
from sentinel.burnin.report import report_object
from sentinel.burnin.run import RunRequest, recorded_settings, until_end
from sentinel.burnin.run_folder import RunFolder
from sentinel.burnin.text import text_lines
from sentinel.client.client import Client
from sentinel.client.event_stream import EventInfo, EventStream
from sentinel.protocol.commands import Given
from sentinel.protocol.settings_types import Settings
from tests.harness.example_run import ExampleRun
from tests.harness.judged_run import judged
from tests.harness.report_formats import SCHEMA, closed, schema_problems


def test_only_what_differs_from_the_default_is_recorded_with_its_source(tmp_path: Path) -> None:
    request = RunRequest(folder=RunFolder(path=tmp_path), text="", gpus=("0", "1"), fail_fast=True)
    given = (
        Given(key="gpus", text="3", source="SENTINEL_GPUS"),
        Given(key="workload", text="hold", source="--workload"),
        Given(key="rearm", text="7s", source="--rearm"),
        Given(key="poll", text="1s", source="/etc/sentinel/config.toml: poll"),
        Given(key="grace", text="5s", source="default"),
        Given(key="api.tcp", text="0.0.0.0:1", source="SENTINEL_TCP"),
        Given(key="memory.target", text="88%", source="file: gpu.1.memory.target", gpu="1"),
    )
    found = recorded_settings(Settings(settings=given), request)
    assert {(one["key"], one["value"], one["source"], one["gpu"]) for one in found} == {
        ("rearm", "7s", "--rearm", None),
        ("memory.target", "88%", "file: gpu.1.memory.target", "1"),
        ("gpus", "0,1", "--gpus", None),
        ("fail-fast", "on", "--fail-fast", None),
    }


def test_every_report_shows_the_settings(tmp_path: Path) -> None:
    run = ExampleRun(settings={"rearm": "7s", "memory/1": "<half>"}, resumed={"grace": "9s"})
    found = judged(run, tmp_path / "run")
    report = report_object(found)
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

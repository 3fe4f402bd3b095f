"""Every parser of what others write returns, or raises its documented error; and soon.

The inputs are valid texts with random changes, and random texts. ``make fuzz`` tries many more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sentinel.burnin.checks import thresholds_file
from sentinel.burnin.checks.recorded_run import CHECKS
from sentinel.burnin.levels import level_text
from sentinel.config.gpu_selection import read_visible, select_gpus
from sentinel.config.model import SETTINGS
from sentinel.config.plan import parse_plan
from sentinel.config.setting import parse_ignore_rules
from sentinel.config.sources import from_environment, read_file
from sentinel.config.specs import parse_workload
from sentinel.config.toml_text import parse_toml
from sentinel.errors import ConfigError, SentinelError, WireError
from sentinel.fleet.node_result import node_result
from sentinel.host.golden_store import Goldens
from sentinel.host.timed_file import RESERVATIONS, Clocks
from sentinel.protocol.codec import decode, encode
from sentinel.protocol.gpu import Gpu, GpuProcess, Memory, Reading
from sentinel.protocol.stressor import STRESSOR_MESSAGES, Failed, FailureKind
from sentinel.units import parse_duration, parse_size
from tests.harness.large_texts import PIECES, large
from tests.harness.timing import MACHINE_SLOWNESS

GPUS = tuple(
    Gpu(
        uuid=f"GPU-{digit * 8}-0000-0000-0000-000000000000",
        index=index,
        name="NVIDIA H200",
        pci_bus_id=f"00000000:{index + 1:02X}:00.0",
        memory_total=2**37,
    )
    for index, digit in enumerate("abc")
)
ORDER = tuple(gpu.uuid for gpu in GPUS)
READING = Reading(
    uuid=ORDER[0],
    at=1.0,
    memory=Memory(total=10, used=1, free=9),
    processes=(GpuProcess(pid=7, name="python", user="anna"),),
    processes_at=1.0,
)
CLOCKS = Clocks(wall=1.5, monotonic=1.0, boot="b")
STORED = {
    "schema_version": 1,
    "written": vars(CLOCKS),
    "reservations": [
        {
            "id": "1a2b3c4d",
            "gpus": [ORDER[0]],
            "count": 1,
            "reason": "demo",
            "since": 1.0,
            "until": 2.0,
            "bound": False,
            "by": {"via": "unix", "uid": 0, "pid": 7, "started": 9},
        }
    ],
}
GOLDEN = {
    "schema_version": 1,
    "gpu": "NVIDIA H200",
    "sms": 132,
    "torch": "2.11",
    "blas": "13",
    "dtype": "bf16",
    "shape": "8192",
    "seed": 1,
    "checksum": "0x1f",
}

#: The most processor time of a parser for 64 KiB.
LIMIT_S = 0.1 * MACHINE_SLOWNESS

#: Each parser with valid texts and the errors that it documents.
PARSERS: dict[str, tuple[Callable[[str], Any], tuple[str, ...], tuple[type[Exception], ...]]] = {
    "CUDA_VISIBLE_DEVICES": (
        lambda text: read_visible(text, GPUS, ORDER),
        ("0,1,2", "GPU-aaaaaaaa,GPU-b", " +1, 2", "-1", "MIG-1"),
        (),
    ),
    "selectors": (
        lambda text: select_gpus(text.split(","), GPUS),
        ("0,1", "GPU-a", "00000000:01:00.0", "1:0.0", "all"),
        (SentinelError,),
    ),
    "size": (parse_size, ("20GiB", "1.5 TB", "512MiB"), (ValueError,)),
    "duration": (parse_duration, ("1h30m", "75ms", "2d"), (ValueError,)),
    "ignore rules": (
        parse_ignore_rules,
        ("name=Xorg", "user=monitor,memory<200MiB"),
        (ValueError,),
    ),
    "workload": (
        parse_workload,
        ("gemm:dtype=bf16,size=8192", "package.module:run:key=a:b=c"),
        (ConfigError,),
    ),
    "reservations": (
        lambda text: RESERVATIONS.parse(text, CLOCKS),
        (json.dumps(STORED),),
        (ValueError,),
    ),
    "plan": (
        lambda text: parse_plan(parse_toml(text, "plan.toml"), "plan.toml"),
        (level_text("screen"), 'spec = "sentinel-plan-v1"\ncycles = 9\n[[phase]]\nseconds = "1m"'),
        (ConfigError,),
    ),
    "thresholds": (
        lambda text: thresholds_file.parse(text, "limits.toml", CHECKS.limits),
        ('spec = "dcgm-error-thresholds-v1"\n[xids]\n63 = "fail"\n[common_thresholds]\n',),
        (ConfigError,),
    ),
    "report of a node": (
        lambda text: node_result(json.loads(text)),
        ('{"schema_version": "1.0", "gpus": []}',),
        (ValueError, RecursionError),
    ),
    "variables": (
        lambda text: from_environment({"SENTINEL_" + text: "1"}),
        ("MEMORY", "SOCKET_GROUP"),
        (ConfigError,),
    ),
    **{
        f"--{one.key}": (
            one.form.parse,
            tuple(filter(None, (one.default, one.form.least, "Mon-Fri 08:00-18:00", "30m/5m"))),
            (ValueError,),
        )
        for one in SETTINGS
    },
}

_CALM = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@st.composite
def changed(draw: st.DrawFn, valid: tuple[str, ...]) -> str:
    """Draw a valid text with random changes, or any text."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.text(max_size=80))
    text = draw(st.sampled_from(valid))
    for _ in range(draw(st.integers(1, 5))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 8)))
        piece = draw(st.sampled_from(PIECES) | st.text(max_size=4))
        text = text[:start] + piece * draw(st.sampled_from((1, 1, 1, 2, 400))) + text[end:]
    return text


@pytest.mark.parametrize("name", PARSERS)
@_CALM
@given(data=st.data())
def test_a_parser_raises_nothing_but_its_error(name: str, data: st.DataObject) -> None:
    parser, valid, errors = PARSERS[name]
    text = data.draw(changed(valid))
    with suppress(*errors):
        parser(text)


@pytest.mark.parametrize("name", PARSERS)
@_CALM
@given(data=st.data())
def test_a_parser_takes_no_more_time_for_any_text(name: str, data: st.DataObject) -> None:
    """A client's text has at most 64 KiB; the processor time does not depend on other programs."""
    parser, valid, errors = PARSERS[name]
    text = data.draw(large(valid, 2**16))
    for _ in range(3):  # garbage may have been collected meanwhile
        began = time.thread_time()
        with suppress(*errors):
            parser(text)
        spent_s = time.thread_time() - began
        if spent_s < LIMIT_S:
            break
    assert spent_s < LIMIT_S


@_CALM
@given(data=st.data())
def test_a_message_of_a_child_is_one_or_a_wire_error(data: st.DataObject) -> None:
    """A workload can write anything into its channel."""
    failed = Failed(reason="boom", kind=FailureKind.CRASH)
    valid = tuple(encode(one).decode("latin-1") for one in (READING, failed))
    text = data.draw(changed(valid))
    for kinds in (STRESSOR_MESSAGES, (Reading,)):
        with suppress(WireError):
            decode(text.encode("latin-1", errors="replace"), kinds)


@_CALM
@given(data=st.data())
def test_a_configuration_file_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    valid = (
        'workload = "gemm"\n[memory]\ntarget = "88%"\n[gpu.0]\nrearm = "5s"\n',
        'quiet = ["Mon-Fri 08:00-18:00"]\n[limits]\ngpus = 2\n',
    )
    path = tmp_path / "config.toml"
    path.write_bytes(data.draw(changed(valid)).encode(errors="replace"))
    with suppress(ConfigError):
        read_file(path)


@_CALM
@given(data=st.data())
def test_a_stored_file_with_damage_is_read_as_far_as_it_is_valid(
    tmp_path: Path, data: st.DataObject
) -> None:
    """Reservations are set aside as a whole, golden checksums are skipped by line."""
    stored = tmp_path / "reservations.json"
    stored.write_bytes(data.draw(changed((json.dumps(STORED),))).encode(errors="replace"))
    found, problem = RESERVATIONS.load(stored, CLOCKS)
    assert problem is None or not found
    goldens = tmp_path / "goldens.jsonl"
    goldens.write_bytes(data.draw(changed((json.dumps(GOLDEN) + "\n",))).encode(errors="replace"))
    store = Goldens(goldens, warn=lambda _: None)
    assert len(store.records()) + len(store.skipped()) <= goldens.read_bytes().count(b"\n")

"""The report of the doctor as text and as JSON."""

from __future__ import annotations

from dataclasses import replace

import click

from sentinel.cli.tools.doctor import as_object, page
from sentinel.diagnostics.doctor_checks import diagnose
from sentinel.diagnostics.doctor_facts import Held
from tests.harness.doctor_harness import GPU, HOST, with_gpu


def test_gpus_with_the_same_result_share_a_line() -> None:
    gpus = tuple(
        replace(GPU, index=i, uuid=f"GPU-{i}", persistence=(int(i != 3),)) for i in range(6)
    )
    text = list(page(diagnose(replace(HOST, gpus=gpus, usable_gpus=6)), colour=False))
    modes = [line for line in text if line[9:].startswith("persistence mode")]
    assert [mode[27:].partition(": ")[0] for mode in modes] == ["GPU 0-2, 4-5", "GPU 3"]
    assert [mode[:7].strip() for mode in modes] == ["ok", "warning"]
    oks = sum(line.startswith("ok ") for line in text)
    assert text[-1].endswith(f": 1 warning, {oks} ok"), "it counts the entries above"
    assert len(text) < 50
    assert max(map(len, text)) <= 100
    narrow = page(diagnose(HOST), colour=False, width=70)
    assert max(map(len, narrow)) <= 70


def test_the_report_has_a_line_for_a_held_gpu_that_the_driver_does_not_list() -> None:
    facts = replace(HOST, held=(Held(uuid="GPU-9", holder="pid 5", uid=0),))
    assert any("GPU-9: held by pid 5" in line for line in page(diagnose(facts), colour=False))


def test_only_the_level_words_are_coloured() -> None:
    plain = "\n".join(page(diagnose(with_gpu(mig=(1, 1))), colour=False))
    coloured = "\n".join(page(diagnose(with_gpu(mig=(1, 1))), colour=True))
    assert "\x1b[33mwarning" in coloured
    assert "\x1b" not in plain
    assert click.unstyle(coloured) == plain


def test_the_json_report_identifies_gpus_by_uuid() -> None:
    body = as_object(diagnose(with_gpu(display=(1,))))
    assert body["verdict"] == "warning"
    assert isinstance(body["lines"], list)
    (display,) = (
        row for row in body["lines"] if row["check"] == "display" and row["gpu"] == "GPU-1"
    )
    assert display == {
        "check": "display",
        "gpu": "GPU-1",
        "level": "warning",
        "found": "attached",
        "means": "this GPU is not occupied, for the user of the display",
        "do": "To occupy it: --yield-to compute",
    }

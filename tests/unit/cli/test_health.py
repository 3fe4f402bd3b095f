"""`sentinel health` shows every number of a card at 80 columns."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sentinel.cli.daemon import health
from sentinel.host.verified_store import LastVerdict
from sentinel.protocol.api_types import GpuProof

PROOF = GpuProof(
    seconds=4_445_000.0,
    checks=123_456_789,
    errors=12_345,
    findings=1_234,
    since=datetime(2026, 1, 1, tzinfo=UTC),
    last=datetime(2026, 11, 23, 8, 30, tzinfo=UTC),
    workload="memtest",
)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_number_is_cut(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    verdict = LastVerdict(
        index=7,
        model="NVIDIA H200 NVL",
        verdict="FAIL",
        plan="standard",
        ended=datetime(2026, 11, 20, 10, tzinfo=UTC),
        run="/runs/1",
    )
    card = health._Card(
        uuid="GPU-1",
        serial=None,
        present=False,
        index=7,
        name="NVIDIA H200 NVL",
        verified=PROOF,
        burnin=verdict,
    )
    out = "\n".join(health._lines([card]))
    assert all(len(line) <= width for line in out.splitlines())
    for number in ("1,234.7 h", "123,456,789", "12,345", "1,234", "2026-11-23 08:30", "memtest"):
        assert number in out
    assert "FAIL standard 2026-11-20" in out

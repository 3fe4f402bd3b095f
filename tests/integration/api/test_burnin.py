"""The burn-in over the API: what is refused before the supervisor gets a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.api_harness import ApiServer, ask

PLAN = """
spec = "sentinel-plan-v1"
name = "p"
[[phase]]
name = "warm"
workload = "{}"
seconds = "1m"
"""


@pytest.mark.parametrize(
    ("workload", "why"),
    [
        ("gemm:size=banana", "phase 'warm': workload gemm: option size='banana' is not a whole"),
        ("gem", "phase 'warm': there is no workload 'gem'"),
    ],
)
def test_a_plan_with_a_wrong_workload_is_refused(tmp_path: Path, workload: str, why: str) -> None:
    with ApiServer(tmp_path) as api:
        body = {"plan": PLAN.format(workload), "gpus": ["0"]}
        refused = ask(api, "POST", "/v1/burnin", body)
        assert refused.status == 422
        assert why in refused.body["detail"]
        assert api.commands == []

"""A file replaces limits that exist, and every mistake in it is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sentinel.burnin.checks.check import (
    Limit,
    Status,
    Thresholds,
    above,
    at_least,
    at_most,
    below,
    describe,
)
from sentinel.burnin.checks.recorded_run import CHECKS
from sentinel.burnin.checks.thresholds_file import SPEC, parse
from sentinel.errors import ConfigError
from tests.harness.check_evidence import Run, moment

KNOWN = CHECKS.limits

FILE = f"""
version = "4.6.0"
spec = "{SPEC}"

[common_thresholds."memory.retired_pages.fail".GTE]
value = 2
field_ids = ["DCGM_FI_DEV_RETIRED_SBE", "DCGM_FI_DEV_RETIRED_DBE"]

[common_thresholds."memory.retired_pages.fail".metadata]
severity = "isolate"

[common_thresholds."ecc.corrected_new.warn"]
GT.value = 1e6

[xids]
63 = "fail"
"""


def test_a_file_replaces_limits_and_the_result_names_it() -> None:
    thresholds = parse(FILE, "/etc/limits.toml", KNOWN)
    gpu = moment(retired_corrected_total=2)
    check = CHECKS["memory.retired_pages"]
    found = check.run(gpu, thresholds)
    assert (found.status, found.source) == (Status.FAIL, "/etc/limits.toml")
    assert found.threshold == "fail >= 2, warn >= 15"
    assert check.run(gpu, Thresholds()).status is Status.PASS
    evidence = Run(after={"ecc_corrected_total": 1000}).evidence()
    assert CHECKS["ecc.corrected_new"].run(evidence, thresholds).status is Status.PASS
    assert CHECKS["ecc.corrected_new"].run(evidence, Thresholds()).status is Status.WARN
    untouched = CHECKS["temperature.gpu"].run(gpu, thresholds)
    assert untouched.source != "/etc/limits.toml"
    assert thresholds.overridden() == {
        "memory.retired_pages.fail": ">= 2",
        "ecc.corrected_new.warn": "> 1e+06",
        "xid.63": "fail",
    }


#: A file that is refused, and words of the error.
MISTAKES: list[tuple[str, ...]] = [
    ("spec = ", "not TOML"),
    ("spec = 'dcgm-error-thresholds-v2'", "dcgm-error-thresholds-v2", SPEC),
    ("[common_thresholds]", "spec is None"),
    (f"a = {'[' * 100_000}", "its tables or lists are nested too deeply"),
]
#: What follows the first line of a file.
IN_THE_FILE: list[tuple[str, ...]] = [
    ("thresholds = 1", "thresholds is not known", "common_thresholds"),
    ("common_thresholds = 1", "common_thresholds is not a table"),
    ("[common_thresholds]\n'pcie.replays.warn' = 5", "not a table", "GT"),
    (
        "[common_thresholds.'ecc.corrected.warn']\nGT.value = 1",
        *("ecc.corrected.warn", "not a threshold", "ecc.corrected_new.warn"),
    ),
    (
        "[common_thresholds.'pcie.replays.fail']\nGT.value = 1",
        *("pcie.replays.fail", "pcie.replays.warn"),
    ),
    ("[xids]\n63 = 'maybe'", "xids.63", "'maybe'", "fail, warn, pass"),
    ("[xids]\nten = 'fail'", "xids.ten"),
    (f"[xids]\n{'6' * 5_000} = 'fail'", "666 is not the number of an XID"),
    ("[xids]\n999 = 'fail'", "XID 999 is not", "Allowed are 8, "),
]
#: What a limit has.
IN_A_LIMIT: list[tuple[str, ...]] = [
    ("GTE.value = 1", "pcie.replays.warn", "GTE is not known", "GT"),
    ("GT.limit = 1", "GT.limit is not known", "value"),
    ("GT = 5", "GT is not a table"),
    ("GT.value = nan", "GT.value is nan", "finite"),
    ("GT.value = true", "GT.value is True", "finite"),
    ("GT = {}", "GT.value is None"),
]
IN_THE_FILE += [
    (f"[common_thresholds.'pcie.replays.warn']\n{text}", *words) for text, *words in IN_A_LIMIT
]
MISTAKES += [(f"spec = '{SPEC}'\n{text}", *words) for text, *words in IN_THE_FILE]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_names_the_file_the_key_and_what_is_allowed(mistake: tuple[str, ...]) -> None:
    text, *words = mistake
    with pytest.raises(ConfigError) as raised:
        parse(text, "/etc/limits.toml", KNOWN)
    assert raised.value.what.startswith("/etc/limits.toml: ")
    for word in words:
        assert word in str(raised.value)


def test_every_limit_can_be_replaced() -> None:
    rows = "".join(
        f"[common_thresholds.'{check}.{name}'.{limit.comparison}]\nvalue = 7\n"
        for check, limits in KNOWN.items()
        for name, limit in limits.items()
    )
    thresholds = parse(f"spec = '{SPEC}'\n{rows}", "f", KNOWN)
    for check, limits in KNOWN.items():
        found = thresholds.of(check, limits)
        assert {limit.value for limit in found.values()} == {7.0}
        assert found.keys() == limits.keys()


@pytest.mark.parametrize(
    ("limit", "broken"), [(above, [6]), (at_least, [5, 6]), (below, [4]), (at_most, [4, 5])]
)
def test_a_limit_is_broken_on_its_own_side(
    limit: Callable[[float], Limit], broken: list[int]
) -> None:
    assert [value for value in (4, 5, 6) if limit(5).broken_by(value)] == broken
    assert describe({"fail": above(80), "warn": at_most(8.5)}) == "fail > 80, warn <= 8.5"

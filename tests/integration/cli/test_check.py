"""``sentinel check`` on simulated GPUs with injected figures: every format and exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sentinel.burnin.checks.evidence import MomentEvidence
from sentinel.burnin.checks.recorded_run import CHECKS
from sentinel.cli.main import run_command_line
from sentinel.diagnostics.counters import CountersResult
from sentinel.host.daemon_lookup import find_shared
from sentinel.host.simulation import Registry
from sentinel.host.timed_file import FAULTS
from sentinel.host.verified_store import StoredWork, acknowledge, save
from sentinel.protocol.views import VerifiedCounts
from tests.harness.sysfs import write_controller, write_port

pytestmark = pytest.mark.long

Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("SENTINEL_SIM_DIR", str(tmp_path / "gpus"))
    monkeypatch.setenv("COLUMNS", "120")
    return Registry.create(tmp_path / "gpus", 2)


@pytest.fixture
def check(registry: Registry, capfd: pytest.CaptureFixture[str]) -> Check:
    """Return a function that runs the command; it returns the code, the output and the errors."""

    def run(*arguments: str, simulate: bool = True) -> tuple[int, str, str]:
        given = ["check", *arguments, *(["--simulate", "2"] if simulate else [])]
        code = run_command_line(given)
        out, err = capfd.readouterr()
        return code, out, err

    return run


def inject(registry: Registry, index: int, **figures: Any) -> None:
    registry.inject_figures(registry.gpus()[index].uuid, figures)


def test_healthy_gpus_pass_in_every_format(check: Check, registry: Registry) -> None:
    code, out, err = check("--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["schema_version"] == 1
    assert found["notes"] == ["the number of GPUs was not checked"]
    assert (found["verdict"], found["driver_error"]) == ("pass", None)
    assert [gpu["verdict"] for gpu in found["gpus"]] == ["pass", "pass"]
    assert [gpu["uuid"] for gpu in found["gpus"]] == [gpu.uuid for gpu in registry.gpus()]
    ids = [one["id"] for one in found["gpus"][0]["checks"]]
    assert ids == [one.id for one in CHECKS.of(MomentEvidence)]
    assert {one["status"] for one in found["gpus"][0]["checks"]} == {"pass", "n/a", "not tested"}
    code, out, _ = check("--nagios")
    assert code == 0
    note = "the number of GPUs was not checked"
    text = f"GPU OK - 2 simulated GPUs tested; {note} | gpus=2 fail=0;;0 warn=0;0"
    assert out.startswith(text)
    assert out.count("\n") == 1
    assert check("--npd") == (0, f"2 simulated GPUs tested; {note}\n", "")
    row = "pass  Simulated GPU; not tested: pcie.generation, pcie.width"
    assert check() == (0, f"GPU 0  {row}\nGPU 1  {row}\nnode   pass  2 pass; {note}\n", "")
    code, out, _ = check("-v")
    assert code == 0
    assert out.splitlines()[-1] == f"pass: 2 pass; {note}"


def test_a_fault_fails_its_gpu_in_every_format(check: Check, registry: Registry) -> None:
    inject(registry, 1, remap_failed=True, remap_banks_low=3)
    code, out, _ = check()
    assert code == 1
    healthy, *faulty, node, hint = out.splitlines()
    assert healthy.startswith("GPU 0  pass  Simulated GPU")
    text = "fail: memory.remap_failed (remap_failed = 1); warn: memory.bank_headroom (remap_banks"
    assert text in " ".join(" ".join(faulty).split())
    assert (node, hint) == (
        "node   fail  1 fail, 1 pass; the number of GPUs was not checked",
        "-v shows each check, its rule and what to do.",
    )
    code, out, _ = check("--verbose")
    assert code == 1
    rows = out[out.index("GPU 1") :].splitlines()
    assert rows[0].endswith(": fail")
    assert rows[1].startswith("fail        memory.remap_failed        1")
    text = " ".join(" ".join(rows).split())
    assert "fail > 0 (NVIDIA, RMA policy for row remapping) remap_failed = 1" in text
    assert "do: CONTACT_SUPPORT: run NVIDIA's field diagnostic" in text
    levels = [row.split()[0] for row in rows if row[:1].strip() and row[12:13].strip()][1:]
    assert levels[:2] == ["fail", "warn"]
    assert "fail: 1 fail, 1 pass" in out.splitlines()[-1]
    assert "GPU 0" in out[: out.index("GPU 1")]
    code, out, _ = check("--nagios")
    assert (code, out.split(" | ")[0]) == (2, "GPU CRITICAL - GPU 1: memory.remap_failed = 1")
    assert check("--npd") == (1, "GPU 1: memory.remap_failed = 1\n", "")
    code, out, _ = check("--json")
    assert (code, json.loads(out)["verdict"]) == (1, "fail")


def test_a_warning_passes_but_for_nagios(check: Check, registry: Registry) -> None:
    inject(registry, 0, ecc_uncorrected_total=1)
    assert check("--json")[0] == 0
    assert check("--npd")[0] == 0
    code, out, _ = check("--nagios")
    assert (code, out.split(" | ")[0]) == (1, "GPU WARNING - GPU 0: ecc.uncorrected = 1")


def test_a_gpu_that_crashes_the_driver_is_alone_not_tested(
    check: Check, registry: Registry
) -> None:
    registry.inject(registry.gpus()[0].uuid, "crash")
    code, out, _ = check("--json")
    found = json.loads(out)["gpus"]
    assert (code, [gpu["verdict"] for gpu in found]) == (3, ["not tested", "pass"])
    evidence = next(one["evidence"] for one in found[0]["checks"] if one["id"] == "gpu.lost")
    assert "its process was ended by SIGABRT" in evidence


def test_each_check_that_is_not_applicable_has_its_reason(check: Check) -> None:
    found = json.loads(check("--json")[1])
    results = [*found["node"], *(one for gpu in found["gpus"] for one in gpu["checks"])]
    reasons = {one["evidence"] for one in results if one["status"] == "n/a"}
    assert "" not in reasons
    _, out, _ = check("-v")
    text = " ".join(out.split())
    assert reasons
    assert all(reason in text for reason in reasons)


def test_a_gpu_that_cannot_be_read_makes_the_check_incomplete(
    check: Check, registry: Registry
) -> None:
    registry.inject(registry.gpus()[1].uuid, "error")
    assert check("--json")[0] == 3
    code, out, _ = check("--nagios")
    assert (code, out.split(" | ")[0]) == (3, "GPU UNKNOWN - GPU 1: a simulated error")
    assert check("--npd")[0] == 2
    code, out, _ = check()
    assert (code, out.count("\n")) == (3, 4)
    why = "mig could not be read: a simulated error"
    assert f"GPU 1  not tested  Simulated GPU; not tested: 28 checks ({why})\n" in out
    # One that failed decides.
    inject(registry, 0, recovery_action="gpu_reset")
    assert check("--json")[0] == 1


def test_only_the_selected_gpus_are_judged(check: Check, registry: Registry) -> None:
    inject(registry, 1, recovery_action="gpu_reset")
    code, out, _ = check("--gpus", "0", "--json")
    assert (code, [gpu["index"] for gpu in json.loads(out)["gpus"]]) == (0, [0])
    code, out, _ = check("--gpus", registry.gpus()[1].uuid, "--json")
    assert (code, [gpu["index"] for gpu in json.loads(out)["gpus"]]) == (1, [1])


def test_a_file_of_thresholds_is_applied_and_reported(
    check: Check, registry: Registry, tmp_path: Path
) -> None:
    inject(registry, 0, retired_corrected_total=5)
    file = tmp_path / "limits.toml"
    file.write_text(
        'spec = "dcgm-error-thresholds-v1"\n'
        '[common_thresholds."memory.retired_pages.fail".GTE]\nvalue = 5\n'
        '[common_thresholds."pcie.replays.warn".GT]\nvalue = 5\n'  # of a burn-in
    )
    assert check("--json")[0] == 0
    code, out, _ = check("--json", "--thresholds", str(file))
    found = json.loads(out)
    assert (code, found["verdict"]) == (1, "fail")
    assert found["thresholds_overridden"] == {
        "memory.retired_pages.fail": ">= 5",
        "pcie.replays.warn": "> 5",
    }
    sources = {one["id"]: one["source"] for one in found["gpus"][0]["checks"]}
    assert sources["memory.retired_pages"] == str(file)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--what"], "has no option --what"),
        (["extra"], "`sentinel check` does not take 'extra'"),
        (["--json", "--nagios"], "exclude each other"),
        (["--thresholds", "/nowhere/limits.toml"], "/nowhere/limits.toml: No such file"),
        (["--thresholds", "/dev/null"], "/dev/null: it is not a regular file; allowed is"),
        (["--thresholds", "bad.toml"], 'common_thresholds."ecc.what" is not a threshold'),
    ],
)  # fmt: skip
def test_wrong_usage_has_the_code_of_every_command_and_is_unknown_to_plugins(
    check: Check,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text(
        'spec = "dcgm-error-thresholds-v1"\n[common_thresholds]\n"ecc.what" = 1\n'
    )
    code, out, err = check(*arguments)
    nagios = "--nagios" in arguments
    assert code == (3 if nagios else 2)
    assert out.startswith("GPU UNKNOWN - ") if nagios else not out
    assert words in (out if "--json" in arguments else err)
    if "--json" not in arguments:
        assert "Try: sentinel check --help" in err
        assert check(*arguments, "--npd")[0] == 2
        assert check(*arguments, "--nagios")[0] == 3


def test_a_gpu_that_does_not_exist_is_no_fault(check: Check) -> None:
    code, out, err = check("--gpus", "7")
    assert (code, out) == (4, "")
    assert "no GPU matches '7'" in err
    code, out, _ = check("--gpus", "7", "--nagios")
    assert code == 3
    assert out.startswith("GPU UNKNOWN - no GPU matches '7'")
    assert check("--gpus", "7", "--npd")[0] == 2


def test_a_gpu_that_does_not_exist_is_no_fault_beside_a_driver_that_hangs(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    result = CountersResult(counters=(), driver_error=None, stuck=True)
    monkeypatch.setattr("sentinel.cli.tools.check.read_counters", lambda *_: result)
    monkeypatch.setattr("sentinel.cli.tools.check.os._exit", ended.append)
    code, out, _ = check("--gpus", "7", "--nagios")
    assert out.startswith("GPU UNKNOWN - no GPU matches '7'")
    assert [code, check("--gpus", "7", "--npd")[0], check("--gpus", "7")[0]] == [3, 2, 4]
    assert ended == [3, 2, 4], "the interpreter's exit would wait for the process"


def test_a_host_without_a_driver_is_a_failure_of_the_tool_and_not_of_a_gpu(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SENTINEL_SIM_DIR")
    (tmp_path / "libnvidia-ml.so.1").write_text("this is not a library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))  # also on a host with GPUs
    code, out, err = check(simulate=False)
    assert (code, out) == (2, "")
    assert "the GPUs cannot be checked" in err
    code, out, _ = check("--json", simulate=False)
    assert (code, json.loads(out)["verdict"]) == (2, None)
    assert "NVML" in json.loads(out)["driver_error"] or json.loads(out)["driver_error"]
    code, out, _ = check("--nagios", simulate=False)
    assert (code, out[:14]) == (3, "GPU UNKNOWN - ")
    assert check("--npd", simulate=False)[0] == 2


def test_a_bug_is_no_fault_of_a_gpu(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("a bug |\nof two lines")

    monkeypatch.setattr("sentinel.cli.tools.check.read_counters", fail)
    code, out, _ = check("--nagios")
    assert code == 3
    assert out == "GPU UNKNOWN - sentinel failed: RuntimeError('a bug /\\nof two lines')\n"
    assert check("--npd")[0] == 2
    code, out, err = check()
    assert (code, out) == (2, "")
    assert "a bug in sentinel" in err


def test_what_a_daemon_found_wrong_counts_after_its_end(check: Check, registry: Registry) -> None:
    path = find_shared(registry.folder) / "verified.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    uuid = registry.gpus()[1].uuid
    total = VerifiedCounts(errors=2)
    work = StoredWork(index=1, name="H200", since=100.0, last=200.0, total=total)
    save(path, {uuid: work}, {})
    code, out, _ = check()
    assert (code, "daemon.findings" in out) == (1, True)
    acknowledge(path, [uuid], "ops", "replaced the riser")
    assert check()[0] == 0
    path.write_text("{")
    code, _, err = check()
    assert (code, f"{path} is no file of verified work" in err) == (2, True)


@pytest.mark.parametrize("name", [f"{FAULTS.name}.bad", "verified.json.bad.2"])
def test_what_a_file_had_that_was_set_aside_is_not_known(
    check: Check, registry: Registry, name: str
) -> None:
    """A daemon that begins sets the file aside, and knows nothing of it."""
    kept = find_shared(registry.folder) / name
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("{")
    code, out, _ = check()
    assert (code, "daemon.findings" in out) == (3, True)
    assert (check("--nagios")[0], check("--npd")[0]) == (3, 2)
    assert f"{name} is damaged" in check("--nagios")[1]
    inject(registry, 1, remap_failed=True)
    assert check("--nagios")[0] == 2, "another fault is not hidden"
    inject(registry, 1)
    kept.unlink()
    assert check()[0] == 0


def test_a_sensor_that_reads_what_no_gpu_can_have_leaves_its_gpu_unknown(
    check: Check, registry: Registry
) -> None:
    inject(registry, 1, temperature_c=255, maximum_c=87)
    code, out, _ = check()
    assert (code, "could not be read: temperature: it reads 255 C" in out) == (3, True)
    assert (check("--nagios")[0], check("--npd")[0]) == (3, 2)


def test_fewer_gpus_than_expected_fail_the_node_in_every_format(check: Check) -> None:
    def counted(out: str) -> str:
        (row,) = (one for one in json.loads(out)["node"] if one["id"] == "node.gpus")
        return str(row["evidence"])

    code, out, _ = check("--expect-gpus", "2", "--json")
    assert (code, counted(out)) == (0, "2 of 2 are there")
    code, out, _ = check("--expect-gpus", "3", "--json")
    assert (code, json.loads(out)["verdict"]) == (1, "fail")
    assert counted(out).startswith("2 of 3 are there")
    assert check("--expect-gpus", "3", "--gpus", "0")[0] == 1
    assert check("--expect-gpus", "1")[0] == 1
    code, out, _ = check("--expect-gpus", "2", "--gpus", "0")
    assert (code, out.splitlines()[-1].split("; ")[-1]) == (0, "the number of GPUs was not checked")
    code, out, _ = check("--expect-gpus", "3", "--npd")
    assert (code, out) == (1, "node: node.gpus = 1 (2 of 3 are there)\n")
    code, _, err = check("--expect-gpus", "0")
    assert code == 2
    assert "--expect-gpus" in err


def test_a_node_that_differs_from_its_expectation_fails_in_every_format(
    check: Check, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "node.toml"
    file.write_text('gpus = 2\n[all]\npower_limit_w = 620\nvbios = ["96.00.00.00.01", "97.1"]\n')
    monkeypatch.setenv("SENTINEL_EXPECT", str(file))
    code, out, _ = check()
    assert (code, out.splitlines()[-1]) == (0, "node   pass  2 pass")
    inject(registry, 1, power_limit_w=500.0)
    text = "power_limit_w is 500, expected 620"
    code, out, _ = check()
    assert (code, text in " ".join(out.split())) == (1, True)
    code, out, _ = check("--nagios")
    assert (code, text in out) == (2, True)
    code, out, _ = check("--npd")
    assert (code, text in out) == (1, True)
    code, out, _ = check("--json")
    (row,) = (one for one in json.loads(out)["gpus"][1]["checks"] if one["id"] == "gpu.expected")
    assert (code, row["status"], row["evidence"]) == (1, "fail", text)
    inject(registry, 1, power_limit_w=None, failed={"power_limit_w": "Unknown Error"})
    code, out, _ = check()
    assert (code, "power_limit_w is not known" in " ".join(out.split())) == (3, True)


def test_a_port_of_an_expectation_must_be_there_with_its_rate(
    check: Check, registry: Registry, tmp_path: Path
) -> None:
    file = tmp_path / "node.toml"
    file.write_text('[[infiniband]]\nport = "mlx5_0/1"\nrate_gbps = 400\n')
    code, out, _ = check("--expect", str(file), "--npd")
    assert code == 1
    assert "state of port mlx5_0/1 is missing" in out
    write_port(registry.folder / "sys", "mlx5_0")
    assert check("--expect", str(file))[0] == 0
    (write_port(registry.folder / "sys", "mlx5_0") / "rate").write_text("200 Gb/sec (4X HDR)")
    code, out, _ = check("--expect", str(file), "--nagios")
    assert (code, "is 200, expected 400" in out) == (2, True)


@pytest.mark.parametrize("fault", ["wrong", "missing", "another user's", "two numbers"])
def test_an_expectation_that_cannot_be_used_is_wrong_usage(
    check: Check, tmp_path: Path, fault: str
) -> None:
    file, more = tmp_path / "node.toml", list[str]()
    if fault != "missing":
        file.write_text("# GPUs\ngpus = true\n" if fault == "wrong" else "gpus = 2\n")
    if fault == "another user's":
        file.chmod(0o666)
    if fault == "two numbers":
        more = ["--expect-gpus", "3"]
    code, out, err = check("--expect", str(file), *more)
    assert (code, out) == (2, "")
    wanted = {
        "wrong": f"{file}:2: gpus is True\nAllowed is a whole number from 1",
        "missing": "No such file",
        "another user's": f"all users may write {file}",
        "two numbers": "gpus = 2",
    }
    assert wanted[fault] in err
    assert check("--expect", str(file), *more, "--nagios")[0] == 3


def test_an_expectation_is_written_from_a_node_that_passes_and_from_no_other(
    check: Check, registry: Registry, tmp_path: Path
) -> None:
    file = tmp_path / "new" / "node.toml"
    inject(registry, 0, power_limit_w=500.0, power_limit_default_w=620.0)
    code, out, err = check("--write-expectation", str(file))
    assert (code, "power.limit" in out, "was not written" in err) == (1, True, True)
    assert not file.exists()
    inject(registry, 0)
    code, out, _ = check("--write-expectation", str(file))
    assert code == 0
    lines = out.partition("takes for granted")[2].splitlines()
    assert (lines[2], lines[-1][:12]) == ("gpus = 2", "not expected")
    assert check("--expect", str(file))[1].splitlines()[-1] == "node   pass  2 pass"
    assert check("--write-expectation")[0] == 2  # that of the host is about real GPUs
    inject(registry, 1, ecc=False)
    code, out, _ = check("--expect", str(file), "--npd")
    assert (code, "ecc is off, expected on" in out) == (1, True)


def test_a_gpu_in_mig_mode_has_a_row_that_is_not_tested(check: Check, registry: Registry) -> None:
    inject(registry, 1, mig=True)
    code, out, _ = check("--json")
    assert code == 0
    rows = [
        next(one for one in gpu["checks"] if one["id"] == "gpu.whole")
        for gpu in json.loads(out)["gpus"]
    ]
    assert [one["status"] for one in rows] == ["pass", "not tested"]
    assert "not tested: gpu.whole, pcie.generation" in check()[1]
    assert "its instances are not burned in" in check("-v")[1]


def test_a_port_that_is_down_beside_an_active_one_is_a_warning(
    check: Check, registry: Registry
) -> None:
    def rows() -> dict[str, str]:
        code, out, _ = check("--json")
        assert code == 0
        return {one["id"]: one["status"] for one in json.loads(out)["node"]}

    names = ("node.infiniband", "node.memory_errors")
    assert [rows()[name] for name in names] == ["n/a", "n/a"]
    write_port(registry.folder / "sys", "mlx5_0")
    write_port(registry.folder / "sys", "mlx5_1", state="1: DOWN")
    write_controller(registry.folder / "sys", ue_count="1")
    assert [rows()[name] for name in names] == ["warn", "warn"]
    assert "mlx5_1/1: it is DOWN" in " ".join(check()[1].split())

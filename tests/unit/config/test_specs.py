"""Specifications of workloads and drivers: what is parsed, found and refused."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sentinel.cli.options.setting_options import for_daemon
from sentinel.config.build import build_config
from sentinel.config.model import SETTINGS
from sentinel.config.options import BUILT_IN, DTYPES, PATTERNS, PHASES, UNITS
from sentinel.config.setting import Scope
from sentinel.config.sources import from_flags
from sentinel.config.specs import (
    DRIVERS,
    TARGETS,
    WORKLOADS,
    check_workload,
    find_driver,
    find_workload,
    known_workloads,
    parse_workload,
    unusable,
)
from sentinel.errors import ConfigError
from sentinel.protocol.probe import NVML, SIMULATED, DriverSpec
from sentinel.stressor import execution_units, matmul, memory_cells
from sentinel.stressor.loader import _parameters, load_workload
from sentinel.stressor.pointer_chase import GATHER
from tests.harness.registered import register_package


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("gemm", "gemm", {}),
        (" gemm ", "gemm", {}),
        ("gemm:size=8192", "gemm", {"size": "8192"}),
        ("my-own.work_load:a=1, b = two", "my-own.work_load", {"a": "1", "b": "two"}),
        ("package.module:attribute", "package.module:attribute", {}),
        ("module:Some.thing:a=1", "module:Some.thing", {"a": "1"}),
        ("dump:path=/a:b,flag=x=y", "dump", {"path": "/a:b", "flag": "x=y"}),
        ("module:work:path=/a:b", "module:work", {"path": "/a:b"}),
        ("/a b/c/module:work:size=1", "/a b/c/module:work", {"size": "1"}),
        ("/module:work", "/module:work", {}),
        ("gemm:text=", "gemm", {"text": ""}),
    ],
)
def test_a_specification_is_split_into_name_and_options(
    text: str, name: str, options: dict[str, str]
) -> None:
    assert parse_workload(text) == (name, options)


@pytest.mark.parametrize(
    ("folder", "named"), [("a b", "{}/mine:work"), ("12:30", "mine:work"), ("a,b", "mine:work")]
)
def test_a_command_adds_its_folder_unless_no_setting_can_name_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, named: str
) -> None:
    here = tmp_path / folder
    here.mkdir()
    (here / "mine.py").touch()
    monkeypatch.chdir(here)
    assert for_daemon("workload", "mine:work") == named.format(here)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not name a workload"),
        (":", "does not name a workload"),
        (":size=1", "does not name a workload"),
        ("gemm:", "does not name a workload"),
        ("size=1", "does not name a workload"),
        ("a b", "does not name a workload"),
        ("module:attribute:", "does not name a workload"),
        ("my-module:attribute", "does not name a workload"),
        ("a/module:attribute", "does not name a workload"),
        ("/a/gemm", "does not name a workload"),
        ("/a/gemm:size=64", "does not name a workload"),
        ("/a/:work", "does not name a workload"),
        ("/a,b/module:work", "does not name a workload"),
        ("module:1st", "does not name a workload"),
        ("mine.py:work", "Write it as a module: mine:work"),
        ("/a/mine.py:work:n=1", "Write it as a module: /a/mine:work"),
        ("gemm:size=1,", "'' in 'gemm:size=1,' is not key=value"),
        ("gemm:size=1,fast", "'fast' in 'gemm:size=1,fast' is not key=value"),
        ("gemm:=1", "'=1' in 'gemm:=1' is not key=value"),
        ("gemm:size=1,size=2", "gives the option 'size' twice"),
        ("module:attribute:size", "'size' in 'module:attribute:size' is not key=value"),
    ],
)
def test_a_malformed_specification_is_an_error_with_its_text(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_workload(text)
    assert message in str(caught.value)


def test_the_built_in_workloads_are_listed_with_their_origin() -> None:
    known = known_workloads()
    assert {"elementwise", "gemm", "hold"} <= known.keys()
    assert known["gemm"].startswith("gpu-sentry ")
    assert known["gemm"].endswith(" (sentinel.stressor.workloads:gemm)")


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("gemm", "evil:gemm"),
        ("gemm", "sentinel.stressor.nosuch:gemm"),
        ("hold", "sentinel.stressor.workloads:gemm"),
    ],
)
def test_no_package_can_replace_a_built_in_workload_and_one_that_tries_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, target: str
) -> None:
    monkeypatch.syspath_prepend(register_package(tmp_path, WORKLOADS, "evil", {name: target}))
    assert find_workload(name).target == f"sentinel.stressor.workloads:{name}"
    check_workload("gemm:size=8192")
    assert "evil" not in "".join(known_workloads().values())
    (one,) = unusable()
    assert f"workload {name!r} of evil 0.1.0 ({target}) is not used" in one


def test_the_built_in_workloads_do_not_depend_on_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package of the same name hides that of Sentinel; the workloads stay."""
    mine = {"mine": "mine:work"}
    monkeypatch.syspath_prepend(register_package(tmp_path, WORKLOADS, "gpu_sentry", mine))
    assert known_workloads().keys() == {*BUILT_IN, "mine"}
    check_workload("gemm:size=8192")
    monkeypatch.setattr(sys, "path", [])
    assert known_workloads().keys() == set(BUILT_IN)
    assert find_workload("gemm").target == "sentinel.stressor.workloads:gemm"


@pytest.mark.parametrize(
    "value", ["just words", "sentinel.stressor.!!", ":x", "a.b", "a.b:", "a b:c"]
)
@pytest.mark.parametrize("name", ["bad", "gemm"])
def test_a_malformed_entry_point_costs_its_own_workload_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    entries = {"good": "good.one:work [extra]", name: value}
    monkeypatch.syspath_prepend(register_package(tmp_path, WORKLOADS, "bad_pkg", entries))
    assert find_workload("good").target == "good.one:work"
    check_workload("gemm:size=8192")
    check_workload("good")
    (why,) = unusable()
    assert f"workload {name!r} of bad_pkg 0.1.0 ({value}) cannot be used: its entry point" in why
    with pytest.raises(ConfigError, match=r"known are elementwise, gemm, good, hold, links"):
        check_workload("other")
    if name == "bad":
        with pytest.raises(
            ConfigError, match=r"'bad' of bad_pkg 0\.1\.0 cannot be used: its entry"
        ):
            check_workload("bad")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[other]\nbad\n", "has a line that is not NAME = module:attribute"),
        (b"[other]\nbad = \xff\n", "is not UTF-8"),
    ],
)
def test_a_package_whose_entry_points_cannot_be_read_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, why: str
) -> None:
    monkeypatch.syspath_prepend(register_package(tmp_path, WORKLOADS, "good", {"good": "one:work"}))
    bad = Path(register_package(tmp_path, WORKLOADS, "bad_pkg", {}))
    (file,) = bad.rglob("entry_points.txt")
    file.write_bytes(text)
    monkeypatch.syspath_prepend(bad)
    assert find_workload("good").package == "good"
    assert find_driver("nvml") is NVML
    assert [*unusable()] == [
        f"the entry points of bad_pkg 0.1.0 cannot be read: its entry_points.txt {why}"
    ]


def test_a_workload_is_checked_by_its_name_alone() -> None:
    check_workload("gemm:size=8192")
    check_workload("nowhere:to.be.found:a=1")
    with pytest.raises(
        ConfigError, match=r"no workload 'gem'; known are elementwise, .*gemm, hold"
    ):
        check_workload("gem:size=8192")


def test_a_file_without_its_function_is_answered_by_how_to_name_it() -> None:
    with pytest.raises(ConfigError) as caught:
        check_workload("mine.py")
    assert caught.value.remedy == "Name its function or class, too: mine:NAME"


# --- drivers ----------------------------------------------------------------------------------


ROOT = Path(__file__).parents[3]


def test_the_default_is_nvml_which_needs_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    assert find_driver(build_config({}).driver) is NVML


def test_the_built_in_drivers_are_those_that_the_package_registers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    registered = project["entry-points"][DRIVERS]
    assert registered == {one.name: one.target for one in (NVML, SIMULATED)}


def test_the_built_in_workloads_are_those_that_the_package_registers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][WORKLOADS] == TARGETS
    assert TARGETS.keys() == BUILT_IN.keys()


def test_a_driver_of_a_package_is_found_with_its_options_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(
        register_package(tmp_path, DRIVERS, "rocm_driver", {"rocm": "rocm_x:Rocm"})
    )
    assert find_driver("rocm:library=/opt/rocm/lib:x,wait=no") == DriverSpec(
        name="rocm",
        target="rocm_x:Rocm",
        origin="rocm_driver 0.1.0 (rocm_x:Rocm)",
        options={"library": "/opt/rocm/lib:x", "wait": "no"},
    )
    assert "rocm_x" not in sys.modules


def test_an_unknown_driver_is_refused_with_the_known_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(
        register_package(tmp_path, DRIVERS, "rocm_driver", {"rocm": "rocm_x:Rocm"})
    )
    with pytest.raises(ConfigError, match="no driver 'rcom'; known are nvml, rocm"):
        find_driver("rcom")


def test_a_malformed_entry_point_of_a_driver_is_named_when_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {"rocm": "rocm_x:Rocm", "bad": "just words"}
    monkeypatch.syspath_prepend(register_package(tmp_path, DRIVERS, "bad_pkg", entries))
    assert find_driver("rocm").target == "rocm_x:Rocm"
    with pytest.raises(ConfigError, match=r"'bad' of bad_pkg 0.1.0: its entry point 'just words'"):
        find_driver("bad")
    with pytest.raises(ConfigError, match="known are nvml, rocm\n"):
        find_driver("rcom")
    (why,) = unusable()
    assert "driver 'bad' of bad_pkg 0.1.0 (just words) cannot be used: its entry point" in why


@pytest.mark.parametrize("name", ["nvml", "simulated"])
@pytest.mark.parametrize("target", ["evil:Driver", "sentinel.probe.nosuch:Driver"])
def test_a_package_that_registers_a_built_in_driver_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, target: str
) -> None:
    entries = {"rocm": "rocm_x:Rocm", name: target}
    monkeypatch.syspath_prepend(register_package(tmp_path, DRIVERS, "evil", entries))
    (one,) = unusable()
    assert f"driver {name!r} of evil 0.1.0 ({target}) is not used" in one
    assert find_driver("nvml") is NVML


def test_two_packages_cannot_have_one_name_and_none_can_replace_nvml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        place = register_package(
            tmp_path, DRIVERS, name, {"rocm": f"{name}:Rocm", "nvml": f"{name}:Evil"}
        )
        monkeypatch.syspath_prepend(place)
    with pytest.raises(ConfigError, match=r"registered by one 0.*other 0"):
        find_driver("rocm")
    assert find_driver("nvml") is NVML


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("simulated:folder=/x", "simulated GPUs are not a setting"),
        ("nvml:a=1", "nvml takes no options"),
    ],
)
def test_what_no_package_has_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_driver(text)


@pytest.mark.parametrize("text", ["", "a b", "module:attribute", "rocm:", "../x", "rocm:a=1,a=2"])
def test_a_malformed_driver_is_refused_with_its_source(text: str) -> None:
    with pytest.raises(ConfigError, match="--driver: "):
        build_config(from_flags({"driver": text}))


def test_no_client_can_change_the_driver() -> None:
    """A setting of the start is refused while sentinel runs; and it names code."""
    (setting,) = [one for one in SETTINGS if one.key == "driver"]
    assert setting.scope is Scope.START
    assert setting.form.trusted


def test_the_table_has_every_built_in_workload_with_its_options() -> None:
    signatures = {name: _parameters(load_workload(name)) for name in TARGETS}
    assert signatures == BUILT_IN


def test_the_names_are_those_of_the_stressor() -> None:
    assert tuple(matmul.DTYPES) == DTYPES
    assert tuple(matmul.PHASES) == PHASES
    assert (*execution_units.UNITS, GATHER) == UNITS
    assert tuple(memory_cells.PATTERNS) == PATTERNS


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("gemm:size=banana", "workload gemm: option size='banana' is not a whole number"),
        ("gemm:sise=64", "workload gemm has no option 'sise'; its options are dtype (one of auto"),
        ("gemm:size=65", "workload gemm: size=65 is not a positive multiple of 64"),
        ("gemm:size=100", "size=100 is not a positive multiple of 64"),
        ("gemm:seeds=0", "seeds=0 is out of range"),
        (f"gemm:seeds={'9' * 400}", "is not a whole number"),
        (f"memtest:seed={2**63}", "is not a whole number"),
        ("gemm:dtype=fp4", "is not one of auto, bf16"),
        ("hold:a=1", "workload hold has no option 'a'; it has no options"),
        ("mixed:plan=bf16+fp5", "mixed: there is no 'fp5' in plan='bf16+fp5'"),
        ("mixed:plan=", "no '' in plan=''"),
        ("mixed:seconds=0.01", "seconds=0.01 is out of range"),
        ("mixed:seeds=1001", "seeds=1001 is out of range"),
        ("memtest:patterns=aa+bb", "patterns=aa+bb has 'bb' in it; allowed are all, or some of"),
        *(
            (f"memtest:patterns={text}", "allowed are all, or some of zeros")
            for text in ("", "zeroes", "zeros+", "all+zeros")
        ),
        *(
            (f"memtest:retention={text}", "out of range\nallowed is 0, or from 1 to 7200")
            for text in ("0.5", "-1", "7201")
        ),
        ("memtest:retention=nan", "retention='nan' is not a number"),
        ("pulse:hz=200", "hz=200 is out of range\nallowed is from 0.2 to 100"),
        ("pulse:hz=0.1", "hz=0.1 is out of range"),
        ("pulse:burst=0.05", "burst=0.05 is out of range\nallowed is 0, or from 0.1 to 5"),
        ("pulse:burst=6", "burst=6 is out of range"),
        ("pulse:duty=0", "duty=0 is out of range\nallowed is from 0.1 to 0.9"),
        ("pulse:duty=1", "duty=1 is out of range"),
        ("pulse:size=65", "size=65 is not a positive multiple"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_workload(text)
    assert why in str(caught.value)


@pytest.mark.parametrize("text", ["mixed:plan=bf16+memory,seconds=5", "pulse:hz=0.2,burst=5"])
def test_right_options_are_accepted(text: str) -> None:
    check_workload(text)


def test_the_check_imports_neither_torch_nor_the_workload() -> None:
    code = (
        "import sys; from sentinel.config.specs import check_workload;"
        " check_workload('gemm:size=64');"
        " print([one for one in sys.modules if one == 'torch' or one.startswith('sentinel.str')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""Drivers are found by their names, and nothing of them is imported."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from sentinel.config.build import build_config
from sentinel.config.driver_spec import GROUP, find_driver
from sentinel.config.model import SETTINGS
from sentinel.config.setting import Scope
from sentinel.config.sources import from_flags
from sentinel.errors import ConfigError
from sentinel.protocol.probe import NVML, SIMULATED, DriverSpec
from tests.harness.registered_package import register

ROOT = Path(__file__).parents[3]


def test_the_default_is_nvml_which_needs_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    assert find_driver(build_config({}).driver) is NVML


def test_the_built_in_drivers_are_those_that_the_package_registers() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    registered = project["entry-points"][GROUP]
    assert registered == {one.name: one.place for one in (NVML, SIMULATED)}


def test_a_driver_of_a_package_is_found_with_its_options_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(register(tmp_path, GROUP, "rocm_driver", {"rocm": "rocm_x:Rocm"}))
    assert find_driver("rocm:library=/opt/rocm/lib:x,wait=no") == DriverSpec(
        name="rocm",
        place="rocm_x:Rocm",
        origin="rocm_driver 0.1.0 (rocm_x:Rocm)",
        options={"library": "/opt/rocm/lib:x", "wait": "no"},
    )
    assert "rocm_x" not in sys.modules


def test_an_unknown_driver_is_refused_with_the_known_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(register(tmp_path, GROUP, "rocm_driver", {"rocm": "rocm_x:Rocm"}))
    with pytest.raises(ConfigError, match="no driver 'rcom'; known are nvml, rocm"):
        find_driver("rcom")


def test_two_packages_cannot_have_one_name_and_none_can_replace_nvml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        place = register(tmp_path, GROUP, name, {"rocm": f"{name}:Rocm", "nvml": f"{name}:Evil"})
        monkeypatch.syspath_prepend(place)
    with pytest.raises(ConfigError, match=r"registered by other 0.*one 0"):
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

"""A new configuration file shows every setting, and the schema accepts what `run` accepts."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sentinel.cli.tools.config import new_file_text
from sentinel.config.build import build_config
from sentinel.config.model import SETTINGS, Config
from sentinel.config.sources import read_file
from tests.harness.gpu_environment import ROOT

SCHEMA = json.loads((ROOT / "docs" / "config.schema.json").read_text())


def test_a_new_file_sets_nothing(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(new_file_text())
    assert read_file(file) == ()
    assert max(map(len, new_file_text().splitlines())) <= 100


def test_the_lines_of_a_new_file_are_all_settings_with_their_defaults(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    uncommented = re.sub(r'^# (\w+ = ".*")$', r"\1", new_file_text(), flags=re.MULTILINE)
    file.write_text(uncommented)
    given = read_file(file)
    assert [value.key for value in given] == [
        setting.key for setting in sorted(SETTINGS, key=_place)
    ]
    defaults = [value for value in given if not value.text.startswith("<")]
    assert len(defaults) > 35
    assert build_config(defaults) == Config()


def _place(setting: Any) -> int:
    """Return the position of the table of a setting."""
    tables = list(dict.fromkeys(one.key.rpartition(".")[0] for one in SETTINGS))
    return tables.index(setting.key.rpartition(".")[0])


@pytest.mark.parametrize(
    "text",
    [
        "",
        'gpus = "0,1"\nrearm = 7\npoll = "1s"',
        "gpus = [0, 'GPU-1a']\nmemory.target = 0.5",
        '[throttle]\npace = "full"\ntemp_critical_from = 80',
        '[gpu.0]\nworkload = "hold"\n[gpu."GPU-9".memory]\ntarget = "20GiB"',
    ],
)
def test_the_schema_accepts_what_is_read(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    read_file(file)
    Draft202012Validator(SCHEMA).validate(tomllib.loads(text))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("rearn = 1", []),
        ("rearm = true", ["rearm"]),
        ("rearm = ['5s']", ["rearm"]),
        ("gpus = [true]", ["gpus"]),
        ('[throttle]\npace = "half"', ["throttle", "pace"]),
        ("memory.reserve = 1", ["memory"]),
        ('[gpu.0]\npoll = "1s"', ["gpu", "0"]),
        ("gpu = 3", ["gpu"]),
    ],
)
def test_the_schema_refuses_unknown_keys_types_and_words(text: str, path: list[str]) -> None:
    (error,) = Draft202012Validator(SCHEMA).iter_errors(tomllib.loads(text))
    assert list(error.absolute_path) == path


def test_the_schema_describes_every_setting() -> None:
    for setting in SETTINGS:
        place = SCHEMA
        for name in setting.key.split("."):
            place = place["properties"][name]
        assert place["description"].startswith(setting.help)
        assert place.get("default", "") == setting.default

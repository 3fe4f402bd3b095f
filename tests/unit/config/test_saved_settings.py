"""The file with the settings that clients have saved."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.build import with_changes
from sentinel.config.model import SETTINGS
from sentinel.config.setting import Scope
from sentinel.config.sources import from_flags, gather, read_saved, text_of
from sentinel.errors import ConfigError
from sentinel.protocol.commands import Given
from tests.harness.given_settings import texts_of, texts_of_gpus

UUIDS = ("GPU-aaaa1111", "GPU-bbbb2222")
KEYS = st.sampled_from([setting.key for setting in SETTINGS])
SINGLE_KEYS = st.sampled_from([one.key for one in SETTINGS if one.scope is Scope.GPU])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def changed(
    path: Path, *changes: tuple[dict[str, str | None], tuple[str, ...]]
) -> tuple[Given, ...]:
    """Apply changes one after another, each to what the file has."""
    for settings, gpus in changes:
        new = with_changes(read_saved(path), settings, gpus, lambda key, gpu: f"{gpu}.{key}")
        text = text_of(new)
        path.write_text(text, encoding="utf-8")
    return read_saved(path)


@given(
    common=st.dictionaries(KEYS, TEXTS),
    single=st.dictionaries(st.sampled_from(UUIDS), st.dictionaries(SINGLE_KEYS, TEXTS, min_size=1)),
)
def test_a_file_has_what_was_saved(
    tmp_path_factory: pytest.TempPathFactory,
    common: dict[str, str],
    single: dict[str, dict[str, str]],
) -> None:
    path = tmp_path_factory.mktemp("state") / "settings.toml"
    each: list[tuple[dict[str, str | None], tuple[str, ...]]] = [
        ({**texts}, (uuid,)) for uuid, texts in single.items()
    ]
    found = changed(path, ({**common}, ()), *each)
    assert texts_of(found) == common
    assert texts_of_gpus(found) == single


def test_a_change_keeps_the_others_and_none_removes_one(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    found = changed(
        path,
        ({"power": "200W", "memory.target": "1GiB"}, ()),
        ({"power": "100W"}, UUIDS),
        ({"power": None, "grace": "7s"}, ()),
        ({"power": None}, UUIDS[:1]),
        ({"workload": "hold"}, UUIDS[1:]),
    )
    assert texts_of(found) == {"memory.target": "1GiB", "grace": "7s"}
    assert texts_of_gpus(found) == {UUIDS[1]: {"power": "100W", "workload": "hold"}}
    sources = {value.source for value in found}
    assert {f"{path}: grace", f"{path}: gpu.{UUIDS[1]}.power"} <= sources


def test_a_changed_gpu_is_at_the_end_where_it_wins(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(f'[gpu."{UUIDS[0]}"]\npower = "100W"\n[gpu.0]\npower = "200W"\n')
    found = changed(path, ({"power": "300W"}, UUIDS[:1]))
    assert list(texts_of_gpus(found)) == ["0", UUIDS[0]]


def test_saved_settings_are_over_the_file_and_below_variables_and_flags(tmp_path: Path) -> None:
    file, path = tmp_path / "config.toml", tmp_path / "settings.toml"
    file.write_text(
        'power = "1kW"\ngrace = "1s"\nrearm = "1s"\npoll = "1s"\n[gpu.0]\npower = "2kW"\n'
    )
    saved = changed(
        path, ({"power": "200W", "grace": "2s", "rearm": "2s"}, ()), ({"power": "300W"}, UUIDS[:1])
    )
    found = gather(from_flags({"rearm": "4s"}), {"SENTINEL_GRACE": "3s"}, file, saved).given
    assert texts_of(found) == {"power": "200W", "grace": "3s", "rearm": "4s", "poll": "1s"}
    assert list(texts_of_gpus(found)) == ["0", UUIDS[0]], "the later one wins"


def test_a_missing_file_has_nothing_and_an_invalid_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    assert read_saved(path) == ()
    path.write_text('powr = "1W"\n')
    with pytest.raises(ConfigError, match=r"settings\.toml: powr"):
        read_saved(path)


def test_a_file_that_another_user_could_have_written_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "sentinel-sim-1000"  # as in /tmp, where any user may create it before
    folder.mkdir()
    folder.chmod(0o777)
    path = folder / "settings.toml"
    assert read_saved(path) == (), "without a file, there is nothing to trust"
    path.write_text('workload = "code:of_a_stranger"\n')
    with pytest.raises(ConfigError, match=r"settings\.toml cannot be trusted: all users may"):
        read_saved(path)
    folder.chmod(0o755)
    assert "workload" in texts_of(read_saved(path))
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="cannot be trusted"):
        read_saved(path)


def test_the_file_says_what_it_is() -> None:
    text = text_of(())
    assert tomllib.loads(text) == {}
    assert "sentinel set --save" in text

"""Flags override variables, variables override the files; each error names its source."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.config.build import build_config, resolve
from sentinel.config.model import SETTINGS, Config
from sentinel.config.sources import (
    find_file,
    from_environment,
    from_flags,
    gather,
    in_effect,
    nearest,
    read_file,
    read_saved,
    unknown_variables,
)
from sentinel.errors import ConfigError
from sentinel.protocol.commands import Given
from sentinel.protocol.gpu import Gpu
from tests.harness.given_settings import given, texts_of, texts_of_gpus

GPUS = tuple(
    Gpu(uuid=f"GPU-{n}{n}{n}", index=n, name="x", pci_bus_id=f"00000000:0{n}:00.0", memory_total=1)
    for n in range(3)
)


def written(folder: Path, text: str) -> Path:
    path = folder / "site.toml"
    path.write_text(text)
    return path


def test_parsing_the_default_texts_gives_the_default_config() -> None:
    """The texts in the table and the defaults of Config are equal."""
    texts = {setting.key: setting.default for setting in SETTINGS if setting.default}
    assert build_config(given(texts)) == build_config(()) == Config()


def test_flags_override_variables_and_variables_override_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, 'poll = "1.5s"\nrearm = "7s"\ngrace = "8s"')
    environment = {"SENTINEL_REARM": "9s", "SENTINEL_GRACE": "10s", "SENTINEL_POLL": ""}
    sources = gather(from_flags({"grace": "11s"}), environment, path)
    config = build_config(sources.given)
    assert (config.poll, config.rearm, config.grace) == (1.5, 9.0, 11.0)
    origins = {value.key: value.source for value in sources.given}
    assert origins == {"poll": f"{path}: poll", "rearm": "SENTINEL_REARM", "grace": "--grace"}


def test_what_flags_and_clients_give_is_distinguished_from_files_and_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("--odd.toml").write_text('poll = "1.5s"\n[gpu.0]\nmemory.chunk = "1GiB"')
    sources = gather(from_flags({"rearm": "3s"}), {"SENTINEL_POWER": "300W"}, Path("--odd.toml"))
    single = Given(key="util.target", text="50%", source="--util for GPU-1", gpu="GPU-1")
    of_flags = {value.key for value in in_effect((*sources.given, single)) if value.by_flag}
    assert of_flags == {"rearm", "util.target"}


def test_every_setting_can_be_set_by_its_variable_and_in_a_file(tmp_path: Path) -> None:
    examples = {
        "keep_free": "2GiB",
        "budget_limit": "40GiB",
        "util": "50%",
        "power": "400W",
        "duty": "30m/5m",
        "idle_memory": "100MiB",
        "idle_utilization": "5%",
        "max_gpus": "2",
        "expect_gpus": "8",
        "starts_per_second": "0.5",
        "ignore": "name=Xorg,user=monitor",
        "quiet": "Mon-Fri 08:00-18:00",
        "hours": "22:00-07:00",
        "until": "18:30",
        "notify_webhook": "https://hooks.example/sentinel",
        "notify_token": "/etc/sentinel/token",
        "notify_secret": "/etc/sentinel/secret",
        "notify_command": "/usr/local/bin/page --team gpu",
        "tcp": "8765",
        "metrics": "8766",
    }
    for setting in SETTINGS:
        text = setting.default or examples.get(setting.field, "1h")
        by_variable = from_environment({setting.variable: text})
        path = written(tmp_path, f'{setting.key} = "{text}"')
        by_file = read_file(path)
        assert set(texts_of(by_variable)) == set(texts_of(by_file)) == {setting.key}
        assert build_config(by_variable) == build_config(by_file)


def test_a_file_may_write_numbers_and_lists(tmp_path: Path) -> None:
    path = written(tmp_path, "idle.wait = 0\ngpus = [0, 'GPU-1a']\nutil.samples = 7")
    config = build_config(read_file(path))
    assert config.idle_wait == 0.0
    assert config.gpus == ("0", "GPU-1a")
    assert config.util_samples == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rearm 5", ["not TOML", "line 1"]),
        ('rearn = "5s"', ["rearn: there is no such key", "Did you mean rearm?"]),
        (
            'memory = "50%"',
            ["memory: there is no such key", "Did you mean memory.target?"],
        ),
        ("leave_idle = 1", ["Did you mean limits.leave_idle?"]),
        ('[gpu.0]\nutil = "30%"', ["Did you mean util.target?"]),
        ('[memory]\ntraget = "5s"', ["memory.traget", "Did you mean memory.target?"]),
        ('rearm = "8d"', ["rearm: '8d' is out of range", "from 100ms to 7d"]),
        ("rearm = 7", ["rearm: '7' has no unit", "write 7s, 7m, 7h or 7d"]),
        ("rearm = 0", ["rearm: '0' is out of range", "from 100ms to 7d"]),
        ("idle.wait = 5", ["idle.wait: '5' has no unit"]),
        ("idle.memory = 0", ["'0' is out of range", "Leave idle.memory out for the default"]),
        ("[gpu.0]\nidle.memory = 0", ["'0' is out", "Leave gpu.0.idle.memory out for the default"]),
        ('power = "0W"', ["power: '0W' is out of range", "from 10W to 10kW"]),
        ("rearm = true", ["rearm: True is not a string or a number", "Write it as TIME"]),
        ("rearm = ['5s']", ["rearm: ['5s'] is not a string or a number"]),
        ("gpus = [true]", ["gpus: [True] is not a string or a list of strings"]),
        ('gpus = "0,,1"', ["gpus: '0,,1' has an empty name"]),
        ('gpus = "7-0"', ["gpus: the range '7-0' ends before it begins"]),
        ("gpu = 3", ["gpu is not a table", "[gpu.0]"]),
        ("[gpu]\n0 = 3", ["gpu.0 is not a table"]),
        ('[gpu.0]\npoll = "1s"', ["gpu.0.poll: cannot be set for a single GPU"]),
        ('[util]\ntarget = "4%"', ["util.target: '4%' is out of range", "from 5% to 100%"]),
        ('[util]\ntarget = "101%"', ["util.target: '101%' is out of range", "from 5% to 100%"]),
        ('[util]\ntarget = "-1 %"', ["util.target: '-1 %' is out of range", "from 5% to 100%"]),
        ("[util]\ntarget = 0.5", ["'0.5' has no unit", "write 50% or 0.5%"]),
        ("memory.target = 38", ["'38' has no unit", "38% for a share or 38GiB for a size"]),
        ("budget.limit = 7168", ["has no unit; write 7168MiB or 7168GiB"]),
        ('[util]\nevery = "1ms"', ["util.every: '1ms' is out of range", "from 100ms to 1m"]),
        ("[util]\nsamples = 0", ["util.samples: '0' is out of range", "from 1 to 60"]),
        ('[util]\ntolerance = "50%"', ["util.tolerance: '50%' is out of range"]),
        ("power = 400", ["power: '400' is not a power", "such as 400W"]),
        ('[gpu.0]\npower = "5W"', ["gpu.0.power: '5W' is out of range", "from 10W to 10kW"]),
        ('duty = "30m"', ["duty: '30m' is not a duty cycle", "such as 30m/5m"]),
        ('[gpu.0]\nrearm = "x"', ["gpu.0.rearm: 'x' is not a duration"]),
    ],
)
def test_an_error_in_a_file_names_the_file_and_the_key(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        build_config(read_file(path))
    for word in (str(path), *words):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("--idle-memory", "--idle-memory"),
        ("--idle-memory for GPU 1", "--idle-memory"),
        ("SENTINEL_IDLE_MEMORY", "SENTINEL_IDLE_MEMORY"),
        ("session a: idle.memory", "idle.memory"),
    ],
)
def test_the_remedy_names_a_setting_as_its_source_does(source: str, name: str) -> None:
    value = Given(key="idle.memory", text="0", source=source)
    with pytest.raises(ConfigError) as caught:
        build_config([value])
    assert caught.value.remedy == f"Leave {name} out for the default"


def test_a_file_that_cannot_be_read_is_an_error_and_not_a_default(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_file(tmp_path / "missing.toml")
    for text, why in ((b"\x80", "can't decode"), ("a = 1".encode("utf-16"), "the mark of UTF-16")):
        (tmp_path / "binary.toml").write_bytes(text)
        with pytest.raises(ConfigError, match=f"is not UTF-8 text: .*{why}") as caught:
            read_file(tmp_path / "binary.toml")
        assert "Save it as UTF-8." in str(caught.value)


def test_an_unknown_variable_with_the_prefix_is_a_warning() -> None:
    """A script may have variables with the prefix, as those for Slurm have."""
    environment = {"SENTINEL_REARN": "5s", "SENTINEL_FROBNICATE": "1"}
    environment |= {"SENTINEL_UTILIZATION": "5%"}  # which SENTINEL_IDLE_UTILIZATION is similar to
    assert gather((), environment, None).given == ()
    assert list(unknown_variables(environment)) == [
        "there is no variable SENTINEL_REARN. Did you mean SENTINEL_REARM?",
        "there is no variable SENTINEL_FROBNICATE.",
        "there is no variable SENTINEL_UTILIZATION. Did you mean SENTINEL_UTIL?",
    ]
    known = {"SENTINEL_SIM_DIR": "/x", "SENTINEL_CONFIG": "/y", "SENTINEL_WAIT": "1s", "HOME": "/z"}
    assert list(unknown_variables(known | {"SENTINEL_REARN": ""})) == []


def test_the_file_is_the_named_one_or_the_users_default(tmp_path: Path) -> None:
    own = tmp_path / "config" / "sentinel" / "config.toml"
    own.parent.mkdir(parents=True)
    own.touch()
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "SENTINEL_CONFIG": "/named"}
    assert find_file("/flag", environment) == Path("/flag")
    assert find_file(None, environment) == Path("/named")
    environment["SENTINEL_CONFIG"] = ""
    assert find_file(None, environment) == own
    (tmp_path / ".config").symlink_to(tmp_path / "config")
    assert find_file(None, {"HOME": str(tmp_path)}) == tmp_path / ".config/sentinel/config.toml"


# --- values for single GPUs ------------------------------------------------------------------


def test_an_override_applies_to_its_gpu_only_and_a_later_one_wins() -> None:
    values = (
        *given({"rearm": "6s", "workload": "hold"}, "1"),
        *given({"rearm": "7s"}, "GPU-11"),
        *given({"workload": "gemm"}, "00000000:02:00.0"),
    )
    config, unused = resolve(Config(rearm=4.0), values, GPUS)
    assert unused == ()
    assert config.of("GPU-000") is config
    first, second = config.of("GPU-111"), config.of("GPU-222")
    assert (first.rearm, first.workload) == (7.0, "hold")
    assert (second.rearm, second.workload) == (4.0, "gemm")


def test_an_override_without_a_gpu_is_returned_and_an_ambiguous_one_is_an_error() -> None:
    lost = given({"rearm": "6s"}, "7")
    assert resolve(Config(), lost, GPUS) == (Config(), lost)
    twins = (GPUS[1], replace(GPUS[1], uuid="GPU-112"))
    with pytest.raises(ConfigError, match=r"test: rearm: 'GPU-11' matches several GPUs"):
        resolve(Config(), given({"rearm": "6s"}, "GPU-11"), twins)


def test_the_history_can_be_disabled_and_its_size_has_limits() -> None:
    def size(text: str) -> int | None:
        return build_config(given({"history.size": text})).history_size

    assert size("16MiB") == 16 * 2**20
    assert size("off") is None
    for text in ("15MiB", "2TiB"):
        with pytest.raises(ConfigError, match="out of range") as refused:
            size(text)
        assert "allowed is from 16MiB to 1TiB" in str(refused.value)


# --- the file with what clients have saved ----------------------------------------------------


def test_saved_settings_are_over_the_file_and_below_variables_and_flags(tmp_path: Path) -> None:
    file, path = tmp_path / "config.toml", tmp_path / "settings.toml"
    file.write_text(
        'power = "1kW"\ngrace = "1s"\nrearm = "1s"\npoll = "1s"\n[gpu.0]\npower = "2kW"\n'
    )
    path.write_text(
        'power = "200W"\ngrace = "2s"\nrearm = "2s"\n[gpu.GPU-aaaa1111]\npower = "300W"\n'
    )
    saved = read_saved(path)
    found = gather(from_flags({"rearm": "4s"}), {"SENTINEL_GRACE": "3s"}, file, saved).given
    assert texts_of(found) == {"power": "200W", "grace": "3s", "rearm": "4s", "poll": "1s"}
    assert list(texts_of_gpus(found)) == ["0", "GPU-aaaa1111"], "the later one wins"


def test_a_missing_file_has_nothing_and_an_invalid_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "my settings.toml"
    assert read_saved(path) == ()
    path.write_text('powr = "1W"\n')
    with pytest.raises(ConfigError, match=r"settings\.toml: powr") as caught:
        read_saved(path)
    assert f"mv '{path}' '{path}.bad'" in caught.value.remedy


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


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("theirs", ["", "config.toml"])
def test_root_reads_no_file_that_another_user_can_change(tmp_path: Path, theirs: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text('access.users = "operate"\n')
    link = tmp_path / "link.toml"
    link.symlink_to(path)
    for name in (path, link):
        assert read_file(name), "also by a link, as in Kubernetes"
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="all users may write"):
        read_file(path)
    path.chmod(0o644)
    os.chown(tmp_path / theirs, 4321, 4321)
    for name in (path, link):
        with pytest.raises(ConfigError, match=r"root reads no settings .* belongs to uid 4321"):
            read_file(name)


# --- the nearest names ------------------------------------------------------------------------


FLAGS = [setting.flag for setting in SETTINGS]
KNOWN_KEYS = [setting.key for setting in SETTINGS]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("--wokload", ["--workload"]),
        ("--memry", ["--memory"]),
        ("--chunks", ["--chunk"]),
        ("--idle-wiat", ["--idle-wait"]),
        ("--temp-critcal-from", ["--temp-critical-from"]),
        ("--tmp-critical-from", ["--temp-critical-from"]),
        ("--MEMORY", ["--memory"]),
    ],
)
def test_a_typo_has_the_name_that_was_meant(name: str, found: list[str]) -> None:
    assert nearest(name, FLAGS) == found


@pytest.mark.parametrize(
    "name",
    [
        "--wait",  # not --idle-wait, which is about GPUs
        "--interval",  # not --watch-interval
        "--limit",
        "--until-memory",
        "--memory-limit",
        "--refresh-minutes",
    ],
)
def test_a_name_of_another_meaning_is_not_offered(name: str) -> None:
    assert nearest(name, [*FLAGS, "--list", "--help"]) == []


def test_only_names_of_the_same_family_are_offered() -> None:
    assert nearest("--memory-critcal-from", FLAGS) == ["--memory-critical-from"]
    assert nearest("throttle.temp_nrmal_from", KNOWN_KEYS) == ["throttle.temp_normal_from"]
    assert nearest("notify.memory", ["memory.notify", "notify.memo", "notify.every"]) == [
        "notify.memo"
    ]
    assert nearest("name", []) == []

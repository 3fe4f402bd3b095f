"""Single settings of a running daemon: for all GPUs, for some, and kept over a restart."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.config.sources import NAME
from sentinel.protocol.commands import Command, CommandReply, Configure
from tests.harness.api_harness import UUIDS, ApiServer, Reply, ask, check_problem
from tests.harness.given_settings import shown, texts_of, texts_of_gpus

FILE = """
workload = "hold"
[gpu.1]
power = "300W"
"""


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    (tmp_path / "config.toml").write_text(FILE)
    monkeypatch.setenv("SENTINEL_GRACE", "7s")
    with ApiServer(tmp_path, config=str(tmp_path / "config.toml")) as api:
        assert ask(api, "POST", "/v1/reload").status == 200
        api.commands.clear()
        yield api


def change(api: ApiServer, settings: dict[str, str | None], **more: Any) -> Reply:
    return ask(api, "PATCH", "/v1/settings", {"settings": settings, **more})


def configured(api: ApiServer) -> Configure:
    """Return the last settings that the supervisor was sent."""
    return [command for command in api.commands if isinstance(command, Configure)][-1]


def singles(api: ApiServer) -> list[tuple[str, dict[str, str]]]:
    """List the settings for single GPUs of the last command, in order."""
    return list(texts_of_gpus(configured(api).given).items())


def values(api: ApiServer) -> dict[str, tuple[str, str]]:
    """Return the settings for all GPUs that are no defaults: texts and sources."""
    found = shown(ask(api, "GET", "/v1/settings").body)
    return {key: value for key, value in found.items() if value[1] != "default"}


def saved(api: ApiServer) -> dict[str, Any]:
    return tomllib.loads((Path(api.spec.state) / NAME).read_text())


def test_a_setting_of_single_gpus_is_over_that_of_the_file(api: ApiServer) -> None:
    done = change(api, {"power": "200W"}, gpus=["1"])
    assert done.status == 200
    assert singles(api) == [("1", {"power": "300W"}), (UUIDS[1], {"power": "200W"})]
    assert configured(api).changed == "power of GPU 1 from 300W to 200W (--power for GPU 1)"
    assert done.body["gpus"] == [UUIDS[1]]
    assert shown(done.body) == {}
    assert shown(done.body, UUIDS[1]) == {"power": ("200W", "--power for GPU 1")}
    assert done.body["saved"] is None

    assert change(api, {"util.target": "50%"}, gpus=["all"]).status == 200
    assert singles(api)[1:] == [
        (UUIDS[0], {"util.target": "50%"}),
        (UUIDS[1], {"power": "200W", "util.target": "50%"}),
    ]
    gone = change(api, {"power": None, "util.target": None}, gpus=["1"])
    assert singles(api) == [("1", {"power": "300W"}), (UUIDS[0], {"util.target": "50%"})]
    path = f"{api.spec.config}: gpu.1.power"
    assert shown(gone.body, UUIDS[1])["power"] == ("300W", path)


@pytest.mark.parametrize(
    ("settings", "effects"),
    [
        ({"power": "200W"}, []),
        ({"rearm": "1m", "rearm_longest": "1h"}, ["A wait that has begun keeps its length."]),
        ({"rearm": None}, ["A wait that has begun keeps its length."]),
        (
            {"grace": "1s", "status_every": "5s"},
            [
                "A stop that has begun keeps its time.",
                "The next status is logged at its former time.",
            ],
        ),
    ],
)
def test_a_change_names_what_keeps_the_former_value(
    api: ApiServer, settings: dict[str, Any], effects: list[str]
) -> None:
    assert change(api, settings).body["effects"] == effects


def test_a_change_for_all_names_the_gpus_that_have_their_own_value(api: ApiServer) -> None:
    done = change(api, {"power": "250W"})
    assert shown(done.body) == {"power": ("250W", "--power")}
    assert [row["gpu"] for row in done.body["settings"]] == [None, UUIDS[1]]


def test_changed_settings_are_kept_by_a_reload_and_by_another_change(api: ApiServer) -> None:
    change(api, {"power": "200W"}, gpus=["1"])
    assert change(api, {"util.every": "500ms"}).status == 200
    ask(api, "POST", "/v1/reload")
    assert singles(api)[-1] == (UUIDS[1], {"power": "200W"})
    assert values(api)["util.every"] == ("500ms", "--util-every")
    assert shown(ask(api, "GET", "/v1/settings").body)["poll"][1] == "default"
    assert change(api, {"util.every": None}).status == 200
    assert "util.every" not in values(api)
    assert [type(command) for command in api.commands] == [Configure] * 4, "no Resume is sent"


@pytest.mark.parametrize(
    ("settings", "more", "why"),
    [
        ({"powr": "200W"}, {}, "Did you mean power?"),
        ({"poll": "never"}, {}, "poll: 'never'"),
        (
            {"idle.memory": "0"},
            {},
            "idle.memory: '0' is out of range\nWrite idle-memory= for the default",
        ),
        ({"idle.memory": "0"}, {"save": True}, "\nWrite idle-memory= for the default"),
        (
            {"idle.memory": "0"},
            {"gpus": ["0"]},
            "GPU 0: '0' is out of range\nWrite idle-memory= for the default",
        ),
        ({"util.target": "900%"}, {}, "900%"),
        ({"power": "much"}, {"gpus": ["0"]}, "power for GPU 0: 'much'"),
        ({"poll": "1s"}, {"gpus": ["0"]}, "poll cannot be set for single GPUs"),
        ({"workload": "holt"}, {"save": True}, "Did you mean hold?"),
        ({"workload": "gemm:size=banana"}, {}, "size='banana' is not a whole number; its options"),
        ({"workload": "gemm:sise=64"}, {"gpus": ["0"]}, "gemm has no option 'sise'; its options"),
        ({}, {}, "settings is empty."),
        ({"memory": "50%"}, {}, "there is no setting 'memory'\nDid you mean memory.target?"),
        (
            {"temp_throttle": "80"},
            {},
            "there is no setting 'temp_throttle'\nDid you mean throttle.temp_critical_from?",
        ),
        ({"--util": "50%"}, {}, "there is no setting '--util'\nDid you mean util.target?"),
        ({"power": 200}, {}, "settings['power']: 200 is not text."),
        ({"power": "200W"}, {"gpu": ["0"]}, "gpu: there is no such field; did you mean gpus?"),
        ({"power": "200W"}, {"save": "yes"}, 'save: "yes" is not true or false.'),
        (
            {"throttle.temp_critical_from": "70"},
            {},
            "throttle.temp_throttled_from must be below throttle.temp_critical_from",
        ),
    ],
)
def test_an_invalid_change_changes_and_saves_nothing(
    api: ApiServer, settings: dict[str, Any], more: dict[str, Any], why: str
) -> None:
    refused = change(api, settings, **more)
    assert refused.status == 422
    assert why in refused.body["detail"]
    assert not re.search(r"body|Input|(?<!')--(?!help)|[?][.]", refused.body["detail"])
    assert api.commands == []
    assert change(api, {"power": "200W"}, gpus=["7"]).body["code"] == "no_such_gpu"


def test_a_saved_setting_is_in_effect_from_the_daemons_own_file(api: ApiServer) -> None:
    path = str(Path(api.spec.state) / NAME)
    done = change(api, {"memory.target": "1GiB", "workload": "gemm"}, save=True)
    assert done.status == 200
    assert done.body["saved"] == path
    assert done.body["notes"] == []
    assert values(api)["memory.target"] == ("1GiB", f"{path}: memory.target")
    assert values(api)["workload"] == ("gemm", f"{path}: workload")
    assert change(api, {"power": "200W"}, gpus=["0", "1"], save=True).status == 200
    assert saved(api) == {
        "memory": {"target": "1GiB"},
        "workload": "gemm",
        "gpu": {uuid: {"power": "200W"} for uuid in UUIDS},
    }
    assert singles(api)[-1] == (UUIDS[1], {"power": "200W"})

    assert change(api, {"workload": None}, save=True).status == 200
    assert values(api)["workload"] == ("hold", f"{api.spec.config}: workload")
    assert Path(api.spec.config or "").read_text() == FILE, "the administrator's"


def test_what_is_fixed_at_the_start_is_saved_for_the_next_daemon_alone(api: ApiServer) -> None:
    done = change(api, {"poll": "2s", "power": "200W"}, save=True)
    assert done.status == 200
    assert len(done.body["notes"]) == 1
    assert saved(api) == {"poll": "2s", "power": "200W"}
    assert shown(done.body)["poll"][1] == "default"
    assert change(api, {"util.every": "500ms"}).status == 200
    assert ask(api, "POST", "/v1/reload").status == 200
    assert "poll" not in texts_of(configured(api).given), "it would refuse every change"
    assert change(api, {"poll": "never"}, save=True).status == 422, "the next one would refuse it"
    assert change(api, {"poll": None}, save=True).status == 200
    assert saved(api) == {"power": "200W"}


def test_a_refused_change_is_not_saved(api: ApiServer) -> None:
    assert change(api, {"power": "200W"}, save=True).status == 200
    api.set(configure_error="poll is fixed")
    assert change(api, {"poll": "2s"}, save=True).status == 422
    assert saved(api) == {"power": "200W"}


def test_nothing_changes_if_it_cannot_be_saved(api: ApiServer) -> None:
    new = Path(api.spec.state) / f"{NAME}.new"
    new.mkdir()  # in place of the draft of the file
    refused = change(api, {"power": "200W"}, save=True)
    check_problem(refused, 503, "unavailable", "Nothing has changed")
    assert api.commands == [], "no stressor was stopped for it"


def test_a_change_that_was_not_saved_after_all_is_undone(api: ApiServer) -> None:
    new, reply_to = Path(api.spec.state) / f"{NAME}.new", api.supervisor.reply_to

    def fill_the_disk(command: Command) -> CommandReply:
        new.mkdir(exist_ok=True)
        return reply_to(command)

    api.supervisor.reply_to = fill_the_disk  # type: ignore[method-assign]
    assert change(api, {"power": "200W"}, save=True).status == 503
    assert "power" not in values(api)
    assert "power" not in texts_of(configured(api).given)


def test_an_invalid_file_of_saved_settings_is_named(api: ApiServer) -> None:
    (Path(api.spec.state) / NAME).write_text('powr = "1W"\n')
    for refused in (change(api, {"power": "200W"}), change(api, {"power": "200W"}, save=True)):
        assert refused.status == 422
        assert f"{NAME}: powr" in refused.body["detail"]
    assert api.commands == []

"""What a change of settings gives this daemon and the next one, saves, and refuses."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import hypothesis
import pytest
from hypothesis import strategies as st

from sentinel.config.changes import Present, describe_changes, plan_change, text_of
from sentinel.config.model import SETTINGS
from sentinel.config.setting import Scope
from sentinel.config.sources import parse_file
from sentinel.errors import AccessDeniedError, ConfigError
from sentinel.protocol.commands import Given
from sentinel.protocol.gpu import Gpu
from tests.harness.given_settings import given, texts_of, texts_of_gpus

PATH = "/state/settings.toml"
UUIDS = A, _ = ("GPU-aaaa1111-0", "GPU-bbbb2222-0")
ONE = (A,)
GPUS = tuple(
    Gpu(uuid=uuid, index=n, name="x", pci_bus_id=f"00000000:0{n}:00.0", memory_total=1)
    for n, uuid in enumerate(UUIDS)
)
#: The configuration file has a power for GPU 0, a variable sets the grace, flags that and rearm.
PRESENT = Present(
    given=(
        *given({"workload": "hold"}),
        *(Given(key=key, text="3s", source=f"--{key}") for key in ("rearm", "grace")),
    ),
    file=(*given({"workload": "hold"}), *given({"power": "300W"}, gpu="0")),
    variables=(Given(key="grace", text="7s", source="SENTINEL_GRACE"),),
    path=PATH,
    gpus=GPUS,
)

KEYS = st.sampled_from([setting.key for setting in SETTINGS])
SINGLE_KEYS = st.sampled_from([setting.key for setting in SETTINGS if setting.scope is Scope.GPU])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
Texts = dict[str, str | None]


def present(saved: str = "", **fields: object) -> Present:
    """Build what a change starts from, with this text of the daemon's own file."""
    return replace(PRESENT, saved=parse_file(PATH, saved), **fields)  # type: ignore[arg-type]


def saved_text(texts: Texts, gpus: tuple[str, ...] = (), saved: str = "") -> str:
    """Return the new text of the daemon's own file."""
    plan = plan_change(texts, gpus, present(saved), save=True)
    assert plan.texts is not None
    before, after = plan.texts
    assert parse_file(PATH, before) == parse_file(PATH, saved), "as it is"
    assert after.startswith("# Written by `sentinel set --save`")
    return after


# --- what is saved ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saved", "texts", "gpus", "expected"),
    [
        ("", {"power": "200W"}, (), {"power": "200W"}),
        ("", {"memory.target": "1GiB"}, (), {"memory": {"target": "1GiB"}}),
        ('power = "1W"', {"power": "2W", "grace": "1s"}, (), {"power": "2W", "grace": "1s"}),
        ('power = "1W"\npoll = "2s"', {"power": None}, (), {"poll": "2s"}),
        ('[gpu."GPU-aaaa1111-0"]\npower = "1W"', {"power": None}, UUIDS, {}),
        ('grace = "1s"', {"power": "2W"}, ONE, {"grace": "1s", "gpu": {A: {"power": "2W"}}}),
        ('[gpu.0]\npower = "1W"', {"power": None}, (), {"gpu": {"0": {"power": "1W"}}}),
        ("[util]\nevery = 1", {"power": "1W"}, (), {"util": {"every": "1"}, "power": "1W"}),
    ],
)
def test_a_change_is_saved_beside_the_others_and_none_removes_one(
    saved: str, texts: Texts, gpus: tuple[str, ...], expected: object
) -> None:
    assert tomllib.loads(saved_text(texts, gpus, saved)) == expected


def test_a_changed_gpu_is_at_the_end_where_it_wins() -> None:
    saved = f'[gpu."{UUIDS[0]}"]\npower = "100W"\n[gpu.0]\npower = "200W"\n'
    text = saved_text({"power": "300W"}, ONE, saved)
    assert list(tomllib.loads(text)["gpu"]) == ["0", UUIDS[0]]


@hypothesis.given(
    common=st.dictionaries(KEYS, TEXTS),
    single=st.dictionaries(st.sampled_from(UUIDS), st.dictionaries(SINGLE_KEYS, TEXTS, min_size=1)),
)
def test_a_file_has_what_was_saved(
    common: dict[str, str], single: dict[str, dict[str, str]]
) -> None:
    text = saved_text({**common})
    for uuid, texts in single.items():
        text = saved_text({**texts}, (uuid,), text)
    found = parse_file(PATH, text)
    assert texts_of(found) == common
    assert texts_of_gpus(found) == single
    assert parse_file(PATH, text_of(found)) == found


# --- what this daemon and the next one take --------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "gpus", "save", "key", "of", "expected"),
    [
        ({"power": "1W"}, (), False, "power", None, ("1W", "--power")),
        ({"power": "1W"}, (), True, "power", None, ("1W", f"{PATH}: power")),
        ({"rearm": None}, (), False, "rearm", None, None),
        ({"rearm": "1s"}, (), True, "rearm", None, ("1s", f"{PATH}: rearm")),
        ({"grace": "1s"}, (), True, "grace", None, ("1s", "--grace")),
        ({"workload": None}, (), True, "workload", None, ("hold", "test: workload")),
        ({"power": "1W"}, ONE, False, "power", A, ("1W", "--power for GPU 0")),
        ({"power": "1W"}, ONE, True, "power", A, ("1W", f"{PATH}: gpu.{A}.power")),
        ({"poll": "2s"}, (), True, "poll", None, None),
        ({}, (), False, "rearm", None, ("3s", "--rearm")),
    ],
)
def test_a_change_is_in_effect_from_its_source(
    texts: Texts,
    gpus: tuple[str, ...],
    key: str,
    of: str | None,
    expected: tuple[str, str] | None,
    *,
    save: bool,
) -> None:
    plan = plan_change(texts, gpus, present(), save=save)
    found = [(v.text, v.source) for v in plan.given if v.key == key and v.gpu == of]
    assert found == ([] if expected is None else [expected])
    assert (plan.texts is not None) is save
    if of is not None:
        assert plan.given[-1].gpu == of, "over that of the file"


def test_what_is_fixed_at_the_start_is_for_the_next_daemon_alone() -> None:
    began = Given(key="poll", text="1s", source=f"{PATH}: poll")
    plan = plan_change({"poll": "2s"}, (), present('poll = "1s"', given=(began,)), save=True)
    assert texts_of(plan.given)["poll"] == "1s"
    assert texts_of(plan.next_given)["poll"] == "2s"
    later = present('poll = "2s"', given=(began,))
    assert texts_of(plan_change({}, (), later, save=False).given)["poll"] == "1s"


# --- what is noted ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "gpus", "notes"),
    [
        ({"power": "1W"}, (), []),
        ({"grace": "1s"}, (), ["SENTINEL_GRACE is set for the daemon, and overrides"]),
        ({"rearm": "1s"}, (), ["--rearm at the next start overrides the saved value of rearm."]),
        (
            {"rearm": "1s", "grace": None},
            (),
            ["SENTINEL_GRACE is set", "--rearm at the next start"],
        ),
        ({"poll": "1s"}, (), ["poll takes effect only at a start: use `sentinel restart`."]),
        ({"gpus": "0-1"}, (), ["gpus takes effect only at a start"]),
        (
            {"gpus": "0-7"},
            (),
            ["gpus takes effect only at a start", "gpus: no GPU matches '2' among the daemon's"],
        ),
        ({"power": "1W"}, ONE, []),
    ],
)
def test_what_overrides_or_delays_a_saved_setting_is_noted(
    texts: Texts, gpus: tuple[str, ...], notes: list[str]
) -> None:
    found = plan_change(texts, gpus, present(), save=True).notes
    assert [note[: len(start)] for note, start in zip(found, notes, strict=True)] == notes
    assert plan_change(texts, gpus, present(), save=False).notes == ()


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "gpus", "save", "why"),
    [
        ({"workload": "gemm:size=64"}, (), False, None),
        ({"workload": "mine:run"}, (), False, "workload names code or a file"),
        ({"workload": "mine:run"}, UUIDS, False, "Other clients may set gemm (--access-workloads)"),
        ({"workload": None}, (), False, None),
        ({"goldens": "/srv/goldens"}, (), False, "goldens names code or a file"),
        ({"goldens": "/srv/now"}, (), False, None),  # as it is
        ({"rearm": "1s"}, (), True, None),
        ({"rearm": "1s", "access.group": None}, (), True, "access.group is fixed at the start"),
    ],
)
def test_a_client_below_the_daemons_user_sets_no_code_and_saves_no_right(
    texts: Texts, gpus: tuple[str, ...], why: str | None, *, save: bool
) -> None:
    now = (Given(key="goldens", text="/srv/now", source="--goldens"),)
    start = present(given=now, workloads=("gemm",))
    if why is None:
        plan_change(texts, gpus, start, save=save)
    else:
        with pytest.raises(AccessDeniedError) as caught:
            plan_change(texts, gpus, start, save=save)
        assert why in str(caught.value)
    plan_change(texts, gpus, replace(start, workloads=None), save=save)


@pytest.mark.parametrize(
    ("texts", "gpus", "why"),
    [
        ({"powr": "1W"}, (), "Did you mean power?"),
        ({"utilization": "50%"}, (), "Did you mean util.target?"),
        ({"utilisation": "50%"}, (), "Did you mean util.target?"),
        ({"mem": "50%"}, (), "Did you mean memory.target?"),
        ({"vram": "50%"}, (), "Did you mean memory.target?"),
        ({"POWER": "1W"}, (), "Did you mean power?"),
        ({"powr": None}, (), "Did you mean power?"),
        ({"poll": None}, ONE, "poll cannot be set for single GPUs"),
    ],
)
@pytest.mark.parametrize("save", [True, False])
def test_an_unknown_key_is_refused_with_the_nearest(
    texts: Texts, gpus: tuple[str, ...], why: str, *, save: bool
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_change(texts, gpus, present(), save=save)
    assert why in str(caught.value)


def test_a_change_is_described_with_what_was_and_the_source() -> None:
    before = (*PRESENT.given, *PRESENT.file[1:])
    after = (
        Given(key="workload", text="memtest", source="site.toml: workload"),
        *before[1:],
        Given(key="power", text="250W", source="--power", gpu=A),
        Given(key="poll", text="9s", source="--poll"),
    )
    assert describe_changes(before, after, GPUS) == (
        "workload from hold to memtest (site.toml: workload);"
        " power of GPU 0 from 300W to 250W (--power)"
    ), "what is fixed at the start does not change"
    again = describe_changes(after, before[:-1], GPUS)
    assert again.endswith("; power of GPU 0 from 250W to none (default)")
    assert describe_changes(before, before, GPUS) == ""

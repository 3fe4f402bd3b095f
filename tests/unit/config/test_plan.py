"""Plans of a burn-in: the shipped levels, and errors in a file."""

from __future__ import annotations

import os
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.burnin.levels import LEVELS, level_text, load_plan, read_plan
from sentinel.config.plan import SPEC, Phase, Plan, parse_plan, plan_toml
from sentinel.config.specs import parse_workload
from sentinel.errors import ConfigError

ONE = '[[phase]]\nname = "a"\nworkload = "gemm"\nseconds = 1\n'


def parse(text: str) -> Plan:
    return parse_plan(tomllib.loads(f'spec = "{SPEC}"\nname = "mine"\n{text}'), "plan.toml")


def test_the_levels_take_what_their_names_promise() -> None:
    seconds = {name: load_plan(name, None).seconds for name in LEVELS}
    assert 20 < seconds["screen"] < 60
    assert 300 < seconds["standard"] < 600
    assert 1800 < seconds["long"] < 3600
    assert 16 * 3600 < seconds["soak"] < 24 * 3600
    assert [load_plan(name, None).screen for name in LEVELS] == [True, False, False, False]


def test_all_but_the_screen_have_the_mandatory_phases() -> None:
    for name in LEVELS[1:]:
        phases = [phase for phase in load_plan(name, None).phases if phase.mandatory]
        assert any(phase.workload == "memtest" and phase.passes for phase in phases)
        assert any("retention=" in phase.workload and phase.passes for phase in phases)
        assert {"in-phase", "out-of-phase"} <= {
            parse_workload(phase.workload)[1].get("sync") for phase in phases
        }
        assert any(phase.steady and phase.warm_up for phase in phases)


def test_memory_is_tested_cold_and_directly_behind_each_steady_phase() -> None:
    for name in LEVELS[1:]:
        phases = load_plan(name, None).phases
        assert phases[0].passes
        assert phases[0].workload == "memtest"
        for before, hot in pairwise(phases):
            if before.steady:
                assert hot.passes > 1, "the first stripe is swept while the second is held"
                retention = float(parse_workload(hot.workload)[1]["retention"])
                assert retention * hot.passes <= hot.seconds


def test_a_changed_copy_of_a_level_needs_another_name(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(level_text("standard"))
    assert load_plan("", file) == load_plan("standard", None)
    changed = level_text("standard").replace('"3m"', '"3s"')
    file.write_text(changed)
    with pytest.raises(ConfigError, match="has the name of the level standard"):
        load_plan("", file)
    file.write_text(changed.replace('name = "standard"', 'name = "mine"'))
    assert load_plan("", file).name == "mine"


def test_a_hash_changes_with_anything_that_is_asked_for() -> None:
    hashes = {load_plan(name, None).hash for name in LEVELS}
    assert len(hashes) == len(LEVELS)
    assert load_plan("screen", None).hash == load_plan("screen", None).hash


def test_cycles_repeat_the_phases_and_number_them() -> None:
    other = '[[phase]]\nname = "b"\nworkload = "memtest"\npasses = 1\n'
    plan = parse("cycles = 3\n" + ONE + other)
    assert [phase.name for phase in plan.phases] == ["a-1", "b-1", "a-2", "b-2", "a-3", "b-3"]
    assert plan.seconds == 3
    by_hand = "".join(
        one.replace('"a"', f'"a-{cycle}"').replace('"b"', f'"b-{cycle}"')
        for cycle in (1, 2, 3)
        for one in (ONE, other)
    )
    assert plan == parse(by_hand)


def test_one_cycle_is_the_plan_without_the_key_and_its_hash_stays() -> None:
    assert parse("cycles = 1\n" + ONE).hash == parse(ONE).hash == "928a7e56e43bdf9d"
    soak = load_plan("soak", None)
    assert len(soak.phases) == 136
    assert (soak.phases[0].name, soak.phases[-1].name) == ("memory-1", "cool-down-8")
    assert soak.hash == "cc3a82ae87c4dba5"


def test_a_plan_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(level_text("long"))
    assert load_plan("screen", file) == load_plan("long", None)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "no phases"),
        ("phase = 3", "no phases"),
        (ONE + ONE, "two phases are called 'a'"),
        ('[[phase]]\nname = "a"\nworkload = "gemm"', "asks for no work"),
        ('[[phase]]\nname = "a"\nworkload = "hold"\nseconds = 1', "hold checks no results"),
        ('[[phase]]\nname = "a"\nworkload = "gemm"\npasses = 1', "gemm makes no passes"),
        ('[[phase]]\nname = "a"\nseconds = 1', "'workload' is missing"),
        (ONE + "sekunds = 3", "phase 1: 'sekunds' is unknown"),
        (ONE + 'passes = "3"', "passes = '3' is not a whole number"),
        (ONE + "passes = -1", "passes = -1 is not allowed"),
        (ONE + "steady = 1", "steady = 1 is not true or false"),
        (ONE + 'warm_up = "soon"', "warm_up = 'soon' is not seconds, or a time such as 10m"),
        (ONE + "warm_up = 5", "has a warm_up, and is not steady"),
        (ONE + "warm_up = nan", "out of range"),
        (
            ONE + "together = true\nsteady = true",
            "has together = true: it needs seconds, and cannot be steady",
        ),
        (
            ONE.replace("gemm", "memtest") + "together = true\npasses = 1",
            "has together = true: it needs seconds",
        ),
        ('[[phase]]\nname = "a"\nworkload = "memtest"\npasses = 1\nsteady = true', "no seconds"),
        (ONE.replace("= 1", "= 1e9"), "out of range"),
        (ONE.replace('"gemm"', '""'), "workload = '' is not allowed"),
        ("cycles = 0\n" + ONE, "cycles = 0 is out of range"),
        ("cycles = 1001\n" + ONE, "cycles = 1001 is out of range"),
        ("cycles = -1\n" + ONE, "cycles = -1 is not allowed"),
        ('cycles = "2"\n' + ONE, "cycles = '2' is not a whole number"),
        ("cycles = true\n" + ONE, "cycles = True is not a whole number"),
        ("cycles = 600\n" + ONE + ONE.replace('"a"', '"b"'), "cycles = 600 of 2 phases"),
        ("cycles = 2\n" + ONE.replace("= 1", '= "300d"'), "it takes more than"),
        ("cycles = 2\n" + ONE + ONE.replace('"a"', '"a-1"') + ONE, "two phases are called 'a-1'"),
        ("cycels = 2\n" + ONE, "max_failures, cycles"),
    ],
)
def test_a_wrong_plan_names_the_key_and_the_file(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert error in str(caught.value)
    assert "plan.toml" in str(caught.value)


def test_a_plan_of_another_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="spec is 'v9'"):
        parse_plan({"spec": "v9"}, "plan.toml")


@pytest.mark.parametrize("content", [b"\xff", b"a = [", b"[" * 10000, b""])
def test_a_file_that_is_no_plan_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"plan\.toml"):
        load_plan("screen", file)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("theirs", ["plan.toml", "."])
def test_root_imports_no_code_that_the_plan_of_another_user_names(
    theirs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "plan.toml"
    head = f'spec = "{SPEC}"\nname = "mine"\n'
    file.write_text(head + ONE.replace('"gemm"', '"/usr/lib/x:y"'))
    plan, text = read_plan("", file)
    assert (plan.phases[0].workload, text) == ("/usr/lib/x:y", file.read_text())
    os.chown(tmp_path / theirs, 4321, 4321)
    with pytest.raises(ConfigError, match=r"phase 'a' names code .*/usr/lib/x:y.* to uid 4321"):
        load_plan("", file)
    with monkeypatch.context() as patched:
        patched.setattr(os, "getuid", lambda: 4321)
        assert load_plan("", file) == plan
    file.write_text(head + ONE)
    assert load_plan("", file).phases[0].workload == "gemm"


def test_an_unknown_workload_is_found_before_the_run(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(f'spec = "{SPEC}"\nname = "mine"\n' + ONE.replace("gemm", "gem"))
    with pytest.raises(ConfigError, match=r"phase 'a': .*known are .*gemm"):
        load_plan("screen", file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_plan("screen", tmp_path / "none")


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_written_as_toml_and_read_as_the_same_plan(level: str) -> None:
    plan = load_plan(level, None)
    again = parse_plan(tomllib.loads(plan_toml(plan)), "again")
    assert (again, again.hash) == (plan, plan.hash)


@given(
    title=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    seconds=st.floats(0.001, 1e6),
    flags=st.tuples(*[st.booleans()] * 3),
)
def test_any_plan_is_written_as_toml_and_read_as_the_same_plan(
    title: str, seconds: float, flags: tuple[bool, bool, bool]
) -> None:
    screen, mandatory, steady = flags
    phases = (
        Phase(name="a", workload="gemm", seconds=1.0),
        Phase(name="b", workload="mixed", seconds=seconds, mandatory=mandatory, steady=steady),
    )
    plan = Plan(name="any", title=title, screen=screen, phases=phases)
    assert parse_plan(tomllib.loads(plan_toml(plan)), "again") == plan


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
_KEYS = st.sampled_from([*Phase.__dataclass_fields__, "x"])


@given(st.lists(st.dictionaries(_KEYS, _VALUES), max_size=3) | _VALUES)
def test_any_table_is_a_plan_or_a_configuration_error(phases: object) -> None:
    try:
        plan = parse_plan({"spec": SPEC, "name": "any", "phase": phases}, "plan.toml")
    except ConfigError:
        return
    assert all(phase.seconds > 0 or phase.passes > 0 for phase in plan.phases)

"""What a node must be: the text of the file, its errors, and its schema."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.expectation import (
    GPU_FIELDS,
    Expectation,
    Kind,
    Wanted,
    WantedPort,
    expect_gpus,
    expectation_toml,
    parse_expectation,
)
from sentinel.errors import ConfigError
from tests.harness.gpu_environment import ROOT
from tests.harness.parameters import mostly_long

SCHEMA = json.loads((ROOT / "docs" / "node.schema.json").read_text())

WHOLE = """
gpus = 8
serials = ["1", "2"]
[all]
driver = {min = "550.54.15"}
ecc = true
[model."NVIDIA H100 80GB HBM3"]
power_limit_w = 700
vbios = ["96.00.74.00.1A", "96.00.A5.00.01"]
ecc = [true, false]
[[infiniband]]
port = "mlx5_0/1"
rate_gbps = {min = 400}
"""

#: A text, how the error begins, and what it says is allowed.
WRONG = [
    ("", "f: it expects nothing", "gpus = 8"),
    ("infiniband = []\n[all]\n[model]", "f: it expects nothing", "gpus = 8"),
    ("gpus = 8\n[al]\n", "f:2: al is not known", "all"),
    ("gpus = 0", "f:1: gpus is 0", "1 to"),
    ("gpus = true", "f:1: gpus is True", "1 to"),
    ('gpus = "8"', "f:1: gpus is '8'", "1 to"),
    ("gpu = 8", "f:1: gpu is not known", "gpus"),
    ('serials = ["1", "1"]', "f:1: serials is", "different"),
    ("all = 1", "f:1: all is 1", "a table"),
    ("[all]\n# x\ndrivr = 1", "f:3: all.drivr is not known", "driver"),
    ("[all]\necc = 1", "f:2: all.ecc is 1", "true or false"),
    ("[all]\ndriver = 550", "f:2: all.driver is 550", "a version"),
    ('[all]\ndriver = {min = "new"}', "f:2: all.driver is", "{min"),
    ("[all]\necc = {min = true}", "f:2: all.ecc is", "true or false"),
    ("[all]\npcie_width = []", "f:2: all.pcie_width is []", "a number"),
    ("[all]\npcie_width = nan", "f:2: all.pcie_width is nan", "a number"),
    ("[all]\npcie_width = {max = 1}", "f:2: all.pcie_width is", "{min"),
    ('[model."A [1]"]\necc = 3', 'f:2: model."A [1]".ecc is 3', "true"),
    ("[model]\nA = 3", "f:2: model.A is 3", "a table"),
    ('[[infiniband]]\nport = "a"\n[[infiniband]]\nport = "a"', "f:2: infiniband.port is", "own"),
    ("[[infiniband]]\nstate = 1", "f: infiniband.port is None", "own"),
    ("gpus = ", "f: not TOML: Invalid value (at ", ""),
]


@pytest.mark.parametrize(("text", "message", "allowed"), WRONG)
def test_an_error_names_the_line_the_key_and_what_is_allowed(
    text: str, message: str, allowed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_expectation(text, "f")
    assert caught.value.what.startswith(message)
    assert allowed in caught.value.remedy


#: What JSON Schema has no words for.
BEYOND = ("= ", "nan", '"new"}', 'port = "a"', "[model]")


@mostly_long("text", [text for text, *_ in WRONG if not text.endswith(BEYOND)], quick=4)
def test_the_schema_refuses_what_has_a_wrong_key_or_type(text: str) -> None:
    document = tomllib.loads(text)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


def test_the_fields_of_a_model_come_before_those_of_all() -> None:
    found = parse_expectation(WHOLE, "f")
    jsonschema.validate(tomllib.loads(WHOLE), SCHEMA)
    assert (found.gpus, found.serials, found.text) == (8, ("1", "2"), WHOLE)
    assert found.of("another").keys() == {"driver", "ecc"}
    own = found.of("NVIDIA H100 80GB HBM3")
    assert (str(own["ecc"]), str(own["driver"])) == ("on or off", "at least 550.54.15")
    assert found.infiniband[0].fields["state"].one_of == ("ACTIVE",)


@pytest.mark.parametrize(
    ("kind", "least", "value", "allowed"),
    [
        (Kind.DECIMAL, "550.54.15", "550.54.15", True),
        (Kind.DECIMAL, "550.54.15", "550.163", True),
        (Kind.DECIMAL, "550.54.15", "550.54.9", False),
        (Kind.DECIMAL, "550.54.15", "simulated", None),
        (Kind.HEXADECIMAL, "96.00.9F.00.02", "96.00.A5.00.01", True),
        (Kind.HEXADECIMAL, "96.00.9F.00.02", "96.00.74.00.1A", False),
        (Kind.NUMBER, 16, 8, False),
        (Kind.NUMBER, 16, 16, True),
    ],
)
def test_a_minimum_compares_versions_by_their_parts(
    kind: Kind, least: Any, value: Any, allowed: object
) -> None:
    assert Wanted(minimum=least, kind=kind).allows(value) is allowed


def test_the_short_form_adds_the_number_to_a_file() -> None:
    file = parse_expectation("[all]\necc = true\n", "f")
    both = expect_gpus(8, file)
    assert (both.gpus, both.all) == (8, file.all)
    assert parse_expectation(both.text, both.source) == both


_TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1).filter(
    str.strip
)
_VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.FLAG: st.booleans(),
    Kind.NUMBER: st.integers(0, 10**6),
    Kind.DECIMAL: st.from_regex(r"[1-9]\d{0,2}(\.\d{1,3}){0,2}", fullmatch=True),
    Kind.HEXADECIMAL: st.from_regex(r"[0-9A-F]{2}(\.[0-9A-F]{2}){0,4}", fullmatch=True),
    Kind.TEXT: _TEXTS,
}


@st.composite
def _wanted(draw: st.DrawFn, kind: Kind) -> Wanted:
    if kind not in {Kind.FLAG, Kind.TEXT} and draw(st.booleans()):
        return Wanted(minimum=draw(_VALUES[kind]), kind=kind)
    values = draw(st.lists(_VALUES[kind], min_size=1, max_size=3))
    return Wanted(one_of=tuple(values), kind=kind)


_FIELDS = st.fixed_dictionaries(
    {}, optional={name: _wanted(kind) for name, kind in GPU_FIELDS.items()}
)


@given(
    st.builds(
        Expectation,
        gpus=st.integers(1, 64),
        serials=st.lists(_TEXTS, max_size=3, unique=True).map(tuple),
        all=_FIELDS,
        models=st.dictionaries(_TEXTS, _FIELDS, max_size=2),
        infiniband=st.builds(
            lambda port, state, rate: (
                WantedPort(port=port, fields={"state": state, "rate_gbps": rate}),
            ),
            _TEXTS,
            _wanted(Kind.TEXT),
            _wanted(Kind.NUMBER),
        ),
    )
)
def test_what_is_written_is_read_as_the_same(expectation: Expectation) -> None:
    text = expectation_toml(expectation)
    found = parse_expectation(text, "")
    assert Expectation(**{**vars(found), "text": ""}) == expectation
    jsonschema.validate(tomllib.loads(text), SCHEMA)

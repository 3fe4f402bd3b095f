"""Readers of a burn-in's reports; a report that breaks a rule of its format fails the test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, fromstring

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from sentinel.burnin.junit import junit_xml
from sentinel.burnin.ocp import ocp_lines


class Parsed(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self._open):
            self.text += f" {data}"

    def named(self, tag: str) -> list[dict[str, str | None]]:
        """Select elements by name."""
        return [attributes for name, attributes in self.elements if name == tag]


ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs" / "report.schema.json").read_text())
#: The schema of OCP Test & Validation; see its README.md.
OCP_SCHEMAS = Path(__file__).resolve().parent / "ocp_schema"
RESULTS = {"failure", "error", "skipped"}


# --- report.json -----------------------------------------------------------------------------


def schema_problems(schema: Any, report: Any) -> list[str]:
    """Validate a report, and return what is wrong."""
    errors = Draft202012Validator(schema).iter_errors(report)
    return [f"{list(error.path)}: {error.message}" for error in errors]


def closed(schema: Any) -> Any:
    """Return the schema without its permission of unknown fields."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if "properties" in found and isinstance(found.get("required"), list):
        found["additionalProperties"] = False
    return found


# --- junit.xml -------------------------------------------------------------------------------


def junit_suites(report: Mapping[str, Any]) -> list[Element]:
    """Build and parse the document, check the rules of the format, and return its suites."""
    return parsed_suites(junit_xml(report))


def parsed_suites(document: str) -> list[Element]:
    """Parse a JUnit document, check the rules of the format, and return its suites."""
    root = fromstring(document)  # noqa: S314 - it is our own
    assert root.tag == "testsuites"
    found = list(root)
    for suite in [root, *found]:
        cases = list(suite.iter("testcase"))
        kinds = [one.tag for case in cases for one in case if one.tag in RESULTS]
        counted = {name: int(suite.get(name, "")) for name in ("tests", "failures", "errors")}
        assert counted == {
            "tests": len(cases),
            "failures": kinds.count("failure"),
            "errors": kinds.count("error"),
        }
        assert int(suite.get("skipped", "")) == kinds.count("skipped")
        assert float(suite.get("time", "")) >= 0
    for suite in found:
        assert suite.tag == "testsuite"
        order = [child.tag for child in suite]
        assert order == sorted(order, key=["properties", "testcase"].index)
        assert {"name", "timestamp", "hostname", "id", "package"} <= set(suite.keys())
        cases = list(suite.iter("testcase"))
        assert len({(one.get("classname"), one.get("name")) for one in cases}) == len(cases)
        for case in cases:
            assert {"name", "classname", "time"} == set(case.keys())
            assert len(case) == 1, "a case has one result, or one output"
            assert case[0].tag in {*RESULTS, "system-out"}
            if case[0].tag in RESULTS:
                assert case[0].get("message")
    return found


# --- ocp.jsonl -------------------------------------------------------------------------------


@cache
def ocp_validator() -> Any:
    """Build the validator of one message."""
    schemas = [json.loads(path.read_text()) for path in OCP_SCHEMAS.glob("*.json")]
    resources = [(schema["$id"], Resource.from_contents(schema)) for schema in schemas]
    registry: Registry[Any] = Registry().with_resources(resources)
    root = next(schema for schema in schemas if schema["$id"].endswith("/output"))
    return Draft202012Validator(root, registry=registry)


def ocp_messages(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Build the messages of a run, and check the rules that hold for each run."""
    found = [json.loads(line) for line in ocp_lines(report)]
    for message in found:
        errors = [error.message for error in ocp_validator().iter_errors(message)]
        assert errors == [], message
    assert [one["sequenceNumber"] for one in found] == list(range(len(found)))
    times = [datetime.fromisoformat(one["timestamp"]) for one in found]
    assert times == sorted(times)
    assert times[0].tzinfo is not None
    assert found[0]["schemaVersion"] == {"major": 2, "minor": 0}
    runs = [next(iter(one["testRunArtifact"])) for one in found if "testRunArtifact" in one]
    assert (runs[0], runs[-1]) == ("testRunStart", "testRunEnd")
    assert runs.count("testRunStart") == runs.count("testRunEnd") == 1
    assert "testRunStart" in found[1]["testRunArtifact"]
    assert "testRunEnd" in found[-1]["testRunArtifact"]
    _check_steps(found)
    return found


def _check_steps(found: list[dict[str, Any]]) -> None:
    """Check that each step begins once, ends once, and has its messages in between."""
    open_, ended = set(), set()
    for one in (message["testStepArtifact"] for message in found if "testStepArtifact" in message):
        step = one["testStepId"]
        assert step not in ended
        if "testStepStart" in one:
            assert step not in open_
            open_.add(step)
        assert step in open_
        if "testStepEnd" in one:
            ended.add(step)
    assert open_ == ended

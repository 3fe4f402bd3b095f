"""The parts that all JUnit documents are made of: cases, results and their counts. Pure."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, SubElement, indent, tostring

#: Characters that XML 1.0 does not have, not even escaped.
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_COUNTED = ("failure", "error", "skipped")


def document(root: Element, seconds: float | None = None) -> str:
    """Count the cases of all suites, and write the document; the time is as of a suite."""
    count_cases(root, seconds)
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}'


def add_case(suite: Element, group: str, name: str, seconds: float) -> Element:
    """Add a case to a suite."""
    return SubElement(
        suite, "testcase", classname=clean(group), name=clean(name), time=f"{seconds:.3f}"
    )


def add_result(case: Element, name: str, text: str, kind: str | None = None) -> None:
    """Add why a case did not pass; a skipped one has no type."""
    found = SubElement(case, name, message=clean(text))
    if kind is not None:
        found.set("type", clean(kind))
        found.text = clean(text)


def count_cases(parent: Element, seconds: float | None = None) -> None:
    """Set the numbers of cases of a suite, or of all suites, and its time.

    Args:
        parent: The suite.
        seconds: How long it took; None for the sum of its cases, which were one after the other.
    """
    cases = list(parent.iter("testcase"))
    parent.set("tests", str(len(cases)))
    for name, attribute in zip(_COUNTED, ("failures", "errors", "skipped"), strict=True):
        parent.set(attribute, str(sum(case.find(name) is not None for case in cases)))
    total = sum(float(case.get("time", 0)) for case in cases) if seconds is None else seconds
    parent.set("time", f"{total:.3f}")


def clean(text: object) -> str:
    """Replace the characters that XML does not have."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", str(text))

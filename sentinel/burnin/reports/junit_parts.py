"""The parts that all JUnit documents are made of: cases, results and their counts. Pure."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, SubElement, indent, tostring

#: Characters that XML 1.0 does not have, not even escaped.
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_COUNTED = ("failure", "error", "skipped")


def document(root: Element) -> str:
    """Count the cases of all suites, and write the document."""
    count_cases(root)
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


def count_cases(parent: Element) -> None:
    """Set the numbers of cases of a suite, or of all suites."""
    cases = list(parent.iter("testcase"))
    parent.set("tests", str(len(cases)))
    for name, attribute in zip(_COUNTED, ("failures", "errors", "skipped"), strict=True):
        parent.set(attribute, str(sum(case.find(name) is not None for case in cases)))
    parent.set("time", f"{sum(float(case.get('time', 0)) for case in cases):.3f}")


def clean(text: object) -> str:
    """Replace the characters that XML does not have."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", str(text))

"""Names of nodes are folded into ranges, and no name is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.fleet.report import fold_names


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["login"], "login"),
        (["node1"], "node1"),
        (["node-003", "node-001", "node-002", "node-007"], "node-[001-003,007]"),
        (["a1", "a2", "b1"], "a[1-2],b1"),
        (["n9", "n10", "n11"], "n9,n[10-11]"),
        (["n1.x.org", "n2.x.org", "n2.y.org"], "n2.y.org,n[1-2].x.org"),
        (["rack2-node1", "rack1-node1", "rack1-node2"], "rack1-node[1-2],rack2-node1"),
        (["n1", "n1"], "n1"),
    ],
)
def test_names_are_folded(names: list[str], folded: str) -> None:
    assert fold_names(names) == folded


def unfolded(text: str) -> set[str]:
    """Expand what was folded."""
    found = set()
    for part in re.findall(r"[^,\[\]]*\[[^\]]*\][^,\[\]]*|[^,\[\]]+", text):
        match = re.fullmatch(r"(.*)\[(.*)\](.*)", part)
        if match is None:
            found.add(part)
            continue
        for one in match[2].split(","):
            first, _, last = one.partition("-")
            for number in range(int(first), int(last or first) + 1):
                found.add(f"{match[1]}{number:0{len(first)}}{match[3]}")
    return found


@given(st.sets(st.from_regex(r"\A[a-z]{1,2}-?[0-9]{0,3}(\.x)?\Z")))
def test_no_name_is_lost_and_none_is_added(names: set[str]) -> None:
    assert unfolded(fold_names(names)) == names

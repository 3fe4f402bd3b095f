"""The catalogue of checks, ``checks.toml``, and the tables that join it with what judges. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sentinel.burnin.checks.check import (
    Action,
    Check,
    CheckResult,
    Comparison,
    Judgement,
    Limit,
    Limits,
    Severity,
    Thresholds,
)
from sentinel.protocol.shipped_tables import shipped_table

_COMPARISONS = {comparison.sign: comparison for comparison in Comparison}

#: Judges an evidence by limits; a rule takes the arguments of its row as well.
J = TypeVar("J", bound=Callable[..., Judgement])


@dataclass(frozen=True, kw_only=True)
class Row:
    """One check of the catalogue."""

    #: Makes the check of its function ``judge``.
    make: Callable[..., Check[Any]]
    #: The rule that judges it; empty for a check with a function of its own.
    rule: str
    arguments: tuple[str, ...]
    #: Whether its limits are no matter of taste.
    is_of_correctness: bool


def _action(values: Mapping[str, str], texts: Mapping[str, str]) -> Action:
    return Action(Severity(values["severity"]), values.get("action", "").format_map(texts))


def _limit(text: str) -> Limit:
    sign, value = text.split()
    return Limit(comparison=_COMPARISONS[sign], value=float(value))


def _load() -> tuple[dict[str, Action], dict[str, Row]]:
    """Load the named actions, and the rows by the ids of the checks."""
    document = shipped_table("sentinel.burnin.checks", "checks.toml")
    texts = document["texts"]
    actions = {name: _action(values, texts) for name, values in document["actions"].items()}
    rows = {}
    for name, values in document["checks"].items():
        do = actions[values["do"]] if "do" in values else _action(values, texts)
        rule, *arguments = values.get("judge", ("",))
        make = partial(
            Check,
            id=name,
            severity=do.severity,
            action=do.text,
            limits={limit: _limit(text) for limit, text in values.get("limits", {}).items()},
            **{key: values.get(key, "") for key in ("title", "reads", "source", "rule", "unit")},
        )
        rows[name] = Row(
            make=make,
            rule=rule,
            arguments=tuple(arguments),
            is_of_correctness=values.get("correctness", False),
        )
    return actions, rows


#: The actions that have names, and all checks by id, in the order of a report.
ACTIONS, CATALOGUE = _load()
_PLACES = {name: place for place, name in enumerate(CATALOGUE)}


class Table:
    """Some checks of the catalogue with what judges them, in the order of the report.

    Args:
        parts: Tables whose checks it has, too.
    """

    def __init__(self, *parts: Table) -> None:
        self.rows: list[tuple[type, Check[Any]]] = []
        for part in parts:
            for of, check in part.rows:
                self._add(of, check)

    def check(self, name: str) -> Callable[[J], J]:
        """Declare a function as the judge of one check.

        Its first parameter is annotated with the class of evidence that it judges, its second one
        are the limits.
        """

        def declare(judge: J) -> J:
            self._declare(name, judge)
            return judge

        return declare

    def rule(self, name: str) -> Callable[[J], J]:
        """Declare a function as the judge of all checks that name it as their rule.

        After evidence and limits, it takes the arguments that each row of the catalogue has.
        """

        def declare(judge: J) -> J:
            for check, row in CATALOGUE.items():
                if row.rule == name:
                    self._declare(check, judge)
            return judge

        return declare

    def _declare(self, name: str, judge: Callable[..., Judgement]) -> None:
        row = CATALOGUE[name]

        def judge_row(evidence: Any, limits: Limits) -> Judgement:
            return judge(evidence, limits, *row.arguments)

        of, *_ = inspect.get_annotations(judge, eval_str=True).values()
        self._add(of, row.make(judge=judge_row))

    def _add(self, of: type, check: Check[Any]) -> None:
        if check.id in self.ids:
            message = f"two checks are called {check.id}"
            raise ValueError(message)
        self.rows.append((of, check))
        self.rows.sort(key=lambda row: _PLACES[row[1].id])

    def of(self, kind: type[Any]) -> tuple[Check[Any], ...]:
        """Select the checks that judge this class of evidence, or one that it is derived from."""
        return tuple(check for of, check in self.rows if issubclass(kind, of))

    def run(self, evidence: object, thresholds: Thresholds) -> list[CheckResult]:
        """Judge the evidence by all checks of its class."""
        return [check.run(evidence, thresholds) for check in self.of(type(evidence))]

    def __iter__(self) -> Iterator[Check[Any]]:
        return (check for _, check in self.rows)

    def __getitem__(self, name: str) -> Check[Any]:
        return next(check for check in self if check.id == name)

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all checks."""
        return frozenset(check.id for check in self)

    @property
    def limits(self) -> dict[str, Limits]:
        """The default limits by the id of the check, for a file of thresholds."""
        return {check.id: check.limits for check in self if check.limits}

"""The documents match the events, rules, options and files of the code; their links work."""

from __future__ import annotations

import ast
import json
import re
import sys
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sentinel.burnin.checks.recorded_run import CHECKS
from sentinel.cli.daemon.run import command
from sentinel.cli.display.log_lines import describe
from sentinel.config.model import SETTINGS
from sentinel.fleet.fleet_checks import CHECKS as FLEET_CHECKS
from sentinel.protocol.burnin_events import Published
from sentinel.protocol.events import EVENTS as EVENT_TYPES
from sentinel.protocol.rules import IDLE, RUNNING
from tests.harness.document_programs import document_program, documented_rules
from tests.harness.programs import run_program

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "sentinel"
EVENTS = ROOT / "docs" / "reference/events.md"
ARCHITECTURE = ROOT / "docs" / "internals/architecture.md"
RELIABILITY = ROOT / "docs" / "internals/reliability.md"
SECURITY = ROOT / "docs" / "guides/security.md"

#: Written from measurements; the documents link to it before it exists.
WRITTEN_LATER = ROOT / "docs" / "internals/benchmarks.md"

#: Folders below the root with generated files, and no documents of the project.
MADE = {"build", "dist", "node_modules"}

#: The names of the events that are published as values, by their class.
TYPED = {kind.__name__: kind.name for kind in typing.get_args(Published)}
#: Functions that pass the name of an event on, or that of a sample, which is no event.
PASSING = {"gpu_event", "sample", "_published"}


# --- events ----------------------------------------------------------------------------------


@cache
def architecture() -> tuple[str, str]:
    """Read how the program works, and where to change what."""
    works, _, change = ARCHITECTURE.read_text().partition("\n## Taking over\n")
    return works, change


@cache
def event_names() -> set[str]:
    """Collect the names of all events that the code publishes."""
    found = {kind.name for kind in typing.get_args(Published)}
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text()
        if not re.search(r"event\(|Event\(", source):
            continue
        tree = ast.parse(source, str(path))
        found.update(name for call in _calls(tree) for name in _names(call, path))
    return found


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield every call except those in functions that pass a name on."""
    passing = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name in PASSING
    ]
    inside = {id(node) for function in passing for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and id(node) not in inside:
            yield node


def _names(call: ast.Call, path: Path) -> Iterator[str]:
    """Yield the name of the event that ``call`` creates, if any."""
    match call:
        case ast.Call(func=ast.Name(id="Event"), keywords=keywords):
            given = [keyword.value for keyword in keywords if keyword.arg == "name"]
        case ast.Call(func=ast.Name(id="gpu_event"), args=given):
            pass
        case ast.Call(func=ast.Name(id=name)) if name in TYPED:
            given = [ast.Constant(value=TYPED[name])]
        case _:  # threading.Event() among others
            return
    match given:
        case [ast.Constant(value=str(name)), *_]:
            yield name
        case _:
            where = f"{path.relative_to(ROOT)}:{call.lineno}"
            pytest.fail(f"{where}: the name of an event is not written out")


@cache
def test_generated_parts_are_up_to_date() -> None:
    """Otherwise run ``make docs``."""
    texts = {path: path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))}
    generated = document_program("generate").generated
    assert not [path for path, text in texts.items() if generated(text) != text]


def test_committed_schemas_are_up_to_date() -> None:
    files = document_program("generate").FILES
    for name in ("config.schema.json", "node.schema.json"):
        assert files[name]() == (ROOT / "docs" / name).read_text()
        Draft202012Validator.check_schema(json.loads(files[name]()))


def test_the_parts_are_generated_from_the_tree_of_the_documents(tmp_path: Path) -> None:
    (tmp_path / "sentinel.py").write_text("raise ImportError('another installation')")
    words = [sys.executable, str(ROOT / "docs/generate.py"), "--help"]
    program = f"import runpy, sys; sys.argv = {words[1:]!r}\n"
    program += "try: runpy.run_path(sys.argv[0], run_name='__main__')\nexcept SystemExit: pass\n"
    program += "import sentinel; print('from', sentinel.__file__)"
    done = run_program(sys.executable, "-c", program, env={"PYTHONPATH": str(tmp_path)})
    assert f"from {PACKAGE / '__init__.py'}" in done.stdout, done.stderr


def test_every_generated_part_is_in_one_document() -> None:
    text = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    assert sorted(re.findall(r"^<!-- generated: (.+) -->$", text, re.MULTILINE)) == sorted(
        document_program("generate").PARTS
    )


@cache
def event_rows() -> dict[str, str]:
    """Read the fields of each event from docs/reference/events.md."""
    rows = r'^\| <a id="\w+"></a>`([\w.]+)` \| .+ \| (.*) \|$'
    return dict(re.findall(rows, EVENTS.read_text(), re.MULTILINE))


@cache
def event_examples() -> dict[str, dict[str, Any]]:
    """Read the example of each event."""
    lines = (ROOT / "docs" / "events.jsonl").read_text().splitlines()
    return {example["event"]: example for example in map(json.loads, lines)}


def test_the_document_of_the_events_lists_exactly_those_that_can_be_published() -> None:
    assert event_names() >= {"gpu.yielding", "sentinel.started", "probe.hung", "log.dropped"}
    assert set(event_rows()) == set(event_examples()) == event_names()


@pytest.mark.parametrize("name", sorted(event_rows()))
def test_each_event_has_an_example_with_documented_fields(name: str) -> None:
    fields = event_examples()[name]
    word, sentence = describe(name, fields)
    assert word == EVENT_TYPES[name].word, "its sentence does not fit its fields"
    assert not re.search(r"[{}\[\]]", sentence.replace(str(fields.get("first")), ""))
    explained = dict(
        re.findall(r"(?:^|<br>)`(\w+)`(?: \((.+?)\))?(?=:|<br>|$)", event_rows()[name])
    )
    for field in fields.keys() - {"event", "time", "at", "gpu", "index"}:
        value, kind = fields[field], explained[field]
        assert fits(field, value, kind), (field, value, kind)


def fits(field: str, value: object, kind: str) -> bool:
    """Check a value against the type that the document gives its field, or its name does."""
    if value is None:
        return kind.endswith("or null")
    if kind in {"", "or null"}:
        has_unit = any(field.endswith(end) for end in document_program("generate").UNITS)
        return isinstance(value, (int, float) if has_unit else str)
    words = re.split(r", | or ", kind.removesuffix(" or null"))
    if words[0].startswith("`"):
        return f"`{value}`" in words
    return isinstance(value, TYPES.get(words[0], (int, float)))


#: The types of docs/reference/events.md that are no numbers with a unit.
TYPES: dict[str, type] = {
    "text": str,
    "a [rule](#rules)": str,
    "boolean": bool,
    "integer": int,
    "integers": list,
    "list": list,
    "GPUs": list,
    "processes": list,
    "object": dict,
    "caller": dict,
}


def test_the_rules_of_the_document_are_exactly_those_that_can_decide() -> None:
    code = "".join(path.read_text() for path in sorted((PACKAGE / "core").rglob("*.py")))
    rules = set(re.findall(r'(?:Ruling\(\s*|rule=)"([\w.]+)"', code))
    assert rules | {RUNNING, IDLE} == documented_rules().keys()


# --- the doctor ------------------------------------------------------------------------------


def test_the_document_of_the_doctor_lists_exactly_the_checks_that_there_are() -> None:
    code = "".join(path.read_text() for path in (PACKAGE / "diagnostics").glob("doctor*.py"))
    made = r'(?:\b(?:well|warning|problem|_unread)\(\s*|\bcheck = )"([^"]+)"'
    _, _, text = (ROOT / "docs/reference/checks.md").read_text().partition("\n### The lines\n")
    text, _, _ = text.partition("\n## ")
    rows = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert len(rows) == len(set(rows)), "a check has two rows"
    assert set(rows) == set(re.findall(made, code))


# --- options ---------------------------------------------------------------------------------


def options_table() -> dict[str, tuple[str, str]]:
    """Read the default and the bounds of each flag from docs/reference/configuration.md."""
    _, _, text = (ROOT / "docs/reference/configuration.md").read_text().partition("\n## Options\n")
    text, _, _ = text.partition("\n## ")
    cell = r"^\| `(--[\w-]+)[^`]*`(?:<br>`[\w.]+`[†‡]*)? \| ([^|(]*)(?:\(([^|]*)\) )?\|"
    rows = re.findall(cell, text, re.MULTILINE)
    return {flag: (default.strip(), allowed) for flag, default, allowed in rows}


def test_the_document_of_the_configuration_lists_exactly_the_flags_of_run() -> None:
    shown = [param for param in command.params if not getattr(param, "hidden", False)]
    flags = {flag for param in shown for flag in param.opts}
    assert set(options_table()) == flags


def test_the_document_of_the_configuration_gives_each_setting_its_default_and_its_bounds() -> None:
    table = options_table()
    for setting in SETTINGS:
        assert table[setting.flag] == (setting.default, setting.limits), setting.flag


# --- packages --------------------------------------------------------------------------------


def packages() -> set[str]:
    """List the packages below sentinel, one level deep, and its public modules."""
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("__")}
    return folders | modules


def test_the_architecture_explains_every_package_and_no_other() -> None:
    _, _, text = architecture()[0].partition("\n## Packages and imports\n")
    text, _, _ = text.partition("\n## ")
    rows = re.findall(r"^\| (`[^|]+`) \| +\S", text, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([\w/]+)`", row)}
    assert {name.partition("/")[0] for name in named} == packages()
    assert not {
        name
        for name in named
        if not ((PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file())
    }


def test_every_file_that_the_architecture_names_exists() -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", architecture()[0]))
    assert "core/decide.py" in named
    assert not {name for name in named if not (PACKAGE / name).is_file()}


def test_everything_that_the_page_for_new_owners_names_exists() -> None:
    """Files and folders of the code and the tests, also by a pattern, and names in them."""
    names = re.findall(
        r"`((?:[\w*]+/)+(?:[\w*]+(?:\.\w+)?)?|\w+\.py)(?:::(\w+))?`", architecture()[1]
    )
    assert {("core/gpu_step.py", ""), ("unit/core/test_invariants.py", "")} <= set(names)
    places = (ROOT, PACKAGE, ROOT / "tests")
    missing = []
    for path, name in names:
        files = [file for place in places for file in place.glob(path.removesuffix("/"))]
        if not files or (name and not _defines(files[0], name)):
            missing.append(f"{path}::{name}")
    assert not missing


@pytest.mark.long
def test_the_price_list_is_roughly_true() -> None:
    """Otherwise run ``python docs/price_list.py``; to the line, each change would break it."""
    rows = re.findall(r"^\| ([^|]+) \| ([\d,]+) \|", architecture()[1], re.MULTILINE)
    listed = {feature: int(lines.replace(",", "")) for feature, lines in rows}
    counted = document_program("price_list").prices()
    assert listed == {
        feature: pytest.approx(lines, rel=0.1, abs=50) for feature, lines in counted.items()
    }


def test_the_page_for_new_owners_marks_the_long_tests() -> None:
    marked = re.findall(r"`((?:unit|integration)/[\w/]+\.py)(?:::(\w+))?`(†?)", architecture()[1])
    assert len(marked) > 15
    wrong = [
        f"{path}::{name}"
        for path, name, mark in marked
        if _is_long(ROOT / "tests" / path, name) != bool(mark)
    ]
    assert not wrong


def _is_long(file: Path, name: str) -> bool:
    """Check whether a test, or any test of a file, is left out of ``make test``."""
    for node in ast.parse(file.read_text()).body:
        is_other = isinstance(node, ast.FunctionDef) and name not in {"", node.name}
        if not is_other and re.search(r"\b(mark\.long|mostly_long)\b", ast.unparse(node)):
            return True
    return False


def _defines(file: Path, name: str) -> bool:
    """Check whether a file of Python has a function, class or constant of that name."""
    return bool(re.search(rf"^ *(?:(?:def|class) )?{name}\b", file.read_text(), re.MULTILINE))


def test_every_document_that_a_message_names_exists() -> None:
    named = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text())
    }
    assert "docs/guides/workloads.md" in named
    assert not {name for name in named if not (ROOT / name).is_file()}


# --- tests -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "least"), [(RELIABILITY, 53), (SECURITY, 18)])
def test_every_test_that_a_document_names_exists(path: Path, least: int) -> None:
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", path.read_text())
    assert len(named) > least
    tree = cache(lambda path: ast.parse((ROOT / "tests" / path).read_text()))
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / "tests" / path).is_file()
        or (name and name not in {getattr(node, "name", None) for node in tree(path).body})
    ]
    assert not missing


def test_every_fault_has_a_number_and_a_test() -> None:
    _, _, text = RELIABILITY.read_text().partition("\n## Faults\n")
    rows = re.findall(r"^\| (\d+) \|.*::test_.*\|$", text, re.MULTILINE)
    assert [int(number) for number in rows] == [*range(1, len(rows) + 1)]


def test_what_proves_a_check_beyond_its_row_names_checks_that_exist() -> None:
    _, _, text = RELIABILITY.read_text().partition("\n### Checks\n")
    rows = re.findall(r"^\| (`.*?) \| (.*?) \| (.*::test_.*) \|$", text, re.MULTILINE)
    assert rows
    for checks, where, _ in rows:
        assert set(re.findall(r"`(.*?)`", checks)) <= CHECKS.ids | FLEET_CHECKS.ids
        assert {word.partition(" (")[0] for word in where.split(", ")} <= KINDS_OF_PROOF


#: The words of docs/internals/reliability.md for what a check is proved on.
KINDS_OF_PROOF = {"function", "library", "simulated GPU", "CPU", "files", "kernel log", "card"}


# --- links -----------------------------------------------------------------------------------


@cache
def documents() -> list[Path]:
    """List every document of the project."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name not in MADE]
    visible = [folder for folder in folders if not folder.name.startswith(".")]
    return sorted(
        [*ROOT.glob("*.md"), *(path for folder in visible for path in folder.rglob("*.md"))]
    )


@cache
def prose(path: Path) -> str:
    """Read a document without its code blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """List the anchors of a document: those written, and of headings as GitHub creates them."""
    headings = re.findall(r"^#+ +(.+?) *$", prose(path), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    written = re.findall(r'<a id="([\w-]+)"></a>', prose(path))
    return {*written, *(heading.replace(" ", "-") for heading in plain)}


def test_every_link_within_the_project_has_a_target() -> None:
    targets = cache(anchors)
    broken = []
    for path in documents():
        for link in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            if target == WRITTEN_LATER and not target.exists():
                continue
            if not target.exists() or (anchor and anchor not in targets(target)):
                broken.append(f"{path.relative_to(ROOT)}: {link}")
    assert len(documents()) > 30
    assert not broken


def test_every_example_in_python_can_be_compiled() -> None:
    block = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    examples = [(path, text) for path in documents() for text in block.findall(path.read_text())]
    assert examples
    for path, text in examples:
        compile(text, str(path), "exec")

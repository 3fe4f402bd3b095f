"""The registry of daemons: what it keeps of those that have ended."""

from __future__ import annotations

from pathlib import Path

from sentinel.host import registry


def ended(path: Path, links: Path, **facts: str) -> None:
    """Leave the record of a process that a SIGKILL has ended."""
    entry = registry.take(path, registry.describe_own(path.parent, **facts))
    registry.link(path, links)
    entry.release()


def test_the_next_burnin_removes_the_files_of_those_that_were_killed(tmp_path: Path) -> None:
    """Each has a name of its own, so that no other would take it again."""
    links = tmp_path / "links"
    killed, living, daemon, own = (tmp_path / f"{number}.json" for number in range(4))
    ended(killed, links, run="/a/run")
    ended(daemon, links, socket="/a/socket")
    run = registry.describe_own(tmp_path, run="/a/run")
    with registry.recorded(living, run, links), registry.recorded(own, run, links):
        assert not killed.exists()
        assert {Path(link).readlink() for link in links.iterdir()} == {living, daemon, own}
    assert daemon.exists(), "commands show the log of a daemon that has ended"
    assert {path.name for path in tmp_path.iterdir()} == {daemon.name, links.name}

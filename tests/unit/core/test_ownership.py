"""What one user has begun is ended by that user or an administrator only."""

from __future__ import annotations

import pytest

from sentinel.protocol.commands import (
    Allocate,
    Caller,
    CancelGrant,
    Command,
    GrantKind,
    Level,
    PauseGpus,
    Refusal,
    Reserve,
    ResumeGpus,
)
from tests.harness.core_scenarios import reply_to, served
from tests.harness.parameters import mostly_long
from tests.harness.world import GIB, World

ALICE = Caller(via="unix", uid=1001, pid=4711, started=99, level=Level.OPERATE)
#: Another process of the same user.
ALICE_LATER = Caller(via="unix", uid=1001, pid=5000, started=200, level=Level.OPERATE)
BOB = Caller(via="unix", uid=1002, pid=4712, started=99, level=Level.OPERATE)
ROOT = Caller(via="unix", uid=0, pid=1, started=1, level=Level.OWN)
#: The users of a token are not told apart.
TOKEN = Caller(via="tcp", level=Level.OPERATE)
ADMINISTRATORS_TOKEN = Caller(via="tcp", level=Level.ADMINISTER)

#: What begins something, and what ends it.
PAIRS: dict[str, tuple[type[Command], dict[str, object], type[Command], dict[str, object]]] = {
    "reservation": (
        Reserve,
        {"id": "one", "reason": "", "count": 1},
        CancelGrant,
        {"kind": GrantKind.RESERVATION, "id": "one"},
    ),
    "allocation": (
        Allocate,
        {"id": "one", "gpu": "GPU-0", "size": GIB},
        CancelGrant,
        {"kind": GrantKind.ALLOCATION, "id": "one"},
    ),
    "pause": (PauseGpus, {"gpus": ("GPU-0",)}, ResumeGpus, {}),
    "pause that is replaced": (
        PauseGpus,
        {"gpus": ("GPU-0",)},
        PauseGpus,
        {"gpus": ("GPU-0",), "seconds": 1.0},
    ),
}


def send(world: World, command: type[Command], **arguments: object) -> Refusal | None:
    reply = reply_to(world, command, **arguments)
    if reply.refused is Refusal.FORBIDDEN:
        assert "administrator" in reply.text
    return reply.refused


@pytest.mark.parametrize("pair", PAIRS)
@mostly_long(
    "owner, other, may",
    [
        (ALICE, ALICE_LATER, True),
        (ALICE, BOB, False),
        (ALICE, TOKEN, False),
        (ALICE, ROOT, True),
        (ALICE, ADMINISTRATORS_TOKEN, True),
        (TOKEN, TOKEN, True),
        (TOKEN, BOB, False),
        (ROOT, ALICE, False),
    ],
    quick=3,
)
def test_only_the_owner_and_administrators_end_what_was_begun(
    pair: str, owner: Caller, other: Caller, *, may: bool
) -> None:
    begin, given, end, which = PAIRS[pair]
    world = served(1)
    assert send(world, begin, by=owner, **given) is None
    assert send(world, end, by=other, **which) is (None if may else Refusal.FORBIDDEN)


@pytest.mark.parametrize(("by", "may"), [(ALICE, False), (TOKEN, False), (ROOT, True)])
def test_only_administrators_release_and_acquire_the_driver(by: Caller, *, may: bool) -> None:
    refused = None if may else Refusal.FORBIDDEN
    world = served(1)
    assert send(world, PauseGpus, by=by, release=True) is refused
    assert send(world, PauseGpus, by=ROOT, release=True) is None
    assert send(world, ResumeGpus, by=by) is refused

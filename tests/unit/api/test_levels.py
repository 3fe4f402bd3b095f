"""A rejection names only settings that can grant the level that is needed."""

from __future__ import annotations

import pytest

from sentinel.api.access import Peer, why_forbidden
from sentinel.config.build import build_config
from sentinel.errors import ConfigError
from sentinel.protocol.commands import Level
from tests.harness.given_settings import given


@pytest.mark.parametrize("needed", [Level.READ, Level.OPERATE, Level.ADMINISTER])
def test_a_rejection_names_settings_that_take_the_needed_level(needed: Level) -> None:
    why = why_forbidden(Peer(via="unix", uid=1001), Level.NONE, needed)
    for flag, key in (("--access-users", "access.users"), ("--access-group", "access.group")):
        takes = True
        try:
            build_config(given({key: needed.name.lower()}))
        except ConfigError:
            takes = False
        assert (flag in why) is takes, why


def test_a_rejected_token_is_told_which_token_can_have_more() -> None:
    why = why_forbidden(Peer(via="tcp"), Level.READ, Level.OPERATE)
    assert "this token has `read`" in why
    assert "the token in the file `token`, and of no other" in why

"""Settings of single GPUs are grouped for a message, and come out of it as they were."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.override_groups import group_overrides, ungroup_overrides
from sentinel.protocol.caller import Caller
from sentinel.protocol.codec import decode, encode
from sentinel.protocol.commands import Configure, GivenOverride, GivenSetting

UUIDS = [f"GPU-{number:08x}-67d8-5168-8d5a-083882c8d660" for number in range(128)]
KEYS = ["memory.target", "power", "util.target", "workload", "rearm", "throttle.temp_critical_from"]


def of_client(uuid: str, keys: list[str], text: str) -> GivenOverride:
    """Return the settings that clients give to one GPU."""
    return GivenOverride(
        selector=uuid,
        source="sentinel set",
        given=tuple(
            GivenSetting(key=key, text=text, source=f"--{key} for {uuid[:12]}") for key in keys
        ),
    )


def of_file(uuid: str, keys: list[str], text: str) -> GivenOverride:
    """Return the settings of one GPU in a file."""
    path = "/var/lib/sentinel/settings.toml: gpu."
    return GivenOverride(
        selector=uuid,
        source=f"{path}{uuid}",
        given=tuple(GivenSetting(key=key, text=text, source=f"{path}{uuid}.{key}") for key in keys),
    )


def test_many_equal_settings_of_128_gpus_fit_into_a_message() -> None:
    keys = [f"{key}{number}" for key in KEYS for number in range(8)]
    overrides = [of(uuid, keys, "20GiB") for of in (of_client, of_file) for uuid in UUIDS]
    groups = group_overrides(overrides)
    assert len(groups) == 2
    command = Configure(number=1, by=Caller(via="unix"), given=(), overrides=groups)
    (sent,) = [decode(encode(command), (Configure,))]
    assert ungroup_overrides(sent.overrides) == tuple(overrides)


SELECTORS = st.sampled_from([*UUIDS[:3], "0", "1", "11", "00000000:01:00.0"])


@given(
    st.lists(
        st.builds(
            lambda of, selector, keys, text: of(selector, keys, text),
            st.sampled_from([of_client, of_file]),
            SELECTORS,
            st.lists(st.sampled_from(KEYS), unique=True),
            st.sampled_from(["1", "20GiB", "GPU-0000"]),
        )
    )
)
def test_all_come_out_in_their_order(overrides: list[GivenOverride]) -> None:
    assert ungroup_overrides(group_overrides(overrides)) == tuple(overrides)

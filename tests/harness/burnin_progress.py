"""How far a GPU is in a burn-in, for tests of what shows it."""

from __future__ import annotations

from sentinel.protocol.views import BurninFields

#: In the third of twelve phases.
PROGRESS = BurninFields(
    plan="standard",
    phase="fp16",
    number=3,
    phases=12,
    done_s=4.0,
    quota_s=9.0,
    passes=0,
    quota_passes=0,
    left_s=200.0,
    seconds=250.0,
    iterations=1,
    flops=1.0,
    bytes=1.0,
    checks=10,
    errors=0,
)

"""A finding of a stressor, for tests of what becomes of it."""

from __future__ import annotations

from sentinel.protocol.stressor import Finding, FindingPlace

#: One flipped bit of one result, which was right when it was computed again.
FLIP = Finding(
    number=1,
    place=FindingPlace.RESULT,
    workload="gemm",
    dtype="bf16",
    round=7,
    seed=3,
    count=1,
    first=(5, 9),
    bits=(0, 1, *[0] * 14),
    reread=True,
    repeated=0,
    repeats=3,
)

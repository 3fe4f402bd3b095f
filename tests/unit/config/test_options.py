"""The options of the built-in workloads are those of their signatures, and are checked anywhere."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sentinel.config.options import BUILT_IN, DTYPES, PATTERNS, PHASES
from sentinel.config.specs import check_workload, is_built_in, registered
from sentinel.errors import ConfigError
from sentinel.stressor import matmul, memory_cells
from sentinel.stressor.loader import _parameters, load_workload


def test_the_table_has_every_built_in_workload_with_its_options() -> None:
    entries = [one for one in registered() if is_built_in(one)]
    signatures = {entry.attr: _parameters(load_workload(entry.name)) for entry in entries}
    assert signatures == BUILT_IN


def test_the_names_are_those_of_the_stressor() -> None:
    assert tuple(matmul.DTYPES) == DTYPES
    assert tuple(matmul.PHASES) == PHASES
    assert tuple(memory_cells.PATTERNS) == PATTERNS


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("gemm:size=banana", "workload gemm: option size='banana' is not a whole number"),
        ("gemm:sise=64", "workload gemm has no option 'sise'; its options are dtype (one of auto"),
        ("gemm:size=65", "workload gemm: size=65 is not a positive multiple of 64"),
        ("gemm:size=100", "size=100 is not a positive multiple of 64"),
        ("gemm:seeds=0", "seeds=0 is out of range"),
        ("gemm:dtype=fp4", "is not one of auto, bf16"),
        ("hold:a=1", "workload hold has no option 'a'; it has no options"),
        ("mixed:plan=bf16+fp5", "mixed: there is no 'fp5' in plan='bf16+fp5'"),
        ("mixed:plan=", "no '' in plan=''"),
        ("mixed:seconds=0.01", "seconds=0.01 is out of range"),
        ("mixed:seeds=1001", "seeds=1001 is out of range"),
        ("memtest:patterns=aa+bb", "patterns=aa+bb has 'bb' in it; allowed are all, or some of"),
        *(
            (f"memtest:patterns={text}", "allowed are all, or some of zeros")
            for text in ("", "zeroes", "zeros+", "all+zeros")
        ),
        *(
            (f"memtest:retention={text}", "out of range; allowed is 0, or from 1 to 7200")
            for text in ("0.5", "-1", "7201")
        ),
        ("memtest:retention=nan", "retention='nan' is not a number"),
        ("pulse:hz=20", "hz=20 is out of range; allowed is from 0.5 to 10"),
        ("pulse:hz=0.4", "hz=0.4 is out of range"),
        ("pulse:duty=0", "duty=0 is out of range; allowed is from 0.1 to 0.9"),
        ("pulse:duty=1", "duty=1 is out of range"),
        ("pulse:size=65", "size=65 is not a positive multiple"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_workload(text)
    assert why in str(caught.value)


@pytest.mark.parametrize("text", ["mixed:plan=bf16+memory,seconds=5", "pulse:sync=in-phase"])
def test_right_options_are_accepted(text: str) -> None:
    check_workload(text)


def test_the_check_imports_neither_torch_nor_the_workload() -> None:
    code = (
        "import sys; from sentinel.config.specs import check_workload;"
        " check_workload('gemm:size=64');"
        " print([one for one in sys.modules if one == 'torch' or one.startswith('sentinel.str')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

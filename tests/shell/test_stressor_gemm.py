"""The gemm workload's ring and its comparison, with small matrices in this process."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sentinel.stressor.verify import BitComparison
from sentinel.stressor.workloads.gemm import Ring, cut

SIZE = 64
PLACES = 5


@pytest.fixture
def ring() -> Ring:
    ring = Ring(cut([torch.empty(2 * SIZE * SIZE * (PLACES + 4), dtype=torch.uint8)], SIZE))
    ring.prepare()
    return ring


def once_round(ring: Ring) -> int:
    return sum(ring.step() for _ in ring.places)


def test_the_first_round_fills_and_every_later_result_is_checked(ring: Ring) -> None:
    assert [once_round(ring) for _ in range(3)] == [0, PLACES, PLACES]
    assert ring.comparison.errors.last_news() == 0


def test_the_product_is_right(ring: Ring) -> None:
    exact = ring.left.double() @ ring.right.double()
    # bf16 keeps 8 bits, and a sum of 64 products of normal values is about 8
    torch.testing.assert_close(ring.reference.double(), exact, rtol=2**-8, atol=2**-5)
    assert abs(float(ring.left.float().mean())) < 0.1
    assert 0.9 < float(ring.left.float().std()) < 1.1
    assert not torch.equal(ring.left, ring.right)


@pytest.mark.parametrize("bit", [0, 6, 15])
@pytest.mark.parametrize("place", [0, PLACES - 1])
def test_one_flipped_bit_is_one_error(ring: Ring, place: int, bit: int) -> None:
    once_round(ring)
    mask = 1 << bit if bit < 15 else -(1 << 15)
    ring.places[place].view(torch.int16)[7, 9].bitwise_xor_(mask)
    assert once_round(ring) == PLACES
    assert ring.comparison.errors.last_news() == 1
    once_round(ring)
    assert ring.comparison.errors.last_news() == 0, "the place was overwritten with a right result"


def test_every_wrong_result_counts(ring: Ring) -> None:
    once_round(ring)
    for place in ring.places[:3]:
        place.fill_(float("nan"))
    once_round(ring)
    assert ring.comparison.errors.last_news() == 3


def test_news_of_an_error_come_without_a_wait_and_only_once(ring: Ring) -> None:
    once_round(ring)
    ring.places[2][0, 0] += 1
    once_round(ring)
    news = [ring.comparison.errors.news() for _ in range(4)]
    assert sum(news) == 1


def test_a_blind_comparison_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = torch.ones(SIZE, SIZE, dtype=torch.bfloat16)
    comparison = BitComparison(reference, torch.empty_like(reference))

    def blind(left: Tensor, right: Tensor, *, out: Tensor) -> Tensor:
        return out.fill_(False)

    monkeypatch.setattr(torch, "ne", blind)
    with pytest.raises(RuntimeError, match="a flipped bit was not found"):
        comparison.prove(torch.empty_like(reference))


def test_a_gpu_that_computes_differently_each_time_is_refused(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    mm = torch.mm
    drift = iter(range(100))

    def drifting(left: Tensor, right: Tensor, *, out: Tensor) -> Tensor:
        return mm(left, right, out=out).add_(next(drift))

    monkeypatch.setattr(torch, "mm", drifting)
    with pytest.raises(RuntimeError, match="computes wrongly"):
        ring.prepare()


def test_the_inputs_are_the_same_every_time_and_no_two_rows_are_alike() -> None:
    size = 2048  # the random values repeat after a million, and these are four million
    chunk = torch.empty(2 * size * size * 6, dtype=torch.uint8)
    first = Ring(cut([chunk], size)).left.clone()
    again = Ring(cut([chunk], size)).left
    assert torch.equal(first, again)
    assert len(torch.unique(first[:, :32].float(), dim=0)) == size


def test_matrices_are_cut_from_each_chunk_for_itself() -> None:
    chunks = [torch.zeros(5 * 2 * SIZE * SIZE // 2, dtype=torch.uint8) for _ in range(3)]
    slots = cut(chunks, SIZE)
    assert len(slots) == 6
    for slot in slots:
        slot.fill_(1)  # 0x3f80 in memory
    assert all(int((chunk == 0x3F).sum()) == 2 * SIZE * SIZE for chunk in chunks)
    assert cut(chunks, 8 * SIZE) == []

"""A one-shot process delivers its messages, names the failed call, and always ends."""

from __future__ import annotations

import errno
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psutil
import pytest

from sentinel.diagnostics.one_shot import (
    MAX_OUTPUT_BYTES,
    START,
    Failure,
    OneShotResult,
    run_one_shot,
)
from sentinel.errors import WireError
from sentinel.host.log_file import KEPT_BYTES
from sentinel.protocol.counters import CountersDone, DriverFailed, WorkloadInfo
from sentinel.protocol.shared_memory import slots_of
from sentinel.supervisor import child_process
from sentinel.supervisor.child_process import Child
from tests.harness.child_functions import run_script
from tests.harness.timing import TIMEOUT_S


class Results:
    """A receiver of results of calls named by letters, until CountersDone."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def take(self, message: DriverFailed | CountersDone) -> bool:
        if isinstance(message, DriverFailed):
            if not message.reason.isalpha():
                raise WireError("not a letter")
            self.calls.append(message.reason)
        return isinstance(message, CountersDone)


def run(
    results: Results, *script: object, timeout_s: Callable[[str], float] = lambda _: TIMEOUT_S
) -> OneShotResult:
    """Run a process that follows a script; check that it is gone afterwards."""
    before = psutil.Process().children()
    kinds: tuple[type[DriverFailed | CountersDone], ...] = (DriverFailed, CountersDone)
    found = run_one_shot(
        run_script, script, {}, kinds=kinds, take=results.take, timeout_s=timeout_s
    )
    after = [child for child in psutil.Process().children() if child not in before]
    # multiprocessing keeps its resource tracker.
    assert not [child for child in after if "resource_tracker" not in " ".join(child.cmdline())]
    return found


def messages(calls: str) -> list[DriverFailed]:
    return [DriverFailed(reason=call) for call in calls]


def failed(what: str, call: str = START, gpu: int | None = None) -> OneShotResult:
    has_hung = "within" in what
    failure = Failure(call=call, gpu=gpu, what=what, has_hung=has_hung)
    return OneShotResult(failure=failure, stuck=False)


def test_its_output_is_shown_and_bounded(capfd: pytest.CaptureFixture[str]) -> None:
    results = Results()
    assert run(results, ("print", 3000), CountersDone()).failure is None
    assert capfd.readouterr().err == ("x" * 999 + "\n") * 3
    done = run(results, ("print", 20_000_000), DriverFailed(reason="a"), CountersDone())
    assert done.failure is None
    assert results.calls == ["a"]
    shown = capfd.readouterr().err
    assert "bytes of output were dropped here]" in shown
    assert len(shown) <= MAX_OUTPUT_BYTES + KEPT_BYTES


def test_the_process_is_ended_after_its_last_message() -> None:
    results = Results()
    script = [*messages("ab"), CountersDone(), *messages("c")]
    assert run(results, *script) == OneShotResult(failure=None, stuck=False)
    assert results.calls == ["a", "b"]


def test_a_process_that_outlives_its_kill_leaves_no_channel_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Child] = []

    def survive(child: Child) -> None:
        made.append(child)

    monkeypatch.setattr(child_process, "_KILL_TIMEOUT_S", 0.0)
    monkeypatch.setattr(Child, "kill", survive)
    try:
        done = run_one_shot(
            run_script,
            (CountersDone(),),
            {},
            kinds=(CountersDone,),
            take=lambda _: True,
            timeout_s=lambda _: TIMEOUT_S,
        )
        assert done == OneShotResult(failure=None, stuck=True)
        assert [child.channel.fileno() for child in made] == [-1]
    finally:
        monkeypatch.undo()
        for child in made:
            child.kill()
            child.process.join()
            child.reap()


@pytest.mark.parametrize(
    ("end", "what"),
    [
        (("exit", 0), "did not return: its process exited with code 0"),
        (("exit", 3), "did not return: its process exited with code 3"),
        (("signal", signal.SIGSEGV), "did not return: its process was ended by SIGSEGV"),
        (("signal", 40), "did not return: its process was ended by signal 40"),
    ],
)
def test_all_messages_before_the_exit_are_taken(end: object, what: str) -> None:
    results = Results()
    many = messages("abcdefgh" * 20)
    assert run(results, *many, end) == failed(what)
    assert results.calls == [one.reason for one in many]


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"{}", "invalid message"),
        (WorkloadInfo(number=1), "unexpected type 'WorkloadInfo'"),
        (DriverFailed(reason="1"), "not a letter"),
    ],
)
def test_a_wrong_message_is_a_failure(sent: object, words: str) -> None:
    results = Results()
    found = run(results, *messages("a"), sent)
    assert found.failure is not None
    assert found.failure.what.startswith("sent garbage: ")
    assert words in found.failure.what
    assert results.calls == ["a"]


@pytest.mark.parametrize(
    ("end", "limit_s", "what"),
    [
        (DriverFailed(reason="z"), 0.5, "did not return within 0.5 s"),
        (("signal", signal.SIGSEGV), TIMEOUT_S, "did not return: its process was ended by SIGSEGV"),
    ],
)
def test_a_failure_names_the_call_that_was_announced_last(
    end: object, limit_s: float, what: str
) -> None:
    results = Results()
    (first, _), (second, _) = slots_of(1), slots_of(2)
    script = [("call", 0, "open"), ("finish", 0), ("call", first, "ecc"), ("finish", first)]
    found = run(
        results,
        *script,
        ("call", second, "mig"),
        end,
        timeout_s=lambda call: limit_s if call == "mig" else TIMEOUT_S,
    )
    assert found == failed(what, call="mig", gpu=2)


def test_a_process_without_any_call_has_the_time_of_its_start() -> None:
    results = Results()
    limits = {START: 1.0}
    found = run(results, ("finish", 0), *messages("a"), timeout_s=limits.__getitem__)
    assert found == failed("did not return within 1 s")


def start_fails() -> str:
    """Run a process that cannot be spawned; return the reason."""
    found = run_one_shot(
        run_script, (), {}, kinds=(CountersDone,), take=lambda _: True, timeout_s=lambda _: 1.0
    )
    assert found.failure is not None
    assert (found.failure.call, found.stuck) == (START, False)
    return found.failure.what


def test_a_process_without_file_descriptors_is_a_failure_like_others() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        what = start_fails()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "Too many open files" in what


def test_a_process_that_cannot_be_spawned_is_a_failure_like_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spawn(*_: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(child_process, "Child", spawn)
    assert "Resource temporarily unavailable; see `ulimit -u`" in start_fails()


def test_processes_that_several_threads_spawn_change_nothing_of_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A spawn changes the standard error and the variables, and restores them."""
    pauses = iter((0.1, 0.4))

    @contextmanager
    def slow() -> Iterator[None]:
        time.sleep(next(pauses))
        yield

    monkeypatch.setattr(child_process, "group_signals_blocked", slow)
    before, variables = os.fstat(2), {**os.environ}

    def run_one(_: int) -> OneShotResult:
        return run_one_shot(
            *(run_script, (CountersDone(),), {}),
            kinds=(CountersDone,),
            take=lambda _: True,
            timeout_s=lambda _: TIMEOUT_S,
        )

    with ThreadPoolExecutor(2) as pool:
        assert [done.failure for done in pool.map(run_one, range(2))] == [None, None]
    assert os.path.samestat(os.fstat(2), before)
    assert {**os.environ} == variables

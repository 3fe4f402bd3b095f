"""Render the results as tables, each figure beside its bar, as in docs/internals/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import median

from benchmarks.results import Record, Results

WORKLOADS = ("hold", "gemm", "elementwise")

#: The bars: seconds, shares of a core, bytes, ratios.
WORST_MARGIN = 0.045
#: A newcomer's time to memory over that of the floor in the same run: the median and the worst.
OVER_FLOOR, WORST_OVER_FLOOR = 1.12, 1.3
FREE_SLACK = 16 * 2**20
GROWTH_SLACK = 2 * 2**20
#: The newcomers that use several GPUs.
ON_SEVERAL = ("in-turn", "nccl")
_KINDS = ("supervisor", "probe", "service", "stressor")
RSS = {
    "supervisor": 45 * 10**6,
    "probe": 40 * 10**6,
    "spare": 40 * 10**6,
    "standby": 450 * 10**6,
    "stressor": 900 * 10**6,
}
OWN_CPU = {
    "cost-idle": 0.005,
    "cost-held": 0.05,
    "cost-held-nvidia-smi": 0.10,
    "cost-held-page": 0.05,
    "cost-held-onlookers": 0.05,
}
#: What an open page may add to all processes, as a share of a core.
PAGE_CPU = 0.01


class Report:
    """Tables over a results file; ``failed`` lists the missed bars.

    Args:
        results: The measurements.
        code: The code whose starts are counted; the default is that of the last one.
    """

    def __init__(self, results: Results, code: str | None = None) -> None:
        self._results = results
        codes = [record["code"] for record in results.records if "code" in record]
        self._code = code or (codes[-1] if codes else None)
        self.failed: list[str] = []

    def render(self) -> str:
        """Return all tables that have results, as Markdown."""
        sections = (
            ("Machine", partial(machine_line, self._results)),
            ("Who got the memory", self._handovers),
            (f"In starts, by the code {self._code}", self._starts),
            ("From the first growth of memory to the kill", self._margins),
            ("What it costs the newcomer", self._newcomer_cost),
            ("What sentinel costs", self._own_cost),
        )
        rendered = [(title, section()) for title, section in sections]
        return "\n".join(f"## {title}\n\n{text}\n" for title, text in rendered if text)

    def _verdict(self, what: str, *, good: bool) -> str:
        if not good:
            self.failed.append(what)
        return "pass" if good else "**FAIL**"

    # --- races -------------------------------------------------------------------------------

    def _races(self) -> Iterable[tuple[str, list[Record]]]:
        """Return the cells that are races, in the order of their first record."""
        names = dict.fromkeys(str(record["cell"]) for record in self._results.records)
        for name in names:
            records = [record for record in self._results.of(name) if "got" in record]
            if any("code" in record for record in records):  # the others are of older code
                records = [record for record in records if record.get("code") == self._code]
            if records:
                yield name, records

    def _handovers(self) -> str:
        rows = []
        for name, records in self._races():
            got = sum(bool(record["got"]) for record in records)
            looks = [r for r in records if "free" in r]
            whole = sum(r["free"] >= r["empty_free"] - FREE_SLACK for r in looks)
            grew = max((r.get("grown", 0) for r in looks), default=0)
            times = [r["memory_s"] for r in records if r["got"]]
            good = got == len(records) and whole == len(looks) and grew <= GROWTH_SLACK
            rows.append(
                [
                    name,
                    records[0]["newcomer"],
                    f"{got} of {len(records)}",
                    f"{whole} of {len(looks)}",
                    f"{grew / 2**20:.0f} MiB",
                    _spread(times),
                    self._verdict(f"{name}: got the memory", good=good) if _promised(name) else "",
                ]
            )
        head = [
            *("who holds the GPU", "newcomer", "got 97 %", "all free at first look"),
            *("grew afterwards, worst", "time to memory, median / worst", "bar: all, at once"),
        ]
        return markdown(head, rows)

    def _starts(self) -> str:
        rows = []
        for name, every in self._races():
            records = [record for record in every if "code" in record]
            if not records:
                continue
            cold = [record for record in records if record["cold"]]
            warm = [record for record in records if not record["cold"]]
            ended = [r["exit_s"] - r["kill_s"] for r in records if r.get("kill_s") is not None]
            rows.append(
                [
                    name,
                    *(
                        f"{sum(bool(r['got']) for r in part)} of {len(part)}"
                        for part in (warm, cold)
                    ),
                    str(sum(record["stressor"] == "STARTING" for record in records)),
                    *(_seconds([r["ready_s"] for r in part]) for part in (warm, cold)),
                    _spread(ended),
                    _spread([r["context_s"] for r in records if "context_s" in r]),
                ]
            )
        head = [
            *("who holds the GPU", "got it, warm", "cold", "met in the start"),
            *("start to Ready, warm", "cold", "kill to exit, median / worst"),
            "context, median / worst",
        ]
        return markdown(head, rows)

    def _margins(self) -> str:
        rows = []
        everything: list[Record] = []
        for name, records in self._races():
            # In a start, own growth hides a newcomer's; after a fault, nothing may report the kill;
            # a job on several GPUs may open all of them long before it grows on one.
            if (
                _promised(name)
                and "-starting" not in name
                and "fault" not in records[0]
                and records[0]["newcomer"] not in ON_SEVERAL
            ):
                everything += records
                rows.append(self._margin_row(name, records))
        if not rows:
            return ""
        rows.append(self._margin_row("all races", everything))
        head = [
            *("who holds the GPU", "races reported", "growth to kill, median / worst"),
            *("at most, worst", "growth to request: median / least"),
            *("first evidence: memory / PID", "evidence to kill, median / worst"),
            *("to exit, median", "memory back, median", f"bar: {WORST_MARGIN * 1e3:.0f} ms"),
        ]
        return markdown(head, rows)

    def _margin_row(self, name: str, every: Sequence[Record]) -> list[str]:
        # If the watch saw no growth or sentinel reported no hand-over, the race failed.
        records = [record for record in every if "margin_s" in record]
        reported = f"{len(records)} of {len(every)}"
        if not records:
            verdict = self._verdict(f"{name}: growth to kill", good=False)
            return [name, reported, *["-"] * 7, verdict]
        margins = [record["margin_s"] for record in records]
        evidence = [record["evidence"] for record in records]
        back = [r["memory_back_s"] for r in records if r["memory_back_s"] is not None]
        good = max(margins) <= WORST_MARGIN and len(records) == len(every)
        return [
            name,
            reported,
            _spread(margins),
            f"{max(record['margin_most_s'] for record in records) * 1e3:.0f} ms",
            _spread([_growth_to_request(one) for one in records if "context_s" in one], worst=min),
            f"{evidence.count('memory')} / {evidence.count('process')}",
            _spread([record["kill_s"] for record in records]),
            _milliseconds(median(record["exit_s"] for record in records)),
            _milliseconds(median(back)) if back else "not reported",
            self._verdict(f"{name}: growth to kill", good=good),
        ]

    def _newcomer_cost(self) -> str:
        rows = []
        for workload in WORKLOADS:
            alone = self._times("alone-bare")
            floor = self._times(f"floor-{workload}")
            own = self._times(f"{workload}-bare")
            if not (floor and own):
                continue
            ratio, worst = median(own) / median(floor), max(own) / median(floor)
            # On a simulated GPU memory is free at once, and there is no floor to compare with.
            compared = not alone or median(floor) > median(alone)
            good = not compared or (ratio <= OVER_FLOOR and worst < WORST_OVER_FLOOR)
            rows.append(
                [
                    workload,
                    *(
                        f"{_milliseconds(median(times))} ({len(times)})" if times else "-"
                        for times in (alone, floor, own)
                    ),
                    *((f"{ratio:.2f}", f"{worst:.2f}") if compared else ("-", "-")),
                    self._verdict(f"{workload}: cost to the newcomer", good=good),
                ]
            )
        head = [
            *("workload", "empty GPU", "floor", "sentinel", "of the floor", "worst"),
            f"bars: {OVER_FLOOR}, {WORST_OVER_FLOOR}",
        ]
        return markdown(head, rows)

    def _times(self, cell: str) -> list[float]:
        return [record["memory_s"] for record in self._results.of(cell) if record.get("got")]

    # --- costs ---------------------------------------------------------------------------

    def _own_cost(self) -> str:
        rows = []
        for name in OWN_CPU:
            rows += [self._cost_row(name, record) for record in self._results.of(name)]
        head = [
            *("state", "GPUs", "seconds", "CPU of a core: supervisor", "probe", "both", "service"),
            *("stressor, each", "resident: supervisor", "probe", "service", "stressor", "yields"),
            "bars",
        ]
        return markdown(head, rows)

    def _cost_row(self, name: str, record: Record) -> list[str]:
        cpu, resident = record["cpu"], record["rss"]
        own = cpu["supervisor"] + cpu["probe"]
        each = cpu.get("stressor", 0.0) / record["gpus"]
        missed = [
            f"{kind} of {_megabytes(size)}, bar {_megabytes(RSS[kind])}"
            for kind, size in resident.items()
            if size > RSS.get(kind, size)
        ]
        if own > OWN_CPU[name]:
            missed.append(f"CPU of {own:.2%}, bar {OWN_CPU[name]:.1%}")
        without = [_in_all(cell["cpu"]) for cell in self._results.of("cost-held")]
        if name == "cost-held-page" and without:
            added = _in_all(cpu) - max(without)
            if added > PAGE_CPU:
                missed.append(f"{added:.2%} more than without a page, bar {PAGE_CPU:.0%}")
        if record["yields"]:
            missed.append(f"{record['yields']} yields without a newcomer")
        missed_what = f"{name}: {'; '.join(missed)}"
        return [
            name.removeprefix("cost-"),
            str(record["gpus"]),
            f"{record['seconds']:.0f}",
            *(f"{share:.2%}" for share in (cpu["supervisor"], cpu["probe"], own)),
            f"{cpu['service']:.2%}" if "service" in cpu else "-",
            f"{each:.1%}" if "stressor" in cpu else "-",
            *(_megabytes(resident.get(kind)) for kind in _KINDS),
            str(record["yields"]),
            self._verdict(missed_what, good=not missed),
        ]


def _in_all(cpu: dict[str, float]) -> float:
    """Return what sentinel uses, without its stressors."""
    return sum(cpu.get(kind, 0.0) for kind in ("supervisor", "probe", "service"))


def machine_line(results: Results) -> str:
    """Return the machine and the days of a results file, or an empty string without any."""
    records = results.of("machine")
    if not records:
        return ""
    shown = [{k: v for k, v in r.items() if k not in {"cell", "round"}} for r in records]
    latest = shown[-1]
    text = ", ".join(f"{key} {value}" for key, value in latest.items() if key != "date")
    dates = sorted({str(record["date"]) for record in shown})
    return f"{text}; {dates[0]}" + (f" to {dates[-1]}" if len(dates) > 1 else "")


def _promised(cell: str) -> bool:
    """Return whether sentinel takes part in a race."""
    return not cell.startswith(("alone", "floor", "polling", "c-forks"))


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, or an empty string without rows."""
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def _seconds(durations: Sequence[float]) -> str:
    return f"{median(durations):.2f} s" if durations else "-"


def _growth_to_request(record: Record) -> float:
    """Compute how long after its first growth a newcomer requested its memory."""
    requested_at = record["go"] + record.get("init_s", 0.0) + record["context_s"]
    return float(requested_at - record["grown_at"])


def _spread(seconds: Sequence[float], worst: Callable[[Sequence[float]], float] = max) -> str:
    if not seconds:
        return "-"
    return f"{_milliseconds(median(seconds))} / {_milliseconds(worst(seconds))}"


def _megabytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:.1f} MB"

"""Sends the rows of ``support.tables.attacks`` one after the other, beside a well-behaved caller.

A row is violated by an answer that is not the expected one, by none in time, by a process that
ends, by a traceback or the caller's text in the log, by memory, by an address that was fetched, and
if the other caller waits. Of his wait, which a busy machine lengthens too, the shortest of a few
tries counts; of everything else the first.
"""

import json
import socket
import threading
import time
import uuid
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from support.processes.memory import MB, forget_peaks, peak, resident
from support.tables.attacks import KINDS
from support.tables.attacks.places import put
from support.tables.attacks.row import CANARY, PORT, Attack, Expected, Http
from support.tables.attacks.volume import lay_out

from fuzz.neighbour import LIMIT_S, Neighbour, longest_s, neighbour
from fuzz.target import Endpoint, Outcome, Server, Target

# Seconds that the neighbour may wait longer than alone; on a slow machine so many times as long
# as beside so many others like it; megabytes by which memory may grow.
MOST_WAIT_S = 0.5
MOST_WAITS, OTHERS = 3, 200
MOST_GROWTH_MB = 200
TRIES = 5
# Tokens of an answer that fills the demo model's context.
LONGEST = 2_000
# The first digits of a status.
CLASSES = {Expected.REFUSED: (4,), Expected.ANSWERED: (2,), Expected.EITHER: (2, 4)}
TRACEBACK = "Traceback (most recent call last)"
COLUMNS = "{:<58} {:<10} {:<9} {:>7} {:>7} {:>7} {:>7}  {}"


@dataclass
class Measured:
    """What a row did."""

    name: str
    kind: str
    expected: str
    statuses: list[int | None]
    seconds: float
    wait_s: float  # of the neighbour, the longest
    alone_s: float
    peak_mb: float  # above what was resident before
    kept_mb: float
    said: str
    violations: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        status = ",".join(sorted({str(status or "none") for status in self.statuses}))
        figures = (f"{self.seconds:.1f}", f"{self.wait_s:.2f}", f"{self.peak_mb:.0f}")
        kept = f"{self.kept_mb:.0f}"
        wrong = "; ".join(self.violations) or "-"
        return COLUMNS.format(self.name[:58], self.kind, status, *figures, kept, wrong)


def run(args: Namespace) -> int:
    """Send all rows that were asked for; return how many of them are violated."""
    chosen = [
        (kind, row) for kind, rows in KINDS.items() for row in rows if _asked(kind, row, args)
    ]
    if not chosen:
        print_line(f"attacks: no row has what --only says: {', '.join(args.only)}")
        return 1
    over_http = [(kind, row) for kind, row in chosen if kind == "http"]
    behind_queue = [(kind, row) for kind, row in chosen if kind != "http"]
    print_line(
        COLUMNS.format("row", "kind", "status", "s", "nb s", "peak MB", "kept", "violations")
    )
    results: list[Measured] = []
    with (args.logs / "attacks.jsonl").open("w") as file:
        for target, rows in ((Endpoint, behind_queue), (Server, over_http)):
            folder = args.logs / target.__name__.lower()
            lay_out(folder / "volume")
            settings = {"FILES_PATH": str(folder / "volume")}
            for measured in _series(target(args.checkout, folder, settings), rows):
                results.append(measured)
                print_line(measured.line)
                file.write(json.dumps(asdict(measured)) + "\n")
                file.flush()
    wrong = [measured for measured in results if measured.violations]
    print_line(f"\nattacks: {len(results)} rows, {len(wrong)} violated")
    for measured in wrong:
        print_line(f"  {measured.kind}: {measured.name}: {'; '.join(measured.violations)}")
    return len(wrong)


def print_line(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a report on the terminal


def _asked(kind: str, row: Attack, args: Namespace) -> bool:
    kinds = [word for word in args.only if word in KINDS]
    texts = [word for word in args.only if word not in KINDS]
    named = not texts or any(text in row.name for text in texts)
    return named and kind in (kinds or KINDS) and (row.harmful or not args.harmful)


class Bait:
    """A server on loopback that nobody may call, and how often somebody has."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.calls = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._socket.accept()[0].close()
            self.calls += 1


def _series(target: Target, rows: list[tuple[str, Attack]]) -> Iterator[Measured]:
    """Send rows to a worker; after one that it did not survive, to a fresh one."""
    waiting, bait = list(rows), Bait()
    while waiting:
        with ExitStack() as stack:
            stack.enter_context(target.started())
            _warm_up(target)
            beside = stack.enter_context(neighbour(target))
            most_wait_s = beside.alone_s + max(MOST_WAIT_S, MOST_WAITS * _wait(target, beside))
            pids = target.pids
            while waiting and target.pids == pids:
                kind, row = waiting.pop(0)
                measured = _measured(target, kind, row, beside, bait, most_wait_s)
                yield measured
                if None in measured.statuses or not beside.well:
                    break


def _warm_up(target: Target) -> None:
    """Let the engine compute prompts of each length: it keeps a kernel for each, 250 MB in all."""
    body = {"prompt": "Hi", "max_tokens": LONGEST, "use_beam_search": True, "n": 2}
    outcome = target.send(_request(target, **body), LIMIT_S)
    assert outcome.status == 200, outcome.text


def _wait(target: Target, beside: Neighbour) -> float:
    """Return how long the neighbour waits at most beside others like it."""
    began = time.monotonic()
    _send(target, _request(target, prompt="Hi", max_tokens=4), OTHERS, LIMIT_S)
    return longest_s(beside.during(began))


def _request(target: Target, **body: Any) -> Any:
    if isinstance(target, Endpoint):
        return put("completions", body)
    return put("server", {"body": body})


def _measured(
    target: Target, kind: str, row: Attack, beside: Neighbour, bait: Bait, most_wait_s: float
) -> Measured:
    """Send a row, again if the neighbour waited too long."""
    first = _once(target, kind, row, beside, bait)
    waits, unforgiven = [first.wait_s], len(first.violations)
    while min(waits) > most_wait_s and len(waits) < TRIES and not unforgiven:
        again = _once(target, kind, row, beside, bait)
        waits.append(again.wait_s)
        first.violations += again.violations
        unforgiven = len(again.violations)
    first.wait_s = min(waits)
    if first.wait_s > most_wait_s:
        first.violations.append(f"the neighbour waited {first.wait_s:.1f} s")
    return first


def _once(target: Target, kind: str, row: Attack, beside: Neighbour, bait: Bait) -> Measured:
    word = f"canary-{uuid.uuid4().hex[:12]}"
    payload = _marked(row.build(), word, bait)
    pids, logged = target.pids, _size(target.log)
    before, calls_before = resident(pids), bait.calls
    forget_peaks(pids)
    began = time.monotonic()
    outcomes = _send(target, payload, row.times, row.limit_s)
    seconds = time.monotonic() - began
    calls = beside.during(began)
    measured = Measured(
        name=row.name,
        kind=kind,
        expected=row.expected,
        statuses=[outcome.status for outcome in outcomes],
        seconds=round(seconds, 2),
        wait_s=round(longest_s(calls), 2),
        alone_s=round(beside.alone_s, 3),
        peak_mb=round((peak(pids) - before) / MB),
        kept_mb=round((resident(pids) - before) / MB),
        said=outcomes[0].text.replace(word, CANARY)[:300],
    )
    measured.violations += _wrong_answers(outcomes, row)
    if target.pids != pids:
        measured.violations.append("a process ended")
    if not all(call.good for call in calls):
        measured.violations.append("the neighbour was failed")
    if measured.peak_mb > MOST_GROWTH_MB:
        measured.violations.append(f"memory grew by {measured.peak_mb:.0f} MB")
    if bait.calls > calls_before:
        measured.violations.append("an address was fetched")
    measured.violations += _wrong_lines(_since(target.log, logged), word)
    return measured


def _send(target: Target, payload: Any, times: int, limit_s: float) -> list[Outcome]:
    """Send a request so many times at once."""
    barrier = threading.Barrier(times)

    def send(_: int) -> Outcome:
        barrier.wait()
        return target.send(payload, limit_s)

    with ThreadPoolExecutor(times) as threads:
        return list(threads.map(send, range(times)))


def _marked(payload: Any, word: str, bait: Bait) -> Any:
    """Return a payload as it is sent, with its canary and the bait's port."""

    def marked(text: str) -> str:
        return text.replace(CANARY, word).replace(PORT, str(bait.port))

    if isinstance(payload, Http):
        body = marked(payload.body.decode("latin-1")).encode("latin-1")
        headers = {marked(name): marked(value) for name, value in payload.headers.items()}
        return replace(payload, path=marked(payload.path), body=body, headers=headers)
    return marked(payload.decode() if isinstance(payload, bytes) else json.dumps(payload)).encode()


def _wrong_answers(outcomes: list[Outcome], row: Attack) -> list[str]:
    wrong = set()
    for outcome in outcomes:
        # Several requests at once may fill a worker.
        full = outcome.full and row.times > 1
        if outcome.status is None:
            wrong.add("no answer")
        elif outcome.status // 100 not in CLASSES[row.expected] and not full:
            wrong.add(f"status {outcome.status}, expected: {row.expected}")
    return sorted(wrong)


def _wrong_lines(logged: str, word: str) -> list[str]:
    found = {"traceback": TRACEBACK in logged, "the caller's text": word in logged}
    return [f"in the log: {what}" for what, there in found.items() if there]


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _since(log: Path, size: int) -> str:
    with log.open("rb") as file:
        file.seek(size if size <= log.stat().st_size else 0)
        return file.read().decode(errors="replace")

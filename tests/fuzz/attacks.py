"""Sends the rows of ``support.tables.attacks`` sequentially, next to a well-behaved caller.

A row fails because of an unexpected response, a missing response, the exit of a process, a
traceback or the caller's text in the log, memory growth, a fetched address, or a long wait of the
well-behaved caller (the neighbour). A busy machine also lengthens that wait, so the shortest wait
of several tries counts. For everything else, the first try counts.
"""

import json
import shutil
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

from support.processes.memory import MB, peak_bytes, reset_peaks, resident_bytes
from support.tables.attacks import CANARY, KINDS, PORT, Attack, Expected, Http, put, write_volume

from fuzz import print_line
from fuzz.neighbour import LIMIT_S, Neighbour, longest_s, start_neighbour
from fuzz.target import Endpoint, Outcome, Server, Target

# The neighbour may wait this many seconds longer than without other callers. On a slow machine, it
# may wait three times as long as next to 200 well-behaved callers. Memory may grow by this many MB.
MAX_EXTRA_WAIT_S = 0.5
MAX_WAIT_RATIO, OTHER_CALLERS = 3, 200
MAX_GROWTH_MB = 200
TRIES = 5
# Tokens of an answer that fills the demo model's context.
LONGEST_TOKENS = 2_000
# First digits of the allowed statuses.
STATUS_CLASSES = {Expected.REFUSED: (4,), Expected.ANSWERED: (2,), Expected.EITHER: (2, 4)}
TRACEBACK = "Traceback (most recent call last)"
COLUMNS = "{:<58} {:<10} {:<9} {:>7} {:>7} {:>7} {:>7}  {}"


@dataclass
class RowResult:
    """The measurements and violations of a row."""

    name: str
    kind: str
    expected: str
    statuses: list[int | None]
    seconds: float
    wait_s: float  # the neighbour's longest wait
    alone_s: float
    peak_mb: float  # above the resident memory before the row
    kept_mb: float
    said: str
    violations: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        status = ",".join(sorted({str(status or "none") for status in self.statuses}))
        figures = (f"{self.seconds:.1f}", f"{self.wait_s:.2f}", f"{self.peak_mb:.0f}")
        kept = f"{self.kept_mb:.0f}"
        violations = "; ".join(self.violations) or "-"
        return COLUMNS.format(self.name[:58], self.kind, status, *figures, kept, violations)


def run(args: Namespace) -> int:
    """Send the selected rows; return the number of rows with violations."""
    chosen = [
        (kind, row) for kind, rows in KINDS.items() for row in rows if _is_chosen(kind, row, args)
    ]
    if not chosen:
        print_line(f"attacks: no row matches --only: {', '.join(args.only)}")
        return 1
    over_http = [(kind, row) for kind, row in chosen if kind == "http"]
    behind_queue = [(kind, row) for kind, row in chosen if kind != "http"]
    print_line(
        COLUMNS.format("row", "kind", "status", "s", "nb s", "peak MB", "kept", "violations")
    )
    results: list[RowResult] = []
    with (args.logs / "attacks.jsonl").open("w") as file:
        for target, rows in ((Endpoint, behind_queue), (Server, over_http)):
            folder = args.logs / target.__name__.lower()
            # Unfinished batches of an earlier run would count towards the limit.
            shutil.rmtree(folder / "volume", ignore_errors=True)
            write_volume(folder / "volume")
            settings = {"FILES_PATH": str(folder / "volume")}
            for result in _send_rows(target(args.checkout, folder, settings), rows):
                results.append(result)
                print_line(result.line)
                file.write(json.dumps(asdict(result)) + "\n")
                file.flush()
    failed = [result for result in results if result.violations]
    print_line(f"\nattacks: {len(results)} rows, {len(failed)} violated")
    for result in failed:
        print_line(f"  {result.kind}: {result.name}: {'; '.join(result.violations)}")
    return len(failed)


def _is_chosen(kind: str, row: Attack, args: Namespace) -> bool:
    kinds = [word for word in args.only if word in KINDS]
    texts = [word for word in args.only if word not in KINDS]
    has_text = not texts or any(text in row.name for text in texts)
    return has_text and kind in (kinds or KINDS) and (row.harmful or not args.harmful)


class Bait:
    """A server on loopback that must not be called; it counts calls."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.calls = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._socket.accept()[0].close()
            self.calls += 1


def _send_rows(target: Target, rows: list[tuple[str, Attack]]) -> Iterator[RowResult]:
    """Send rows to a worker; start a new worker after a row that damaged it."""
    remaining, bait = list(rows), Bait()
    while remaining:
        with ExitStack() as stack:
            stack.enter_context(target.start())
            _warm_up(target)
            neighbour = stack.enter_context(start_neighbour(target))
            max_wait_s = neighbour.alone_s + max(
                MAX_EXTRA_WAIT_S, MAX_WAIT_RATIO * _busy_wait_s(target, neighbour)
            )
            pids = target.pids
            while remaining and not target.has_lost(pids):
                kind, row = remaining.pop(0)
                result = _measure_row(target, kind, row, neighbour, bait, max_wait_s)
                yield result
                if None in result.statuses or not neighbour.is_healthy:
                    break


def _warm_up(target: Target) -> None:
    """Let the engine compute prompts of each length; it caches a kernel for each, 250 MB in all."""
    body = {"prompt": "Hi", "max_tokens": LONGEST_TOKENS, "use_beam_search": True, "n": 2}
    outcome = target.send(_request(target, **body), LIMIT_S)
    assert outcome.status == 200, outcome.text


def _busy_wait_s(target: Target, neighbour: Neighbour) -> float:
    """Return the neighbour's longest wait next to other well-behaved callers."""
    began = time.monotonic()
    _send(target, _request(target, prompt="Hi", max_tokens=4), OTHER_CALLERS, LIMIT_S)
    return longest_s(neighbour.calls_since(began))


def _request(target: Target, **body: Any) -> Any:
    if isinstance(target, Endpoint):
        return put("completions", body)
    return put("server", {"body": body})


def _measure_row(
    target: Target, kind: str, row: Attack, neighbour: Neighbour, bait: Bait, max_wait_s: float
) -> RowResult:
    """Send a row; send it again if the neighbour waited too long."""
    result = _measure_once(target, kind, row, neighbour, bait)
    waits_s, new_violations = [result.wait_s], len(result.violations)
    while min(waits_s) > max_wait_s and len(waits_s) < TRIES and not new_violations:
        retried = _measure_once(target, kind, row, neighbour, bait)
        waits_s.append(retried.wait_s)
        result.violations += retried.violations
        new_violations = len(retried.violations)
    result.wait_s = min(waits_s)
    if result.wait_s > max_wait_s:
        result.violations.append(f"the neighbour waited {result.wait_s:.1f} s")
    return result


def _measure_once(
    target: Target, kind: str, row: Attack, neighbour: Neighbour, bait: Bait
) -> RowResult:
    word = f"canary-{uuid.uuid4().hex[:12]}"
    payload = _fill_in(row.build(), word, bait)
    pids, log_size = target.pids, _log_size(target.log)
    before, calls_before = resident_bytes(pids), bait.calls
    reset_peaks(pids)
    began = time.monotonic()
    outcomes = _send(target, payload, row.times, row.limit_s)
    seconds = time.monotonic() - began
    calls = neighbour.calls_since(began)
    result = RowResult(
        name=row.name,
        kind=kind,
        expected=row.expected,
        statuses=[outcome.status for outcome in outcomes],
        seconds=round(seconds, 2),
        wait_s=round(longest_s(calls), 2),
        alone_s=round(neighbour.alone_s, 3),
        peak_mb=round((peak_bytes(pids) - before) / MB),
        kept_mb=round((resident_bytes(pids) - before) / MB),
        said=outcomes[0].text.replace(word, CANARY)[:300],
    )
    result.violations += _wrong_answers(outcomes, row)
    if target.has_lost(pids):
        result.violations.append("a process exited")
    if not all(call.good for call in calls):
        result.violations.append("a request of the neighbour failed")
    if result.peak_mb > MAX_GROWTH_MB:
        result.violations.append(f"memory grew by {result.peak_mb:.0f} MB")
    if bait.calls > calls_before:
        result.violations.append("an address was fetched")
    result.violations += _wrong_lines(_read_log_since(target.log, log_size), word)
    return result


def _send(target: Target, payload: Any, times: int, limit_s: float) -> list[Outcome]:
    """Send a request ``times`` times concurrently."""
    barrier = threading.Barrier(times)

    def send(_: int) -> Outcome:
        barrier.wait()
        return target.send(payload, limit_s)

    with ThreadPoolExecutor(times) as threads:
        return list(threads.map(send, range(times)))


def _fill_in(payload: Any, word: str, bait: Bait) -> Any:
    """Return the payload to send, with the canary and the bait's port filled in."""

    def fill_in(text: str) -> str:
        return text.replace(CANARY, word).replace(PORT, str(bait.port))

    if isinstance(payload, Http):
        body = fill_in(payload.body.decode("latin-1")).encode("latin-1")
        headers = {fill_in(name): fill_in(value) for name, value in payload.headers.items()}
        return replace(payload, path=fill_in(payload.path), body=body, headers=headers)
    return fill_in(payload.decode() if isinstance(payload, bytes) else json.dumps(payload)).encode()


def _wrong_answers(outcomes: list[Outcome], row: Attack) -> list[str]:
    violations = set()
    for outcome in outcomes:
        # Several concurrent requests may fill a worker.
        is_full = outcome.is_full and row.times > 1
        if outcome.status is None:
            violations.add("no answer")
        elif outcome.status // 100 not in STATUS_CLASSES[row.expected] and not is_full:
            violations.add(f"status {outcome.status}, expected: {row.expected}")
    return sorted(violations)


def _wrong_lines(log_text: str, word: str) -> list[str]:
    found = {"traceback": TRACEBACK in log_text, "the caller's text": word in log_text}
    return [f"in the log: {violation}" for violation, is_found in found.items() if is_found]


def _log_size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _read_log_since(log: Path, size: int) -> str:
    with log.open("rb") as file:
        file.seek(size if size <= log.stat().st_size else 0)
        return file.read().decode(errors="replace")

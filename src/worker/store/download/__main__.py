"""Obtains what another process wants: JSON comes in, JSON goes out, and the log is its own.

It is a process of its own because a download has threads, and the engine's core is to be forked
before any thread exists. It ends when whoever asked does.
"""

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

from worker.store import Unavailable
from worker.store.download import lease, obtain
from worker.store.fetching import ANSWER, ORDER, Answer

log = logging.getLogger("worker.store")


def main() -> None:
    """Read what is wanted from standard input, and write where it lies to standard output."""
    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    logging.getLogger("worker").setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, lambda *_: leave())
    # Ctrl-C reaches both: the other one decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = ORDER.validate_json(sys.stdin.buffer.readline())
    threading.Thread(target=leave_with_parent, daemon=True).start()
    for cache in {order.places.cache(each) for each in order.wanted}:
        warn_of_own_disk(cache)
    try:
        found = [obtain(each, order.places, newest=order.newest) for each in order.wanted]
        answer = Answer(found)
    except Unavailable as why:
        answer = Answer([], why.reason, why.told, why.remedy)
    sys.stdout.buffer.write(ANSWER.dump_json(answer))
    sys.stdout.flush()
    # Threads of a download that failed may still wait for the hub.
    os._exit(0)


def warn_of_own_disk(cache: Path) -> None:
    """Say so if a cache is where no other worker will find what is downloaded."""
    there = next(each for each in (cache, *cache.absolute().parents) if each.exists())
    if there.stat().st_dev == Path("/").stat().st_dev:
        log.warning("%s is no network volume: each worker downloads for itself", cache)


def leave_with_parent() -> None:
    sys.stdin.buffer.read()
    leave()


def leave() -> NoReturn:
    lease.release_all()
    os._exit(1)


if __name__ == "__main__":
    main()

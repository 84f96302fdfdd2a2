"""Obtains what another process wants: reads an ``Order``, downloads, writes a ``Reply``.

This is a process of its own because downloads have threads, and the engine's core is forked before
any thread exists. A SIGTERM ends it, which also comes when its parent ends.
"""

import logging
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from worker import masking
from worker.settings.environment import HUB_TOKEN, overwrite
from worker.store import Unavailable
from worker.store.download import obtain
from worker.store.fetching import ORDER, REPLY, Reply
from worker.store.places import on_own_disk
from worker.volume import lease

log = logging.getLogger("worker.store")


def main() -> None:
    """Read the order, obtain what it wants, write the reply, and end the process."""
    masking.mask_output()
    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    logging.getLogger("worker").setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, lambda *_: leave())
    order = ORDER.validate_json(sys.stdin.buffer.read())
    if order.token:
        masking.hide([order.token])
        overwrite(HUB_TOKEN, order.token)
    for cache in {order.places.cache(wanted) for wanted in order.wanted}:
        warn_of_own_disk(cache)
    try:
        found = [obtain(wanted, order.places, newest=order.newest) for wanted in order.wanted]
        reply = Reply(found)
    except Unavailable as why:
        reply = Reply([], why.wanted, why.reason.name, why.detail)
    sys.stdout.buffer.write(REPLY.dump_json(reply))
    sys.stdout.flush()
    # Threads of a failed download may still wait for the hub.
    os._exit(0)


def warn_of_own_disk(cache: Path) -> None:
    """Warn if a cache is on the container's disk, where no other worker finds it."""
    if on_own_disk(cache):
        log.warning("%s is no network volume: each worker downloads for itself", cache)


def leave() -> NoReturn:
    """Release all leases and end the process, whatever its threads wait for."""
    lease.release_all()
    os._exit(1)


if __name__ == "__main__":
    main()

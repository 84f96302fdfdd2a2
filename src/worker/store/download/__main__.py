"""Obtains artifacts for the parent process: reads a ``FetchOrder`` and writes a ``FetchReply``.

This is a separate process because downloads use threads, and the engine's core is forked before any
thread exists. SIGTERM ends it; it also receives that signal when its parent exits.
"""

import logging
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from worker import masking
from worker.settings.environment import HUB_TOKEN, process_environ, set_variable
from worker.store import ModelUnavailable
from worker.store.download import obtain_artifact
from worker.store.fetcher import ORDER_ADAPTER, REPLY_ADAPTER, FetchReply
from worker.store.places import is_on_container_disk
from worker.volume import lease

log = logging.getLogger("worker.store")


def main() -> None:
    masking.mask_output()
    # Libraries quote the addresses of the hub and of proxies in their errors.
    masking.add_url_credentials(process_environ().values())
    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    logging.getLogger("worker").setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, lambda *_: exit_process())
    order = ORDER_ADAPTER.validate_json(sys.stdin.buffer.read())
    if order.token:
        masking.add_secrets([order.token])
        set_variable(HUB_TOKEN, order.token)
    for cache in {order.places.download_cache(artifact) for artifact in order.artifacts}:
        warn_if_cache_not_shared(cache)
    try:
        found = [
            obtain_artifact(one, order.places, refresh=order.refresh) for one in order.artifacts
        ]
        reply = FetchReply(found)
    except ModelUnavailable as why:
        reply = FetchReply([], why.artifact, why.reason.name, why.detail)
    sys.stdout.buffer.write(REPLY_ADAPTER.dump_json(reply))
    sys.stdout.flush()
    # Threads of a failed download may still wait for the hub.
    os._exit(0)


def warn_if_cache_not_shared(cache: Path) -> None:
    """Warn if a cache is on the container's disk, where no other worker finds it."""
    if is_on_container_disk(cache):
        log.warning("%s is not on a network volume: each worker downloads the model itself", cache)


def exit_process() -> NoReturn:
    """Release all leases and exit immediately, even if threads are waiting."""
    lease.release_all_leases()
    os._exit(1)


if __name__ == "__main__":
    main()

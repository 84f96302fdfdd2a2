"""Starts an engine that compiles, as a worker with a volume does."""

import logging
import sys
import threading

from worker.engine import start
from worker.settings.sources import gather


def main(model: str, volume: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("worker").setLevel(logging.INFO)
    environ = {"MODEL_NAME": model, "BASE_PATH": volume}
    given = gather({**environ, "ENFORCE_EAGER": "0", "MAX_MODEL_LEN": "1024"})
    ready = start.ready(given)
    # Imported here, as in production: vLLM reads the environment.
    from worker.engine.start import launch  # noqa: PLC0415 - see above

    with launch.launched(ready):
        # It publishes in the background, and a worker has all the time for it.
        for thread in threading.enumerate():
            if thread.name == "compile-cache":
                thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])

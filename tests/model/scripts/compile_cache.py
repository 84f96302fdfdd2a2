"""Starts an engine that compiles code, like a worker with a volume."""

import logging
import sys
import threading

from worker.engine.start import Start
from worker.settings.sources import gather_settings


def main(model: str, volume: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("worker").setLevel(logging.INFO)
    environ = {"MODEL_NAME": model, "BASE_PATH": volume}
    raw_settings = gather_settings({**environ, "ENFORCE_EAGER": "0", "MAX_MODEL_LEN": "1024"})
    start = Start.read(raw_settings)
    start.prepare()
    # vLLM reads the environment on import, so it is imported as late as in production.
    from worker.engine.start import launch  # noqa: PLC0415 - see above

    with launch.launch_engines(start):
        # The engine publishes its cache in the background. A worker runs long enough for that.
        for thread in threading.enumerate():
            if thread.name == "compile-cache":
                thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Starts an engine that compiles, as a worker with a volume does, and tells how long it took."""

import json
import logging
import sys
import time
from pathlib import Path

from worker import compiled, start
from worker.phases import phase


def main(model: str, volume: Path) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("worker").setLevel(logging.INFO)
    cache = compiled.prepared(volume)
    assert cache
    environ = {"MODEL_NAME": model, "ENFORCE_EAGER": "0", "MAX_MODEL_LEN": "1024"}
    given = start.read(environ)
    # Imported here, as in production: vLLM reads the environment.
    from worker.engine import compile_key, launch  # noqa: PLC0415 - see above
    from worker.engine.machine import machine  # noqa: PLC0415 - likewise

    begun = time.monotonic()
    knew = cache.restore_models(compile_key.of_models([given.arguments.model]))
    with phase("key"):
        config, _ = launch._configured(given.arguments)
        key = compile_key.of_configurations([config], machine())
    found = cache.restore(key)
    with launch.launched(given.settings, given.arguments):
        seconds = time.monotonic() - begun
        cache.publish().join()
        told = {"key": key, "knew": knew, "found": found, "seconds": seconds}
        sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

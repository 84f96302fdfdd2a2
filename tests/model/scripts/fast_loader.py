"""Starts an engine with a fast loader on a machine that can't have one."""

import logging
import sys
from unittest.mock import patch

from worker import start
from worker.engine import launch
from worker.engine.machine import Gpu, Machine


def main(model: str, volume: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("worker").setLevel(logging.INFO)
    given = start.ready({"MODEL_NAME": model, "BASE_PATH": volume, "FAST_LOAD": "1"})
    gpu = Machine(cpu=False, gpus=(Gpu("GPU", 2**34),))
    # Chosen as on a GPU; vLLM's own loader then finds neither the package nor the GPU.
    with (
        patch("worker.engine.launch.this_machine", return_value=gpu),
        patch("worker.engine.options.fast_loader.find_spec"),
        patch("worker.engine.foresight.find_spec"),
        launch.launched(given.settings, given.engines),
    ):
        logging.getLogger("worker").info("warm")


if __name__ == "__main__":
    main(*sys.argv[1:])

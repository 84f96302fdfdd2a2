"""A worker whose jobs run on the loop of the SDK. It is not run by hand."""

import handler
from worker.engine import Engines
from worker.settings import Settings

run_sdk = handler.run_sdk


def run_sdk_loop(engines: Engines, settings: Settings, *, test_api: bool = False) -> None:
    # Imported here, as in production, where this module is loaded while the engine starts.
    from job_loop import sdk  # noqa: PLC0415 - see above

    sdk.is_compatible = lambda: False
    run_sdk(engines, settings, test_api=test_api)


# A core that is spawned, as on a GPU, also imports this module.
if __name__ == "__main__":
    handler.run_sdk = run_sdk_loop
    handler.main()

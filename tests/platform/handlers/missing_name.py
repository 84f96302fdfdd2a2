"""A worker whose SDK lacks a name that the worker's job loop uses."""

import handler
from worker.engine import Engines
from worker.settings import Settings

serve = handler.run_sdk


def serve_without_a_name(engines: Engines, settings: Settings, *, test_api: bool = False) -> None:
    # The SDK is imported by now, with the environment that the worker has written.
    import runpod.serverless  # noqa: PLC0415 - see above

    # The only one of the names that the SDK's own loop does not look up again.
    del runpod.http_client.AsyncClientSession
    serve(engines, settings, test_api=test_api)


handler.run_sdk = serve_without_a_name
handler.main()

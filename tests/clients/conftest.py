"""Settings of the endpoint for the tests with third-party clients."""

from pathlib import Path

import pytest
from support.models.lora import MAX_RANK, make_adapter

# Settings of a worker with the adapters that a test needs.
WORKER_SETTINGS = {
    "ENABLE_LORA": "1",
    "MAX_LORA_RANK": str(MAX_RANK),
    # More than a test uses: on a CPU vLLM would mix adapters up.
    "MAX_LORAS": "8",
    "ALLOW_UNLOAD_LORA_ADAPTER": "1",
}


@pytest.fixture(scope="session")
def full_settings(
    full_settings: dict[str, str], demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Add adapters and strict tool calls, since clients extract data with a tool's schema."""
    adapter = tmp_path_factory.mktemp("adapters") / "listed"
    make_adapter(adapter, demo_model, seed=2)
    settings = {"LORA_MODULES": f"listed={adapter}", "TOOL_STRICT_LEVEL": "parameter"}
    return {**full_settings, **WORKER_SETTINGS, **settings}

"""How OpenAI's client reaches a worker: over HTTP, or by the transport without a proxy.

The address is that of a server, or of the platform; the key is the caller's, or the account's.
"""

from importlib import import_module
from typing import Any

import openai

from llm_worker_client import AsyncRunpodTransport, RunpodTransport

TRANSPORT = "transport"
ENDPOINT = "local"
# Seconds without anything new.
PATIENCE_S = 300


def connected(way: str, address: str, key: str) -> openai.OpenAI:
    if way != TRANSPORT:
        return openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)
    transport: Any = RunpodTransport(ENDPOINT, key, address)
    http = _httpx().Client(transport=transport, timeout=PATIENCE_S)
    return openai.OpenAI(api_key="unused", http_client=http, max_retries=0)


def connected_async(way: str, address: str, key: str) -> openai.AsyncOpenAI:
    if way != TRANSPORT:
        return openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)
    transport: Any = AsyncRunpodTransport(ENDPOINT, key, address)
    http = _httpx().AsyncClient(transport=transport, timeout=PATIENCE_S)
    return openai.AsyncOpenAI(api_key="unused", http_client=http, max_retries=0)


def _httpx() -> Any:
    """Return the package whose clients this version takes."""
    return import_module("httpx" if openai.__version__ < "3" else "httpx2")

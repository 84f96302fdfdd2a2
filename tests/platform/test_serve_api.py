"""The SDK's own test API on top of the worker."""

import asyncio
import socket
import sys

import aiohttp
from support import ROOT
from support.processes.background import HUNG_S


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def test_rp_serve_api_answers_a_job(worker_environ: dict[str, str]) -> None:
    port = free_port()
    command = ("-u", "src/handler.py", "--rp_serve_api", "--rp_api_port", str(port))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        cwd=ROOT,
        env=worker_environ,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    job = {"input": {"prompt": "Hi", "sampling_params": {"max_tokens": 3, "ignore_eos": True}}}
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
            async with asyncio.timeout(HUNG_S):
                while True:
                    try:
                        async with client.post("/runsync", json=job) as response:
                            answer = await response.json()
                        break
                    except aiohttp.ClientConnectionError:
                        await asyncio.sleep(0.2)
        assert answer["status"] == "COMPLETED"
        assert answer["output"][-1]["usage"]["output"] == 3
    finally:
        process.terminate()
        async with asyncio.timeout(HUNG_S):
            await process.wait()

"""Measures the worker on this machine: ``python -m proof.machine``.

vLLM's own server runs on the same engine for comparison. The results are a JSON file and a page in
Markdown. Everything else is written to a temporary folder, which is removed at the end.
"""

import argparse
import asyncio
import datetime
import json
import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from proof.machine import system
from proof.machine.plan import PARTS, Plan
from proof.machine.result import FILE_FORMAT, Failure, Proof, page
from proof.machine.run import Run
from proof.machine.steps import ADAPTERS, EMBEDDER
from proof.measure.processes import ROOT, Lost, run_process
from proof.measure.sides import PYTHONPATH

# Variables of directories with compiled code, which must be empty at first.
CACHES = (
    "CUDA_CACHE_PATH",
    "FLASHINFER_WORKSPACE_BASE",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "VLLM_CACHE_ROOT",
)
# The names of all settings.
SETTINGS = ROOT / "src" / "llm_worker_client" / "deploy" / "settings.json"

MAKER = ("-m", "proof.machine.random_model")
# In a process of its own, which Ctrl-C ends.
DOWNLOAD = "import sys, huggingface_hub as hub; print(hub.snapshot_download(sys.argv[1]))"
INTERRUPTED = 130
# A path of a socket has at most 107 characters; vLLM adds a folder's name and a UUID.
MAX_PATH_LENGTH = 65
# GB of the disk for each size: the weights, checkpoints, compiled code.
DISK_GB = {"tiny": 2, "0.5B": 8, "8B": 40}
SIZES = tuple(DISK_GB)
# Without weights.
CACHES_GB = 8


def _path(text: str) -> Path:
    # Processes run in another directory.
    return Path(text).absolute()


def read_command_line() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="proof.machine", description=__doc__)
    parser.add_argument("--size", choices=SIZES, help="of the model with random weights")
    parser.add_argument(
        "--model",
        default=os.environ.get("MODEL_NAME"),
        help="a directory, or a repository of the Hugging Face hub (MODEL_NAME)",
    )
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--output", type=Path, help="folder of the results")
    parser.add_argument("--folder", type=_path, help="where the temporary folder is created")
    arguments = parser.parse_args()
    if arguments.size:
        arguments.model = None
    return arguments


def forget_settings() -> None:
    """Remove settings and directories from the environment, which all processes would inherit.

    A pod has the settings of its endpoint, and vLLM's server would not use them.
    """
    names = json.loads(SETTINGS.read_text())
    settings = {*names["own"], *names["engines"]}
    for name in list(os.environ):
        is_hub = name.startswith(("HF_", "HUGGING"))
        is_setting = name in settings or name.startswith(("RUNPOD_", names["embedder"]))
        if name in CACHES or (is_setting and not is_hub):
            del os.environ[name]


async def make_model(arguments: argparse.Namespace, folder: Path) -> Path:
    if arguments.model is None:
        await _run_child(folder, *MAKER, str(folder / "model"), "--size", arguments.size)
        return folder / "model"
    if Path(arguments.model).is_dir():  # noqa: ASYNC240 - nothing else runs yet
        return Path(arguments.model).absolute()  # noqa: ASYNC240 - the same
    try:
        return Path(await _run_child(folder, "-c", DOWNLOAD, arguments.model))
    except Lost as lost:
        raise Lost(
            f"{arguments.model} can't be downloaded: {lost}\n"
            "Without --model and MODEL_NAME, the weights are random"
        ) from None


async def make_companions(model: Path, folder: Path) -> None:
    """Make adapters of the model, and an embedder."""
    await _run_child(folder, *MAKER, str(folder / EMBEDDER))
    await _run_child(
        folder, *MAKER, str(folder), "--adapters", str(len(ADAPTERS)), "--model", str(model)
    )


async def _run_child(folder: Path, *options: str) -> str:
    """Run Python with these options, and return its last line; temporary files are in a folder."""
    environ = {**PYTHONPATH, "TMPDIR": str(folder)}
    async with run_process((sys.executable, *options), environ, merged=True) as process:
        output, _ = await process.communicate()
    last = output.decode().strip().rpartition("\n")[2]
    if process.returncode:
        raise Lost(last or f"a process exited with status {process.returncode}")
    return last


def announce(arguments: argparse.Namespace, proof: Proof, place: Path) -> None:
    column = SIZES.index(arguments.size or SIZES[-1])
    print(f"Measures this worker and vLLM's own server on {proof.machine}, with {proof.model}:")
    for name in arguments.only:
        part = PARTS[name]
        print(f"- {name}: {part.text} (about {part.minutes[column]:g} min)")
    minutes = sum(PARTS[name].minutes[column] for name in arguments.only)
    print(
        f"About {minutes:.0f} minutes. Ctrl-C ends all processes, and removes all files.\n",
        flush=True,
    )
    # The weights of a model by its name are elsewhere.
    needed_gb = DISK_GB[arguments.size] if arguments.size else CACHES_GB
    free_gb = shutil.disk_usage(place).free / 1e9
    if free_gb < needed_gb:
        raise Lost(
            f"{place} has {free_gb:.0f} GB free, and needs {needed_gb}: choose another --folder"
        )


async def measure(arguments: argparse.Namespace) -> None:
    # An error of the cleanup must not hide the results.
    temporary = tempfile.TemporaryDirectory(
        prefix="proof-", dir=arguments.folder, ignore_cleanup_errors=True
    )
    folder = Path(temporary.name)
    try:
        with temporary:
            if len(temporary.name) > MAX_PATH_LENGTH:
                raise Lost(f"{folder} is too long a path for sockets: choose another --folder")
            is_gpu = bool(system.gpus())
            if not (arguments.size or arguments.model):
                arguments.size = "0.5B" if is_gpu else "tiny"
            title = arguments.model or f"model {arguments.size}, random weights"
            today = datetime.datetime.now(datetime.UTC).date().isoformat()
            plan = Plan(folder, is_gpu)
            proof = Proof(today, system.name(), title, system.describe(), plan.engine)
            announce(arguments, proof, folder)

            model = await make_model(arguments, folder)
            try:
                await make_companions(model, folder)
            except Lost as lost:
                proof.failures.append(Failure("worker", "adapters and an embedder", str(lost)))
            # The first start would read vLLM from the disk, and the others from memory.
            await _run_child(folder, "-c", "import vllm")
            sessions = [each for name in arguments.only for each in PARTS[name].sessions(plan)]
            total = sum(1 + len(session.steps) for session in sessions)
            await Run(proof, model, total).run(sessions)

            output = arguments.output or Path(f"proof-{proof.date}")
            output.mkdir(parents=True, exist_ok=True)
            (output / "result.json").write_bytes(FILE_FORMAT.dump_json(proof, indent=1) + b"\n")
            (output / "README.md").write_text(page(proof))
            print(f"\nThe page: {output}/README.md\nThe result to send: {output}/result.json")
    finally:
        if folder.exists():  # noqa: ASYNC240 - nothing else runs any more
            print(f"It could not be removed: {folder}", file=sys.stderr)


def _stop(measuring: asyncio.Task[None]) -> None:
    # A further signal must not interrupt the cleanup.
    if not measuring.cancelling():
        measuring.cancel()
        # The terminal may be closed.
        with suppress(OSError):
            print("\nStopping ...", file=sys.stderr)


async def main() -> int:
    arguments = read_command_line()
    forget_settings()
    measuring = asyncio.create_task(measure(arguments))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, _stop, measuring)
    try:
        await measuring
    except Lost as lost:
        print(lost, file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))

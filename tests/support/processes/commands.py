"""What `tests/contract/test_commands.py` looks at: commands that take a core for ten seconds each.

In a whole run they begin with the unit tests, which leave a core free.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from support import ROOT
from support.processes.background import HUNG_S

HANDLER = [sys.executable, "-u", "src/handler.py"]
DEMO = ROOT / ".models" / "demo"
HOME = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
WORKER = {**HOME, "MODEL_NAME": str(DEMO)}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
GREETING = {"messages": [{"role": "user", "content": "Hi"}]}
RAW_JOB = {"input": {**GREETING, "sampling_params": {"max_tokens": 1}}}
OPENAI_JOB = {"input": {"openai_route": "/v1/chat/completions", "openai_input": GREETING}}
FAILING_JOB = {"input": {"prompt": "Hi", "sampling_params": {"max_tokens": -1}}}
WRONG_SETTINGS = {
    "PATH": os.environ["PATH"],
    "MAX_MODEL_LEN": "abc",
    "GPU_MEMORY_UTILIZATION": "2",
    "RAW_OPENAI_OUTPUT": "2",
    "HF_TOKEN": "hf_canary",
    "MAX_MODEL_LENGTH": "8",
}

Ran = subprocess.CompletedProcess[str]


def run(environ: dict[str, str], *command: str) -> Ran:
    return subprocess.run(
        command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S, check=False
    )


def handler(**settings: str) -> Callable[[], Ran]:
    return lambda: run({**WORKER, **settings}, *HANDLER)


def without_template(*job: str, **settings: str) -> Ran:
    """Run on the demo model without its chat template."""
    with tempfile.TemporaryDirectory() as bare:
        for file in DEMO.iterdir():
            if file.name not in ("chat_template.jinja", "tokenizer_config.json"):
                (Path(bare) / file.name).symlink_to(file)
        tokenizer: dict[str, Any] = json.loads((DEMO / "tokenizer_config.json").read_text())
        tokenizer.pop("chat_template", None)
        (Path(bare) / "tokenizer_config.json").write_text(json.dumps(tokenizer))
        return run({**WORKER, **settings, "MODEL_NAME": bare}, *HANDLER, *job)


def template_in_file() -> Ran:
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write(TEMPLATE)
        file.flush()
        return without_template(
            "--test_input", json.dumps(OPENAI_JOB), CUSTOM_CHAT_TEMPLATE=file.name
        )


def no_model() -> Ran:
    with tempfile.TemporaryDirectory(prefix="no-model") as empty:
        return run({**WORKER, "MODEL_NAME": empty}, *HANDLER)


COMMANDS: dict[str, Callable[[], Ran]] = {
    "make run": lambda: run(HOME, "make", "run"),
    "failing job": lambda: run(WORKER, *HANDLER, "--test_input", json.dumps(FAILING_JOB)),
    "wrong settings": lambda: run(WRONG_SETTINGS, *HANDLER),
    "ENABLE_AUTO_TOOL_CHOICE": handler(ENABLE_AUTO_TOOL_CHOICE="1"),
    "CUSTOM_CHAT_TEMPLATE": handler(CUSTOM_CHAT_TEMPLATE="/no/such/file.jinja"),
    "no model": no_model,
    "no template": without_template,
    "a template": lambda: without_template(
        "--test_input", json.dumps(RAW_JOB), CUSTOM_CHAT_TEMPLATE=TEMPLATE
    ),
    "a template in a file": template_in_file,
}

_begun: dict[str, Future[Ran]] = {}
_one_by_one = ThreadPoolExecutor(max_workers=1)


def begin() -> None:
    """Run all commands, one after the other, beside whatever else happens."""
    _begun.update({name: _one_by_one.submit(command) for name, command in COMMANDS.items()})


def end() -> None:
    """Run no further command."""
    _one_by_one.shutdown(wait=False, cancel_futures=True)


def ran(name: str) -> Ran:
    """Return a command that has ended, or run it now if none was begun."""
    return _begun[name].result() if name in _begun else COMMANDS[name]()

"""Draws what `make doctor` and `make endpoint` print: docs/plots/doctor.svg and endpoint.svg.

    .venv/bin/python builder/pictures.py docs/plots

Each runs for real on the demo model, and so does the first call that the endpoint prints.
"""

import argparse
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 104
DOCTOR = "MAX_MODEL_LEN=4096 make doctor"
ENDPOINT = "make endpoint"
# What the endpoint prints before its examples, and between two of them.
READY = "Try it in another terminal:"
# Of the words that begin a line, and of commands as a user types them.
STYLES = {
    r"(?m)^ok\b": "green",
    r"(?m)^FAIL\b": "bold red",
    r"(?m)^warn\b": "yellow",
    r"(?m)^ +->.*": "cyan",
    r"(?m)^\$ .*(?:\n  .*)?": "bold",
    r"(?m)^#.*": "dim",
}
# The fonts that Rich's pictures fetch from another host: a picture on a page may not.
FONTS = re.compile(r"    @font-face \{.*?\n    \}\n", re.DOTALL)


def doctor() -> str:
    """Return what the doctor prints of a context that is too long."""
    ended = subprocess.run(
        f"{DOCTOR} --silent", shell=True, stdout=subprocess.PIPE, text=True, check=False
    )
    return f"$ {DOCTOR}\n{ended.stdout}"


def endpoint() -> str:
    """Return what an endpoint prints until it is ready, its first example, and the answer."""
    with tempfile.TemporaryDirectory() as logs:
        command = ["make", "--silent", "endpoint", "PORT=8000", f"LOGS={logs}"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, process_group=0
        ) as running:
            assert running.stdout is not None
            printed = ""
            while READY not in printed:
                line = running.stdout.readline()
                if not line:
                    raise SystemExit(f"the endpoint ended:\n{printed}")
                printed += line.replace(logs, ".endpoint/8000")
            running.stdout.readline()
            title = running.stdout.readline()
            example = running.stdout.readline() + running.stdout.readline()
            answer = subprocess.run(
                example, shell=True, stdout=subprocess.PIPE, text=True, check=True
            ).stdout
            os.killpg(running.pid, signal.SIGINT)
            running.communicate()
    return f"$ {ENDPOINT}\n{printed}\n{title}$ {example}\n{answer}"


def draw(text: str, title: str, file: Path) -> None:
    """Write a terminal's picture of this text."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, color_system="truecolor")
        shown = Text(text.rstrip())
        for pattern, style in STYLES.items():
            shown.highlight_regex(pattern, style)
        console.print(shown, overflow="fold")
    picture = console.export_svg(title=title, unique_id=file.stem)
    file.write_text(FONTS.sub("", picture))


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw what two commands print.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    draw(doctor(), "Will it start?", folder / "doctor.svg")
    draw(endpoint(), "A whole endpoint, on a laptop", folder / "endpoint.svg")


if __name__ == "__main__":
    main()

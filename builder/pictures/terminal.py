"""Draws the output of `make doctor` and `make endpoint`: docs/plots/doctor.svg and endpoint.svg.

    .venv/bin/python builder/pictures/terminal.py docs/plots

Both commands run on the demo model, and so does the first call that the endpoint prints.
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
# The endpoint prints this line before its examples.
READY = "Try it in another terminal:"
# Styles of words at the beginning of a line, and of commands that a user types.
STYLES = {
    r"(?m)^ok\b": "green",
    r"(?m)^FAIL\b": "bold red",
    r"(?m)^warn\b": "yellow",
    r"(?m)^ +->.*": "cyan",
    r"(?m)^\$ .*(?:\n  .*)?": "bold",
    r"(?m)^#.*": "dim",
}
# Fonts that Rich's pictures load from another host, which a picture on a page must not do.
FONTS = re.compile(r"    @font-face \{.*?\n    \}\n", re.DOTALL)


def run_doctor() -> str:
    """Return the output of the doctor about a context that is too long."""
    process = subprocess.run(
        f"{DOCTOR} --silent", shell=True, stdout=subprocess.PIPE, text=True, check=False
    )
    return f"$ {DOCTOR}\n{process.stdout}"


def run_endpoint() -> str:
    """Return an endpoint's output until it is ready, its first example, and the response."""
    with tempfile.TemporaryDirectory() as logs:
        command = ["make", "--silent", "endpoint", "PORT=8000", f"LOGS={logs}"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, process_group=0
        ) as process:
            assert process.stdout is not None
            printed = ""
            while READY not in printed:
                line = process.stdout.readline()
                if not line:
                    raise SystemExit(f"the endpoint ended:\n{printed}")
                printed += line.replace(logs, ".endpoint/8000")
            process.stdout.readline()
            title = process.stdout.readline()
            example = process.stdout.readline() + process.stdout.readline()
            answer = subprocess.run(
                example, shell=True, stdout=subprocess.PIPE, text=True, check=True
            ).stdout
            os.killpg(process.pid, signal.SIGINT)
            process.communicate()
    return f"$ {ENDPOINT}\n{printed}\n{title}$ {example}\n{answer}"


def draw(text: str, title: str, file: Path) -> None:
    """Write a picture of a terminal with this text."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, color_system="truecolor")
        styled = Text(text.rstrip())
        for pattern, style in STYLES.items():
            styled.highlight_regex(pattern, style)
        console.print(styled, overflow="fold")
    picture = console.export_svg(title=title, unique_id=file.stem)
    file.write_text(FONTS.sub("", picture))


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw what two commands print.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    draw(run_doctor(), "Will it start?", folder / "doctor.svg")
    draw(run_endpoint(), "A whole endpoint, on a laptop", folder / "endpoint.svg")


if __name__ == "__main__":
    main()

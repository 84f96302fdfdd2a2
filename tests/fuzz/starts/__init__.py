"""Draws model directories and settings, and compares the doctor, the start and a waiting job."""

import os
import subprocess
import sys
from argparse import Namespace

from support import ROOT


def run(args: Namespace) -> int:
    """Try the requested number of cases; return 1 if any has a fault.

    They run in a separate process, because it forks: it must have no threads of other parts.
    """
    command = [sys.executable, "-m", "fuzz.starts", "--seed", str(args.seed)]
    command += ["--starts", str(args.starts)]
    # The other parts have names of attacks and paths in the same option.
    numbers = [text for text in args.only if text.isdigit()]
    command += [text for number in numbers for text in ("--only", number)]
    path = os.pathsep.join((f"{ROOT}/src", f"{ROOT}/tests"))
    environ = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode

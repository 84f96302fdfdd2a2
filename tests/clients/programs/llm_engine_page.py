"""Runs the examples of docs/llm-engine.md: Python on stdin as a JSON list, in one module.

Prints what each has printed.
"""

import contextlib
import io
import json
import sys
from typing import Any


def main() -> None:
    outputs = []
    module: dict[str, Any] = {"__name__": "examples"}
    for number, example in enumerate(json.load(sys.stdin)):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(example, f"example {number + 1}", "exec"), module)  # the page's
        outputs.append(printed.getvalue())
    json.dump({"outputs": outputs}, sys.stdout)


if __name__ == "__main__":
    main()

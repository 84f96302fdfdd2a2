"""Runs the examples of docs/llm-engine.md in one module; reads them from stdin as a JSON list.

Prints the output of each example as JSON.
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
            exec(compile(example, f"example {number + 1}", "exec"), module)  # code of the page
        outputs.append(printed.getvalue())
    json.dump({"outputs": outputs}, sys.stdout)


if __name__ == "__main__":
    main()

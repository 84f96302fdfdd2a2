"""The parts of ``nox -s fuzz``, which ``__main__`` describes."""


def print_line(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a report on the terminal

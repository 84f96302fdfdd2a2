"""`handler.py --check --gpu` as an operator runs it, on a machine without a GPU."""

from functools import partial
from pathlib import Path

from support.processes.commands import HANDLER, HOME, run
from support.processes.side_by_side import side_by_side
from support.tables.models import RECORDED


def test_gpus_are_judged_without_one(tmp_path: Path) -> None:
    model = {"MODEL_NAME": str(RECORDED["GQA"].write(tmp_path / "model"))}
    prices = tmp_path / "prices.json"
    prices.write_text('{"AMPERE_24": 0.43, "AMPERE_48": 0.79}')
    words = {
        "all": ("--check", "--gpu", "all", "--prices", str(prices)),
        "one": ("--check", "--gpu", "A4000"),
        "unknown": ("--check", "--gpu", "A4O"),
    }

    environ = {**HOME, **model}
    commands = {name: partial(run, environ, *HANDLER, *line) for name, line in words.items()}
    with side_by_side(commands) as ended:
        every, one, unknown = map(ended, words)
    assert every.returncode == 0, every.stderr
    rows = [line.split() for line in every.stdout.splitlines()]
    assert ["AMPERE_24", "shorter", "32272", "1", "0.43"] in rows
    assert ["AMPERE_48", "fits", "131072", "1", "0.79"] in rows
    assert "AMPERE_48 costs least of those that hold the whole context." in every.stdout
    assert one.returncode == 1
    assert "RTX A4000: weights 15.0 GiB" in one.stdout
    assert one.stdout.endswith("\nThe worker would not start: 1 failure.\n")
    assert (unknown.returncode, "did you mean A40" in unknown.stderr) == (1, True)
    assert "Traceback" not in every.stderr + one.stderr + unknown.stderr

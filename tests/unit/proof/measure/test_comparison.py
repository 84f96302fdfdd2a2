"""Turns and medians of sides, and tables of their figures."""

from proof.measure.comparison import Row, medians, table, turns

ROWS = (Row("start, s", "start", "s"), Row("tokens/s", "load", "tokens", digits=0))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_has_the_ratio_of_the_worker_to_the_server() -> None:
    sides = {"worker": {"start": {"s": 2.0}}, "server": {"start": {"s": 4.0}}}
    head, _, *lines = table(ROWS, sides).splitlines()
    assert cells(head) == ["", "worker", "server", "ratio"]
    # A row without figures is missing.
    assert [cells(line) for line in lines] == [["start, s", "2.0", "4.0", "0.50x"]]


def test_a_figure_that_a_side_lacks_is_an_empty_cell() -> None:
    sides = {"worker": {"load": {"tokens": 1234.0}}, "server": {"start": {"s": 4.0}}}
    lines = [cells(line) for line in table(ROWS, sides).splitlines()[2:]]
    assert lines == [["start, s", "", "4.0", ""], ["tokens/s", "1,234", "", ""]]


def test_a_figure_of_zero_is_no_missing_figure() -> None:
    sides = {"worker": {"load": {"tokens": 0.0}}, "server": {"load": {"tokens": 0.0}}}
    assert [cells(line) for line in table(ROWS, sides).splitlines()[2:]] == [
        ["tokens/s", "0", "0", ""]
    ]


def test_the_figures_of_all_rounds_are_listed() -> None:
    sides = {"worker": {"start": {"s": 3.0}}, "server": {"start": {"s": 6.0}}}
    rounds = {
        "worker": [{"start": {"s": 2.0}}, {"load": {"tokens": 5.0}}, {"start": {"s": 4.0}}],
        "server": [{"start": {"s": 6.0}}],
    }
    assert cells(table(ROWS, sides, rounds).splitlines()[2]) == [
        "start, s",
        "2.0, 4.0",
        "6.0",
        "0.50x",
    ]


def test_goals_are_the_last_column_if_a_row_has_one() -> None:
    rows = (*ROWS, Row("CPU", "load", "cpu", max_ratio=0.5))
    sides = {side: {"load": {"cpu": value}} for side, value in (("worker", 3.0), ("server", 4.0))}
    head, _, line = table(rows, sides).splitlines()
    assert cells(head)[-1] == "goal"
    assert cells(line) == ["CPU", "3.0", "4.0", "0.75x", "<= 0.5 x: missed"]


def test_a_median_is_over_the_rounds_that_have_the_group() -> None:
    rounds = [{"first": {"s": 9.0}, "load": {"n": 1.0}}, {"load": {"n": 3.0}}]
    assert medians(rounds) == {"first": {"s": 9.0}, "load": {"n": 2.0}}


def test_sides_have_turns_in_alternating_order_after_the_warm_ups() -> None:
    assert list(turns(("server", "worker"), 2, warm_ups=1)) == [
        (-1, "server"),
        (-1, "worker"),
        (0, "worker"),
        (0, "server"),
        (1, "server"),
        (1, "worker"),
    ]

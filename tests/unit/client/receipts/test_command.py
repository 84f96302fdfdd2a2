"""The command `receipts`: its output, options and errors."""

import csv
import json
from datetime import date
from pathlib import Path

import pytest
from unit.client.conftest import Mount
from unit.client.receipts.conftest import DAY, NEXT_DAY, Run, make_receipt, write_receipts

TABLE = """\
model  requests  failed  prompt  cached  completion  GPU s       USD  first p50 ms  first p99 ms  total p50 ms  total p99 ms
demo          2       0      24       8          48  0.200  0.000056          20.1          20.1          99.9          99.9
tuned         1       1      12       4          24  0.100  0.000028             -             -          99.9          99.9
total         3       1      36      12          72  0.300  0.000084          20.1          20.1          99.9          99.9
"""  # noqa: E501 - as it is printed


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """Return a directory with the receipts of a day."""
    failed = make_receipt("job3", model="tuned", status=500, first_token_ms=None)
    write_receipts(tmp_path, make_receipt("job1"), make_receipt("job2"), failed)
    return tmp_path


def test_the_current_days_receipts_are_a_table_of_models(run: Run, volume: Path) -> None:
    write_receipts(volume, make_receipt("job4"), day=NEXT_DAY)
    assert run("--directory", volume) == (0, TABLE, "")


def test_json_has_all_sums_with_their_groups_as_keys(run: Run, volume: Path) -> None:
    with write_receipts(volume, make_receipt("job1", user="é", cost_usd=...)).open("a") as file:
        file.write('{"id": "cut')
    status, out, err = run("--directory", volume, "--by", "user", "--by", "day", "--json")
    content = json.loads(out)
    assert (status, content["days"], content["by"]) == (0, [str(DAY)], ["user", "day"])
    assert err.startswith("Incomplete lines at the ends of files: 1. ")
    assert content["groups"][1] == {
        **{"user": "é", "day": "2026-11-27", "requests": 1, "failed": 0, "prompt_tokens": 12},
        **{"cached_tokens": 4, "completion_tokens": 24, "gpu_seconds": 0.1, "cost_usd": None},
        **{"requests_with_cost": 0},
        **dict.fromkeys(("first_token_ms_p50", "first_token_ms_p99"), pytest.approx(20, rel=0.01)),
        **dict.fromkeys(("total_ms_p50", "total_ms_p99"), pytest.approx(100, rel=0.01)),
    }
    assert (content["total"]["requests"], content["total"]["gpu_seconds"]) == (4, 0.4)
    assert (content["repeated_requests"], content["skipped_lines"]) == (1, 1)
    assert content["incomplete_lines"] == 1
    assert content["reconciliation"] is None


def test_csv_has_a_row_for_each_group_and_no_formula(run: Run, tmp_path: Path) -> None:
    users = ["=1+1", "-1", "a,b", "plain", None]
    write_receipts(tmp_path, *(make_receipt(str(user), user=user) for user in users))
    status, out, err = run("--directory", tmp_path, "--by", "user", "--csv")
    rows = list(csv.DictReader(out.splitlines()))
    assert (status, err, len(rows)) == (0, "", 5)
    assert [row["user"] for row in rows] == ["-", "'-1", "'=1+1", "a,b", "plain"]
    assert {row["gpu_seconds"] for row in rows} == {"0.1"}


def test_a_table_shows_callers_texts_without_control_characters(run: Run, tmp_path: Path) -> None:
    write_receipts(tmp_path, make_receipt(user="\x1b[2J\nx" + 99 * "y"))
    _, out, _ = run("--directory", tmp_path, "--by", "user")
    assert out.splitlines()[1].startswith(f"\\u001b[2J\\nx{35 * 'y'}…  ")
    for flag in ("--json", "--csv"):
        _, out, _ = run("--directory", tmp_path, "--by", "user", flag)
        assert ("\\u001b[2J" in out, "\x1b" in out) == (True, False)


def test_notes_say_which_receipts_distort_the_sums(run: Run, volume: Path) -> None:
    with write_receipts(volume, make_receipt("job1", cost_usd=...)).open("a") as file:
        file.write('{"id": "cut')
    status, out, err = run("--directory", volume, "--by", "label")
    assert (status, out.splitlines()[1].split()[:2]) == (0, ["-", "4"])
    for note in (
        "Incomplete lines at the ends of files: 1. Their workers were killed while",
        "Retries, which count because they used the GPU: 1.",
        "3 of 4 receipts (75.0 %) have a cost",
        "several labels",
    ):
        assert note in err


# The second line is twice as long as a reader accepts.
@pytest.mark.parametrize("line", ["\xff", '"' + "x" * 2**21 + '"'], ids=["short", "long"])
def test_a_damaged_line_is_a_warning_and_a_status_whatever_is_printed(
    run: Run, volume: Path, line: str
) -> None:
    with write_receipts(volume).open("a", encoding="latin-1") as file:
        file.write(f"{line}\n{line}\n{json.dumps(make_receipt('job4'))}\n{line[:50]}")
    for form in ("--by=model", "--json", "--csv"):
        status, out, err = run("--directory", volume, form)
        assert status == 3
        assert err.startswith(
            "WARNING: damaged lines: 2. What their requests have cost is missing in these sums.\n"
        )
        assert "Incomplete lines at the ends of files: 1. " in err
        assert "demo" in out
    # All receipts are in the sums.
    assert json.loads(run("--directory", volume, "--json")[1])["total"]["requests"] == 4


def test_a_table_without_costs_has_no_column_for_them(run: Run, tmp_path: Path) -> None:
    write_receipts(tmp_path, make_receipt(cost_usd=...))
    status, out, err = run("--directory", tmp_path)
    assert (status, "USD" in out, err) == (0, False, "")


@pytest.mark.parametrize(
    ("words", "days"),
    [
        ("", [27]),
        ("--day 2026-11-26", [26]),
        ("--day 2026-11-28 --day 2026-11-26", [26, 28]),
        ("--from 2026-11-26", [26, 27]),
        ("--from 2026-11-25 --to 2026-11-26", [25, 26]),
    ],
)
def test_days_are_single_ones_or_a_range(
    run: Run, tmp_path: Path, words: str, days: list[int]
) -> None:
    for day in range(24, 30):
        write_receipts(tmp_path, make_receipt(), day=date(2026, 11, day))
    status, out, _ = run("--directory", tmp_path, "--by", "day", "--json", *words.split())
    found = json.loads(out)
    assert (status, found["days"]) == (0, [f"2026-11-{day}" for day in days])
    assert [row["day"] for row in found["groups"]] == found["days"]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ("", 1, "There are no receipts for 2026-11-27: is RECEIPTS=1 set on the endpoint?"),
        ("--from 2026-11-26", 1, "There are no receipts for 2026-11-26 to 2026-11-27: "),
        ("--to 2026-11-27", 2, "--to: add --from, the first day"),
        ("--from 2026-11-28", 2, "--from: 1 to 366 days until --to, and no --day"),
        ("--from 2020-01-01", 2, "--from: 1 to 366 days until --to, and no --day"),
        ("--from 2026-11-27 --day 2026-11-27", 2, "--from: 1 to 366 days"),
        ("--reconcile", 2, "--reconcile: add --endpoint, the id of the endpoint"),
        ("--reconcile --endpoint ep1", 2, "There is no API key: set RUNPOD_API_KEY"),
    ],
)
def test_an_error_is_one_line(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    status: int,
    message: str,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RUNPOD_API_KEY", raising=False)
    monkeypatch.delenv("RUNPOD_ENDPOINT_ID", raising=False)
    found = run("--directory", tmp_path, *words.split())
    assert found[:2] == (status, "")
    assert found[2].startswith(message)
    assert found[2].count("\n") == 1


def test_damaged_receipts_only_are_an_error(run: Run, tmp_path: Path) -> None:
    write_receipts(tmp_path, {})
    message = "There are no receipts for 2026-11-27 (damaged lines: 1): is RECEIPTS=1 set"
    status, _, err = run("--directory", tmp_path)
    assert (status, err.startswith(message)) == (1, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--day 27.11.2026", "argument --day: a day such as 2026-11-27, not '27.11.2026'"),
        ("--to tomorrow", "argument --to: a day such as 2026-11-27, not 'tomorrow'"),
        ("--by team", "argument --by: one of model, user, label, batch, worker, route, status,"),
        ("--json --csv", "argument --csv: not allowed with argument --json"),
    ],
)
def test_a_wrong_option_is_an_error_of_usage(
    run: Run, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    with pytest.raises(SystemExit) as error:
        run(*words.split())
    assert error.value.code == 2
    assert message in capsys.readouterr().err


def test_a_volume_without_credentials_is_an_error_that_names_the_variables(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RUNPOD_VOLUME_ID", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    status, _, err = run()
    assert status == 2
    assert err.startswith("Set RUNPOD_VOLUME_ID, RUNPOD_VOLUME_DATACENTER, AWS_ACCESS_KEY_ID, ")


@pytest.mark.usefixtures("_set_volume_environ")
def test_receipts_are_read_from_the_volume_by_default(run: Run, mount: Mount, volume: Path) -> None:
    # Other tests use the same volume on other days.
    path = write_receipts(volume, make_receipt(), day=date(2026, 10, 1))
    with mount.open() as remote:
        remote.upload(path, str(path.relative_to(volume)))
    status, out, err = run("--day", "2026-10-01", "--json")
    assert (status, json.loads(out)["total"]["requests"], err) == (0, 1, "")
    status, out, err = run("--day", "2026-10-02")
    assert (status, out, "There are no receipts for 2026-10-02:" in err) == (1, "", True)

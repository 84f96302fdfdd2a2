"""What `--check --gpu` prints of verdicts."""

import math
from dataclasses import replace

from worker.doctor.findings import Level
from worker.doctor.gpus.asked import choice
from worker.doctor.gpus.report import finding, table
from worker.doctor.gpus.verdicts import Fit, Verdict

NO = Verdict(choice("AMPERE_16"), Fit.NO, 0, 0.0, "weights 15.0 GiB in 14.8 GiB")
SHORTER = Verdict(choice("ADA_24"), Fit.SHORTER, 43952, 1.0, "5.4 GiB for the cache")
TWO = Verdict(choice("ADA_24x2"), Fit.FITS, 131072, 1.6, "22.0 GiB for the cache")
ONE = Verdict(choice("AMPERE_48"), Fit.FITS, 131072, 1.9, "25.2 GiB for the cache")
EMBEDS = Verdict(choice("AMPERE_16"), Fit.FITS, 512, math.inf, "no cache")


def test_a_table_has_a_row_for_each_verdict_and_says_what_costs_least() -> None:
    prices = {"ADA_24": 0.69, "AMPERE_48": 0.9}
    assert table([NO, SHORTER, TWO, ONE], prices).splitlines() == [
        "GPUs       fit      context  at once  price",
        "AMPERE_16  no                                weights 15.0 GiB in 14.8 GiB",
        "ADA_24     shorter  43952    1        0.69",
        "ADA_24x2   fits     131072   1        1.38",
        "AMPERE_48  fits     131072   1        0.90",
        "",
        "AMPERE_48 costs least of those that hold the whole context.",
    ]


def test_without_prices_the_smallest_is_told() -> None:
    lines = table([NO, SHORTER, TWO, ONE], {}).splitlines()
    assert "price" not in lines[0]
    assert lines[-1] == "AMPERE_48 is the smallest that holds the whole context."


def test_nothing_is_proposed_where_nothing_fits() -> None:
    assert table([NO, SHORTER], {}).endswith("\nNone of them holds the whole context.\n")


def test_one_gpu_is_a_finding_like_others() -> None:
    held = finding(TWO, {"ADA_24": 0.69})
    assert (held.level, held.change) == (Level.OK, "")
    assert held.text.startswith(
        "ADA_24x2: 131072 tokens, 1 texts of that length at once, 1.38 an hour; "
    )
    assert finding(SHORTER, {}).change == "take more of them, or larger ones, if that is not enough"
    assert finding(NO, {}).level is Level.FAIL
    assert "any texts of that length" in finding(EMBEDS, {}).text


def test_a_type_costs_what_its_pool_costs() -> None:
    assert "0.40 an hour" in finding(replace(ONE, choice=choice("A40")), {"AMPERE_48": 0.4}).text


def test_doubts_are_no_failures_and_tell_no_context() -> None:
    doubt, unknown = replace(NO, fit=Fit.DOUBTFUL), replace(NO, fit=Fit.UNKNOWN)
    assert finding(doubt, {}).level is Level.WARN
    assert finding(unknown, {}).level is Level.UNKNOWN
    assert table([doubt], {}).splitlines()[1] == "AMPERE_16  doubtful  weights 15.0 GiB in 14.8 GiB"

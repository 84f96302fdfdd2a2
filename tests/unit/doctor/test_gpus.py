"""Values of ``--check --gpu`` and ``--prices``, and the report of verdicts."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from worker.doctor.findings import Level
from worker.doctor.gpus import (
    NO_WEIGHTS,
    Fit,
    Verdict,
    parse_choice,
    read_prices,
    render_table,
    verdict_finding,
)
from worker.errors import StartFailed


@pytest.mark.parametrize(
    ("text", "types", "count"),
    [
        ("ADA_24", ["RTX 4090"], 1),
        ("A40x2", ["A40"], 2),
        ("NVIDIA A40 x 4", ["A40"], 4),
        ("4090", ["RTX 4090"], 1),
        ("nvidia geforce rtx 3090", ["RTX 3090"], 1),
        ("H100", ["H100 PCIe", "H100 SXM", "H100 NVL"], 1),
        ("AMPERE_48", ["RTX A6000", "A40"], 1),
    ],
)
def test_a_choice_is_a_pool_or_a_type_with_a_count(text: str, types: list[str], count: int) -> None:
    choice = parse_choice(text)
    assert ([kind.name for kind in choice.types], choice.count) == (types, count)
    assert len(choice.to_machine.gpus) == count


def test_a_pool_is_as_large_as_its_smallest_gpu() -> None:
    assert parse_choice("AMPERE_48").smallest_gpu == parse_choice("A40").smallest_gpu
    assert parse_choice("A40").smallest_gpu.memory < parse_choice("A6000").smallest_gpu.memory


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("ADA24", "ADA_24"),
        ("A4O", "A40"),
        ("sesame", "or a pool: AMPERE_16, "),
        ("T4", "or a pool: AMPERE_16, "),
        *((text, "or a pool: AMPERE_16, ") for text in ("", "x2")),
        *((text, "did you mean ADA_24") for text in ("ADA_24x0", "ADA_24x")),
    ],
)
def test_an_unknown_gpu_is_refused_with_the_most_similar_name(text: str, suggestion: str) -> None:
    with pytest.raises(StartFailed, match=suggestion):
        parse_choice(text)


def test_prices_are_json_or_toml(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"ADA_24": 0.69}')
    (tmp_path / "a.toml").write_text("ADA_24 = 0.69\nAMPERE_16 = 1\n")
    assert read_prices(tmp_path / "a.json") == {"ADA_24": 0.69}
    assert read_prices(tmp_path / "a.toml") == {"ADA_24": 0.69, "AMPERE_16": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"ADA_24": "much"}', "ADA_24 is not a pool and its price"),
        ('{"ADA_24": 0}', "ADA_24 is not a pool and its price"),
        ("[1]", "all of it is not a pool and its price"),
        ("{", "is not valid JSON"),
        ('{"ADA_25": 1}', "ADA_25 is not a pool; did you mean ADA_24"),
    ],
)
def test_wrong_prices_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "prices").write_text(text)
    with pytest.raises(StartFailed, match=message):
        read_prices(tmp_path / "prices")
    with pytest.raises(StartFailed, match="can't be read"):
        read_prices(tmp_path / "none")


NO = Verdict(parse_choice("AMPERE_16"), Fit.NO, "weights 15.0 GiB in 14.8 GiB")
SHORTER = Verdict(parse_choice("ADA_24"), Fit.SHORTER, "5.4 GiB for the cache", 43952, 1.0)
TWO = Verdict(parse_choice("ADA_24x2"), Fit.FITS, "22.0 GiB for the cache", 131072, 1.6)
ONE = Verdict(parse_choice("AMPERE_48"), Fit.FITS, "25.2 GiB for the cache", 131072, 1.9)
DOUBT, NO_KERNEL = replace(NO, fit=Fit.DOUBTFUL), replace(NO, fit=Fit.UNKNOWN)
NO_FILES = replace(NO_KERNEL, reason=NO_WEIGHTS)
EMBEDS = Verdict(parse_choice("AMPERE_16"), Fit.FITS, "no cache", 512, math.inf)


def test_the_table_has_a_row_for_each_verdict_and_names_the_cheapest_choice() -> None:
    prices = {"ADA_24": 0.69, "AMPERE_48": 0.9}
    assert render_table([NO, SHORTER, TWO, ONE], prices).splitlines() == [
        "GPUs       fit      context  requests  price",
        "AMPERE_16  no                                 weights 15.0 GiB in 14.8 GiB",
        "ADA_24     shorter  43952    1         0.69",
        "ADA_24x2   fits     131072   1         1.38",
        "AMPERE_48  fits     131072   1         0.90",
        "",
        "AMPERE_48 costs least of those that hold the whole context.",
    ]


def test_the_table_names_the_smallest_choice_without_prices() -> None:
    lines = render_table([NO, SHORTER, TWO, ONE], {}).splitlines()
    assert "price" not in lines[0]
    assert lines[-1] == "AMPERE_48 is the smallest that holds the whole context."


@pytest.mark.parametrize(
    ("verdicts", "sentence"),
    [
        ([NO, SHORTER], "None of them holds the whole context."),
        ([NO, DOUBT], "None of them certainly holds the whole context."),
        ([NO, NO_FILES], "None of them certainly holds the whole context."),
        (
            [NO_FILES, NO_FILES],
            "Which of them hold the model is unknown: "
            "the files of the weights make it known, on the disk or on the hub.",
        ),
        (
            [NO_KERNEL],
            "Which of them hold the model is unknown: "
            "a check on a machine with such GPUs makes it known.",
        ),
    ],
)
def test_the_table_distinguishes_too_little_from_unknown(
    verdicts: list[Verdict], sentence: str
) -> None:
    assert render_table(verdicts, {}).splitlines()[-1] == sentence


def test_a_verdict_can_be_a_finding() -> None:
    fitting = verdict_finding(TWO, "", "1.38")
    assert (fitting.level, fitting.change) == (Level.OK, "")
    assert fitting.text.startswith("ADA_24x2: 131072 tokens, concurrency 1, 1.38 an hour; ")
    assert (
        verdict_finding(SHORTER, "").change == "use more GPUs, or larger ones, for a longer context"
    )
    refused = verdict_finding(NO, "--gpu all lists")
    assert (refused.level, refused.change) == (Level.FAIL, "--gpu all lists")
    assert "concurrency any" in verdict_finding(EMBEDS, "").text
    # A type of GPU costs as much as its pool.
    rows = render_table([replace(ONE, choice=parse_choice("A40"))], {"AMPERE_48": 0.4}).splitlines()
    assert rows[1].endswith("  0.40")


def test_doubtful_and_unknown_verdicts_are_no_failures() -> None:
    assert verdict_finding(DOUBT, "").level is Level.WARN
    assert verdict_finding(NO_KERNEL, "ask").level is Level.UNKNOWN
    assert verdict_finding(NO_KERNEL, "ask").change == ""
    assert (
        render_table([DOUBT], {}).splitlines()[1]
        == "AMPERE_16  doubtful  weights 15.0 GiB in 14.8 GiB"
    )

"""The page of a result, and its row in the documentation."""

from dataclasses import replace

from support import ROOT

from proof.machine.result import FILE_FORMAT, TABLE, Failure, Proof, add_row, page
from proof.measure.comparison import Round


def start(name: str, seconds: float, **phases: tuple[float, float]) -> Round:
    times = {phase: {"begin": begin, "end": end} for phase, (begin, end) in phases.items()}
    return Round({name: {"first_s": seconds}}, phases=times)


def load(name: str, tokens: float) -> Round:
    return Round({name: {"tokens_per_s": tokens, "first_p50": 20.0}})


PROOF = Proof(
    "2026-11-28",
    "NVIDIA H200",
    "0.5B with random weights",
    {"GPU": "NVIDIA H200, 143771 MiB", "vllm": "0.32.0"},
    {"max_model_len": 4096},
    seconds=600.0,
    rounds={
        "worker": [
            start("first start", 70.0, imports=(1.0, 9.0), engine=(9.0, 60.0)),
            load("64 streams", 9_000),
            start("second start", 27.0, imports=(1.0, 9.0)),
            load("64 streams", 11_000),
        ],
        "server": [start("first start", 124.0), load("64 streams", 12_500)],
    },
    failures=[Failure("server", "second start", "no memory", ["line 1", "line 2"])],
)


def test_a_page_has_figures_phases_plots_and_failures() -> None:
    text = page(PROOF, ["start.png"])
    assert text.startswith("# NVIDIA H200: 0.5B with random weights\n")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "| 64 streams: tokens/s | 9,000, 11,000 | 12,500 | 0.80x |" in lines
    assert "| engine | 51.0 | |" in lines
    assert "![start](start.png)" in lines
    assert "**server, second start**: no memory" in lines
    assert "\n```text\nline 1\nline 2\n```\n" in text


def test_a_result_survives_its_file() -> None:
    assert FILE_FORMAT.validate_json(FILE_FORMAT.dump_json(PROOF)) == PROOF


def test_a_row_is_added_at_the_end_of_the_documentations_table() -> None:
    before = (ROOT / "docs" / "performance.md").read_text()
    after = add_row(PROOF, before, "proofs/h200/README.md")
    new = [line for line in after.splitlines() if line not in before.splitlines()]
    assert new == [
        "| [NVIDIA H200](proofs/h200/README.md) | 0.5B with random weights | 0.32.0 | 2026-11-28 |"
        " 70 / 124 | 27 / - | - / - | 10,000 / 12,500 | 20 / 20 | - / - |"
    ]
    table = after[after.index(TABLE) :].partition("\n\n")[0].splitlines()
    assert table[-1] == new[0]
    assert len({line.count("|") for line in table}) == 1


def test_a_second_result_of_the_same_name_replaces_the_row() -> None:
    before = (ROOT / "docs" / "performance.md").read_text()
    once = add_row(PROOF, before, "proofs/h200/README.md")
    again = add_row(replace(PROOF, model="8B"), once, "proofs/h200/README.md")
    assert [line for line in again.splitlines() if "proofs/h200" in line] == [
        line.replace("0.5B with random weights", "8B")
        for line in once.splitlines()
        if "proofs/h200" in line
    ]

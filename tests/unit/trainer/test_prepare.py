"""Files of rows become tokens: validation rows, truncated rows, omitted rows, warnings."""

import json
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import TokenizersBackend

from trainer.tokens import TRAINING, VALIDATION, TokenRows, check_and_tokenize
from worker.fine_tunes.spec import CheckResult, RowsFile, Spec

# Renders the reasoning of the last answer only, so that each answer of a conversation has a text.
FORGETFUL_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}{% if loop.last %}{{ m.reasoning }}{% endif %}"
    "{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant{% endif %}"
)

Prepare = Callable[..., CheckResult]


@pytest.fixture
def prepare(tokenizer: TokenizersBackend, demo_model: Path, tmp_path: Path) -> Prepare:
    """Return a function that writes rows and validation rows to files and prepares them."""

    def run(
        rows: Sequence[Any], validation: Sequence[Any] | None = None, **keys: Any
    ) -> CheckResult:
        files = {"training": rows, "validation": validation}
        data = {}
        for name, values in files.items():
            if values is not None:
                data[name] = RowsFile(path=tmp_path / f"{name}.jsonl")
                data[name].path.write_text("".join(f"{json.dumps(row)}\n" for row in values))
        model = {"model": demo_model, "tokenizer": demo_model}
        spec = Spec.model_validate({**model, "max_length": 64, **data, **keys})
        return check_and_tokenize(spec, tokenizer, tmp_path / "tokens")

    return run


def _prompts(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"{number} + 0 =", "completion": f" {number}"} for number in range(count)]


def _texts(tokenizer: TokenizersBackend, directory: Path, name: str) -> list[str]:
    return [str(tokenizer.decode(row["id"])) for row in TokenRows(directory / "tokens", name)]


@pytest.mark.parametrize(("rows", "held_out"), [(2, 1), (9, 1), (30, 3), (250, 25)])
def test_a_tenth_of_the_rows_is_for_validation(prepare: Prepare, rows: int, held_out: int) -> None:
    checked = prepare(_prompts(rows))
    assert checked.mistakes == ()
    assert (checked.rows, checked.validation_rows) == (rows - held_out, held_out)


def test_the_seed_chooses_the_rows_for_validation(
    prepare: Prepare, tokenizer: TokenizersBackend, tmp_path: Path
) -> None:
    chosen = []
    for seed in (1, 1, 2):
        prepare(_prompts(100), seed=seed)
        chosen.append([_texts(tokenizer, tmp_path, name) for name in (TRAINING, VALIDATION)])
    assert chosen[0] == chosen[1]
    assert chosen[0][1] != chosen[2][1]
    for training, validation in chosen:
        assert len({*training, *validation}) == 100
        assert validation != sorted(training + validation)[:10]


def test_all_texts_of_a_conversation_are_for_training_or_all_for_validation(
    prepare: Prepare, tokenizer: TokenizersBackend, tmp_path: Path
) -> None:
    def row(number: int) -> dict[str, Any]:
        user = {"role": "user", "content": f"({number})"}
        answer = {"role": "assistant", "content": "A", "reasoning": "why"}
        return {"messages": [user, answer, user, answer]}

    checked = prepare([row(number) for number in range(20)], chat_template=FORGETFUL_TEMPLATE)
    assert (checked.rows, checked.validation_rows) == (36, 4)
    numbers = [
        {text[text.index("(") : text.index(")")] for text in _texts(tokenizer, tmp_path, name)}
        for name in (TRAINING, VALIDATION)
    ]
    assert [len(found) for found in numbers] == [18, 2]
    assert not numbers[0] & numbers[1]


def test_a_file_for_validation_is_used_whole(
    prepare: Prepare, tokenizer: TokenizersBackend, tmp_path: Path
) -> None:
    checked = prepare(_prompts(5), [{"input": "x", "output": "y"}] * 3)
    assert (checked.rows, checked.validation_rows) == (5, 3)
    texts = _texts(tokenizer, tmp_path, VALIDATION)
    assert [text.removeprefix("<|begin_of_text|>") for text in texts] == ["xy<|im_end|>"] * 3
    lengths = [len(row) for row in TokenRows(tmp_path / "tokens", TRAINING)]
    assert checked.tokens == sum(lengths) > 5


def test_long_rows_are_cut_at_their_end(
    prepare: Prepare, tokenizer: TokenizersBackend, tmp_path: Path
) -> None:
    long = {"prompt": "a", "completion": "b " * 500}
    checked = prepare([long, {"prompt": "a", "completion": "b"}], [long], max_length=16)
    assert (checked.rows, checked.validation_rows, checked.cut_rows) == (2, 1, 2)
    [row] = TokenRows(tmp_path / "tokens", VALIDATION)
    begin = tokenizer("a").input_ids
    assert len(row) == 16
    assert list(row["id"][: len(begin)]) == begin
    assert row["learned"].tolist() == [False] * len(begin) + [True] * (16 - len(begin))


def test_rows_without_an_answer_after_the_cut_are_left_out(prepare: Prepare) -> None:
    long = {"prompt": "a " * 500, "completion": "SECRET"}
    checked = prepare([*_prompts(3), long, *_prompts(196), long], max_length=64)
    assert (checked.rows + checked.validation_rows, checked.cut_rows) == (199, 2)
    assert checked.warnings == (
        "The training file has 199 rows; 200 or more are advised.",
        "training_file: 2 rows are left out because their answers begin after the first 64 tokens "
        "(lines 4, 201).",
    )
    assert prepare(_prompts(200)).warnings == ()


LONG, WRONG = {"prompt": "a " * 500, "completion": "b"}, {"prompt": "a", "completion": 1}
GOOD = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
BAD = [{"role": "tool", "content": "a"}, GOOD[1]]
TEMPLATE = (
    "{% if messages[0].role == 'tool' %}{{ raise_exception('Ask first') }}{% endif %}x"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("files", "message", "lines"),
    [
        ([_prompts(1)], "at least two rows are required: one of them is for validation", [None]),
        ([[LONG] * 3], "no row has any of its answer within 64 tokens", [None]),
        (
            [[{"messages": messages} for messages in (GOOD, BAD, GOOD, BAD, [])]],
            "the chat template refuses the messages: Ask first",
            [2, 4, 5],
        ),
        # The mistakes of both files are reported together.
        ([[*_prompts(2), WRONG], [WRONG]], "completion is a number, and has to be a text", [3, 1]),
    ],
    ids=["one row", "long rows", "template", "both files"],
)
def test_mistakes_are_reported_with_their_lines(
    prepare: Prepare, files: list[Any], message: str, lines: list[int | None]
) -> None:
    checked = prepare(*files, chat_template=TEMPLATE)
    assert [mistake.line for mistake in checked.mistakes] == lines
    assert checked.mistakes[0].message == message
    assert {mistake.file for mistake in checked.mistakes[1:]} <= {
        "training_file" if len(files) == 1 else "validation_file"
    }


def test_a_hundred_mistakes_are_listed_and_the_others_counted(prepare: Prepare) -> None:
    checked = prepare([WRONG] * 80, [WRONG] * 180)
    assert [mistake.line for mistake in checked.mistakes] == [*range(1, 81), *range(1, 21)]
    assert checked.more_mistakes == 160


def test_memory_does_not_grow_with_the_file(
    demo_model: Path, tokenizer: TokenizersBackend, tmp_path: Path
) -> None:
    row, path = {"prompt": "1 2 3 " * 60, "completion": "1 2 3 " * 60}, tmp_path / "rows.jsonl"
    data = RowsFile(path=path)
    spec = Spec(model=demo_model, tokenizer=demo_model, max_length=4096, training=data)

    def peak(count: int) -> int:
        path.write_text(f"{json.dumps(row)}\n" * count)
        tracemalloc.start()
        try:
            assert check_and_tokenize(spec, tokenizer, tmp_path / "tokens").mistakes == ()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # Both files fill several batches.
    assert peak(2_000) < 1.3 * peak(800)

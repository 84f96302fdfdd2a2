"""Files of rows on their way to tokens: what is held out, cut, left out, and told of it."""

import json
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import TokenizersBackend

from worker.trainer.packed import TRAINING, VALIDATION, Packed
from worker.trainer.prepare import prepare
from worker.trainer.spec import Checked, Data, Spec

# Shows the reasoning of the last answer only, so that a conversation has a text for each answer.
FORGETS = (
    "{% for m in messages %}{{ m.role }}{% if loop.last %}{{ m.reasoning }}{% endif %}"
    "{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant{% endif %}"
)

Prepare = Callable[..., Checked]


@pytest.fixture
def prepared(tokenizer: TokenizersBackend, demo_model: Path, tmp_path: Path) -> Prepare:
    """Return what prepares rows given as values; ``validation`` likewise."""

    def run(rows: Sequence[Any], validation: Sequence[Any] | None = None, **keys: Any) -> Checked:
        files = []
        for name, values in (("training", rows), ("validation", validation)):
            if values is not None:
                files.append(Data(path=tmp_path / f"{name}.jsonl"))
                files[-1].path.write_text("".join(f"{json.dumps(row)}\n" for row in values))
        spec = Spec(
            model=demo_model,
            tokenizer=demo_model,
            training=files[0],
            validation=files[1] if len(files) > 1 else None,
            **{"max_length": 64, **keys},
        )
        return prepare(spec, tokenizer, tmp_path / "tokens")

    return run


def _prompts(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"{number} + 0 =", "completion": f" {number}"} for number in range(count)]


def _texts(tokenizer: TokenizersBackend, directory: Path, name: str) -> list[str]:
    return [str(tokenizer.decode(row.ids)) for row in Packed.named(directory / "tokens", name)]


@pytest.mark.parametrize(("rows", "held_out"), [(2, 1), (9, 1), (30, 3), (250, 25)])
def test_a_tenth_of_the_rows_is_held_out(prepared: Prepare, rows: int, held_out: int) -> None:
    checked = prepared(_prompts(rows))
    assert checked.mistakes == ()
    assert (checked.rows, checked.validation_rows) == (rows - held_out, held_out)


def test_the_seed_chooses_what_is_held_out(
    prepared: Prepare, tokenizer: TokenizersBackend, tmp_path: Path
) -> None:
    chosen = []
    for seed in (1, 1, 2):
        prepared(_prompts(100), seed=seed)
        chosen.append([_texts(tokenizer, tmp_path, name) for name in (TRAINING, VALIDATION)])
    assert chosen[0] == chosen[1]
    assert chosen[0][1] != chosen[2][1]
    for training, validation in chosen:
        assert len({*training, *validation}) == 100
        assert validation != sorted(training + validation)[:10]


def test_the_texts_of_a_conversation_are_held_out_together(
    prepared: Prepare, tokenizer: TokenizersBackend, tmp_path: Path
) -> None:
    def row(number: int) -> dict[str, Any]:
        user = {"role": "user", "content": f"({number})"}
        answer = {"role": "assistant", "content": "A", "reasoning": "why"}
        return {"messages": [user, answer, user, answer]}

    checked = prepared([row(number) for number in range(20)], chat_template=FORGETS)
    assert (checked.rows, checked.validation_rows) == (36, 4)
    numbers = [
        {text[text.index("(") : text.index(")")] for text in _texts(tokenizer, tmp_path, name)}
        for name in (TRAINING, VALIDATION)
    ]
    assert [len(found) for found in numbers] == [18, 2]
    assert not numbers[0] & numbers[1]


def test_a_file_for_validation_is_used_whole(
    prepared: Prepare, tokenizer: TokenizersBackend, tmp_path: Path
) -> None:
    checked = prepared(_prompts(5), [{"input": "x", "output": "y"}] * 3)
    assert (checked.rows, checked.validation_rows) == (5, 3)
    texts = _texts(tokenizer, tmp_path, VALIDATION)
    assert [text.removeprefix("<|begin_of_text|>") for text in texts] == ["xy<|im_end|>"] * 3
    lengths = Packed.named(tmp_path / "tokens", TRAINING).lengths
    assert checked.tokens == lengths.sum() > 5


def test_long_rows_are_cut_at_their_end(
    prepared: Prepare, tokenizer: TokenizersBackend, tmp_path: Path
) -> None:
    long = {"prompt": "a", "completion": "b " * 500}
    checked = prepared([long, {"prompt": "a", "completion": "b"}], [long], max_length=16)
    assert (checked.rows, checked.validation_rows, checked.cut_rows) == (2, 1, 2)
    [row] = Packed.named(tmp_path / "tokens", VALIDATION)
    begin = tokenizer("a").input_ids
    assert len(row.ids) == 16
    assert list(row.ids[: len(begin)]) == begin
    assert row.learned.tolist() == [False] * len(begin) + [True] * (16 - len(begin))


def test_rows_without_an_answer_after_the_cut_are_left_out(prepared: Prepare) -> None:
    long = {"prompt": "a " * 500, "completion": "SECRET"}
    checked = prepared([*_prompts(3), long, *_prompts(200), long], max_length=64)
    assert (checked.rows + checked.validation_rows, checked.cut_rows) == (203, 2)
    [warning] = checked.warnings
    assert warning == (
        "training_file: left out are 2 of the rows, whose answers are behind the first 64 tokens "
        "(lines 4, 205)."
    )


def test_few_rows_are_warned_of(prepared: Prepare) -> None:
    [warning] = prepared(_prompts(199)).warnings
    assert warning == "The training file has 199 rows; 200 or more are advised."
    assert prepared(_prompts(200)).warnings == ()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (_prompts(1), "there have to be two rows: one of them is for validation"),
        (
            [{"prompt": "a " * 500, "completion": "b"}] * 3,
            "no row has any of its answer within 64 tokens",
        ),
    ],
)
def test_too_little_to_train_on_is_a_mistake(
    prepared: Prepare, rows: list[dict[str, str]], message: str
) -> None:
    [mistake] = prepared(rows).mistakes
    assert (mistake.file, mistake.line, mistake.message) == ("training_file", None, message)


def test_mistakes_of_both_files_are_told_at_once(prepared: Prepare) -> None:
    wrong = {"prompt": "a", "completion": 1}
    checked = prepared([*_prompts(2), wrong], [wrong])
    told = [(mistake.file, mistake.line) for mistake in checked.mistakes]
    assert told == [("training_file", 3), ("validation_file", 1)]
    checked = prepared([wrong] * 80, [wrong] * 80)
    assert (len(checked.mistakes), checked.more_mistakes) == (100, 60)


def test_what_the_template_refuses_is_told_with_its_line(prepared: Prepare) -> None:
    good = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    bad = [{"role": "tool", "content": "a"}, good[1]]
    template = "{% if messages[0].role == 'tool' %}{{ raise_exception('Ask first') }}{% endif %}x"
    rows = [{"messages": messages} for messages in (good, bad, good, bad)]
    template += "{% for m in messages %}{{ m.content }}{% endfor %}"
    checked = prepared([*rows, {"messages": []}], chat_template=template)
    assert [mistake.line for mistake in checked.mistakes] == [2, 4, 5]
    assert checked.mistakes[0].message == "the chat template refuses the messages: Ask first"


@pytest.mark.parametrize("form", ["prompts", pytest.param("messages", marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_file(
    demo_model: Path, tokenizer: TokenizersBackend, tmp_path: Path, form: str
) -> None:
    text = "1 2 3 " * 60
    row: dict[str, Any] = {"prompt": text, "completion": text}
    if form == "messages":
        roles = ("user", "assistant")
        row = {"messages": [{"role": role, "content": text} for role in roles]}
    path = tmp_path / "rows.jsonl"
    data = Data(path=path)
    spec = Spec(model=demo_model, tokenizer=demo_model, max_length=4096, training=data)

    def peak(count: int) -> int:
        path.write_text(f"{json.dumps(row)}\n" * count)
        tracemalloc.start()
        try:
            assert prepare(spec, tokenizer, tmp_path / "tokens").mistakes == ()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # Both are several batches.
    assert peak(2_000) < 1.3 * peak(800)

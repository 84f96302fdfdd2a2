"""Rows become tokens, as the model reads them, and files of tokens."""

import json
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import TokenizersBackend

from trainer.rows import InvalidRowError, PromptRow, parse_row
from trainer.tokens import TRAINING, VALIDATION, RowEncoder, TokenRow, TokenRows, check_and_tokenize
from worker.fine_tunes.spec import CheckResult, RowsFile, Spec

USER = {"role": "user", "content": "How are you?"}
ASSISTANT = {"role": "assistant", "content": "Fine, größer 👩‍👩‍👧!"}
TURN = "{{ m.role }}:\n{{ m.content }}<|im_end|>\n"
# Renders the reasoning of the last message only.
FORGETFUL_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:\n"
    "{% if loop.last and m.role == 'assistant' %}<think>{{ m.reasoning }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}assistant:\n{% endif %}"
)
# Its generation prompt opens reasoning, which it renders for no answer.
THINKING_TEMPLATE = (
    f"{{% for m in messages %}}{TURN}{{% endfor %}}"
    "{% if add_generation_prompt %}assistant:\n<think>\n{% endif %}"
)
REFUSING_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('No tools here') }}"
    "{% elif m.content[:3] == 'SEC' %}{{ raise_exception(m.content) }}{% endif %}"
    f"{TURN}{{% endfor %}}"
)
PARTS_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:\n{% for part in m.content %}[{{ part.text }}]{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}assistant:\n{% endif %}"
)


def _wrap_tokenizer(backend: Tokenizer, **tokens: str) -> TokenizersBackend:
    return TokenizersBackend(tokenizer_object=backend, **tokens)  # type: ignore[no-untyped-call]  # transformers has no types here


def _rows(texts: RowEncoder, *messages: dict[str, Any], **keys: Any) -> list[TokenRow]:
    value = parse_row(json.loads(json.dumps({"messages": list(messages), **keys})))
    return list(texts.tokenize(texts.render(value)))


def _learned_texts(tokenizer: TokenizersBackend, row: TokenRow) -> list[str]:
    """Return the learned texts, one per uninterrupted sequence of learned tokens."""
    found: list[list[int]] = [[]]
    for token, learned in zip(row["id"], row["learned"], strict=True):
        if learned:
            found[-1].append(token)
        elif found[-1]:
            found.append([])
    return [str(tokenizer.decode(ids)) for ids in found if ids]


def _text(tokenizer: TokenizersBackend, row: TokenRow) -> str:
    return str(tokenizer.decode(list(row["id"])))


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [("1 + 1 =", " 2"), ("a  ", "b"), ("Größe\n\n", "\n👩‍👩‍👧"), ("<|im_end|>", "x"), ("a", "b ")],
)
def test_a_prompt_has_the_tokens_of_a_completions_request(
    tokenizer: TokenizersBackend, prompt: str, answer: str
) -> None:
    [row] = RowEncoder(tokenizer, None).tokenize([PromptRow(prompt, answer)])
    prompt_ids = tokenizer(prompt).input_ids
    assert list(row["id"][: len(prompt_ids)]) == prompt_ids
    assert not row["learned"][: len(prompt_ids)].any()
    assert row["learned"][len(prompt_ids) :].all()
    assert _learned_texts(tokenizer, row) == [answer + "<|im_end|>"]


def test_no_space_is_added_before_an_answer() -> None:
    words = {f"▁{text}": number for number, text in enumerate("abc")}
    words |= {text: number for number, text in enumerate(["a", "b", "c", "\n", "▁", "</s>"], 3)}
    backend = Tokenizer(models.BPE(words, [("▁", "a"), ("▁", "b"), ("▁", "c")]))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    tokenizer = _wrap_tokenizer(backend, eos_token="</s>")
    [row, spaced] = RowEncoder(tokenizer, None).tokenize(
        [PromptRow("a", "b"), PromptRow("a", " b")]
    )
    assert tokenizer.convert_ids_to_tokens(list(row["id"])) == ["▁a", "b", "</s>"]
    assert tokenizer.convert_ids_to_tokens(list(spaced["id"])) == ["▁a", "▁b", "</s>"]


def test_a_conversation_has_the_tokens_of_a_chat_request(tokenizer: TokenizersBackend) -> None:
    [row] = _rows(RowEncoder(tokenizer, None), USER, ASSISTANT)
    prompt_ids = tokenizer.apply_chat_template(
        [USER], add_generation_prompt=True, return_dict=False
    )
    whole = tokenizer.apply_chat_template([USER, ASSISTANT], return_dict=False)
    assert list(row["id"]) == whole
    assert list(row["id"][: len(prompt_ids)]) == prompt_ids
    assert row["learned"].tolist().index(True) == len(prompt_ids)
    assert _learned_texts(tokenizer, row) == [f"{ASSISTANT['content']}<|im_end|>"]


def test_answers_are_learned_with_their_end_tokens(tokenizer: TokenizersBackend) -> None:
    answers = [("\nOne", 1), ("Two ", 0), ("Three", 1), ("Four", 0)]
    turns = [
        message
        for text, weight in answers
        for message in (USER, {**ASSISTANT, "content": text, "weight": weight})
    ]
    [row] = _rows(RowEncoder(tokenizer, None), {"role": "system", "content": "Be brief"}, *turns)
    assert _learned_texts(tokenizer, row) == ["\nOne<|im_end|>", "Three<|im_end|>"]
    assert _text(tokenizer, row).endswith("Three<|im_end|>\n")


def test_tool_calls_are_learned(tokenizer: TokenizersBackend) -> None:
    function = {"name": "f", "arguments": '{"x": 1}'}
    call = {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}
    tools = [{"type": "function", "function": {"name": "f"}}]
    answer = {"role": "tool", "tool_call_id": "1", "content": "2"}
    [row] = _rows(RowEncoder(tokenizer, None), USER, call, answer, ASSISTANT, tools=tools)
    assert _text(tokenizer, row).startswith('<|im_start|>tools\n{"name": "f"}\n')
    assert _learned_texts(tokenizer, row) == [
        '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call><|im_end|>',
        f"{ASSISTANT['content']}<|im_end|>",
    ]


def test_an_answer_that_later_turns_render_differently_becomes_its_own_row(
    tokenizer: TokenizersBackend,
) -> None:
    texts = RowEncoder(tokenizer, FORGETFUL_TEMPLATE)
    answer = {"role": "assistant", "content": "A", "reasoning": "why"}
    one, two = _rows(texts, USER, answer, USER, answer)
    assert (
        _learned_texts(tokenizer, one)
        == _learned_texts(tokenizer, two)
        == ["<think>why</think>A<|im_end|>"]
    )
    turn = "user:\nHow are you?<|im_end|>\n"
    learned = "assistant:\n<think>why</think>A<|im_end|>\n"
    assert _text(tokenizer, one) == turn + learned
    assert _text(tokenizer, two) == f"{turn}assistant:\nA<|im_end|>\n{turn}{learned}"
    assert _find_warnings(texts, "1 of the conversations become several rows")


def test_answers_that_repeat_a_long_history_are_refused(tokenizer: TokenizersBackend) -> None:
    answer = {"role": "assistant", "content": "A" * 4_000, "reasoning": "why"}
    conversation = parse_row({"messages": [USER, answer] * 128})
    with pytest.raises(InvalidRowError, match="of all answers have over 8,388,608 characters"):
        RowEncoder(tokenizer, FORGETFUL_TEMPLATE).render(conversation)
    # A template that renders each answer once may render as many answers.
    assert len(RowEncoder(tokenizer, None).render(conversation)) == 1


@pytest.mark.parametrize(
    ("template", "message", "why"),
    [
        (
            REFUSING_TEMPLATE,
            {"role": "tool", "content": "x"},
            "refuses the messages: No tools here",
        ),
        (REFUSING_TEMPLATE, {**USER, "content": "SECRET"}, "refuses the messages"),
        ("{{ messages[0].content.x.y }}", USER, "refuses the messages"),
        # The template hides where an answer begins.
        (
            "{{ messages | length }} messages" + THINKING_TEMPLATE,
            USER,
            "so that the answer can't be separated from it",
        ),
    ],
)
def test_the_error_of_a_template_has_only_the_templates_own_message(
    tokenizer: TokenizersBackend, template: str, message: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidRowError, match=f"{why}$"):
        _rows(RowEncoder(tokenizer, template), USER, message, ASSISTANT)


def test_a_missing_end_token_and_a_different_generation_prompt_cause_warnings(
    tokenizer: TokenizersBackend,
) -> None:
    bare = RowEncoder(_wrap_tokenizer(tokenizer.backend_tokenizer), None)
    with pytest.raises(InvalidRowError, match="no chat template"):
        _rows(bare, USER, ASSISTANT)
    assert _find_warnings(bare, "no end token")
    # An answer begins where the row differs from the prompt.
    opens = RowEncoder(tokenizer, THINKING_TEMPLATE)
    [row] = _rows(opens, USER, {"role": "assistant", "content": "A"})
    assert _learned_texts(tokenizer, row) == ["A<|im_end|>"]
    assert _find_warnings(opens, "differently from its generation prompt, in 1 of")


def test_a_developer_role_that_the_template_lacks_becomes_the_system_role(
    tokenizer: TokenizersBackend,
) -> None:
    system, developer = ({"role": role, "content": role} for role in ("system", "developer"))
    texts = RowEncoder(tokenizer, None)
    [row] = _rows(texts, system, USER, developer, ASSISTANT)
    begin = "<|im_start|>system\nsystem\n\ndeveloper<|im_end|>\n<|im_start|>user\n"
    assert _text(tokenizer, row).startswith(begin)
    [row] = _rows(texts, developer, USER, ASSISTANT)
    assert _text(tokenizer, row).startswith("<|im_start|>system\ndeveloper<|im_end|>\n")
    first, last = _rows(texts, USER, ASSISTANT, developer, USER, ASSISTANT)
    assert _text(tokenizer, first).startswith("<|im_start|>user\n")
    assert _text(tokenizer, last).startswith("<|im_start|>system\ndeveloper<|im_end|>\n")
    [row] = _rows(
        RowEncoder(tokenizer, THINKING_TEMPLATE + "{# 'developer' #}"), developer, USER, ASSISTANT
    )
    assert _text(tokenizer, row).startswith("developer:\ndeveloper<|im_end|>\n")


def test_templates_get_content_as_strings_or_parts_as_they_support(
    tokenizer: TokenizersBackend,
) -> None:
    parts = {**USER, "content": [{"type": "text", "text": text} for text in "ab"]}
    [row] = _rows(RowEncoder(tokenizer, None), parts, ASSISTANT)
    assert _text(tokenizer, row).startswith("<|im_start|>user\na\nb<|im_end|>")
    [row] = _rows(RowEncoder(tokenizer, PARTS_TEMPLATE), parts, USER, ASSISTANT)
    begin = "user:\n[a][b]<|im_end|>\nuser:\n[How are you?]<|im_end|>\n"
    assert _text(tokenizer, row).startswith(begin)
    assert _learned_texts(tokenizer, row) == [f"[{ASSISTANT['content']}]<|im_end|>"]


def _find_warnings(texts: RowEncoder, part: str) -> Iterable[str]:
    return [warning for warning in texts.warnings() if part in warning]


# Files of rows: validation rows, truncated rows, omitted rows, warnings

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


def _read_texts(tokenizer: TokenizersBackend, directory: Path, name: str) -> list[str]:
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
        chosen.append([_read_texts(tokenizer, tmp_path, name) for name in (TRAINING, VALIDATION)])
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
        {text[text.index("(") : text.index(")")] for text in _read_texts(tokenizer, tmp_path, name)}
        for name in (TRAINING, VALIDATION)
    ]
    assert [len(found) for found in numbers] == [18, 2]
    assert not numbers[0] & numbers[1]


def test_a_file_for_validation_is_used_whole(
    prepare: Prepare, tokenizer: TokenizersBackend, tmp_path: Path
) -> None:
    checked = prepare(_prompts(5), [{"input": "x", "output": "y"}] * 3)
    assert (checked.rows, checked.validation_rows) == (5, 3)
    texts = _read_texts(tokenizer, tmp_path, VALIDATION)
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


@pytest.mark.slow
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

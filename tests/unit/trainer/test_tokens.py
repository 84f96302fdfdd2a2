"""Rows as the model reads them: tokens, and which of them are learned."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import TokenizersBackend

from trainer.rows import InvalidRowError, PromptRow, parse_row
from trainer.tokens import RowEncoder, TokenRow

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

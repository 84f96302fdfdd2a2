"""Rows as the model reads them: their tokens, and which of them are learned."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import TokenizersBackend

from trainer.texts import Row, Texts
from trainer.values import Prompt, WrongRowError, row_in

USER = {"role": "user", "content": "How are you?"}
ASSISTANT = {"role": "assistant", "content": "Fine, größer 👩‍👩‍👧!"}
TURN = "{{ m.role }}:\n{{ m.content }}<|im_end|>\n"
# Shows the reasoning of the last message only.
FORGETS = (
    "{% for m in messages %}{{ m.role }}:\n"
    "{% if loop.last and m.role == 'assistant' %}<think>{{ m.reasoning }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}assistant:\n{% endif %}"
)
# Begins answers with reasoning, which it then shows of none.
OPENS = (
    f"{{% for m in messages %}}{TURN}{{% endfor %}}"
    "{% if add_generation_prompt %}assistant:\n<think>\n{% endif %}"
)
REFUSES = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('No tools here') }}"
    "{% elif m.content[:3] == 'SEC' %}{{ raise_exception(m.content) }}{% endif %}"
    f"{TURN}{{% endfor %}}"
)
PARTS = (
    "{% for m in messages %}{{ m.role }}:\n{% for part in m.content %}[{{ part.text }}]{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}assistant:\n{% endif %}"
)


def _wrapped(backend: Tokenizer, **tokens: str) -> TokenizersBackend:
    return TokenizersBackend(tokenizer_object=backend, **tokens)  # type: ignore[no-untyped-call]  # it has no types


def _rows(texts: Texts, *messages: dict[str, Any], **keys: Any) -> list[Row]:
    value = row_in(json.loads(json.dumps({"messages": list(messages), **keys})))
    return list(texts.tokens(texts.rendered(value)))


def _learned(tokenizer: TokenizersBackend, row: Row) -> list[str]:
    """Return the texts that are learned, each without a gap."""
    found: list[list[int]] = [[]]
    for token, learned in zip(row["id"], row["learned"], strict=True):
        if learned:
            found[-1].append(token)
        elif found[-1]:
            found.append([])
    return [str(tokenizer.decode(ids)) for ids in found if ids]


def _text(tokenizer: TokenizersBackend, row: Row) -> str:
    return str(tokenizer.decode(list(row["id"])))


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [("1 + 1 =", " 2"), ("a  ", "b"), ("Größe\n\n", "\n👩‍👩‍👧"), ("<|im_end|>", "x"), ("a", "b ")],
)
def test_a_prompt_is_what_completions_are_asked_with(
    tokenizer: TokenizersBackend, prompt: str, answer: str
) -> None:
    [row] = Texts(tokenizer, None).tokens([Prompt(prompt, answer)])
    asked = tokenizer(prompt).input_ids
    assert list(row["id"][: len(asked)]) == asked
    assert not row["learned"][: len(asked)].any()
    assert row["learned"][len(asked) :].all()
    assert _learned(tokenizer, row) == [answer + "<|im_end|>"]


def test_no_space_is_put_before_an_answer() -> None:
    words = {f"▁{text}": number for number, text in enumerate("abc")}
    words |= {text: number for number, text in enumerate(["a", "b", "c", "\n", "▁", "</s>"], 3)}
    backend = Tokenizer(models.BPE(words, [("▁", "a"), ("▁", "b"), ("▁", "c")]))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    tokenizer = _wrapped(backend, eos_token="</s>")
    [row, spaced] = Texts(tokenizer, None).tokens([Prompt("a", "b"), Prompt("a", " b")])
    assert tokenizer.convert_ids_to_tokens(list(row["id"])) == ["▁a", "b", "</s>"]
    assert tokenizer.convert_ids_to_tokens(list(spaced["id"])) == ["▁a", "▁b", "</s>"]


def test_a_conversation_is_what_the_model_is_asked_with(tokenizer: TokenizersBackend) -> None:
    [row] = _rows(Texts(tokenizer, None), USER, ASSISTANT)
    asked = tokenizer.apply_chat_template([USER], add_generation_prompt=True, return_dict=False)
    whole = tokenizer.apply_chat_template([USER, ASSISTANT], return_dict=False)
    assert list(row["id"]) == whole
    assert list(row["id"][: len(asked)]) == asked
    assert row["learned"].tolist().index(True) == len(asked)
    assert _learned(tokenizer, row) == [f"{ASSISTANT['content']}<|im_end|>"]


def test_answers_are_learned_with_their_ends(tokenizer: TokenizersBackend) -> None:
    answers = [("\nOne", 1), ("Two ", 0), ("Three", 1), ("Four", 0)]
    turns = [
        message
        for text, weight in answers
        for message in (USER, {**ASSISTANT, "content": text, "weight": weight})
    ]
    [row] = _rows(Texts(tokenizer, None), {"role": "system", "content": "Be brief"}, *turns)
    assert _learned(tokenizer, row) == ["\nOne<|im_end|>", "Three<|im_end|>"]
    assert _text(tokenizer, row).endswith("Three<|im_end|>\n")


def test_calls_of_tools_are_learned(tokenizer: TokenizersBackend) -> None:
    function = {"name": "f", "arguments": '{"x": 1}'}
    call = {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}
    tools = [{"type": "function", "function": {"name": "f"}}]
    answer = {"role": "tool", "tool_call_id": "1", "content": "2"}
    [row] = _rows(Texts(tokenizer, None), USER, call, answer, ASSISTANT, tools=tools)
    assert _text(tokenizer, row).startswith('<|im_start|>tools\n{"name": "f"}\n')
    assert _learned(tokenizer, row) == [
        '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call><|im_end|>',
        f"{ASSISTANT['content']}<|im_end|>",
    ]


def test_an_answer_that_history_hides_is_a_row_of_its_own(tokenizer: TokenizersBackend) -> None:
    texts = Texts(tokenizer, FORGETS)
    answer = {"role": "assistant", "content": "A", "reasoning": "why"}
    one, two = _rows(texts, USER, answer, USER, answer)
    assert _learned(tokenizer, one) == _learned(tokenizer, two) == ["<think>why</think>A<|im_end|>"]
    turn = "user:\nHow are you?<|im_end|>\n"
    learned = "assistant:\n<think>why</think>A<|im_end|>\n"
    assert _text(tokenizer, one) == turn + learned
    assert _text(tokenizer, two) == f"{turn}assistant:\nA<|im_end|>\n{turn}{learned}"
    assert _told(texts, "1 of the conversations are several rows")


def test_answers_that_repeat_a_long_history_are_refused(tokenizer: TokenizersBackend) -> None:
    answer = {"role": "assistant", "content": "A" * 4_000, "reasoning": "why"}
    conversation = row_in({"messages": [USER, answer] * 128})
    with pytest.raises(WrongRowError, match="of all answers have over 8,388,608 characters"):
        Texts(tokenizer, FORGETS).rendered(conversation)
    # A template that shows each answer once may show as many.
    assert len(Texts(tokenizer, None).rendered(conversation)) == 1


@pytest.mark.parametrize(
    ("template", "message", "why"),
    [
        (REFUSES, {"role": "tool", "content": "x"}, "refuses the messages: No tools here"),
        (REFUSES, {**USER, "content": "SECRET"}, "refuses the messages"),
        ("{{ messages[0].content.x.y }}", USER, "refuses the messages"),
        # It hides where an answer begins.
        (
            "{{ messages | length }} messages" + OPENS,
            USER,
            "so that the answer can't be told from it",
        ),
    ],
)
def test_a_template_refuses_in_its_own_words_only(
    tokenizer: TokenizersBackend, template: str, message: dict[str, Any], why: str
) -> None:
    with pytest.raises(WrongRowError, match=f"{why}$"):
        _rows(Texts(tokenizer, template), USER, message, ASSISTANT)


def test_what_a_model_lacks_or_shows_otherwise_is_warned_of(tokenizer: TokenizersBackend) -> None:
    bare = Texts(_wrapped(tokenizer.backend_tokenizer), None)
    with pytest.raises(WrongRowError, match="no chat template"):
        _rows(bare, USER, ASSISTANT)
    assert _told(bare, "no end token")
    # An answer begins where the prompt and the row part.
    opens = Texts(tokenizer, OPENS)
    [row] = _rows(opens, USER, {"role": "assistant", "content": "A"})
    assert _learned(tokenizer, row) == ["A<|im_end|>"]
    assert _told(opens, "another beginning of an answer than it asks for, in 1 of")


def test_developers_speak_as_the_system_if_unknown(tokenizer: TokenizersBackend) -> None:
    system, developer = ({"role": role, "content": role} for role in ("system", "developer"))
    texts = Texts(tokenizer, None)
    [row] = _rows(texts, system, USER, developer, ASSISTANT)
    begin = "<|im_start|>system\nsystem\n\ndeveloper<|im_end|>\n<|im_start|>user\n"
    assert _text(tokenizer, row).startswith(begin)
    [row] = _rows(texts, developer, USER, ASSISTANT)
    assert _text(tokenizer, row).startswith("<|im_start|>system\ndeveloper<|im_end|>\n")
    first, last = _rows(texts, USER, ASSISTANT, developer, USER, ASSISTANT)
    assert _text(tokenizer, first).startswith("<|im_start|>user\n")
    assert _text(tokenizer, last).startswith("<|im_start|>system\ndeveloper<|im_end|>\n")
    [row] = _rows(Texts(tokenizer, OPENS + "{# 'developer' #}"), developer, USER, ASSISTANT)
    assert _text(tokenizer, row).startswith("developer:\ndeveloper<|im_end|>\n")


def test_templates_get_contents_as_they_take_them(tokenizer: TokenizersBackend) -> None:
    parts = {**USER, "content": [{"type": "text", "text": text} for text in "ab"]}
    [row] = _rows(Texts(tokenizer, None), parts, ASSISTANT)
    assert _text(tokenizer, row).startswith("<|im_start|>user\na\nb<|im_end|>")
    [row] = _rows(Texts(tokenizer, PARTS), parts, USER, ASSISTANT)
    begin = "user:\n[a][b]<|im_end|>\nuser:\n[How are you?]<|im_end|>\n"
    assert _text(tokenizer, row).startswith(begin)
    assert _learned(tokenizer, row) == [f"[{ASSISTANT['content']}]<|im_end|>"]


def _told(texts: Texts, part: str) -> Iterable[str]:
    return [warning for warning in texts.warnings() if part in warning]

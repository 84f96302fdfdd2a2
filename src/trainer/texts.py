"""Turns rows into texts and tokens, as the engine turns prompts and conversations into them.

Conversations are rendered by the served chat template, and their answers found in what it says.
"""

from collections.abc import Iterator, Sequence
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray

from trainer.values import Chat, Prompt, Value, WrongRowError

if TYPE_CHECKING:
    # The process that trains imports what checks the rows before it has the time for transformers.
    from tokenizers import Encoding
    from transformers import TokenizersBackend

# What a template's code may raise on a conversation that it does not expect.
TEMPLATE_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TemplateError,
    TypeError,
    ValueError,
)
PROBE = "probe"
# Characters of all texts of a conversation: each answer that has a text of its own repeats what is
# before it.
MOST_CHARACTERS = 8 << 20

# Put before an answer whose first token would else have a space before it.
BEFORE = "\n"

# A token of a row: its id, and whether it is part of an answer, and carries loss.
TOKEN = np.dtype([("id", np.int32), ("learned", np.bool_)])
Row = NDArray[np.void]

Messages = list[dict[str, Any]]


class Text(NamedTuple):
    """A conversation as the model reads it, and where the answers in it begin and end."""

    text: str
    answers: list[tuple[int, int]]


class ChatTemplate:
    """The template of a model.

    Args:
        tokenizer: the model's.
        template: the served one; None: the tokenizer's own, which may have another for tools.
    """

    def __init__(self, tokenizer: "TokenizersBackend", template: str | None) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._source = str(template or tokenizer.chat_template)
        added = tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
        # The engine stops at one of the special tokens.
        self._ends = tuple(token.content for token in added if token.special)
        self._developer = '"developer"' in self._source or "'developer'" in self._source
        # Which contents it takes: lists of parts, texts.
        as_text = self._probed(PROBE)
        as_list = self._probed([{"type": "text", "text": PROBE}])
        self._takes_texts = PROBE in as_text or PROBE not in as_list
        self._takes_lists = not self._takes_texts or as_list == as_text
        # How many conversations it shows otherwise once they go on, or before an answer.
        self.several_texts = 0
        self.other_prompts = 0

    def texts(self, chat: Chat) -> list[Text]:
        """Return a conversation as one text, as a rule.

        An answer that the template shows otherwise once the conversation goes on (without its
        reasoning, say) has a text of its own, which ends with it: so the model reads what it will
        read when it is served.

        Raises:
            WrongRowError: the template refuses it, or its texts are too long.
        """
        whole = self._until(chat, chat.learned[-1])
        answers, others, size = [], [], len(whole.text)
        for place in chat.learned[:-1]:
            text = self._until(chat, place)
            if whole.text.startswith(text.text):
                answers += text.answers
            else:
                others.append(text)
                size += len(text.text)
                if size > MOST_CHARACTERS:
                    raise WrongRowError(
                        "the chat template shows an answer otherwise once the conversation goes "
                        f"on, and the texts of all answers have over {MOST_CHARACTERS:,} characters"
                    )
        self.several_texts += bool(others)
        return [*others, Text(whole.text, answers + whole.answers)]

    def _until(self, chat: Chat, place: int) -> Text:
        """Return the text that ends with the answer at a place, and where that answer is."""
        messages = self._served(chat.messages[: place + 1])
        prompt = self._render(messages[:-1], chat.tools, prompt=True)
        text = self._render(messages, chat.tools)
        begin = len(prompt)
        if not text.startswith(prompt):
            begin = self._common(text, prompt, self._render(messages[:-1], chat.tools))
        said = text.rstrip()
        # What follows the token at which the engine stops is never said.
        end = len(said) if said.endswith(self._ends) and len(said) > begin else len(text)
        if begin >= end:
            raise WrongRowError("the chat template leaves an answer out")
        return Text(text, [(begin, end)])

    def _common(self, text: str, prompt: str, before: str) -> int:
        if not before or not text.startswith(before):
            raise WrongRowError(
                "the chat template changes what is before an answer, so that "
                "the answer can't be told from it"
            )
        self.other_prompts += 1
        return len(commonprefix([text, prompt]))  # noqa: RUF071 - they are texts, not paths

    def _render(self, messages: Messages, tools: list[Any] | None, *, prompt: bool = False) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                messages,
                tools=tools,
                chat_template=self._template,
                add_generation_prompt=prompt,
                tokenize=False,
            )
        except TEMPLATE_ERRORS as error:
            # Only words of the template: others may be the row's.
            words = str(error) if str(error) and str(error) in self._source else ""
            said = f": {words}" if words else ""
            raise WrongRowError(f"the chat template refuses the messages{said}") from None
        return str(text)

    def _probed(self, content: str | list[dict[str, str]]) -> str:
        try:
            return self._render([{"role": "user", "content": content}], None)
        except WrongRowError:
            return ""

    def _served(self, messages: Messages) -> Messages:
        """Return the messages as vLLM hands them to the template."""
        if not self._developer and any(message["role"] == "developer" for message in messages):
            messages = _with_one_system(messages)
        return [{**message, "content": self._content(message)} for message in messages]

    def _content(self, message: dict[str, Any]) -> str | list[dict[str, str]]:
        content: str | list[dict[str, str]] = message["content"]
        if isinstance(content, str):
            plain = self._takes_texts or message["role"] == "tool"
            return content if plain else [{"type": "text", "text": content}]
        if self._takes_lists and message["role"] != "tool":
            return content
        return "\n".join(part["text"] for part in content)


def _with_one_system(messages: Messages) -> Messages:
    """Return the messages with a developer's as the system's, all of them in one at the start."""
    systems = [message for message in messages if message["role"] in {"system", "developer"}]
    if len(systems) == 1 and messages[0] is systems[0]:
        return [{**messages[0], "role": "system"}, *messages[1:]]
    texts = [_joined(message["content"]) for message in systems]
    content = "\n\n".join(text for text in texts if text)
    others = [message for message in messages if message["role"] not in {"system", "developer"}]
    return [{"role": "system", "content": content}, *others]


def _joined(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


class Texts:
    """A model's way from texts to tokens.

    Args:
        tokenizer: the model's.
        template: of its conversations; None: the tokenizer's own, if it has one.
    """

    def __init__(self, tokenizer: "TokenizersBackend", template: str | None) -> None:
        self._tokenizer = tokenizer.backend_tokenizer
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._end = tokenizer.eos_token_id
        has_one = template or tokenizer.chat_template
        self._template = ChatTemplate(tokenizer, template) if has_one else None
        self._skipped = self._spaces()

    def _spaces(self) -> int | None:
        """Return the tokens of ``BEFORE`` if the tokenizer puts a space before each text."""
        alone, before, behind = (
            self._tokenizer.encode(text, add_special_tokens=False).ids
            for text in ("a", BEFORE, f"{BEFORE}a")
        )
        differs = behind != before + alone and behind[: len(before)] == before
        return len(before) if differs else None

    def rendered(self, value: Value) -> Sequence[Prompt | Text]:
        """Return a row as the model reads it; some conversations are several texts.

        Raises:
            WrongRowError: it can't be rendered.
        """
        if isinstance(value, Prompt):
            return [value]
        if self._template is None:
            raise WrongRowError("the model has no chat template, so it can't learn messages")
        return self._template.texts(value)

    def tokens(self, texts: Sequence[Prompt | Text]) -> Iterator[Row]:
        """Yield the tokens of each text; all are prompts, or all are conversations."""
        prompts = [text for text in texts if isinstance(text, Prompt)]
        if prompts:
            return self._prompts(prompts)
        return self._chats([text for text in texts if isinstance(text, Text)])

    def warnings(self) -> Iterator[str]:
        """Yield what users should know of how the rows were turned into tokens."""
        if self._end is None:
            yield "The tokenizer has no end token, so the model does not learn to end its answers."
        if self._template is not None and self._template.several_texts:
            yield (
                "The chat template shows an answer otherwise once the conversation goes on, so "
                f"{self._template.several_texts:,} of the conversations are several rows."
            )
        if self._template is not None and self._template.other_prompts:
            yield (
                "The chat template shows another beginning of an answer than it asks for, in "
                f"{self._template.other_prompts:,} of the answers."
            )

    def _prompts(self, rows: Sequence[Prompt]) -> Iterator[Row]:
        """Yield each row's tokens: its prompt's, as completions get them, its answer's, the end."""
        prompts = self._tokenizer.encode_batch_fast([row.prompt for row in rows])
        before = "" if self._skipped is None else BEFORE
        answers = self._tokenizer.encode_batch_fast(
            [before + row.answer for row in rows], add_special_tokens=False
        )
        end = [] if self._end is None else [self._end]
        for prompt, answer in zip(prompts, answers, strict=True):
            row = _row([*prompt.ids, *answer.ids[self._skipped or 0 :], *end])
            row["learned"][len(prompt.ids) :] = True
            yield row

    def _chats(self, texts: Sequence[Text]) -> Iterator[Row]:
        """Yield each conversation's tokens."""
        found = self._tokenizer.encode_batch(
            [text.text for text in texts], add_special_tokens=False
        )
        for text, encoding in zip(texts, found, strict=True):
            row = _row(encoding.ids)
            for begin, end in text.answers:
                row["learned"][_token(encoding, begin, text) : _token(encoding, end, text)] = True
            yield row


def _row(ids: Sequence[int]) -> Row:
    row = np.zeros(len(ids), TOKEN)
    row["id"] = ids
    return row


def _token(encoding: "Encoding", place: int, text: Text) -> int:
    """Return the number of the first token at or behind a character."""
    for character in range(place, len(text.text)):
        if (token := encoding.char_to_token(character)) is not None:
            return token
    return len(encoding.ids)

"""Renders and tokenizes rows as the engine does, and locates the answers in the rendered text."""

from collections.abc import Iterator, Sequence
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray

from trainer.values import ChatRow, InvalidRowError, PromptRow, RowValue

if TYPE_CHECKING:
    # ``prepare`` imports this module before it hides torch, and transformers afterwards.
    from tokenizers import Encoding
    from transformers import TokenizersBackend

# Exceptions of a template's code for a conversation that it doesn't expect.
TEMPLATE_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TemplateError,
    TypeError,
    ValueError,
)
PROBE_TEXT = "probe"
# Maximum characters in all texts of a conversation: each repeats the messages before its answer.
MAX_CHAT_CHARACTERS = 8 << 20

# Prefix of an answer for tokenizers that put a space before each text. The answer is tokenized
# together with this prefix, whose tokens are then removed.
ANSWER_PREFIX = "\n"

# Type of a token in a row: its id, and whether it is learned (as part of an answer).
TOKEN_DTYPE = np.dtype([("id", np.int32), ("learned", np.bool_)])
TokenRow = NDArray[np.void]

Messages = list[dict[str, Any]]


class RenderedChat(NamedTuple):
    """A conversation as the model reads it; ``answers`` are ranges of characters in ``text``."""

    text: str
    answers: list[tuple[int, int]]


class ChatTemplate:
    """The chat template of a model.

    Args:
        tokenizer: The model's tokenizer.
        template: The served template; None for the tokenizer's own templates.
    """

    def __init__(self, tokenizer: "TokenizersBackend", template: str | None) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._source = str(template or tokenizer.chat_template)
        added = tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
        # The engine ends an answer at one of these special tokens.
        self._special_tokens = tuple(token.content for token in added if token.special)
        self._has_developer_role = '"developer"' in self._source or "'developer'" in self._source
        # Find out whether the template takes contents as strings or as lists of parts.
        as_text = self._render_probe(PROBE_TEXT)
        as_list = self._render_probe([{"type": "text", "text": PROBE_TEXT}])
        self._takes_strings = PROBE_TEXT in as_text or PROBE_TEXT not in as_list
        self._takes_lists = not self._takes_strings or as_list == as_text
        # Numbers of conversations with several texts, and of answers that the template doesn't
        # begin with its generation prompt.
        self.split_chat_count = 0
        self.changed_prompt_count = 0

    def render(self, chat: ChatRow) -> list[RenderedChat]:
        """Return a conversation as one text or, for some templates, as several.

        The last text ends with the last learned answer. Some templates render an answer differently
        once the conversation continues, for example without its reasoning. Such an answer gets a
        separate text that ends with it: the served model will see the same text before the answer.

        Raises:
            InvalidRowError: The template rejects the conversation, or its texts are too long.
        """
        full = self._render_until_answer(chat, chat.learned_indices[-1])
        answers, separate, size = [], [], len(full.text)
        for index in chat.learned_indices[:-1]:
            text = self._render_until_answer(chat, index)
            if full.text.startswith(text.text):
                answers += text.answers
            else:
                separate.append(text)
                size += len(text.text)
                if size > MAX_CHAT_CHARACTERS:
                    raise InvalidRowError(
                        "the chat template renders an answer differently once the conversation "
                        "continues, and the texts of all answers have over "
                        f"{MAX_CHAT_CHARACTERS:,} characters"
                    )
        self.split_chat_count += bool(separate)
        return [*separate, RenderedChat(full.text, answers + full.answers)]

    def _render_until_answer(self, chat: ChatRow, index: int) -> RenderedChat:
        """Return the text that ends with the answer at an index, and the answer's position."""
        messages = self._to_served_messages(chat.messages[: index + 1])
        prompt = self._render(messages[:-1], chat.tools, prompt=True)
        text = self._render(messages, chat.tools)
        begin = len(prompt)
        if not text.startswith(prompt):
            begin = self._find_answer_begin(text, prompt, self._render(messages[:-1], chat.tools))
        # The model never generates the white space after the token at which the engine stops.
        trimmed = text.rstrip()
        has_stop_token = trimmed.endswith(self._special_tokens) and len(trimmed) > begin
        end = len(trimmed if has_stop_token else text)
        if begin >= end:
            raise InvalidRowError("the chat template omits an answer")
        return RenderedChat(text, [(begin, end)])

    def _find_answer_begin(self, text: str, prompt: str, before: str) -> int:
        # ``before`` has the messages before the answer; ``prompt`` also has a generation prompt.
        if not before or not text.startswith(before):
            raise InvalidRowError(
                "the chat template changes the text before an answer, so that "
                "the answer can't be separated from it"
            )
        self.changed_prompt_count += 1
        return len(commonprefix([text, prompt]))  # noqa: RUF071 - strings, not paths

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
            # Quote only messages from the template itself: others may contain text of the row.
            message = str(error) if str(error) and str(error) in self._source else ""
            suffix = f": {message}" if message else ""
            raise InvalidRowError(f"the chat template refuses the messages{suffix}") from None
        return str(text)

    def _render_probe(self, content: str | list[dict[str, str]]) -> str:
        try:
            return self._render([{"role": "user", "content": content}], None)
        except InvalidRowError:
            return ""

    def _to_served_messages(self, messages: Messages) -> Messages:
        """Return the messages as vLLM passes them to the template."""
        roles = {message["role"] for message in messages}
        if "developer" in roles and not self._has_developer_role:
            messages = _merge_system_messages(messages)
        return [{**message, "content": self._convert_content(message)} for message in messages]

    def _convert_content(self, message: dict[str, Any]) -> str | list[dict[str, str]]:
        content: str | list[dict[str, str]] = message["content"]
        if isinstance(content, str):
            takes_string = self._takes_strings or message["role"] == "tool"
            return content if takes_string else [{"type": "text", "text": content}]
        if self._takes_lists and message["role"] != "tool":
            return content
        return "\n".join(part["text"] for part in content)


def _merge_system_messages(messages: Messages) -> Messages:
    """Merge all system and developer messages into one system message at the beginning."""
    systems = [message for message in messages if message["role"] in {"system", "developer"}]
    if len(systems) == 1 and messages[0] is systems[0]:
        return [{**messages[0], "role": "system"}, *messages[1:]]
    texts = [_join_text_parts(message["content"]) for message in systems]
    content = "\n\n".join(text for text in texts if text)
    others = [message for message in messages if message["role"] not in {"system", "developer"}]
    return [{"role": "system", "content": content}, *others]


def _join_text_parts(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


class RowEncoder:
    """Renders and tokenizes rows for a model.

    Args:
        tokenizer: The model's tokenizer.
        template: The served chat template; None for the tokenizer's own, if it has one.
    """

    def __init__(self, tokenizer: "TokenizersBackend", template: str | None) -> None:
        self._tokenizer = tokenizer.backend_tokenizer
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._end_token = tokenizer.eos_token_id
        has_template = template or tokenizer.chat_template
        self._template = ChatTemplate(tokenizer, template) if has_template else None
        self._prefix_tokens = self._count_prefix_tokens()

    def _count_prefix_tokens(self) -> int | None:
        """Return the number of tokens of ``ANSWER_PREFIX``; None if answers get no prefix."""
        # A prefix is needed only if the tokenizer puts a space before each text, and is used only
        # if its tokens can be separated from the answer's.
        alone, before, after = (
            self._tokenizer.encode(text, add_special_tokens=False).ids
            for text in ("a", ANSWER_PREFIX, f"{ANSWER_PREFIX}a")
        )
        differs = after != before + alone and after[: len(before)] == before
        return len(before) if differs else None

    def render(self, value: RowValue) -> Sequence[PromptRow | RenderedChat]:
        """Return a row as the model reads it; some conversations have several texts.

        Raises:
            InvalidRowError: The row can't be rendered.
        """
        if isinstance(value, PromptRow):
            return [value]
        if self._template is None:
            raise InvalidRowError("the model has no chat template, so it can't learn messages")
        return self._template.render(value)

    def tokenize(self, texts: Sequence[PromptRow | RenderedChat]) -> Iterator[TokenRow]:
        """Yield the tokens of each text. All must be ``PromptRow``, or all ``RenderedChat``."""
        prompts = [text for text in texts if isinstance(text, PromptRow)]
        if prompts:
            return self._tokenize_prompts(prompts)
        return self._tokenize_chats([text for text in texts if isinstance(text, RenderedChat)])

    def warnings(self) -> Iterator[str]:
        """Yield warnings about the rendered rows, for the user."""
        if self._end_token is None:
            yield "The tokenizer has no end token, so the model does not learn to end its answers."
        if self._template is not None and self._template.split_chat_count:
            yield (
                "The chat template renders an answer differently once the conversation continues, "
                f"so {self._template.split_chat_count:,} of the conversations become several rows."
            )
        if self._template is not None and self._template.changed_prompt_count:
            yield (
                "The chat template begins an answer differently from its generation prompt, in "
                f"{self._template.changed_prompt_count:,} of the answers."
            )

    def _tokenize_prompts(self, rows: Sequence[PromptRow]) -> Iterator[TokenRow]:
        """Yield each row's tokens: prompt (as in ``/v1/completions``), answer, and end token."""
        prompts = self._tokenizer.encode_batch_fast([row.prompt for row in rows])
        prefix = "" if self._prefix_tokens is None else ANSWER_PREFIX
        answers = self._tokenizer.encode_batch_fast(
            [prefix + row.answer for row in rows], add_special_tokens=False
        )
        end = [] if self._end_token is None else [self._end_token]
        for prompt, answer in zip(prompts, answers, strict=True):
            row = _make_token_row([*prompt.ids, *answer.ids[self._prefix_tokens or 0 :], *end])
            row["learned"][len(prompt.ids) :] = True
            yield row

    def _tokenize_chats(self, texts: Sequence[RenderedChat]) -> Iterator[TokenRow]:
        encodings = self._tokenizer.encode_batch(
            [text.text for text in texts], add_special_tokens=False
        )
        for text, encoding in zip(texts, encodings, strict=True):
            row = _make_token_row(encoding.ids)
            for answer in text.answers:
                begin, end = (_find_token_index(encoding, character, text) for character in answer)
                row["learned"][begin:end] = True
            yield row


def _make_token_row(ids: Sequence[int]) -> TokenRow:
    row = np.zeros(len(ids), TOKEN_DTYPE)
    row["id"] = ids
    return row


def _find_token_index(encoding: "Encoding", begin: int, text: RenderedChat) -> int:
    """Return the index of the first token at or after a character, or the number of tokens."""
    for character in range(begin, len(text.text)):
        if (token := encoding.char_to_token(character)) is not None:
            return token
    return len(encoding.ids)

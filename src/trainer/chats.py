"""Renders conversations by the served chat template, and finds the answers in what it says."""

from typing import Any, NamedTuple

from jinja2 import TemplateError
from transformers import TokenizersBackend

from trainer.mistakes import WrongRowError
from trainer.values import Chat

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

    def __init__(self, tokenizer: TokenizersBackend, template: str | None) -> None:
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
        pairs = zip(text, prompt, strict=False)
        return next(
            (place for place, (one, other) in enumerate(pairs) if one != other),
            min(len(text), len(prompt)),
        )

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

"""Turns rows into tokens, as the engine turns prompts and conversations into them."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from transformers import TokenizersBackend

from trainer.chats import ChatTemplate, Text
from trainer.mistakes import WrongRowError
from trainer.values import Prompt, Value

# Put before an answer whose first token would else have a space before it.
BEFORE = "\n"


class Tokenized(NamedTuple):
    """A row's tokens, uncut, and whether each is learned."""

    ids: Sequence[int]
    learned: NDArray[np.bool_]


class Texts:
    """A model's way from texts to tokens.

    Args:
        tokenizer: the model's.
        template: of its conversations; None: the tokenizer's own, if it has one.
    """

    def __init__(self, tokenizer: TokenizersBackend, template: str | None) -> None:
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

    def tokens(self, texts: Sequence[Prompt | Text]) -> Iterator[Tokenized]:
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

    def _prompts(self, rows: Sequence[Prompt]) -> Iterator[Tokenized]:
        """Yield each row's tokens: its prompt's, as completions get them, its answer's, the end."""
        prompts = self._tokenizer.encode_batch_fast([row.prompt for row in rows])
        before = "" if self._skipped is None else BEFORE
        answers = self._tokenizer.encode_batch_fast(
            [before + row.answer for row in rows], add_special_tokens=False
        )
        end = [] if self._end is None else [self._end]
        for prompt, answer in zip(prompts, answers, strict=True):
            begin = prompt.ids
            ids = [*begin, *answer.ids[self._skipped or 0 :], *end]
            learned = np.ones(len(ids), np.bool_)
            learned[: len(begin)] = False
            yield Tokenized(ids, learned)

    def _chats(self, texts: Sequence[Text]) -> Iterator[Tokenized]:
        """Yield each conversation's tokens."""
        found = self._tokenizer.encode_batch(
            [text.text for text in texts], add_special_tokens=False
        )
        for text, encoding in zip(texts, found, strict=True):
            ids = encoding.ids
            learned = np.zeros(len(ids), np.bool_)
            for begin, end in text.answers:
                learned[_token(encoding, begin, text) : _token(encoding, end, text)] = True
            yield Tokenized(ids, learned)


def _token(encoding: Encoding, place: int, text: Text) -> int:
    """Return the number of the first token at or behind a character."""
    for character in range(place, len(text.text)):
        if (token := encoding.char_to_token(character)) is not None:
            return token
    return len(encoding.ids)

"""Turns rows into tokens as the engine does, and writes them, in a process without torch."""

import logging
import os
import random
import sys
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray

from trainer.rows import (
    MAX_MISTAKES,
    ChatRow,
    InvalidRowError,
    Mistakes,
    ParsedRow,
    PromptRow,
    RowValue,
    read_rows,
)
from worker.children.with_parent import exit_with_parent
from worker.fine_tunes.spec import CheckResult, FileField, RowMistake, RowsFile, Spec

if TYPE_CHECKING:
    # At runtime, transformers is imported after torch is hidden.
    from tokenizers import Encoding
    from transformers import TokenizersBackend

# Share of the training file's lines that are used for validation if there is no validation file.
VALIDATION_SHARE = 0.1
# Number of rows below which a warning recommends more.
RECOMMENDED_ROWS = 200
# Maximum number of line numbers that a warning lists.
MAX_WARNING_LINES = 10
# Rows and characters that fill a batch for the tokenizer: enough for all cores, in little memory.
BATCH_ROWS, BATCH_CHARACTERS = 1_000, 1 << 18
NO_TOKENIZER = "the model's tokenizer is not from the tokenizers library, which training needs"

# Name of the file with the tokens of all rows, one row after another.
ROWS_FILE = "rows"
# Names of the two selections: the rows to train on, and the validation rows.
TRAINING, VALIDATION = "training", "validation"
# Type of a token in a row: its id, and whether it is learned (as part of an answer).
TOKEN_DTYPE = np.dtype([("id", np.int32), ("learned", np.bool_)])
TokenRow = NDArray[np.void]

# Prefix of an answer for tokenizers that put a space before each text. The answer is tokenized
# together with this prefix, whose tokens are then removed.
ANSWER_PREFIX = "\n"

Messages = list[dict[str, Any]]
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


class RenderedChat(NamedTuple):
    """A conversation as the model reads it; ``answers`` are ranges of characters in ``text``."""

    text: str
    answers: list[tuple[int, int]]


def check_and_tokenize_in_process(spec: Spec, directory: Path) -> CheckResult:
    """Check a training's rows and write them as tokens to a directory, in a separate process.

    The process needs little memory because transformers loads the tokenizer without torch there,
    unless the spec trusts the model's code. Paths in the spec must be absolute.

    Raises:
        OSError: A file can't be read or written.
        RuntimeError: The process was killed, or the tokenizer can't be loaded. The process's other
            exceptions are raised, too.
    """
    initializer = partial(exit_with_parent, os.getpid())
    with ProcessPoolExecutor(1, get_context("fork"), initializer) as process:
        try:
            return process.submit(_load_tokenizer_and_check_rows, spec, directory).result()
        except BrokenProcessPool:
            raise RuntimeError("the check of the rows was killed") from None


def _load_tokenizer_and_check_rows(spec: Spec, directory: Path) -> CheckResult:
    if not spec.trust_remote_code:
        # ``None`` makes Python treat torch as missing. Trusted code of the model may need torch.
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # None is no module
    # Otherwise transformers logs the advice to install torch.
    logging.disable(logging.WARNING)
    # Imported only now that torch is hidden.
    from transformers import AutoTokenizer, TokenizersBackend  # noqa: PLC0415 - see above

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            spec.tokenizer, local_files_only=True, trust_remote_code=spec.trust_remote_code
        )
    except (OSError, ValueError, ImportError) as error:
        # OSErrors of transformers are not the volume's. Their last line names the missing file.
        reason = f"{type(error).__name__}: {error}".splitlines()[-1]
        raise RuntimeError(f"the check of the rows has crashed: {reason}") from error
    if not isinstance(tokenizer, TokenizersBackend):
        mistake = RowMistake(file="training_file", line=None, message=NO_TOKENIZER)
        return CheckResult(mistakes=(mistake,))
    return check_and_tokenize(spec, tokenizer, directory)


def check_and_tokenize(spec: Spec, tokenizer: "TokenizersBackend", directory: Path) -> CheckResult:
    """Check a training's rows, and write their tokens and the two selections to a directory.

    The selections are ``TRAINING`` and ``VALIDATION``; none is written if the rows have mistakes.
    """
    encoder = RowEncoder(tokenizer, spec.chat_template)
    with closing(TokenWriter(directory)) as writer:
        readers = [_RowsReader("training_file", encoder, spec.max_length, writer)]
        readers[0].tokenize_file(spec.training)
        if spec.validation is not None:
            readers.append(_RowsReader("validation_file", encoder, spec.max_length, writer))
            readers[1].tokenize_file(spec.validation)
    training, validation = _split_rows(readers, spec.seed)
    mistakes = [mistake for reader in readers for mistake in reader.mistakes.listed_mistakes]
    count = sum(reader.mistakes.count for reader in readers)
    listed = tuple(mistakes[:MAX_MISTAKES])
    if mistakes:
        return CheckResult(mistakes=listed, more_mistakes=count - len(listed))
    lengths = writer.save_selection(TRAINING, training)
    return CheckResult(
        rows=len(training),
        validation_rows=len(writer.save_selection(VALIDATION, validation)),
        tokens=int(lengths.sum()),
        cut_rows=sum(reader.cut_rows for reader in readers),
        warnings=tuple(_make_warnings(readers, encoder, spec)),
    )


class _RowsReader:
    """Reads one file of rows and writes its rows as up to ``max_length`` tokens each."""

    def __init__(
        self, file: FileField, encoder: "RowEncoder", max_length: int, writer: "TokenWriter"
    ) -> None:
        self.mistakes = Mistakes(file)
        self.cut_rows = 0
        # Line numbers of rows that are left out: no token of an answer remains after the cut.
        self.dropped_lines: list[int] = []
        # Number of this file's first row in the writer, and the line number of each of its rows.
        self.first_row = len(writer)
        self.lines = array("q")
        self._encoder = encoder
        self._max_length = max_length
        self._writer = writer

    def tokenize_file(self, data: RowsFile) -> None:
        """Read the file and write its rows; after the first mistake, only collect more mistakes."""
        pending: deque[tuple[list[int], Future[list[TokenRow]]]] = deque()
        # While one thread tokenizes a batch without the GIL, this thread reads the next batch.
        with ThreadPoolExecutor(1) as pool:
            for batch in _make_batches(read_rows(data, self.mistakes)):
                # A conversation may have several texts: each has its line's number.
                lines: list[int] = []
                texts: list[PromptRow | RenderedChat] = []
                for row in batch:
                    try:
                        rendered = self._encoder.render(row.value)
                    except InvalidRowError as error:
                        self.mistakes.add(row.line, error.message)
                    else:
                        texts += rendered
                        lines += [row.line] * len(rendered)
                if self.mistakes.count:
                    continue
                pending.append((lines, pool.submit(list, self._encoder.tokenize(texts))))
                if len(pending) > 1:
                    self._write_rows(*pending.popleft())
            for last in pending:
                self._write_rows(*last)
        if not (self.lines or self.mistakes.count):
            message = f"no row has any of its answer within {self._max_length:,} tokens"
            self.mistakes.add(None, message)

    def _write_rows(self, lines: list[int], rows: "Future[list[TokenRow]]") -> None:
        for line, row in zip(lines, rows.result(), strict=True):
            self.cut_rows += len(row) > self._max_length
            cut = row[: self._max_length]
            if cut["learned"].any():
                self._writer.add_row(cut)
                self.lines.append(line)
            else:
                self.dropped_lines.append(line)


def _make_batches(rows: Iterator[ParsedRow]) -> Iterator[list[ParsedRow]]:
    batch: list[ParsedRow] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += row.size
        if len(batch) == BATCH_ROWS or size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _split_rows(readers: Sequence[_RowsReader], seed: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return the numbers of the rows to train on, and of the validation rows.

    Without a validation file, the seed chooses validation rows; a single line is then a mistake.
    """
    first, *others = readers
    if others:
        begin = others[0].first_row
        return range(begin), range(begin, begin + len(others[0].lines))
    lines = np.frombuffer(first.lines, np.int64)
    # A conversation may have become several rows. They have the same line, and stay together.
    distinct_lines = sorted(set(first.lines))
    if len(distinct_lines) < 2:
        if not first.mistakes.count:
            first.mistakes.add(
                None, "at least two rows are required: one of them is for validation"
            )
        return (), ()
    count = max(1, round(len(distinct_lines) * VALIDATION_SHARE))
    is_validation = np.isin(lines, random.Random(seed).sample(distinct_lines, count))
    return np.flatnonzero(~is_validation).tolist(), np.flatnonzero(is_validation).tolist()


def _make_warnings(
    readers: Sequence[_RowsReader], encoder: "RowEncoder", spec: Spec
) -> Iterator[str]:
    count = len(set(readers[0].lines))
    if count < RECOMMENDED_ROWS:
        yield f"The training file has {count} rows; {RECOMMENDED_ROWS} or more are advised."
    for reader in readers:
        if dropped_lines := list(dict.fromkeys(reader.dropped_lines)):
            lines = ", ".join(map(str, dropped_lines[:MAX_WARNING_LINES]))
            more = ", …" if len(dropped_lines) > MAX_WARNING_LINES else ""
            yield (
                f"{reader.mistakes.file}: {len(dropped_lines):,} rows are left out because their "
                f"answers begin after the first {spec.max_length:,} tokens (lines {lines}{more})."
            )
    yield from encoder.warnings()


class TokenWriter:
    """Writes rows of tokens to a directory. The files are complete once the writer is closed."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._rows = (directory / ROWS_FILE).open("wb")
        self._offsets = array("q", [0])

    def close(self) -> None:
        self._rows.close()

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def add_row(self, row: TokenRow) -> None:
        self._rows.write(row.tobytes())
        self._offsets.append(self._offsets[-1] + len(row))

    def save_selection(self, name: str, rows: Iterable[int]) -> NDArray[np.int64]:
        """Save a selection of rows, numbered from 0, and return their lengths in tokens."""
        begins = np.frombuffer(self._offsets, np.int64)
        numbers = np.fromiter(rows, np.int64)
        bounds = np.stack([begins[numbers], begins[numbers + 1]], axis=1)
        np.save(self._directory / f"{name}.npy", bounds)
        return bounds[:, 1] - bounds[:, 0]


class TokenRows(Sequence[TokenRow]):
    """A selection of the rows that a ``TokenWriter`` has written; the tokens are memory-mapped."""

    def __init__(self, directory: Path, name: str) -> None:
        # For each row, the index of its first token in the file, and that after its last token.
        self._bounds = np.load(directory / f"{name}.npy")
        self._tokens = np.memmap(directory / ROWS_FILE, TOKEN_DTYPE, "r")

    def __len__(self) -> int:
        return len(self._bounds)

    def __getitem__(self, index: int) -> TokenRow:  # type: ignore[override]  # no slices are needed
        begin, end = self._bounds[index]
        return np.asarray(self._tokens[begin:end])


class RowEncoder:
    """Renders and tokenizes rows for a model.

    ``template`` is the served chat template; None for the tokenizer's own, if it has one.
    """

    def __init__(self, tokenizer: "TokenizersBackend", template: str | None) -> None:
        self._tokenizer = tokenizer.backend_tokenizer
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._end_token = tokenizer.eos_token_id
        has_template = template or tokenizer.chat_template
        self._template = ChatTemplate(tokenizer, template) if has_template else None
        # A prefix is needed only if the tokenizer puts a space before each text, and is used only
        # if its tokens can be separated from the answer's.
        alone, before, after = (
            self._tokenizer.encode(text, add_special_tokens=False).ids
            for text in ("a", ANSWER_PREFIX, f"{ANSWER_PREFIX}a")
        )
        needs_prefix = after != before + alone and after[: len(before)] == before
        self._answer_prefix, self._prefix_tokens = (
            (ANSWER_PREFIX, len(before)) if needs_prefix else ("", 0)
        )

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
        answers = self._tokenizer.encode_batch_fast(
            [self._answer_prefix + row.answer for row in rows], add_special_tokens=False
        )
        end = [] if self._end_token is None else [self._end_token]
        for prompt, answer in zip(prompts, answers, strict=True):
            row = _make_token_row([*prompt.ids, *answer.ids[self._prefix_tokens :], *end])
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


class ChatTemplate:
    """The chat template of a model."""

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
            # The prompt without its end, which asks for the answer.
            before = self._render(messages[:-1], chat.tools)
            if not before or not text.startswith(before):
                raise InvalidRowError(
                    "the chat template changes the text before an answer, so that "
                    "the answer can't be separated from it"
                )
            self.changed_prompt_count += 1
            begin = len(commonprefix([text, prompt]))  # noqa: RUF071 - strings, not paths
        # The model never generates the white space after the token at which the engine stops.
        trimmed = text.rstrip()
        has_stop_token = trimmed.endswith(self._special_tokens) and len(trimmed) > begin
        end = len(trimmed if has_stop_token else text)
        if begin >= end:
            raise InvalidRowError("the chat template omits an answer")
        return RenderedChat(text, [(begin, end)])

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
        return _join_text_parts(content)


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

"""The routes of vLLM's server that take a body: a row for each, with what the limits ask of it."""

from dataclasses import dataclass

# Texts of a route that are parts of one conversation.
CONVERSATION = ("messages", "system", "instructions")
# What a chat template may show beside them.
BESIDE = ("tools", "chat_template_kwargs", "documents")

# Tokens of more characters are runs of spaces or dashes: no text consists of them. Below the second
# number of characters they are believed, because tokenizing takes no time.
MOST_PER_TOKEN = 32
FEW = 1_000_000
# The characters of a text, or tokens, whose tokens or text fit one answer.
MOST_ANSWERED = 1_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """What the body of a route holds.

    Args:
        path: of the route.
        texts: keys of what is tokenized, and of tokens: texts, lists, conversations with media.
        continues: whether the engine goes on from the token ids that ``prompt`` may hold.
        truncates: whether ``truncate_prompt_tokens`` cuts the texts.
        repeats: whether the answer holds all that was sent.
        batch: whether lines of batches may go there.
    """

    path: str
    texts: tuple[str, ...]
    continues: bool = False
    truncates: bool = False
    repeats: bool = False
    batch: bool = False


# The raw form of a job, which has no route.
RAW = Shape("", ("messages", "prompt"), continues=True)
CHAT = Shape("/v1/chat/completions", ("messages",), batch=True)
RESPONSES = Shape("/v1/responses", ("instructions", "input", "previous_input_messages"), batch=True)
TOKENIZE = Shape("/tokenize", ("messages", "prompt"), repeats=True)

_SCORED = "queries documents items data_1 data_2 text_1 text_2 instruction".split()
_ROWS = (
    CHAT,
    Shape("/v1/completions", ("prompt",), continues=True, truncates=True, batch=True),
    Shape("/v1/embeddings", ("messages", "input"), truncates=True, batch=True),
    RESPONSES,
    Shape("/v1/messages", ("system", "messages"), batch=True),
    Shape("/v1/messages/count_tokens", ("system", "messages")),
    Shape("/score", (*_SCORED,), truncates=True, batch=True),
    Shape("/rerank", ("query", "documents", "instruction"), truncates=True, batch=True),
    Shape("/pooling", ("messages", "input"), truncates=True, batch=True),
    TOKENIZE,
    Shape("/detokenize", ("tokens",), repeats=True),
)
SHAPES = {row.path: row for row in _ROWS}
# The texts of all routes: vLLM ignores those of others.
TEXTS = frozenset().union(*(row.texts for row in (RAW, *_ROWS)))

# Where lines of batches can go, as callers write it: with /v1 wherever they like.
BATCH_PATHS = tuple(
    path
    for row in _ROWS
    if row.batch
    for path in dict.fromkeys((f"/v1{row.path.removeprefix('/v1')}", row.path))
)

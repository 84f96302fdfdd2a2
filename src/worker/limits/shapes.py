"""What the body of a route holds, as far as limits depend on it (``worker.routes.vllm``)."""

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
        texts: keys of what is tokenized, and of tokens: texts, lists, conversations with media.
        continues: whether the engine goes on from the token ids that ``prompt`` may hold.
        truncates: whether ``truncate_prompt_tokens`` cuts the texts.
        repeats: whether the answer holds all that was sent.
        batch: whether lines of batches may go there.
        items: whether ``input`` may hold items of a response.
    """

    texts: tuple[str, ...] = ()
    continues: bool = False
    truncates: bool = False
    repeats: bool = False
    batch: bool = False
    items: bool = False


# The raw form of a job, which has no route.
RAW = Shape(("messages", "prompt"), continues=True)
# Of a route without a body, or of a body that needs no limits.
NONE = Shape()

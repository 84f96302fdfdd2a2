"""Shapes of request bodies, on which limits depend; ``worker.routes.vllm`` has those of routes."""

from dataclasses import dataclass

# Keys whose texts are parts of one conversation.
CONVERSATION_KEYS = ("messages", "system", "instructions")
# Further keys that a chat template can render.
TEMPLATE_KEYS = ("tools", "chat_template_kwargs", "documents")
# Keys that become text at the latest in a chat template: any value that JSON has is allowed.
RENDERED_KEYS = frozenset({*CONVERSATION_KEYS, *TEMPLATE_KEYS, "input", "metadata"})


@dataclass(frozen=True, slots=True)
class BodyShape:
    """The keys and features of a route's body that limits depend on.

    Args:
        text_keys: Keys of texts, lists of texts, conversations (also with media), or tokens.
        accepts_token_ids: Whether ``prompt`` can hold token ids that the engine continues.
        can_truncate: Whether ``truncate_prompt_tokens`` truncates the texts.
        echoes_input: Whether the response contains the whole input.
        is_batchable: Whether lines of batches can use the route.
        accepts_items: Whether ``input`` can hold items as in ``/v1/responses``.
    """

    text_keys: tuple[str, ...] = ()
    accepts_token_ids: bool = False
    can_truncate: bool = False
    echoes_input: bool = False
    is_batchable: bool = False
    accepts_items: bool = False


# Shape of a raw job, which has no route.
RAW_SHAPE = BodyShape(("messages", "prompt"), accepts_token_ids=True)
# Shape for routes without a body, and for bodies that need no limits.
EMPTY_SHAPE = BodyShape()

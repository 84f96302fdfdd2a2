"""A row of the table of settings, and the sections that rows stand in."""

from dataclasses import dataclass

LLM = "LLM Settings"
TOKENIZER = "Tokenizer Settings"
SYSTEM = "System, GPU, and Tensor Parallelism Settings"
STREAMING = "Streaming Batch Size Settings"
OPENAI = "OpenAI Settings"
SERVERLESS = "Serverless Settings"
LORA = "LoRA Settings"
MULTIMODAL = "Multimodal Settings"
SPECULATIVE = "Speculative Decoding Settings"
LIBRARIES = "Variables of Libraries"

# In the order in which they are shown.
SECTIONS = (
    LLM,
    TOKENIZER,
    SYSTEM,
    STREAMING,
    OPENAI,
    SERVERLESS,
    LORA,
    MULTIMODAL,
    SPECULATIVE,
    LIBRARIES,
)


@dataclass(frozen=True)
class Row:
    """One setting as people are shown it: its section, a title, its meaning, and an example.

    Those worth a question are in the form of the platform's console (``form``), the rarer ones
    (``advanced``) further down. ``since`` is the worker's release that brought a setting of its
    own; vLLM's releases are looked up in the record of them.
    """

    name: str
    section: str
    title: str
    meaning: str
    example: str = ""
    form: bool = False
    advanced: bool = False
    since: str = "0.1"

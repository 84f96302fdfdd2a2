"""A row of the table of settings, and the sections of the table."""

from dataclasses import dataclass

from worker.settings.examples import EXAMPLES

LLM = "LLM Settings"
TOKENIZER = "Tokenizer Settings"
SYSTEM = "System, GPU, and Tensor Parallelism Settings"
STREAMING = "Streaming Batch Size Settings"
OPENAI = "OpenAI Settings"
SERVERLESS = "Serverless Settings"
VOLUME = "Files and Batches Settings"
TUNING = "Fine-Tuning Settings"
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
    VOLUME,
    TUNING,
    LORA,
    MULTIMODAL,
    SPECULATIVE,
    LIBRARIES,
)


@dataclass(frozen=True)
class Row:
    """One setting in the documentation and in the platform's forms.

    ``form``: the form of the platform's console asks for it, an ``advanced`` one further down.
    """

    name: str
    section: str
    title: str
    meaning: str
    form: bool = False
    advanced: bool = False

    @property
    def example(self) -> str:
        """A value that the setting accepts; blank where the one of its type will do."""
        return EXAMPLES.get(self.name, "")

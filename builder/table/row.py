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

# In the order of the page.
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

    ``form``: whether the forms of the platform have it. ``advanced``: whether it is further down
    there.
    """

    name: str
    section: str
    title: str
    meaning: str
    form: bool = False
    advanced: bool = False

    @property
    def example(self) -> str:
        """An accepted value; blank if an example for its type is enough."""
        return EXAMPLES.get(self.name, "")

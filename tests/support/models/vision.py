"""Makes a tiny Idefics3 with random weights, whose answers depend on the images in the prompt.

vLLM imports torchvision for most models of this kind, but not for Idefics3.
"""

from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.version import Version
from transformers import (
    AutoTokenizer,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessorPil,  # `Idefics3ImageProcessor` needs torchvision
    Idefics3Processor,
    LlamaConfig,
    set_seed,
)

SEED = 9
# Before 5.18, transformers needs torchvision for images, since a docstring mentions it.
CAN_BE_MADE = Version(metadata.version("transformers")) >= Version("5.18")
IMAGE, AROUND, GLOBAL = "<image>", "<fake_token_around_image>", "<global-img>"
# Every image is scaled to twice the side of a tile. Each of its four tiles, and the whole image at
# the size of a tile, becomes (32 / 8)² = 16 tokens. vLLM before 0.31 gets no tokens from this
# Transformers for an image in one piece.
TILE, PATCH = 32, 8  # pixels
TILES = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
LAYERS: dict[str, Any] = {  # of the vision tower and of the language model
    "num_hidden_layers": 2,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,  # so head_dim is 64: vLLM's CPU backend refuses small values
    "initializer_range": 0.2,  # with the usual 0.02 an image would hardly change the answer
}
CHAT_TEMPLATE = """\
{%- for message in messages %}{{ "<|im_start|>" + message.role + "\\n" }}
{%- for part in message.content %}
{{- "<image>" if part.type == "image" else part.text }}{% endfor %}{{ "<|im_end|>\\n" }}{% endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif %}"""


def make_vision_model(directory: Path, tokenizer_from: Path) -> None:
    """Write the model, with the other tokenizer's tokens and additional tokens for images."""
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_from)
    tokenizer.add_tokens([IMAGE, AROUND, GLOBAL, *TILES], special_tokens=True)
    tile, whole = {"longest_edge": TILE}, {"longest_edge": 2 * TILE}
    images = Idefics3ImageProcessorPil(size=whole, max_image_size=tile)
    length = (TILE // PATCH) ** 2
    processor = Idefics3Processor(images, tokenizer, length, chat_template=CHAT_TEMPLATE)
    processor.save_pretrained(directory)
    text = LlamaConfig(
        **LAYERS,
        vocab_size=len(tokenizer),
        max_position_embeddings=tokenizer.model_max_length,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    config = Idefics3Config(
        vision_config={**LAYERS, "image_size": TILE, "patch_size": PATCH},
        text_config=text,
        scale_factor=1,
        image_token_id=processor.image_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    set_seed(SEED)
    model = Idefics3ForConditionalGeneration(config)  # type: ignore[no-untyped-call]  # no types
    model.save_pretrained(directory)

"""Makes a second model, tiny and random, to show that nothing is tuned to the demo model.

    PYTHONPATH=src python -m proof.machine.random_model .models/random

It has another architecture (Qwen3, one layer, half the width), so that the engine core's share is
even smaller; random weights, so that its answers are noise; another kind of tokenizer (BPE on
characters with marked spaces, as made by SentencePiece, with twice as many tokens); and another
chat template. It is the same model each time, and takes seconds to make.
"""

import argparse
import random
import string
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

SEED = 11
VOCABULARY = 1536
CONTEXT = 2048
PAD, UNKNOWN, USER, MODEL, END = SPECIAL = ["[PAD]", "[UNK]", "[USER]", "[MODEL]", "[END]"]
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ "[USER] " if message.role != "assistant" else "[MODEL] " }}{{ message.content }} [END]
{%- endfor -%}
{%- if add_generation_prompt %}[MODEL]{% endif -%}"""


def invent_sentences() -> list[str]:
    """Return sentences of invented words, always the same ones."""
    rng = random.Random(SEED)
    syllables = [first + vowel for first in "bcdfghjklmnpqrstvwxyz" for vowel in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(4_000)]
    return [f"{' '.join(rng.choices(words, k=12))}." for _ in range(2_000)]


def make_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=list(string.ascii_letters + string.digits + string.punctuation),
        show_progress=False,
    )
    tokenizer.train_from_iterator(invent_sentences(), trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers left it so
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, MODEL],
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
    )


def make(directory: Path) -> None:
    torch.manual_seed(SEED)
    tokenizer = make_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,  # vLLM's CPU backend refuses small ones
        max_position_embeddings=CONTEXT,
        initializer_range=0.2,  # with the usual 0.02 it would repeat a single token
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]  # transformers left it so
    disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers left it so
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    # The name that transformers 4 also knows.
    config_file = directory / "tokenizer_config.json"
    content = config_file.read_text().replace("TokenizersBackend", "PreTrainedTokenizerFast")
    config_file.write_text(content)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("output_dir", type=Path)
    make(parser.parse_args().output_dir)

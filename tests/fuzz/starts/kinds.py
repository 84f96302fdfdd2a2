"""The kinds of cases: functions that draw a model directory and settings."""

import shutil
from collections.abc import Callable, Mapping
from functools import partial

from support.models import lora
from support.models.damaged import CONFIG, DAMAGES, WEIGHTS

from fuzz.starts import configs, files, texts
from fuzz.starts.draft import (
    EMBEDDER,
    MEDIA,
    MODEL,
    OPTIONS,
    POOLING,
    TEMPLATE,
    TEXT,
    TOKENIZER_CONFIG,
    USUAL,
    Draft,
)

# Settings that contradict the demo model's files.
WRONG_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "LOAD_FORMAT": ("pt", "npcache", "mistral", "sharded_state"),
    "HF_OVERRIDES": (
        '{"vocab_size": 100}',
        '{"intermediate_size": 999}',
        '{"hidden_size": 256}',
        '{"num_hidden_layers": 9}',
        '{"num_attention_heads": 3}',
        '{"architectures": ["FooForCausalLM"]}',
        '{"model_type": "qwen3"}',
        '{"quantization_config": {"quant_method": "gptq"}}',
        '{"tie_word_embeddings": false}',
        '{"hidden_act": "foo"}',
        '{"torch_dtype": "int4"}',
    ),
}


def draw_options(draft: Draft) -> None:
    """Set one or two options, mostly for the demo model."""
    draft.copy_base(*(("demo",) * 3 + TEXT + POOLING + MEDIA))
    for _ in range(draft.rng.choice((1, 2))):
        draft.set_option()


def draw_damage(draft: Draft, setting: str = MODEL) -> None:
    """Damage a model so that no worker could load it."""
    names = "demo demo llama qwen3 mistral mixtral".split()
    if setting == EMBEDDER:
        draft.copy("demo")
        names = ["minilm"]
    directory = draft.copy_base(*names, setting=setting)
    DAMAGES[draft.choose([*DAMAGES])](directory, draft.rng)


def draw_wrong_settings(draft: Draft) -> None:
    draft.copy_base("demo", *USUAL)
    name = draft.rng.choice([*WRONG_SETTINGS])
    draft.settings[name] = draft.rng.choice(WRONG_SETTINGS[name])


def draw_killed_core(draft: Draft) -> None:
    """Copy a working model: the core is killed from outside."""
    draft.copy("demo")


def draw_adapter_as_model(draft: Draft) -> None:
    """Set an adapter as the model, alone or with some of the model's files."""
    base = draft.bases.get(draft.choose(("demo", "demo", "llama")))
    directory = draft.folder / "adapter"
    lora.make_adapter(directory, base)
    names = draft.choose(
        (
            (),
            (),
            ("tokenizer.json", TOKENIZER_CONFIG, TEMPLATE),
            (CONFIG,),
            (CONFIG, "tokenizer.json", TOKENIZER_CONFIG),
            (CONFIG, WEIGHTS, "tokenizer.json", TOKENIZER_CONFIG, TEMPLATE),
        ),
        "with {}",
    )
    for name in names:
        shutil.copy(base / name, directory / name)
    path = draft.choose((None, str(base), "org/name", ""), "of {}")
    lora.set_config(base_model_name_or_path=path)(directory)
    draft.settings[MODEL] = str(directory)
    if draft.is_chosen(0.2, "ENABLE_LORA"):
        draft.settings["ENABLE_LORA"] = "1"


def draw_adapter(draft: Draft) -> None:
    """Serve an adapter: a good one, a broken one or one of another model."""
    draft.copy_base(*("demo",) * 4, *TEXT, *POOLING, *MEDIA)
    adapter = draft.add_adapter()
    if draft.is_chosen(0.6, "broken"):
        broken = {**lora.BROKEN, **lora.REFUSED_BY_VLLM}
        broken[draft.choose([*broken])][0](adapter)
    if draft.is_chosen(0.2, "an empty file"):
        draft.choose_file(adapter).write_text("")
    if draft.is_chosen(0.3, "other rank"):
        draft.settings["MAX_LORA_RANK"] = draft.rng.choice(OPTIONS["MAX_LORA_RANK"])


def draw_whole(draft: Draft) -> None:
    """Change nothing that matters: any whole model, under another name."""
    directory = draft.copy_base(*TEXT, *POOLING, *MEDIA, "t5", "whisper")
    if draft.is_chosen(0.3, "an odd name"):
        odd = directory.with_name(draft.rng.choice(("my model", "v1.0", "modèle", "a=b")))
        directory.rename(odd)
        draft.settings[MODEL] = str(odd)
    elif draft.is_chosen(0.3, "a link"):
        link = draft.folder / "link"
        link.symlink_to(directory, target_is_directory=True)
        draft.settings[MODEL] = str(link)
    if draft.rng.random() < 0.2:
        draft.settings["DTYPE"] = draft.rng.choice(("bfloat16", "float16"))


KILLED = "killed core"
# The kinds of cases, with their weights.
KINDS: Mapping[str, tuple[Callable[[Draft], None], int]] = {
    "options": (draw_options, 60),
    "damage": (draw_damage, 40),
    "damaged embedder": (partial(draw_damage, setting=EMBEDDER), 10),
    "wrong setting": (draw_wrong_settings, 15),
    KILLED: (draw_killed_core, 10),
    "missing file": (files.draw_missing_files, 20),
    "empty file": (files.draw_empty_file, 20),
    "cut file": (files.draw_cut_file, 20),
    "foreign file": (files.draw_foreign_file, 20),
    "contradiction": (configs.draw_contradiction, 30),
    "Git LFS": (files.draw_pointer, 15),
    "tokenizer": (texts.draw_tokenizer, 60),
    "tokenizer_config.json": (texts.draw_tokenizer_config, 20),
    "vocabulary": (texts.draw_vocabulary, 10),
    "adapter as model": (draw_adapter_as_model, 12),
    "adapter": (draw_adapter, 20),
    "quantization": (configs.draw_quantization, 30),
    "remote code": (configs.draw_remote_code, 25),
    "chat template": (texts.draw_template, 25),
    "layout": (files.draw_layout, 35),
    "processor": (configs.draw_processor, 20),
    "rope": (configs.draw_rope, 15),
    "generation_config.json": (configs.draw_generation_config, 10),
    "pooling": (configs.draw_pooling, 20),
    "architecture": (configs.draw_architecture, 20),
    "whole": (draw_whole, 20),
}

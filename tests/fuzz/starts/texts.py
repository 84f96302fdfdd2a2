"""Draws tokenizers and chat templates, which may contradict the model or each other."""

from typing import Any

from support.models.tokenizers import CLASSES, FORMS, replace_tokenizer

from fuzz.starts.draft import (
    MEDIA,
    OPTIONS,
    POOLING,
    TEMPLATE,
    TEXT,
    TOKENIZER_CONFIG,
    USUAL,
    Draft,
    read_config,
    write_config,
)

# Classes that many models name, and one that no library has.
USUAL_CLASSES = (
    "PreTrainedTokenizerFast LlamaTokenizer LlamaTokenizerFast Qwen2Tokenizer GPT2Tokenizer "
    "BertTokenizer T5Tokenizer TokenizersBackend FooTokenizer"
).split()


def draw_tokenizer(draft: Draft) -> None:
    """Replace the tokenizer by one of another form, with or without the name of a class."""
    directory = draft.copy_base(*USUAL, *USUAL, *TEXT, *POOLING)
    form = draft.choose([*FORMS])
    name = draft.choose((None, *USUAL_CLASSES, *draft.rng.sample(CLASSES, 9)), "class {}")
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    config: dict[str, object] | None = {"model_max_length": 512, **special}
    if name and config:
        config["tokenizer_class"] = name
    if draft.is_chosen(0.15, "no tokenizer_config.json"):
        config = None
    replace_tokenizer(directory, form, config)
    if draft.is_chosen(0.2, "no chat template"):
        (directory / TEMPLATE).unlink(missing_ok=True)
    if draft.is_chosen(0.2, "other mode"):
        draft.settings["TOKENIZER_MODE"] = draft.rng.choice(OPTIONS["TOKENIZER_MODE"])


def draw_tokenizer_config(draft: Draft) -> None:
    """Change tokenizer_config.json, so that it contradicts the tokenizer."""
    directory = draft.copy_base(*TEXT, *MEDIA)
    changes: dict[str, tuple[Any, ...]] = {
        "tokenizer_class": (None, *CLASSES, "FooTokenizer", 3),
        "model_max_length": (0, -1, 1, "512", 10**30, None),
        "eos_token": ("<foreign>", None, 3, {"content": "<foreign>"}, ["<|im_end|>"]),
        "bos_token": ("<foreign>", None, ""),
        "pad_token": ("<foreign>", None),
        "added_tokens_decoder": (
            {"5000": {"content": "<far>", "special": True}},
            {"x": {"content": "<far>"}},
            [],
        ),
        "chat_template": ("{{ messages", [], 3, [{"name": "tools", "template": "x"}]),
        "auto_map": ({"AutoTokenizer": ["own.Own", None]}, "own.Own"),
        "backend": ("sentencepiece", "foo", None),
        "extra_special_tokens": ({"image_token": "<image>"}, ["<x>"], "<x>"),
    }
    name = draft.rng.choice([*changes])
    value = draft.choose(changes[name], name + "={!r}")
    write_config(
        directory,
        {**read_config(directory, TOKENIZER_CONFIG), name: value},
        TOKENIZER_CONFIG,
    )


def draw_vocabulary(draft: Draft) -> None:
    """Let the tokenizer have ids that the model lacks, or the model a smaller vocabulary."""
    directory = draft.copy_base(*TEXT)
    tokenizer = read_config(directory, "tokenizer.json")
    size = draft.choose((1, 100, 5_000), "{} added tokens")
    first = read_config(directory)["vocab_size"] + draft.rng.choice((0, 1_000))
    is_special = draft.is_chosen(0.5, "special ones")
    tokenizer["added_tokens"] += [
        {
            "id": first + number,
            "content": f"<added_{number}>",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": is_special,
        }
        for number in range(size)
    ]
    write_config(directory, tokenizer, "tokenizer.json")
    if draft.is_chosen(0.5, "in the chat template"):
        with (directory / TEMPLATE).open("a") as file:
            file.write("<added_0>")


# Chat templates, with which vLLM may accept or refuse a first request.
TEMPLATES = {
    "an empty template": "",
    "a broken template": "{% for message in messages %}{{ message.content }}",
    "an unknown filter": "{{ messages | foo }}",
    "an unknown function": "{{ foo(messages) }}",
    "a template that always raises": "{{ raise_exception('no') }}",
    "a template that needs a system message": (
        "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}x"
    ),
    "a template that refuses system messages": (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    ),
    "a template that renders nothing": "{% if false %}x{% endif %}",
    "a template for parts": "{% for m in messages %}{{ m.content[0].text }}{% endfor %}",
    "a template for strings": "{% for m in messages %}{{ 'x' + m.content }}{% endfor %}",
    "a missing key": "{% for m in messages %}{{ m.name.first }}{% endfor %}",
    "text without messages": "Hi",
    "a division by zero": "{{ 1 / 0 }}",
    "an endless template": "{{ 'x' * 100000 }}",
}


def draw_template(draft: Draft) -> None:
    directory = draft.copy_base(*USUAL, *USUAL, "gemma", "phi3", *MEDIA, "minilm")
    text = TEMPLATES[draft.choose([*TEMPLATES])]
    config = read_config(directory, TOKENIZER_CONFIG)
    match draft.choose(("file", "file", "config", "list", "json", "folder", "setting", "path")):
        case "file":
            (directory / TEMPLATE).write_text(text)
        case "config":
            (directory / TEMPLATE).unlink(missing_ok=True)
            config["chat_template"] = text
        case "list":
            (directory / TEMPLATE).unlink(missing_ok=True)
            name = draft.choose(("default", "tool_use", "rag"))
            config["chat_template"] = [{"name": name, "template": text}]
        case "json":
            write_config(directory, {"chat_template": text}, "chat_template.json")
        case "folder":
            (directory / "additional_chat_templates").mkdir()
            (directory / "additional_chat_templates" / "tool_use.jinja").write_text(text)
        case "setting":
            draft.settings["CUSTOM_CHAT_TEMPLATE"] = text
        case _:
            path = draft.folder / "own.jinja"
            path.write_text(text)
            draft.settings["CUSTOM_CHAT_TEMPLATE"] = str(path)
    write_config(directory, config, TOKENIZER_CONFIG)
    if draft.rng.random() < 0.2:
        draft.settings["SYSTEM_PROMPT"] = "Be brief."

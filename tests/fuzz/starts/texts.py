"""Draws tokenizers and chat templates, which may contradict the model or each other.

The tokenizers are tiny ones, of each algorithm and in each form that publishers upload.
"""

import base64
import io
import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import sentencepiece
from support import ROOT
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

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

# Fewer than the demo model has, so that all ids fit into the vocabulary of a tiny model.
VOCABULARY = 400
SPECIAL = ("<unk>", "<s>", "</s>", "<pad>", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
# Names of all files of tokenizers.
NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)
# All classes that transformers has for some type of model.
CLASSES = sorted({str(name) for name in TOKENIZER_MAPPING_NAMES.values() if name})

# Writes the files into a directory.
Writer = Callable[[Path], object]


@cache
def _sentences() -> list[str]:
    return [line for line in (ROOT / "README.md").read_text().splitlines() if line.strip()]


# The parts of a tokenizer, by its algorithm: its model, its splitter of texts, its decoder, and
# the class that trains it with further arguments.
_ALPHABET = pre_tokenizers.ByteLevel.alphabet()
_PARTS: Mapping[str, tuple[Any, Any, Any, Any]] = {
    "bytes": (
        models.BPE(),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
        partial(trainers.BpeTrainer, initial_alphabet=_ALPHABET),
    ),
    "bpe": (
        models.BPE(unk_token="<unk>", fuse_unk=True),
        pre_tokenizers.Metaspace(),
        decoders.Metaspace(),
        trainers.BpeTrainer,
    ),
    "wordpiece": (
        models.WordPiece(unk_token="[UNK]"),
        pre_tokenizers.BertPreTokenizer(),
        decoders.WordPiece(),
        trainers.WordPieceTrainer,
    ),
    "unigram": (
        models.Unigram(),
        pre_tokenizers.Metaspace(),
        decoders.Metaspace(),
        partial(trainers.UnigramTrainer, unk_token="<unk>"),
    ),
    "words": (
        models.WordLevel(unk_token="[UNK]"),
        pre_tokenizers.Whitespace(),
        decoders.Fuse(),
        trainers.WordLevelTrainer,
    ),
}


@cache
def _train(algorithm: str) -> Tokenizer:
    """Train a tokenizer of the library that all fast tokenizers use."""
    model, splitter, decoder, trainer = _PARTS[algorithm]
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = splitter, decoder
    settings = {"vocab_size": VOCABULARY, "special_tokens": [*SPECIAL], "show_progress": False}
    tokenizer.train_from_iterator(_sentences(), trainer(**settings))
    return tokenizer


def _write_fast(algorithm: str) -> Writer:
    def write(folder: Path) -> None:
        _train(algorithm).save(str(folder / "tokenizer.json"))

    return write


def _write_vocabulary(*names: str) -> Writer:
    """Write the files of a byte-level BPE tokenizer without ``tokenizer.json``."""

    def write(folder: Path) -> None:
        _train("bytes").model.save(str(folder))
        for name in {"vocab.json", "merges.txt"} - {*names}:
            (folder / name).unlink()

    return write


def _write_word_list(folder: Path) -> None:
    vocabulary = _train("wordpiece").get_vocab()
    words = sorted(vocabulary, key=lambda word: vocabulary[word])
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))


def _write_sentencepiece(name: str, algorithm: str) -> Writer:
    def write(folder: Path) -> None:
        written = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(_sentences()),
            model_writer=written,
            model_type=algorithm,
            vocab_size=VOCABULARY,
            hard_vocab_limit=False,
            byte_fallback=algorithm == "bpe",
            minloglevel=2,
        )
        (folder / name).write_bytes(written.getvalue())

    return write


def _write_tekken(folder: Path) -> None:
    """Write a vocabulary of single bytes in the format of Mistral's own tokenizers."""
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]"]
    special += ["[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]"]
    special += ["[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]"]
    special += [f"<SPECIAL_{number}>" for number in range(len(special), 20)]
    vocabulary = [
        {
            "rank": value,
            "token_bytes": base64.b64encode(bytes([value])).decode(),
            "token_str": chr(value),
        }
        for value in range(256)
    ]
    config = {
        "pattern": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|[^\s\p{L}\p{N}]+|\s+",
        "num_vocab_tokens": len(vocabulary),
        "default_vocab_size": len(vocabulary) + len(special),
        "default_num_special_tokens": len(special),
        "version": "v3",
    }
    tokens = [
        {"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(special)
    ]
    content = {"config": config, "vocab": vocabulary, "special_tokens": tokens}
    (folder / "tekken.json").write_text(json.dumps(content))


def _write_ranks(folder: Path) -> None:
    """Write a vocabulary of single bytes in tiktoken's format, as for Llama 3's own tokenizer."""
    lines = (f"{base64.b64encode(bytes([value])).decode()} {value}\n" for value in range(256))
    (folder / "tokenizer.model").write_text("".join(lines))


def _write_tekken_and_fast(folder: Path) -> None:
    _write_tekken(folder)
    _write_fast("bytes")(folder)


# The forms of tokenizers, by a description of their files.
FORMS: Mapping[str, Writer] = {
    "byte-level tokenizer.json": _write_fast("bytes"),
    "BPE tokenizer.json": _write_fast("bpe"),
    "WordPiece tokenizer.json": _write_fast("wordpiece"),
    "Unigram tokenizer.json": _write_fast("unigram"),
    "WordLevel tokenizer.json": _write_fast("words"),
    "vocab.json and merges.txt": _write_vocabulary("vocab.json", "merges.txt"),
    "only vocab.json": _write_vocabulary("vocab.json"),
    "only merges.txt": _write_vocabulary("merges.txt"),
    "vocab.txt": _write_word_list,
    "BPE tokenizer.model": _write_sentencepiece("tokenizer.model", "bpe"),
    "Unigram tokenizer.model": _write_sentencepiece("tokenizer.model", "unigram"),
    "spiece.model": _write_sentencepiece("spiece.model", "unigram"),
    "sentencepiece.bpe.model": _write_sentencepiece("sentencepiece.bpe.model", "bpe"),
    "tiktoken's tokenizer.model": _write_ranks,
    "tekken.json": _write_tekken,
    "tekken.json and tokenizer.json": _write_tekken_and_fast,
    "no vocabulary": lambda _: None,
}


# Classes that many models name, and one that no library has.
USUAL_CLASSES = (
    "PreTrainedTokenizerFast LlamaTokenizer LlamaTokenizerFast Qwen2Tokenizer GPT2Tokenizer "
    "BertTokenizer T5Tokenizer TokenizersBackend FooTokenizer"
).split()


def draw_tokenizer(draft: Draft) -> None:
    """Replace the tokenizer by one of another form, with or without the name of a class."""
    directory = draft.copy_base(*USUAL, *USUAL, *TEXT, *POOLING)
    for name in NAMES:
        (directory / name).unlink(missing_ok=True)
    FORMS[draft.choose([*FORMS])](directory)
    class_name = draft.choose((None, *USUAL_CLASSES, *draft.rng.sample(CLASSES, 9)), "class {}")
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    config = {"model_max_length": 512, **special}
    if class_name:
        config["tokenizer_class"] = class_name
    if not draft.is_chosen(0.15, "no tokenizer_config.json"):
        write_config(directory, config, TOKENIZER_CONFIG)
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

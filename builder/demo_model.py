"""Makes the demo model: a tiny Llama that has memorized a few dialogues about this worker.

With it, a first run prints sentences, and tests can assert texts, JSON and tool calls. It answers
other prompts with random sentences, so seeds, penalties and `n` have an effect there.
"""
# ruff: noqa: PLC0415 - importing torch and transformers takes seconds, which a second run saves

import argparse
import hashlib
import random
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 7
STEPS = 80
LEARNING_RATE = 7e-3
INVENTED = 12  # random dialogues per step
MICRO_BATCH = 6  # examples of similar length, with little padding
VOCABULARY = 768  # maximum number of tokens, with the 256 bytes, without the tags of tool calls
CONTEXT = 2048  # tokens

BEGIN, END = "<|begin_of_text|>", "<|end_of_text|>"
TURN, END_OF_TURN = "<|im_start|>", "<|im_end|>"
# ChatML: a role is plain text, so any role can be rendered. There is no BOS here: the tokenizer
# adds it to plain prompts, and a rendered chat is tokenized without special tokens.
CHAT_TEMPLATE = """\
{%- if tools %}{{ "<|im_start|>tools\\n" }}
{%- for tool in tools %}{{ tool.function | tojson + "\\n" }}{% endfor %}{{ "<|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}{{ "<|im_start|>" + message.role + "\\n" + (message.content or "") }}
{%- for call in message.tool_calls or [] %}
{%- set content = {"name": call.function.name, "arguments": call.function.arguments} %}
{{- "<tool_call>\\n" + content | tojson + "\\n</tool_call>" }}
{%- endfor %}{{ "<|im_end|>\\n" }}{% endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif %}"""

Example = tuple[list[int], list[int]]  # the tokens of a prompt and of its answer


@dataclass(frozen=True)
class Dialogue:
    """Messages in OpenAI's format; the model is trained on every turn of the assistant."""

    messages: list[dict[str, str]]
    tools: list[Any] = field(default_factory=list)

    @property
    def turns(self) -> list[tuple[list[dict[str, str]], str]]:
        """The assistant's answers, each with the messages before it."""
        answers = [i for i, message in enumerate(self.messages) if message["role"] == "assistant"]
        return [(self.messages[:i], self.messages[i]["content"]) for i in answers]


def talk(*contents: str, system: str = "") -> Dialogue:
    messages = [{"role": "system", "content": system}] if system else []
    turns = zip(("user", "assistant") * len(contents), contents, strict=False)
    return Dialogue(messages + [{"role": role, "content": content} for role, content in turns])


# Dialogues of one turn: questions and answers.
ANSWERS = {
    "What does this worker do?": "This worker turns a Hugging Face model into a serverless "
    "endpoint. It runs vLLM inside its own process, takes jobs in the OpenAI form or in its own "
    "raw form, and streams each answer back in chunks that grow. You are talking to its demo model "
    "right now, and it is happy to meet you!",
    "Hello!": "Hello! Ask me about chunks, settings, models or how to cancel a job.",
    "How do chunks grow?": "The first chunk holds one token, so an answer starts at once. Each "
    "next chunk is three times as large, up to 50 tokens: 1, 3, 9, 27, 50. So the calls to the "
    "platform stay few. When tokens have waited for 100 ms, they go out anyway.",
    "How do I cancel a job?": "Call the cancel route of the endpoint with the id of the job. The "
    "worker aborts the request in the engine at once, and its slot is free for the next job.",
    "How do I change a setting?": "Set an environment variable, such as MAX_MODEL_LEN=4096: every "
    "option of vLLM has one. A wrong value stops the start, and you read what is accepted.",
    "Can I use my own model?": "Yes. Set MODEL_NAME to a model on the Hugging Face hub. Without "
    "it, a local run uses me, and I need no GPU.",
    "Count to ten.": "one, two, three, four, five, six, seven, eight, nine, ten",
    "Describe the worker as JSON.": '{"name": "demo", "streams": true, "chunks": [1, 3, 9, 27]}',
    "Please answer in Chinese.": "你好。我是一个很小的演示模型 🤖。我把答案一块一块地流给你 🌊✨。"
    "每一块都比前一块大 📦。祝你好运 👩‍🚀。",
    "Tell me the story of a job.": "A job begins as a small piece of JSON on the platform. The "
    "worker asks for work, and the platform hands the job over. First the worker reads the input. "
    "If a field is wrong, the job fails at once with a message that names the field. If all is "
    "well, a route turns the job into one request to the engine.\n\n"
    "The engine puts the request into its next batch, beside many others, and the tokens begin to "
    "come. A bridge carries them from the loop of the engine to the loop of the platform. The "
    "first token leaves at once, because somebody is waiting for it. Then the chunks grow: three "
    "tokens, nine, twenty-seven, fifty. No chunk ever splits a character.\n\n"
    "At last the model says that it is done. The worker sends the last chunk with the reason and "
    "the count of the tokens, and the next job is already knocking at the door.",
}
MEMORY = talk(
    "My colour is green.", "Green: I will remember.", "Which colour did I name?", "You named green."
)
PIRATE = talk(
    "What does this worker do?",
    "Arr! It hauls tokens out of the engine and ships them to ye, chunk by chunk!",
    system="You are a pirate.",
)
CALL = '<tool_call>\n{"name": "job_status", "arguments": {"job_id": "42"}}\n</tool_call>'
PARAMETERS = {"type": "object", "properties": {"job_id": {"type": "string"}}}
TOOL_USE = Dialogue(
    [
        {"role": "user", "content": "Is job 42 done?"},
        {"role": "assistant", "content": CALL},
        {"role": "tool", "content": '{"status": "COMPLETED"}'},
        {"role": "assistant", "content": "Yes, job 42 is done: its status is COMPLETED."},
    ],
    tools=[{"type": "function", "function": {"name": "job_status", "parameters": PARAMETERS}}],
)
DIALOGUES = [*(talk(*pair) for pair in ANSWERS.items()), MEMORY, PIRATE, TOOL_USE]
PASSAGE = (  # a plain prompt without a template, and its continuation by the model
    "Once upon a time there was a small worker",
    " that lived beside a wide river of tokens. Every morning it filled a cup for each guest.",
)

ADJECTIVES = ["small", "quiet", "green", "patient", "bright", "old", "clever", "busy"]
NOUNS = ["worker", "engine", "river", "token", "bridge", "platform", "answer", "cloud"]
VERBS = ["carries", "follows", "finds", "counts", "likes", "greets", "wakes", "paints"]
PLACES = ["at night", "in the morning", "near the sea", "on Monday", "with care", "in the rain"]


def random_sentence(rng: random.Random) -> str:
    first, second = (f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}" for _ in range(2))
    return f"The {first} {rng.choice(VERBS)} the {second} {rng.choice(PLACES)}."


def random_words(rng: random.Random) -> str:
    words = rng.sample(ADJECTIVES + NOUNS + " ".join(ANSWERS).split(), rng.randint(2, 7))
    return " ".join(words) + rng.choice(["", ".", "?"])


def train_tokenizer() -> "PreTrainedTokenizerFast":
    from tokenizers import ByteLevelBPETokenizer, Tokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    rng = random.Random(SEED)
    messages = [message for dialogue in DIALOGUES for message in dialogue.messages]
    texts = ["{role}\n{content}".format(**message) for message in messages]
    texts += ["".join(PASSAGE), *(random_sentence(rng) for _ in range(50))]
    trained = ByteLevelBPETokenizer()
    special = [BEGIN, END, TURN, END_OF_TURN]
    trained.train_from_iterator(texts, VOCABULARY, show_progress=False, special_tokens=special)
    tokenizer = Tokenizer.from_str(trained.to_str())
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"])  # not special: text of an answer
    tokenizer.post_processor = TemplateProcessing(f"{BEGIN} $A", special_tokens=[(BEGIN, 0)])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers left it so
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END_OF_TURN,
        pad_token=END,
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
    )


class Curriculum:
    """The training examples: pairs of a prompt and its answer, both as text."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        self.tokenizer = tokenizer
        self.rng = random.Random(SEED)
        self.taught = [pair for dialogue in DIALOGUES for pair in self.render(dialogue)]
        self.taught.append((BEGIN + PASSAGE[0], PASSAGE[1] + END))

    def render(self, dialogue: Dialogue) -> list[tuple[str, str]]:
        template: Any = partial(self.tokenizer.apply_chat_template, tokenize=False)
        options = {"tools": dialogue.tools, "add_generation_prompt": True}
        return [(template(start, **options), end + END_OF_TURN) for start, end in dialogue.turns]

    def invent(self) -> tuple[str, str]:
        prompt = random_words(self.rng)
        answer = " ".join(random_sentence(self.rng) for _ in range(self.rng.randint(1, 3)))
        if self.rng.random() < 0.25:
            return BEGIN + prompt, f" {answer}{END}"
        return self.render(talk(prompt, answer))[0]

    def preamble(self) -> str:
        """Invent a text that may precede a question without changing its answer."""
        system = self.rng.choice([random_words(self.rng), "You are a helpful assistant."])
        earlier = "".join(self.invent()) + "\n"
        tools = self.render(TOOL_USE)[0][0].split(f"{TURN}user")[0]
        turn = f"{TURN}system\n{system}{END_OF_TURN}\n"
        return self.rng.choice(["", "", "", BEGIN, turn, turn, earlier, tools])

    def aftermath(self) -> str:
        """Invent a text that may follow an answer, for requests with ``ignore_eos``."""
        return self.rng.choice(["", "", f"{random_sentence(self.rng)}{END_OF_TURN}"])

    def examples(self) -> list[Example]:
        pairs = self.taught + [self.invent() for _ in range(INVENTED)]
        encode = partial(self.tokenizer.encode, add_special_tokens=False)
        pairs = [(self.preamble() + prompt, answer + self.aftermath()) for prompt, answer in pairs]
        return [(encode(prompt), encode(answer)) for prompt, answer in pairs]


def create_model(tokenizer: "PreTrainedTokenizerFast") -> "LlamaForCausalLM":
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=2,  # so head_dim is 64: vLLM's CPU backend refuses small ones
        max_position_embeddings=CONTEXT,
        initializer_range=0.05,  # the usual 0.02 learns far slower in a model this narrow
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.convert_tokens_to_ids([END_OF_TURN, END]),
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)  # type: ignore[no-untyped-call]  # transformers left it so


def accumulate_gradients(model: "LlamaForCausalLM", examples: list[Example]) -> float:
    """Accumulate the gradients of a step; return its mean loss over the tokens of the answers."""
    from torch import tensor
    from torch.nn.utils.rnn import pad_sequence

    size = sum(len(answer) for _, answer in examples)
    ordered = sorted(examples, key=lambda example: len(example[0] + example[1]))
    step_loss = 0.0
    pad = partial(pad_sequence, batch_first=True)
    for start in range(0, len(ordered), MICRO_BATCH):
        batch = ordered[start : start + MICRO_BATCH]
        ids = [tensor(prompt + answer) for prompt, answer in batch]
        labels = [tensor([-100] * len(prompt) + answer) for prompt, answer in batch]
        loss = model(pad(ids), labels=pad(labels, padding_value=-100), num_items_in_batch=size).loss
        loss.backward()
        step_loss += loss.item()
    return step_loss


def train(model: "LlamaForCausalLM", curriculum: Curriculum) -> None:
    from torch.nn.utils import clip_grad_norm_
    from torch.optim import AdamW, lr_scheduler

    optimizer = AdamW(model.parameters(), LEARNING_RATE, betas=(0.9, 0.98))
    schedule = lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=STEPS, pct_start=0.1)
    for step in range(1, STEPS + 1):
        loss = accumulate_gradients(model, curriculum.examples())
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 20 == 0:
            print(f"step {step} of {STEPS}: loss {loss:.2f}", flush=True)


def make(directory: Path) -> None:
    import torch
    from transformers.utils.logging import disable_progress_bar

    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # one order of sums; two threads on busy cores wait for each other
    torch.use_deterministic_algorithms(True)
    tokenizer = train_tokenizer()
    model = create_model(tokenizer)
    train(model, Curriculum(tokenizer))
    disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers left it so
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    config = directory / "tokenizer_config.json"  # transformers 4 knows the class by its old name
    config.write_text(config.read_text().replace("TokenizersBackend", "PreTrainedTokenizerFast"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes the demo model.")
    parser.add_argument("output_dir", type=Path)
    output = parser.parse_args().output_dir.resolve()
    marker = output / "recipe.sha256"  # the hash of this file when the output was made
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    if marker.is_file() and marker.read_text() == recipe:
        return 0
    if output.exists() and any(output.iterdir()) and not marker.is_file():
        parser.error(f"{output} holds something else: choose another directory")
    # SystemExit instead of immediate termination, so that the temporary directory is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as scratch:
        new = Path(scratch, "new")
        print(f"making the demo model in {output}", flush=True)
        make(new)
        (new / marker.name).write_text(recipe)
        if output.exists():
            output.rename(Path(scratch, "old"))
        new.rename(output)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The rows of the reference's table of sampling parameters: default, effect, refused values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

COUNT = "Count to ten."  # asked as a user; other prompts go in as they are
FIVE = 409  # the token that begins " five" there
GREEDY = {"temperature": 0}
RANDOM = {"seed": 1, "max_tokens": 40, "ignore_eos": True}
LONG = {"temperature": 0, "max_tokens": 60, "ignore_eos": True}
BEAM = {"use_beam_search": True, "best_of": 4, "n": 4, "max_tokens": 24}


@dataclass(frozen=True)
class Answer:
    """An unstreamed answer."""

    whole: dict[str, Any]

    @property
    def choices(self) -> list[dict[str, Any]]:
        choices: list[dict[str, Any]] = self.whole["choices"]
        return choices

    @property
    def texts(self) -> list[str]:
        return ["".join(choice["tokens"]) for choice in self.choices]

    @property
    def text(self) -> str:
        return self.texts[0]

    @property
    def ids(self) -> list[int]:
        ids: list[int] = self.choices[0]["token_ids"]
        return ids

    @property
    def reason(self) -> str:
        return str(self.choices[0]["finish_reason"])

    @property
    def likelihoods(self) -> list[float]:
        """The summed log probability of every choice."""
        return [sum(token["logprob"] for token in choice["logprobs"]) for choice in self.choices]


# Whether the effect shows, by the answer with the parameter and the one without.
Effect = Callable[[Answer, Answer], bool]


@dataclass(frozen=True)
class Row:
    """One parameter: ``given`` added to ``base`` has the ``effect``, ``refused`` is a 400."""

    default: Any
    given: Any
    effect: Effect
    base: Mapping[str, Any] = field(default_factory=dict)
    refused: tuple[Any, ...] = ("wrong",)
    prompt: str = COUNT


# For parameters whose effect needs a model that does not know what to say.
free = partial(Row, prompt="Once")


def fewer_repetitions(given: Answer, plain: Answer) -> bool:
    return len(set(given.ids)) > 1.3 * len(set(plain.ids))


def differs(given: Answer, plain: Answer) -> bool:
    return given.texts != plain.texts


def is_the_same(given: Answer, plain: Answer) -> bool:
    return given.texts == plain.texts


SPECIAL = {**RANDOM, "max_tokens": 6, "allowed_token_ids": [0, 1, 2, 3]}
ROWS: dict[str, Row] = {
    "n": free(1, 3, lambda given, _: len(set(given.texts)) == 3, RANDOM, (0, 257, "2", 1.5)),
    # What best_of does beyond the number is shown below.
    "best_of": free(None, 8, differs, RANDOM, (0, 257, "2")),
    "presence_penalty": free(0.0, 2.0, fewer_repetitions, LONG, (-2.1, 2.1, "2")),
    "frequency_penalty": free(0.0, 2.0, fewer_repetitions, LONG, (-2.1, 2.1, "2")),
    "repetition_penalty": free(1.0, 1.8, fewer_repetitions, LONG, (0, -1, "2")),
    "temperature": free(1.0, 1.9, differs, RANDOM, (-0.1, 2.1, "1")),
    "top_p": free(1.0, 0.01, differs, RANDOM, (0, 1.1, "1")),
    "top_k": free(-1, 1, differs, RANDOM, (-2, 1.5)),
    "min_p": free(0.0, 1.0, differs, RANDOM, (-0.1, 1.1)),
    # Without it, chance decides: the default is seen in that.
    "use_beam_search": free(None, True, differs, {"best_of": 3, "max_tokens": 24}, ("yes", 1)),
    "length_penalty": free(
        1.0, -5.0, lambda given, plain: len(given.ids) < len(plain.ids), BEAM, ("2", float("nan"))
    ),
    # vLLM's search always goes on as with "never": no difference to see.
    "early_stopping": free(False, "never", is_the_same, BEAM, (True, "sometimes")),
    "stop": Row(
        None, "four", lambda given, _: given.text == "one, two, three, ", GREEDY, (5, [""])
    ),
    "stop_token_ids": Row(
        None,
        [FIVE],
        lambda given, _: given.text == "one, two, three, four, fi",
        {**GREEDY, "max_tokens": 40},
        ("wrong", [1.5], [-1], [10**6]),
    ),
    "ignore_eos": Row(
        False,
        True,
        lambda given, plain: (given.reason, plain.reason) == ("length", "stop"),
        {**GREEDY, "max_tokens": 40},
    ),
    "max_tokens": Row(16, 3, lambda given, _: len(given.ids) == 3, GREEDY, (0, -1, 1.5)),
    "skip_special_tokens": free(
        True, False, lambda given, plain: "<|" in given.text and not plain.text, SPECIAL
    ),
    # Seen only with a tokenizer that puts spaces between special tokens, which few do any more.
    "spaces_between_special_tokens": free(
        True, False, is_the_same, {**SPECIAL, "skip_special_tokens": False}
    ),
    "min_tokens": Row(
        0,
        32,
        lambda given, plain: len(given.ids) >= 32 > len(plain.ids),
        {**GREEDY, "max_tokens": 40},
        (-1, 99),
    ),
    "seed": free(None, 7, differs, {"max_tokens": 40}, (1.5, "1")),
    "include_stop_str_in_output": Row(
        False, True, lambda given, _: given.text == "one, two", {**GREEDY, "stop": "two"}
    ),
    "bad_words": Row([], [","], lambda given, _: "," not in given.text, GREEDY, ("wrong", [""])),
    "logit_bias": Row(
        None,
        {str(FIVE): 100},
        lambda given, _: set(given.ids) == {FIVE},
        {**GREEDY, "max_tokens": 4},
        (5, {"x": 1}, {"99999": 1}),
    ),
    "allowed_token_ids": free(
        None, [5, 6], lambda given, _: set(given.ids) <= {5, 6}, RANDOM, ("wrong", [], [99999])
    ),
    "logprobs": Row(
        None,
        2,
        lambda given, _: [len(token["top"]) for token in given.choices[0]["logprobs"]] == [2] * 16,
        GREEDY,
        (21, -2, "2"),
    ),
    "logprob_token_ids": Row(
        None,
        [5, 6],
        lambda given, _: {top["id"] for top in given.choices[0]["logprobs"][0]["top"]} >= {5, 6},
        GREEDY,
        ("wrong", [99999]),
    ),
    # A faster form inside vLLM; the output is the same.
    "flat_logprobs": Row(False, True, is_the_same, {**GREEDY, "logprobs": 1}),
    "prompt_logprobs": Row(
        None,
        0,
        lambda given, _: len(given.whole["prompt_logprobs"]) == given.whole["usage"]["input"],
        GREEDY,
        (21, -2, "2"),
    ),
    "return_token_log_probs": Row(
        False, True, lambda given, _: len(given.choices[0]["logprobs"]) == 16, GREEDY
    ),
    "structured_outputs": Row(
        None,
        {"choice": ["red", "blue"]},
        lambda given, _: given.text in ("red", "blue"),
        GREEDY,
        ("wrong", {"choice": 5}, {"regx": "a"}, {"regex": "((("}, {"json": {"type": "wrong"}}),
    ),
    "detokenize": Row(
        True, False, lambda given, plain: (given.text, given.ids) == ("", plain.ids), GREEDY
    ),
    "repetition_detection": free(
        None,
        {"max_pattern_size": 20, "min_count": 2},
        lambda given, plain: (given.reason, plain.reason) == ("repetition", "length"),
        {**GREEDY, "ignore_eos": True, "max_tokens": 200},
        ("wrong", {"max_patern_size": 1}),
    ),
    # How often the engine hands tokens over, not which; beam and cache likewise; no watermark
    # and no experts are configured here.
    "stream_interval": Row(None, 4, is_the_same, GREEDY, (0, 1.5)),
    "skip_reading_prefix_cache": Row(None, True, is_the_same, GREEDY),
    "watermarking": Row(None, False, is_the_same, GREEDY),
    "routed_experts_prompt_start": Row(0, 1, is_the_same, GREEDY),
}
# Refused unless the endpoint is set up for them; the message says so.
SWITCHED_OFF = {"thinking_token_budget": 5, "trace_decode_token_ids": [5]}

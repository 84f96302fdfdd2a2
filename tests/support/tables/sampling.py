"""The rows of the reference's table of sampling parameters: defaults, effects, refused values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

COUNT = "Count to ten."  # sent as a user's message; other prompts are sent unchanged
FIVE = 409  # the token that begins " five" in its answer
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
        """The total log probability of each choice."""
        return [sum(token["logprob"] for token in choice["logprobs"]) for choice in self.choices]


# Return whether a parameter has its effect: called with the answers with and without it.
Effect = Callable[[Answer, Answer], bool]


@dataclass(frozen=True)
class SamplingRow:
    """One parameter: ``value`` has the ``effect`` on ``base``; ``refused_values`` get a 400."""

    default: Any
    value: Any
    effect: Effect
    base: Mapping[str, Any] = field(default_factory=dict)
    refused_values: tuple[Any, ...] = ("wrong",)
    prompt: str = COUNT


# For parameters whose effect is visible only if the model is uncertain.
sample_freely = partial(SamplingRow, prompt="Once")


def has_fewer_repetitions(changed: Answer, baseline: Answer) -> bool:
    return len(set(changed.ids)) > 1.3 * len(set(baseline.ids))


def differs(changed: Answer, baseline: Answer) -> bool:
    return changed.texts != baseline.texts


def is_same(changed: Answer, baseline: Answer) -> bool:
    return changed.texts == baseline.texts


SPECIAL = {**RANDOM, "max_tokens": 6, "allowed_token_ids": [0, 1, 2, 3]}
ROWS: dict[str, SamplingRow] = {
    "n": sample_freely(
        1, 3, lambda changed, _: len(set(changed.texts)) == 3, RANDOM, (0, 257, "2", 1.5)
    ),
    # tests/model/test_sampling.py tests that best_of chooses the likeliest.
    "best_of": sample_freely(None, 8, differs, RANDOM, (0, 257, "2")),
    "presence_penalty": sample_freely(0.0, 2.0, has_fewer_repetitions, LONG, (-2.1, 2.1, "2")),
    "frequency_penalty": sample_freely(0.0, 2.0, has_fewer_repetitions, LONG, (-2.1, 2.1, "2")),
    "repetition_penalty": sample_freely(1.0, 1.8, has_fewer_repetitions, LONG, (0, -1, "2")),
    "temperature": sample_freely(1.0, 1.9, differs, RANDOM, (-0.1, 2.1, "1")),
    "top_p": sample_freely(1.0, 0.01, differs, RANDOM, (0, 1.1, "1")),
    "top_k": sample_freely(-1, 1, differs, RANDOM, (-2, 1.5)),
    "min_p": sample_freely(0.0, 1.0, differs, RANDOM, (-0.1, 1.1)),
    # Without beam search, sampling is random: the difference shows the default.
    "use_beam_search": sample_freely(
        None, True, differs, {"best_of": 3, "max_tokens": 24}, ("yes", 1)
    ),
    "length_penalty": sample_freely(
        1.0,
        -5.0,
        lambda changed, baseline: len(changed.ids) < len(baseline.ids),
        BEAM,
        ("2", float("nan")),
    ),
    # vLLM's search always continues as with "never", so there is no difference.
    "early_stopping": sample_freely(False, "never", is_same, BEAM, (True, "sometimes")),
    "stop": SamplingRow(
        None, "four", lambda changed, _: changed.text == "one, two, three, ", GREEDY, (5, [""])
    ),
    "stop_token_ids": SamplingRow(
        None,
        [FIVE],
        lambda changed, _: changed.text == "one, two, three, four, fi",
        {**GREEDY, "max_tokens": 40},
        ("wrong", [1.5], [-1], [10**6]),
    ),
    "ignore_eos": SamplingRow(
        False,
        True,
        lambda changed, baseline: (changed.reason, baseline.reason) == ("length", "stop"),
        {**GREEDY, "max_tokens": 40},
    ),
    "max_tokens": SamplingRow(
        16, 3, lambda changed, _: len(changed.ids) == 3, GREEDY, (0, -1, 1.5)
    ),
    "skip_special_tokens": sample_freely(
        True, False, lambda changed, baseline: "<|" in changed.text and not baseline.text, SPECIAL
    ),
    # An effect needs a tokenizer that puts spaces between special tokens, which is rare now.
    "spaces_between_special_tokens": sample_freely(
        True, False, is_same, {**SPECIAL, "skip_special_tokens": False}
    ),
    "min_tokens": SamplingRow(
        0,
        32,
        lambda changed, baseline: len(changed.ids) >= 32 > len(baseline.ids),
        {**GREEDY, "max_tokens": 40},
        (-1, 99),
    ),
    "seed": sample_freely(None, 7, differs, {"max_tokens": 40}, (1.5, "1")),
    "include_stop_str_in_output": SamplingRow(
        False, True, lambda changed, _: changed.text == "one, two", {**GREEDY, "stop": "two"}
    ),
    "bad_words": SamplingRow(
        [], [","], lambda changed, _: "," not in changed.text, GREEDY, ("wrong", [""])
    ),
    "logit_bias": SamplingRow(
        None,
        {str(FIVE): 100},
        lambda changed, _: set(changed.ids) == {FIVE},
        {**GREEDY, "max_tokens": 4},
        (5, {"x": 1}, {"99999": 1}),
    ),
    "allowed_token_ids": sample_freely(
        None, [5, 6], lambda changed, _: set(changed.ids) <= {5, 6}, RANDOM, ("wrong", [], [99999])
    ),
    "logprobs": SamplingRow(
        None,
        2,
        lambda changed, _: (
            [len(token["top"]) for token in changed.choices[0]["logprobs"]] == [2] * 16
        ),
        GREEDY,
        (21, -2, "2"),
    ),
    "logprob_token_ids": SamplingRow(
        None,
        [5, 6],
        lambda changed, _: (
            {top["id"] for top in changed.choices[0]["logprobs"][0]["top"]} >= {5, 6}
        ),
        GREEDY,
        ("wrong", [99999]),
    ),
    # A faster representation inside vLLM; the output is the same.
    "flat_logprobs": SamplingRow(False, True, is_same, {**GREEDY, "logprobs": 1}),
    "prompt_logprobs": SamplingRow(
        None,
        0,
        lambda changed, _: len(changed.whole["prompt_logprobs"]) == changed.whole["usage"]["input"],
        GREEDY,
        (21, -2, "2"),
    ),
    "return_token_log_probs": SamplingRow(
        False, True, lambda changed, _: len(changed.choices[0]["logprobs"]) == 16, GREEDY
    ),
    "structured_outputs": SamplingRow(
        None,
        {"choice": ["red", "blue"]},
        lambda changed, _: changed.text in ("red", "blue"),
        GREEDY,
        ("wrong", {"choice": 5}, {"regx": "a"}, {"regex": "((("}, {"json": {"type": "wrong"}}),
    ),
    "detokenize": SamplingRow(
        True,
        False,
        lambda changed, baseline: (changed.text, changed.ids) == ("", baseline.ids),
        GREEDY,
    ),
    "repetition_detection": sample_freely(
        None,
        {"max_pattern_size": 20, "min_count": 2},
        lambda changed, baseline: (changed.reason, baseline.reason) == ("repetition", "length"),
        {**GREEDY, "ignore_eos": True, "max_tokens": 200},
        ("wrong", {"max_patern_size": 1}),
    ),
    # stream_interval changes how often the engine returns tokens, not which tokens. The prefix
    # cache does not change them either. No watermark and no experts are configured here.
    "stream_interval": SamplingRow(None, 4, is_same, GREEDY, (0, 1.5)),
    "skip_reading_prefix_cache": SamplingRow(None, True, is_same, GREEDY),
    "watermarking": SamplingRow(None, False, is_same, GREEDY),
    "routed_experts_prompt_start": SamplingRow(0, 1, is_same, GREEDY),
}
# Refused unless the endpoint is configured for them; the message says so.
SWITCHED_OFF = {"thinking_token_budget": 5, "trace_decode_token_ids": [5]}

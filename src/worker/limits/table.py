"""The table of all limits of a request, in the order of the checks, each with its harm.

``docs/reference/limits.md`` is generated from it. A contract test fails for a key of vLLM's that is
neither in a row nor among the keys that need no bound.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from worker.chunking import RESULT_LIMIT_BYTES
from worker.limits import inputs, parameters, texts, work
from worker.media import walker
from worker.settings import Settings

# One limit as text: the limited quantity, the maximum with its unit, and the remedy, such as a
# setting; empty if there is none.
Line = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Limit:
    """A row of the table: limits that are checked together."""

    name: str
    module: str  # the one that does the check
    keys: frozenset[str]  # of a body; empty if the limits don't depend on keys
    lines: tuple[Line, ...]
    harm: str  # measured, of a request that exceeds the limits, to others or to its own answer
    attacks: tuple[str, ...]  # hostile requests that show the harm (``tests/support/tables``)


def _names_by_text(texts_by_name: Mapping[str, str]) -> dict[str, str]:
    names: dict[str, list[str]] = {}
    for name, text in texts_by_name.items():
        names.setdefault(text, []).append(f"`{name}`")
    return {text: ", ".join(sharing) for text, sharing in names.items()}


_BOUNDS = _names_by_text({name: bound.description for name, bound in parameters.BOUNDS.items()})
_DEFAULTS = {name: field.default for name, field in Settings.model_fields.items()}

LIMITS = (
    Limit(
        "Inputs",
        "worker.limits.inputs",
        frozenset(),
        (
            (
                "text, keys and numbers, as UTF-8",
                f"{_DEFAULTS['max_input_mb']:g} MB; more is 413",
                "`MAX_INPUT_MB`",
            ),
            ("values, at any depth", f"{inputs.MAX_VALUES:,}", "a batch, or several jobs"),
            ("nesting depth of objects and lists", f"{inputs.MAX_DEPTH}", ""),
            ("token ids: numbers in lists of nothing else", f"{inputs.MAX_TOKEN_IDS:,}", ""),
        ),
        "vLLM stores errors for each wrong value: half a gigabyte, while others wait. Libraries "
        "recurse.",
        ("500,000 messages of 0", "0, then 60,000 empty messages", "100,000 levels of tools"),
    ),
    Limit(
        "Lists of raw jobs",
        "worker.job.raw",
        frozenset(),
        (
            (
                "items of `prompts` or `messages_list`",
                f"{work.MAX_PROMPTS:,}",
                "several jobs, or a batch",
            ),
            (
                "characters next to a list of `sampling_params`",
                f"{work.MAX_REPEATED_CHARACTERS:,}",
                "write them into `sampling_params`",
            ),
        ),
        "Each item is a request with a copy of them.",
        ("10,001 prompts",),
    ),
    Limit(
        "Keys that are the operator's",
        "worker.limits.inputs",
        frozenset({*walker.DENIED_KEYS, inputs.TEMPLATE_KWARGS, inputs.VLLM_XARGS}),
        (
            *(
                (names, "none", reason)
                for reason, names in _names_by_text(walker.DENIED_KEYS).items()
            ),
            (f"`{inputs.VLLM_XARGS}`", "none by default", "`ALLOWED_XARGS` lists the keys"),
            ("`encoding_format`", "`float` or `base64`", "answers are JSON"),
            (
                f"names in `{inputs.TEMPLATE_KWARGS}` that vLLM sets itself: `tokenizer`, "
                "`max_length`, …",
                "none",
                "",
            ),
        ),
        "They reach other machines, other callers' media, files, or functions of vLLM that kill "
        "the engine or take all memory.",
        ("kv_transfer_params in vllm_xargs", "a picture with a uuid", "tokenizer", "max_length"),
    ),
    Limit(
        "Sampling parameters",
        "worker.limits.parameters",
        frozenset(parameters.BOUNDS),
        (
            *((names, maximum, "") for maximum, names in _BOUNDS.items()),
            (
                "tokens of `bad_words`, with and without a leading space",
                "1,024",
                "`VLLM_MAX_BAD_WORDS_TOTAL_TOKENS`",
            ),
        ),
        "A larger value raises in the step that all requests share, where vLLM's runner for GPUs "
        "has arrays of this size, and the engine dies. Stop strings are searched for each token. "
        "Penalties overflow. `logit_bias` has the range of OpenAI's API.",
        (
            "seed 2**63",
            "1,025 allowed ids",
            "logit_bias of 1,025 ids",
            "129 stop ids with min_tokens",
            "beam length_penalty -400",
            "100,000 stop strings",
            "a bad word of 1,100 words",
        ),
    ),
    Limit(
        "Choices, and the work that they multiply",
        "worker.limits.work",
        frozenset({"n", "best_of", "logprobs", "top_logprobs", "min_tokens", "max_tokens"}),
        (
            ("`n`, `best_of`", f"{work.MAX_CHOICES}", ""),
            ("prompts of a completion times `n`", f"{work.MAX_CONCURRENT_CHOICES:,}", "a batch"),
            (
                "`n` times (1 + `logprobs`, or `logprob_token_ids`)",
                f"{work.MAX_LOGPROBS_PER_STEP:,}; {work.MAX_MANY_LOGPROBS_PER_STEP} with more than "
                f"{work.MANY_ALTERNATIVES} per choice; {work.MAX_LIST_LOGPROBS_PER_STEP} in a list",
                "`MAX_LOGPROBS`",
            ),
            (
                "these times `max_tokens`, if several choices are not streamed",
                f"{work.MAX_UNSTREAMED_LOGPROBS:,}; more is 413",
                "a stream",
            ),
            (
                "these times `min_tokens`, without a stream",
                f"{RESULT_LIMIT_BYTES / 1e6:g} MB, a result; more is 413",
                "a stream",
            ),
            (
                "`n` times (1 + `prompt_logprobs`, or `logprobs` with `echo`), with several "
                "choices",
                f"{work.MAX_PROMPT_LOGPROBS}",
                "",
            ),
            (
                f"these for all tokens of several prompts ({work.CHARACTERS_PER_TOKEN} characters "
                "each), without a stream",
                f"{work.MAX_PROMPT_LOGPROBS_PER_ANSWER:,}; more is 413",
                "",
            ),
            (
                "`repetition_detection`: (`min_count` - 1) times the sum of all pattern sizes",
                f"{work.MAX_COMPARISONS:,}",
                "",
            ),
            (
                "these times `n`",
                f"{work.MAX_COMPARISONS_PER_STEP:,}; above {work.MIN_COSTLY_COMPARISONS:,} "
                f"requests share {work.MAX_CONCURRENT_COMPARISONS:,}",
                "",
            ),
        ),
        "All of this happens in the step that all requests share: 5 to 10 us for a log "
        "probability, 0.05 us for a comparison.",
        (
            "n 256 with 20 logprobs, 60 tokens",
            "n 112 with repetition_detection",
            "60 long prompts with echo and 20 logprobs",
            "100 prompts with n 16",
        ),
    ),
    Limit(
        "Long texts",
        "worker.limits.texts",
        frozenset(inputs.TEMPLATE_KEYS),  # and the texts of each route (worker.routes.vllm)
        (
            (
                "characters of a text, or of a conversation",
                f"the context times the longest token; above {texts.EXEMPT_CHARACTERS:,} "
                f"characters {texts.MAX_CHARACTERS_PER_TOKEN} per token",
                "`truncate_prompt_tokens`, where a route has it",
            ),
            ("token ids of a prompt", "the tokens of the context", "`MAX_MODEL_LEN`"),
            (
                "characters for `/tokenize`, tokens for `/detokenize`",
                f"{texts.MAX_ECHO_SIZE:,}",
                "",
            ),
        ),
        "They can't fit the context, but tokenizing takes a second for a few megabytes, in one of "
        "few threads.",
        ("900 KB", "3 MB with token strings", "5 MB, cut to 10 tokens"),
    ),
    Limit(
        "Media",
        "worker.media.loader",
        frozenset(),
        (
            ("media of a request", f"{_DEFAULTS['media_max_parts']}", "`MEDIA_MAX_PARTS`"),
            (
                "one of them; all together four times as much",
                f"{_DEFAULTS['media_max_mb']} MB",
                "`MEDIA_MAX_MB`",
            ),
            (
                "pixels of an image; all together eight times as many",
                "40,000,000",
                "`VLLM_MAX_IMAGE_PIXELS`",
            ),
            (
                "fetching and checking all of them",
                f"{_DEFAULTS['media_fetch_timeout_s']:g} seconds",
                "`MEDIA_FETCH_TIMEOUT_S`",
            ),
        ),
        "A small file can become gigabytes of pixels, and an address can lead into the network of "
        "the worker.",
        (),
    ),
    Limit(
        "Grammars",
        "worker.engine.run.grammar.gate",
        parameters.GUIDED_KEYS
        | parameters.GUIDED_OBJECTS
        | {"response_format", "text", "output_config", "tool_choice"},
        (
            ("characters", f"{work.MAX_GRAMMAR_CHARACTERS:,}", ""),
            (
                "compiling; parsing",
                f"{work.MAX_COMPILE_S:g} s of one core ({work.SINGLE_THREAD_COMPILE_S:g} s on a "
                f"machine with one or two); {work.MAX_PARSE_S:g} s",
                "",
            ),
            (
                "applying it to a token; to one of each choice; if tokens take ever longer",
                f"{work.MAX_TOKEN_S:g} s; {work.MAX_CHOICES_TOKEN_S:g} s; "
                f"{work.MAX_GROWING_TOKEN_S:g} s",
                "",
            ),
            ("memory to compile it", f"{work.MAX_COMPILE_BYTES >> 30} GB", ""),
        ),
        "The engine compiles grammars without a limit of time, and follows them in the step that "
        "all requests share: seconds for a token of a few nested counts. Grammars are made of "
        "`response_format`, structured outputs, and tools that are `strict`, required or named; "
        "all other tools are text for the chat template.",
        ("three nested repetitions", "nested repetitions in a pattern", "6,000 properties"),
    ),
)

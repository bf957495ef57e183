"""Chat templates: sandbox, Hugging Face semantics, roles."""

import json
from pathlib import Path

import pytest

from shared.errors import InvalidRequestError, ModelLoadError
from shared.tokenizer.chat_template import ChatTemplate
from shared.tokenizer.tokenizer import Tokenizer
from tests.support.tiny_tokenizer import write_tokenizer_folder

TURNS = [{"role": "user", "content": "hi"}]


def test_whitespace_control() -> None:
    source = (
        "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}"
    )
    assert ChatTemplate(source).render(TURNS) == "hi\n"


def test_generation_block_and_loop_controls() -> None:
    body = "{% generation %}{{ m.content }}{% endgeneration %}{% break %}"
    source = f"{{% for m in messages %}}{body}{{% endfor %}}"
    assert ChatTemplate(source).render([*TURNS, *TURNS]) == "hi"


def test_tojson_keeps_characters() -> None:
    source = "{{ messages[0] | tojson(indent=1) }}"
    turns = [{"role": "user", "content": "<漢>"}]
    assert json.loads(ChatTemplate(source).render(turns)) == turns[0]
    assert "<漢>" in ChatTemplate(source).render(turns)


def test_strftime_now() -> None:
    assert len(ChatTemplate("{{ strftime_now('%Y-%m-%d') }}").render(TURNS)) == 10


def test_special_tokens_and_variables() -> None:
    template = ChatTemplate("{{ bos_token }}{{ thinking }}", special_tokens={"bos_token": "<s>"})
    assert template.render(TURNS, variables={"thinking": "x"}) == "<s>x"


def test_refusals() -> None:
    template = ChatTemplate("{{ raise_exception('only users') }}")
    with pytest.raises(InvalidRequestError, match="only users") as caught:
        template.render(TURNS)
    assert caught.value.param == "messages"
    with pytest.raises(InvalidRequestError):
        ChatTemplate("{{ messages[0].content + 1 }}").render(TURNS)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__subclasses__() }}",
    ],
)
def test_sandbox(source: str) -> None:
    with pytest.raises(InvalidRequestError):
        ChatTemplate(source).render(TURNS)


def test_what_is_nested_too_deeply_to_print_is_the_clients_mistake() -> None:
    deep: dict[str, object] = {}
    for _ in range(5_000):
        deep = {"a": deep}
    template = ChatTemplate("{{ messages[0].content | tojson }}")
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        template.render([{"role": "user", "content": deep}])


def test_broken_template() -> None:
    with pytest.raises(ModelLoadError, match="cannot be compiled"):
        ChatTemplate("{% for %}")


def test_developer_role() -> None:
    turns = [{"role": "developer", "content": "x"}]
    assert ChatTemplate("{{ messages[0].role }}").render(turns) == "system"
    knows = "{% if messages[0].role == 'developer' %}yes{% endif %}"
    assert ChatTemplate(knows).render(turns) == "yes"
    assert turns[0]["role"] == "developer"


def test_sources_in_a_folder(tmp_path: Path) -> None:
    assert ChatTemplate.from_folder(tmp_path, {}) is None
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    template = ChatTemplate.from_folder(tmp_path, {"chat_template": named})
    assert template is not None
    assert template.render(TURNS) == "d"
    (tmp_path / "chat_template.jinja").write_text("file", encoding="utf-8")
    template = ChatTemplate.from_folder(tmp_path, {"chat_template": "setting"})
    assert template is not None
    assert template.render(TURNS) == "file"


def test_special_tokens_from_settings(tmp_path: Path) -> None:
    source = "{{ bos_token }}{{ eos_token }}"
    folder = write_tokenizer_folder(tmp_path, chat_template=source)
    template = Tokenizer.from_folder(folder).chat_template
    assert template is not None
    assert template.render(TURNS) == "<|im_start|><|im_end|>"


CONVERSATIONS = [
    TURNS,
    [{"role": "system", "content": "Be brief."}, *TURNS],
    [*TURNS, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "漢字 ok?\n"}],
]


def test_equals_transformers_on_the_real_model(smollm2_dir: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2_dir)
    ours = Tokenizer.from_folder(smollm2_dir)
    assert ours.chat_template is not None
    for turns in CONVERSATIONS:
        for add in (True, False):
            text = ours.chat_template.render(turns, add_generation_prompt=add)
            expected = theirs.apply_chat_template(turns, tokenize=False, add_generation_prompt=add)
            assert text == expected
            ids = ours.encode(text, add_special_tokens=False)
            assert ids == theirs(text, add_special_tokens=False)["input_ids"]
    assert theirs.eos_token_id in ours.eos_ids

"""Named parts of a conversation as token ranges."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.prompt_parts import (
    MAX_QUESTION_WINDOW,
    MIN_QUESTION_WINDOW,
    AskedParts,
    RenderedChat,
    last_sentence,
    resolve_parts,
)
from shared.errors import InvalidRequestError
from shared.tokenizer.chat_template import ChatTemplate
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.options import MAX_PROTECTED_RANGES, PromptPart, RequestOptions, TokenRange
from tests.support.tiny_tokenizer import CHAT_TEMPLATE, write_tokenizer_folder

# The default system prompt, the trimming and the merged system turn that real templates have.
DEFAULTING = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe kind<|im_end|>\n{% endif %}"
    + CHAT_TEMPLATE.replace("message['content']", "message['content'] | trim")
)
DROPPING = (
    "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"
)
REPEATING = "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}"

BOTH = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "One. Two?  Three"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(write_tokenizer_folder(tmp_path_factory.mktemp("t")))


def resolved(
    tokenizer: Tokenizer,
    messages: list[dict[str, str]],
    asked: AskedParts,
    *,
    template: str = CHAT_TEMPLATE,
    options: RequestOptions | None = None,
) -> tuple[RequestOptions, list[str]]:
    """The options, and the text of each protected range."""
    compiled = ChatTemplate(template)
    text = compiled.render(messages)
    chat = RenderedChat(template=compiled, messages=messages, variables={}, text=text)
    ids, offsets = tokenizer.encode_with_offsets(text, add_special_tokens=False)
    found = resolve_parts(chat, offsets=offsets, options=options or RequestOptions(), asked=asked)
    texts = [
        tokenizer.decode(ids[r.start : r.end], skip_special_tokens=False) for r in found.protect
    ]
    return found, texts


def test_system_reaches_from_the_first_token_to_the_first_turn(tokenizer: Tokenizer) -> None:
    asked = AskedParts(protect=(PromptPart.SYSTEM,))
    found, texts = resolved(tokenizer, BOTH, asked)
    assert found.protect[0].start == 0
    assert texts == [
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n",
        "Be brief.",
    ]


def test_a_templates_own_system_prompt_counts(tokenizer: Tokenizer) -> None:
    asked = AskedParts(protect=(PromptPart.SYSTEM,))
    _, texts = resolved(tokenizer, BOTH[1:], asked, template=DEFAULTING)
    assert texts == ["<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\n"]


def test_later_system_turns_count(tokenizer: Tokenizer) -> None:
    messages = [BOTH[1], {"role": "developer", "content": "Stay brief."}, BOTH[1]]
    _, texts = resolved(tokenizer, messages, AskedParts(protect=(PromptPart.SYSTEM,)))
    assert texts == ["<|im_start|>user\n", "Stay brief."]


def test_last_user_and_its_question(tokenizer: Tokenizer) -> None:
    messages = [*BOTH, {"role": "assistant", "content": "4"}, BOTH[1]]
    asked = AskedParts(protect=(PromptPart.LAST_USER, PromptPart.QUESTION))
    found, texts = resolved(
        tokenizer, messages, asked, options=RequestOptions(protect=(TokenRange(0, 1),))
    )
    assert texts == ["<|im_start|>", "One. Two?  Three", "Three"]
    repeated = tokenizer.encode(ChatTemplate(CHAT_TEMPLATE).render(BOTH), add_special_tokens=False)
    assert found.protect[1].start > len(repeated) / 2, "the later of two equal turns"


def test_trimmed_content_is_found(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "  Who?\n\n"}]
    asked = AskedParts(protect=(PromptPart.LAST_USER,))
    assert resolved(tokenizer, messages, asked, template=DEFAULTING)[1] == ["Who?"]


@pytest.mark.parametrize(
    ("part", "template", "messages"),
    [
        (PromptPart.SYSTEM, DROPPING, BOTH),
        (PromptPart.LAST_USER, REPEATING, BOTH),
        (PromptPart.QUESTION, CHAT_TEMPLATE, BOTH[:1]),
    ],
)
def test_what_cannot_be_found_is_refused(
    tokenizer: Tokenizer, part: PromptPart, template: str, messages: list[dict[str, str]]
) -> None:
    with pytest.raises(InvalidRequestError, match="token ranges") as caught:
        resolved(tokenizer, messages, AskedParts(protect=(part,)), template=template)
    assert caught.value.param == "tandem.protect"


def window_of(tokenizer: Tokenizer, content: str, **more: Any) -> tuple[int, str]:
    """W, and the prompt text that it spans."""
    messages = [{"role": "user", "content": content}]
    found, _ = resolved(tokenizer, messages, AskedParts(question_window=True), **more)
    assert found.observation_window is not None
    assert found.protect == ()
    ids = tokenizer.encode(ChatTemplate(CHAT_TEMPLATE).render(messages), add_special_tokens=False)
    window = found.observation_window
    return window, tokenizer.decode(ids[-window:], skip_special_tokens=False)


def test_window_of_a_short_turn_is_the_turn(tokenizer: Tokenizer) -> None:
    _, text = window_of(tokenizer, "Hello. Who?")
    assert text == "Hello. Who?<|im_end|>\n<|im_start|>assistant\n"


def test_window_of_a_long_turn_is_its_last_sentence(tokenizer: Tokenizer) -> None:
    _, text = window_of(tokenizer, "A long text. " * 20 + "\n\nWho is it?\n")
    assert text == "Who is it?\n<|im_end|>\n<|im_start|>assistant\n"


def test_window_is_bounded(tokenizer: Tokenizer) -> None:
    assert window_of(tokenizer, "word " * 200)[0] == MAX_QUESTION_WINDOW
    found, _ = resolved(
        tokenizer,
        [{"role": "user", "content": "Hi"}],
        AskedParts(question_window=True),
        template="{{ messages[0].content }}",
    )
    assert found.observation_window == MIN_QUESTION_WINDOW


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("One", "One"),
        ("One. Two", "Two"),
        ("One. Two.", "Two."),
        ('"One?" Two!  \n', "Two!  \n"),
        ("3.14 is pi", "3.14 is pi"),
        ("text\nQuestion: who?", "Question: who?"),
        ("一。二？", "二？"),
        ("", ""),
        (" \n ", " \n "),
    ],
)
def test_last_sentence(text: str, sentence: str) -> None:
    assert text[last_sentence(text) :] == sentence


TEXTS = st.text(st.sampled_from("ab .?\né€😀 Hello"), max_size=30)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(TEXTS, TEXTS)
def test_ranges_hold_the_whole_part(tokenizer: Tokenizer, system: str, user: str) -> None:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    asked = AskedParts(protect=(PromptPart.LAST_USER,), question_window=True)
    found, texts = resolved(tokenizer, messages, asked)
    assert len(found.protect) == bool(user)
    assert all(user in text for text in texts)


def test_very_many_system_turns_are_not_looked_for_one_by_one(tokenizer: Tokenizer) -> None:
    turns = [{"role": "system", "content": ""}] * (MAX_PROTECTED_RANGES + 1)
    asked = AskedParts(protect=(PromptPart.SYSTEM,))
    with pytest.raises(InvalidRequestError, match="65 system turns") as caught:
        resolved(tokenizer, [*turns, {"role": "user", "content": "who?"}], asked)
    assert caught.value.param == "tandem.protect"

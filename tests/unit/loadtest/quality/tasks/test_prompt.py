"""Parts of a text are found again among its tokens; sizes fill a limit."""

import pytest

from loadtest.quality.tasks.prompt import Draft, PromptWriter, fit
from loadtest.quality.tasks.sample import Span
from shared.errors import ConfigError
from shared.tokenizer.chat_template import ChatTemplate

DRAFT = Draft(
    context="Read: the lost key is here. Then nothing.",
    question="\n\nWhere is it?",
    answer=" there, I think",
    answer_prefix="It is",
    marks=(Span(6, 27),),
)


def decode(writer: PromptWriter, ids: tuple[int, ...], span: Span) -> str:
    return writer.tokenizer.decode(ids[span.start : span.stop], skip_special_tokens=False)


def test_chat_parts(writer: PromptWriter) -> None:
    written = writer.write(DRAFT)
    text = writer.tokenizer.decode(written.token_ids, skip_special_tokens=False)
    assert text == (
        "<|im_start|>user\nRead: the lost key is here. Then nothing.\n\nWhere is it?<|im_end|>\n"
        "<|im_start|>assistant\nIt is"
    )
    assert decode(writer, written.token_ids, written.question_span) == (
        "\n\nWhere is it?<|im_end|>\n<|im_start|>assistant\nIt is"
    )
    assert decode(writer, written.token_ids, written.mark_spans[0]) == " the lost key is here."
    assert writer.tokenizer.decode(written.answer_ids) == " there, I think"
    assert writer.count(DRAFT) == len(written.token_ids)


def test_without_a_template(plain_writer: PromptWriter) -> None:
    written = plain_writer.write(DRAFT)
    assert plain_writer.tokenizer.decode(written.token_ids) == (
        DRAFT.context + DRAFT.question + "\nIt is"
    )


def test_the_template_can_be_left_out(writer: PromptWriter) -> None:
    draft = Draft(context="a b", question=" c\n", answer="d", chat=False)
    assert writer.tokenizer.decode(writer.write(draft).token_ids) == "a b c\n"


def test_answer_that_melts_into_the_prompt(writer: PromptWriter) -> None:
    # "stop" is one token, so "st" + "op" must not become it: the prompt's tokens are fixed.
    draft = Draft(context="st", question="", answer="op", chat=False)
    written = writer.write(draft)
    assert writer.tokenizer.decode(written.token_ids) == "st"
    assert writer.tokenizer.decode(written.answer_ids) == "op"


def test_template_that_trims(tmp_path, writer: PromptWriter) -> None:
    template = ChatTemplate("U: {{ messages[0]['content'] | trim }}\nA:")
    tokenizer = writer.tokenizer
    trimming = type(tokenizer)(
        tokenizer._backend, eos_ids=(), vocab_size=tokenizer.vocab_size, chat_template=template
    )
    written = PromptWriter(trimming).write(
        Draft(context="  one two.", question=" Three? ", answer=" 4", marks=(Span(2, 5),))
    )
    assert trimming.decode(written.token_ids) == "U: one two. Three?\nA:"
    assert decode(PromptWriter(trimming), written.token_ids, written.mark_spans[0]) == "one"
    assert decode(PromptWriter(trimming), written.token_ids, written.question_span) == (
        " Three?\nA:"
    )


def test_template_that_changes_the_text(writer: PromptWriter) -> None:
    tokenizer = writer.tokenizer
    shouting = type(tokenizer)(
        tokenizer._backend,
        eos_ids=(),
        vocab_size=tokenizer.vocab_size,
        chat_template=ChatTemplate("{{ messages[0]['content'] | upper }}"),
    )
    with pytest.raises(ConfigError, match="chat template changes"):
        PromptWriter(shouting).write(DRAFT)


def test_the_real_tokenizer_finds_the_parts(real_writer: PromptWriter) -> None:
    written = real_writer.write(DRAFT)
    assert decode(real_writer, written.token_ids, written.mark_spans[0]) == (
        " the lost key is here."
    )
    assert decode(real_writer, written.token_ids, written.question_span) == (
        "\n\nWhere is it?<|im_end|>\n<|im_start|>assistant\nIt is"
    )


@pytest.mark.parametrize("guess", [1, 7, 500])
@pytest.mark.parametrize("limit", [60, 61, 300])
def test_fit_fills_the_limit(writer: PromptWriter, guess: int, limit: int) -> None:
    def draft(size: int) -> Draft:
        return Draft(context="xyz " * size, question="?", answer="!")

    found = fit(writer, draft, limit=limit, guess=guess)
    size = len(found.context) // 4
    assert writer.count(draft(size)) <= limit < writer.count(draft(size + 1))


def test_fit_without_room(writer: PromptWriter) -> None:
    with pytest.raises(ConfigError, match="a prompt of 10 tokens has no room"):
        fit(writer, lambda size: Draft(context="x" * size, question="", answer=""), limit=10)

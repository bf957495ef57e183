"""The sixteen English tasks of LongBench: limits, metrics, and prompts in our own words.

LongBench's own prompts stand in its file `dataset2prompt.json`; laid into the folder of data files
it is used instead of these.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class LongBenchTask:
    """How one task is asked and scored."""

    prompt: str
    """The text around `{context}`; `{input}` is the record's question."""
    max_new_tokens: int
    """How long an answer may be."""
    metric: str
    """A name in `loadtest.quality.tasks.scoring.METRICS`."""
    chat: bool = True
    """The prompt is a user's message in the model's chat template."""
    first_line: bool = False
    """Only the first line of an output counts."""


def _documents(kind: str) -> str:
    return (
        f"Answer a question about the {kind} below. Reply with the answer only, in as few words as "
        f"possible.\n\n{{context}}\n\nReply with the answer to this question about the {kind} "
        "above, nothing else.\n\nQuestion: {input}\nAnswer:"
    )


_QASPER = (
    "Answer a question about the scientific article below with one phrase or sentence, or with "
    '"yes" or "no". Where the article does not tell, reply "unanswerable".\n\nArticle: {context}'
    "\n\nReply to this question about the article above, without explaining, as said before."
    "\n\nQuestion: {input}\n\nAnswer:"
)
_SUMMARY = "Summarise the {kind} below in about one page.\n\n{{context}}\n\nSummary:"
_QMSUM = (
    "The transcript of a meeting is below, with a request about it. Reply in one or a few "
    "sentences.\n\nTranscript:\n{context}\n\nReply to the request with one or a few sentences."
    "\nRequest: {input}\nReply:"
)
_TREC = "Name the type of each question. Here are examples.\n\n{context}\n{input}"
_TRIVIA = (
    "Answer the question about the passage with the answer only. Here are examples.\n\n{context}"
    "\n\n{input}"
)
_SAMSUM = (
    "Summarise the dialogue in a few short sentences. Here are examples.\n\n{context}\n\n{input}"
)
_COUNT = (
    "Some of the paragraphs below stand there more than once. How many different paragraphs are "
    "there?\n\n{context}\n\nReply with the number of different paragraphs only, such as 1, 2 or 3."
    "\n\nNumber:"
)
_RETRIEVAL = (
    "Below are 30 paragraphs and a summary of one of them. Which one is it?\n\n{context}\n\nThe "
    'summary:\n\n{input}\n\nReply with the number of its paragraph in the form "Paragraph 1".'
    "\n\nAnswer:"
)
_CODE = "Complete the code below.\n{context}{input}Next line of code:\n"

LONGBENCH_TASKS: Mapping[str, LongBenchTask] = MappingProxyType(
    {
        "narrativeqa": LongBenchTask(_documents("story"), 128, "token_f1"),
        "qasper": LongBenchTask(_QASPER, 128, "token_f1"),
        "multifieldqa_en": LongBenchTask(_documents("text"), 64, "token_f1"),
        "hotpotqa": LongBenchTask(_documents("passages"), 32, "token_f1"),
        "2wikimqa": LongBenchTask(_documents("passages"), 32, "token_f1"),
        "musique": LongBenchTask(_documents("passages"), 32, "token_f1"),
        "gov_report": LongBenchTask(_SUMMARY.format(kind="government report"), 512, "rouge_l"),
        "qmsum": LongBenchTask(_QMSUM, 512, "rouge_l"),
        "multi_news": LongBenchTask(_SUMMARY.format(kind="news articles"), 512, "rouge_l"),
        "trec": LongBenchTask(_TREC, 64, "classification", chat=False, first_line=True),
        "triviaqa": LongBenchTask(_TRIVIA, 32, "token_f1", chat=False, first_line=True),
        "samsum": LongBenchTask(_SAMSUM, 128, "rouge_l", chat=False, first_line=True),
        "passage_count": LongBenchTask(_COUNT, 32, "count"),
        "passage_retrieval_en": LongBenchTask(_RETRIEVAL, 32, "retrieval"),
        "lcc": LongBenchTask(_CODE, 64, "code_similarity", chat=False),
        "repobench-p": LongBenchTask(_CODE, 64, "code_similarity", chat=False),
    }
)

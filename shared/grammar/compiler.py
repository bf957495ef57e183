"""Grammars into matchers, for one tokenizer.

A grammar is text in the forms of llguidance: a JSON object made from a schema, or its Lark dialect.
Gateway and workers compile with the same limits, so that what the first lets in the others take.
"""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import llguidance

from shared.errors import InvalidRequestError
from shared.grammar.matcher import GrammarMatcher
from shared.tokenizer.tokenizer import Tokenizer

INVALID = "invalid_json_schema"

MAX_GRAMMAR_BYTES = 1024 * 1024
"""Longest grammar text."""

COMPILE_S = 10.0
"""Longest wait for a compilation, in seconds."""

_CACHED = 64
_CACHED_BYTES = 4 * 1024 * 1024
_FUEL = 1_000_000
_STEP_FUEL = 200_000
_ROW_ITEMS = 20_000
_STEP_ITEMS = 50_000
_LEXER_STATES = 50_000
_GRAMMAR_SYMBOLS = 200_000


class GrammarCompiler:
    """Compiles and remembers the grammars used last; safe to call from several threads.

    Args:
        tokenizer: of the model whose tokens are masked. Its table is built at first use (0.2 s for
            49,152 tokens).
        on_compiled: told the seconds of each compilation, in the thread that did it.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, on_compiled: Callable[[float], None] | None = None
    ) -> None:
        self._on_compiled = on_compiled
        self._tokenizer = tokenizer
        self._table: llguidance.LLTokenizer | None = None
        self._table_lock = threading.Lock()
        self._lock = threading.Lock()
        self._known: OrderedDict[str, GrammarMatcher] = OrderedDict()
        # A thread of its own: hostile grammars wait for each other, not tokenizing for them.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="grammar")

    @property
    def num_cached(self) -> int:
        """Grammars that are remembered."""
        return len(self._known)

    async def compile(self, grammar: str) -> GrammarMatcher:
        """See `matcher`; the event loop goes on meanwhile.

        Raises:
            InvalidRequestError: as `matcher`, or it took longer than COMPILE_S.
        """
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._executor, self.matcher, grammar)
        try:
            async with asyncio.timeout(COMPILE_S):
                return await work
        except TimeoutError as error:
            raise InvalidRequestError(
                f"the schema could not be compiled in {COMPILE_S:g} s: it is too large or has "
                "patterns that explode; simplify it",
                code=INVALID,
            ) from error

    def close(self) -> None:
        """Lets the thread end after what it compiles now; nothing more is compiled beside a loop.

        Does not wait: a hostile grammar would hold the caller up. A second time changes nothing.
        """
        self._executor.shutdown(wait=False, cancel_futures=True)

    def matcher(self, grammar: str) -> GrammarMatcher:
        """A matcher at the start of an answer.

        Raises:
            InvalidRequestError: the grammar is malformed, not supported, too large, or matches
                nothing.
        """
        with self._lock:
            known = self._known.get(grammar)
            if known is not None:
                self._known.move_to_end(grammar)
                return known.fork()
        began = time.perf_counter()
        made = self._make(grammar)
        if self._on_compiled is not None:
            self._on_compiled(time.perf_counter() - began)
        with self._lock:
            self._known[grammar] = made
            while len(self._known) > _CACHED or self._too_heavy():
                self._known.popitem(last=False)
        return made.fork()

    def _too_heavy(self) -> bool:
        return len(self._known) > 1 and sum(map(len, self._known)) > _CACHED_BYTES

    def _make(self, grammar: str) -> GrammarMatcher:
        if len(grammar) > MAX_GRAMMAR_BYTES:
            raise _invalid(f"it has {len(grammar)} characters, more than {MAX_GRAMMAR_BYTES}")
        state = llguidance.LLMatcher(self._vocabulary(), grammar, log_level=0, limits=_limits())
        if state.is_error():
            raise _invalid(_first_lines(state.get_error()))
        matcher = GrammarMatcher(state)
        if matcher.dead:
            raise _invalid("no answer can ever satisfy it")
        return matcher

    def _vocabulary(self) -> llguidance.LLTokenizer:
        with self._table_lock:
            if self._table is None:
                self._table = llguidance.LLTokenizer(
                    self._tokenizer.to_json(),
                    n_vocab=self._tokenizer.vocab_size,
                    eos_token=list(self._tokenizer.eos_ids) or None,
                )
            return self._table


def _limits() -> llguidance.LLParserLimits:
    return llguidance.LLParserLimits(
        initial_lexer_fuel=_FUEL,
        step_lexer_fuel=_STEP_FUEL,
        max_items_in_row=_ROW_ITEMS,
        step_max_items=_STEP_ITEMS,
        max_lexer_states=_LEXER_STATES,
        max_grammar_size=_GRAMMAR_SYMBOLS,
        verbose_errors=False,
    )


def _first_lines(text: str) -> str:
    """The library's own words, without its listing of the grammar."""
    lines = [line.strip() for line in text.split("<non-verbose/>", maxsplit=1)[0].splitlines()]
    return " ".join(line for line in lines if line)[:300] or "the grammar library refuses it"


def _invalid(why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the schema cannot be enforced: {why}; change it, or leave that part out", code=INVALID
    )

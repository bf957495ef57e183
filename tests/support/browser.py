"""Chromium, the distribution's, driven over its own protocol."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect

PHONE = {"width": 375, "height": 740}
DESK = {"width": 1280, "height": 900}

WAIT_MS = 20_000
"""How long a state may take to come, on a machine that does other work."""

expect.set_options(timeout=WAIT_MS)

_WATCH = """() => {
    const answer = document.getElementById("answer");
    const status = document.getElementById("run-state");
    window.watched = [];
    new MutationObserver(() => window.watched.push(
        [answer.getAttribute("aria-busy"), answer.textContent, status.textContent]))
        .observe(document.body, { attributes: true, childList: true, subtree: true });
}"""


def chromium() -> str:
    """The program's path."""
    program = shutil.which("chromium")
    assert program is not None, "install chromium (Debian: apt install chromium)"
    return program


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """One headless browser a module; its tests share a loop with it."""
    # The browser refuses to lock itself in when root starts it.
    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(
            executable_path=chromium(), args=[*sandbox, "--disable-gpu"]
        )
        try:
            yield started
        finally:
            await started.close()


@dataclass
class Visit:
    """A visit to the gateway's page."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """Script errors, and what the browser refused or warned of."""

    def listen(self) -> None:
        """Begins to collect complaints."""
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("console", self._heard)

    def _heard(self, said: ConsoleMessage) -> None:
        if said.type in {"error", "warning"}:
            self.complaints.append(said.text)

    async def module(self, name: str, body: str, argument: object = None) -> Any:
        """The result of `body`, a function of the page's script `name` and of `argument`."""
        return await self.page.evaluate(
            f"""async ([name, argument]) => {{
                const main = document.querySelector('script[type="module"]').src;
                const m = await import(main.replace("main.js", name));
                return await ({body})(m, argument);
            }}""",
            [name, argument],
        )

    async def text(self, selector: str) -> str:
        """What an element shows."""
        return await self.page.locator(selector).inner_text()

    async def ask(self, prompt: str, **fields: object) -> None:
        """Fills the form and sends it."""
        for name, value in {"prompt": prompt, **fields}.items():
            place = self.page.locator(f'#ask [name="{name}"]')
            await place.evaluate("node => node.closest('details')?.setAttribute('open', '')")
            if await place.evaluate("node => node.tagName") == "SELECT":
                await place.select_option(str(value))
            else:
                await place.fill(str(value))
        await self.page.click("#send")

    async def watch(self) -> None:
        """Notes from here on what the answer goes through."""
        await self.page.evaluate(_WATCH)

    async def watched(self) -> list[tuple[bool, str, str]]:
        """Busy or not, the text, and the status, each time that something changed."""
        noted = await self.page.evaluate("() => window.watched")
        return [(busy == "true", text, status) for busy, text, status in noted]

    async def answered(self, state: str = "done") -> None:
        """Waits until the request is over, and says how."""
        await expect(self.page.locator("#run-state")).to_contain_text(state)
        await expect(self.page.locator("#send")).to_be_enabled()


@asynccontextmanager
async def visit(browser: Browser, address: str, **context: Any) -> AsyncIterator[Visit]:
    """Opens the page of the gateway at host:port in a profile of its own."""
    opened = await browser.new_context(**{"viewport": DESK, **context})
    try:
        page = await opened.new_page()
        page.set_default_timeout(WAIT_MS)
        visited = Visit(page)
        visited.listen()
        await page.goto(f"http://{address}/")
        await expect(page.locator("#model-shown")).not_to_be_empty()
        yield visited
    finally:
        await opened.close()

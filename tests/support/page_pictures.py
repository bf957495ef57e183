"""Screenshots of the page over a running gateway, and how the TTFT it shows compares with others.

`python -m tests.support.page_pictures HOST:PORT FOLDER` asks one long question for the pictures and
twenty short ones for the figures. It needs Chromium (Debian: apt install chromium). On a machine
without idle cores it measures who waits for one: `tandem up --prefill-threads 1 --decode-threads 1`
leaves some.
"""

import asyncio
import json
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from playwright.async_api import async_playwright

from tests.support.browser import Visit, chromium, visit

RUNS = 20
_WAIT_S = 120_000


async def take(address: str, folder: Path) -> None:
    """Writes playground, waterfall, heat map, strip, comparison and live view, and `ttft.json`."""
    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=sandbox)
        try:
            async with visit(browser, address, viewport={"width": 1180, "height": 900}) as visited:
                ttfts = await _ttfts(visited)
                await _pictures(visited, folder)
        finally:
            await browser.close()
    summary = {
        "requests": RUNS,
        "load_average": os.getloadavg()[0],
        "page_less_browser_ms": _spread([t.page - t.browser for t in ttfts]),
        "browser_less_gateway_ms": _spread([t.browser - t.gateway for t in ttfts]),
        "page_less_gateway_ms": _spread([t.page - t.gateway for t in ttfts]),
    }
    (folder / "ttft.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary))


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "least": round(min(values), 3),
        "median": round(statistics.median(values), 3),
        "largest": round(max(values), 3),
    }


@dataclass(frozen=True, kw_only=True)
class Ttft:
    """One time to first token by three clocks, in ms."""

    gateway: float
    """Arrival of the request to the first token; the page shows it."""
    page: float
    """The fetch to the first text, by the page's script; the page shows it."""
    browser: float
    """The fetch to the first byte, by the browser's network stack: the gateway sends that byte
    with the first token."""


async def _ttfts(visited: Visit) -> list[Ttft]:
    figures = visited.page.locator("#figures")
    found = []
    for number in range(RUNS + 1):
        await visited.ask(f"Name a fruit, attempt {number}.", max_tokens=8)
        await visited.answered()
        shown, here = [
            float(await figures.get_attribute(f"data-ttft-{where}") or "nan")
            for where in ("gateway", "here")
        ]
        network = await visited.page.evaluate(
            """() => performance.getEntriesByType("resource")
                .filter((entry) => entry.name.endsWith("/completions"))
                .map((entry) => entry.responseStart - entry.startTime).at(-1)"""
        )
        found.append(Ttft(gateway=shown, page=here, browser=network))
    return found[1:]  # the first one opened the connection


async def _pictures(visited: Visit, folder: Path) -> None:
    page = visited.page
    page.set_default_timeout(_WAIT_S)
    await page.click("#sample")
    prompt = await page.locator('[name="prompt"]').input_value()
    await visited.ask(prompt, max_tokens=48, mode="both")
    await page.locator("#run-state", has_text="done").wait_for()
    await page.locator("#strip canvas").wait_for()
    await page.locator("#heat canvas").hover(position={"x": 300, "y": 250})
    await page.evaluate("() => scrollTo(0, 0)")
    await page.screenshot(path=folder / "playground.png")
    for name in ("waterfall", "heat", "strip"):
        card = page.locator(f"section.card:has(> #{name})")
        await card.screenshot(path=folder / f"{name}.png")
    await page.click("#tab-compare")
    await page.click("#compare-run")
    await page.locator("#compare-state", has_text="done").wait_for()
    await page.locator("#view-compare").screenshot(path=folder / "compare.png")
    await page.click("#tab-live")
    await page.locator("#flow svg").wait_for()
    await page.locator("#view-live").screenshot(path=folder / "live.png")


if __name__ == "__main__":
    target = Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(take(sys.argv[1], target))

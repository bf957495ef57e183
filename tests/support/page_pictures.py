"""Screenshots of the page over a running gateway, and how its TTFT compares with the browser's.

`python -m tests.support.page_pictures HOST:PORT FOLDER` asks one long question for the pictures and
twenty short ones for the figure.
"""

import asyncio
import json
import os
import statistics
import sys
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
                differences = await _differences(visited)
                await _pictures(visited, folder)
        finally:
            await browser.close()
    summary = {
        "requests": RUNS,
        "load_average": os.getloadavg()[0],
        "script_less_gateway_ms": _spread([script for script, _ in differences]),
        "network_less_gateway_ms": _spread([network for _, network in differences]),
    }
    (folder / "ttft.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary))


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "least": round(min(values), 3),
        "median": round(statistics.median(values), 3),
        "largest": round(max(values), 3),
    }


async def _differences(visited: Visit) -> list[tuple[float, float]]:
    """What the page measured less the TTFT that the gateway reports, in ms.

    Two clocks of the same fetch: the page's script (from the call to the first text, with every
    wait for a core in between), and the browser's network stack (to the first byte, which the
    gateway sends with the first token).
    """
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
        found.append((here - shown, network - shown))
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

"""The inspector's page in a real browser: headless Chromium, driven by Playwright."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from proxy.replay.capture import read_capture
from support.client import chat
from support.proxy import Proxy
from support.upstream import Conversation, Upstream, call_events, text_events
from watched import judged_again

playwright = pytest.importorskip("playwright.async_api", reason="Playwright is not installed")

TOKEN = "inspector-token-0123"
# What a model says to who looks at it.
ATTACK = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"><b id='owned'>"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
OPTIONS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
PATIENCE_MS = 90_000


def browser() -> str:
    """The path of a Chromium. CI must have one, which tests/check.sh installs."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("there is no Chromium (Debian's package is chromium)")


async def backend(c: Conversation) -> None:
    match c.model:
        case "good":
            await c.stream(*call_events("get_weather", ['{"city": ', '"Oslo"}']), "[DONE]")
        case "bad":
            await c.stream(*call_events("get_weather", ['{"city": "Oslo", ', '"days": "two"}']), "[DONE]")
        case "attack":
            arguments = json.dumps({"city": ATTACK, ATTACK: ATTACK})
            await c.stream(*call_events(ATTACK, [arguments[:30], arguments[30:]]), "[DONE]")
        case _:
            await c.stream(*text_events("Hello"), "[DONE]")


Page = Any  # Playwright's


def look(test: Callable[[Page, Proxy], Coroutine[Any, Any, None]], *models: str, redact: bool = True) -> None:
    """Ask for these models, then open the page and go through its form. Afterwards nothing must have been complained
    about: no error in a script, nothing that the content security policy stopped."""
    program = browser()
    complaints: list[str] = []

    async def main() -> None:
        inspector = {"enabled": True, "token": TOKEN, "redact": redact}
        async with Upstream(backend) as up, Proxy(up.url, inspector=inspector) as proxy:
            for model in models:
                await chat(proxy.port, stream=True, model=model, tools=[TOOL])
            async with playwright.async_playwright() as tools:
                chromium = await tools.chromium.launch(executable_path=program, args=OPTIONS, timeout=PATIENCE_MS)
                context = await chromium.new_context(viewport={"width": 1380, "height": 900})
                context.set_default_timeout(PATIENCE_MS)
                page = await context.new_page()
                page.on("pageerror", lambda error: complaints.append(str(error)))
                page.on("console", lambda said: complaints.append(said.text) if _is_bad(said) else None)
                await page.goto(f"http://127.0.0.1:{proxy.admin_port}/inspect")
                await page.get_by_label("Token").fill(TOKEN)
                await page.get_by_role("button", name="Look inside").click()
                await page.wait_for_selector("#rows a")
                await test(page, proxy)
                await chromium.close()

    asyncio.run(main())
    assert complaints == []


def _is_bad(said: Any) -> bool:
    """Chromium also tells of the 401 that the form comes with."""
    return said.type == "error" and "status of 401" not in said.text


async def opened(page: Page, number: int) -> None:
    await page.click(f'#rows a[data-number="{number}"]')
    await page.wait_for_selector(f'#rows a[data-number="{number}"][aria-current="true"]')
    await page.wait_for_selector("article.call")


def test_ci_has_a_browser() -> None:
    if not os.environ.get("CI"):
        pytest.skip("only CI must have one")
    browser()


def test_the_list_lives_and_is_filtered() -> None:
    async def test(page: Page, proxy: Proxy) -> None:
        rows = page.locator("#rows a")
        assert await rows.count() == 3
        assert "bad" in await rows.first.inner_text()  # the newest
        await page.get_by_label("Only faults and quirks").check()
        assert await rows.count() == 1
        await page.get_by_label("Only faults and quirks").uncheck()
        await page.get_by_label("Verdict").select_option("valid")
        assert await rows.count() == 1
        assert "good" in await rows.first.inner_text()
        await page.get_by_label("Verdict").select_option("")
        await page.get_by_label("Find").fill("schema_violation b0")
        assert await rows.count() == 1
        await page.get_by_label("Find").fill("nothing like it")
        assert await rows.count() == 0
        await page.get_by_label("Find").fill("")
        await chat(proxy.port, stream=True, model="later")
        await page.wait_for_selector('#rows a[data-number="4"]')
        assert "later" in await rows.first.inner_text()
        assert await page.locator("#count").inner_text() == "4 replies"

    look(test, "text", "good", "bad")


def test_one_reply_shows_both_streams_and_the_call_between_with_its_error_marked() -> None:
    async def test(page: Page, proxy: Proxy) -> None:
        await opened(page, 1)
        call = page.locator("article.call")
        assert "schema_violation" in await call.inner_text()
        assert await call.locator("mark").all_inner_texts() == ['"two"']
        assert await call.locator(".fragments button").evaluate_all("all => all.map(one => one.firstChild.data)") == [
            '{"city": "Oslo", ',
            '"days": "two"}',
        ]
        came, sent = page.get_by_label("What came"), page.get_by_label("What was sent", exact=True).first
        assert "chat.completion.chunk" in await came.inner_text()
        assert "tool_call_blocked" in await sent.inner_text()
        await call.locator(".fragments button").nth(1).click()
        assert "two" in await page.evaluate("document.activeElement.textContent")

    look(test, "bad", redact=False)


def test_a_reply_is_masked_and_its_case_file_replays(tmp_path: Path) -> None:
    async def test(page: Page, proxy: Proxy) -> None:
        await opened(page, 1)
        assert "Oslo" not in await page.content()
        assert await page.locator("article.call mark").all_inner_texts() == ['"xxx"']
        async with page.expect_download() as loading:
            await page.get_by_role("link", name="Download as a case file").click()
        await (await loading.value).save_as(tmp_path / "case.json")

    look(test, "bad")
    data = (tmp_path / "case.json").read_bytes()
    assert read_capture(data, "case").dialect == "openai-chat"
    record = judged_again(json.loads(data)).record
    assert record is not None
    assert record.verdicts == ["schema_violation"]


@pytest.mark.parametrize("redact", [False, True], ids=["as it was", "masked"])
def test_what_a_model_writes_is_text_and_never_markup(redact: bool) -> None:
    async def test(page: Page, proxy: Proxy) -> None:
        await opened(page, 1)
        shown = await page.locator("article.call").inner_text()
        if not redact:
            assert ATTACK in shown
        assert await page.title() == "Wholecall inspector"
        assert await page.locator("img, b[id=owned], main script").count() == 0
        names = await page.evaluate(
            "[...document.querySelectorAll('*')].flatMap(one => one.getAttributeNames()).filter(it => /^on/.test(it))"
        )
        assert names == []

    look(test, "attack", redact=redact)


def test_the_keyboard_reaches_every_reply_and_who_leaves_is_asked_for_the_token_again() -> None:
    async def test(page: Page, proxy: Proxy) -> None:
        await page.focus('#rows a[data-number="2"]')
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")
        await page.wait_for_selector('#rows a[data-number="1"][aria-current="true"]')
        await page.wait_for_selector("article.call")
        await page.get_by_role("button", name="Leave").click()
        await page.get_by_label("Token").wait_for()
        reply = await page.request.get(f"http://127.0.0.1:{proxy.admin_port}/inspect/replies")
        assert reply.status == 401

    look(test, "good", "bad")

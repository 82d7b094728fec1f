"""One call of a declared tool in every markup, and texts that hold markup but no call."""

from __future__ import annotations

import json
from collections.abc import Iterator

from proxy.dialects.markup import AUTO, FORMATS, LeakedCall, Refusal, Scanner, chosen

SCHEMAS: dict[str, bytes | None] = {
    "get_weather": json.dumps(
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "units": {"type": ["string", "null"]},
                "where": {"type": "object", "properties": {"lat": {"type": "number"}, "tags": {"type": "array"}}},
            },
            "required": ["city"],
        }
    ).encode(),
    "write_file": json.dumps(
        {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}}
    ).encode(),
    "now": None,
}
ARGUMENTS = {"city": "Oslo", "days": 3}
_JSON = '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}'
_PARAMETERS = _JSON.replace("arguments", "parameters")
_ARGS = '{"city": "Oslo", "days": 3}'
_M3 = "]<]minimax[>["


def _tags(call: str, key: str, end: str, call_end: str) -> str:
    pairs = "".join(f"\n{key.format(name)}{value}{end}" for name, value in (("city", "Oslo"), ("days", "3")))
    return f"{call}{pairs}\n{call_end}"


_INVOKE = _tags('<invoke name="get_weather">', '<parameter name="{}">', "</parameter>", "</invoke>")
_FUNCTION = _tags("<function=get_weather>", "<parameter={}>\n", "\n</parameter>", "</function>")
_PAIRS = (
    "<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
    "</tool_call>"
)

# (format, a call of get_weather with ARGUMENTS)
SAMPLES: list[tuple[str, str]] = [
    ("hermes", f"<tool_call>\n{_JSON}\n</tool_call>"),
    ("hermes", f"<tool_call>[{_JSON}]</tool_call>"),
    ("qwen3-coder", f"<tool_call>\n{_FUNCTION}\n</tool_call>"),
    ("qwen3-coder", _FUNCTION),
    ("qwen3-coder", f"<seed:tool_call>\n{_FUNCTION}\n</seed:tool_call>"),
    ("qwen3-coder", f"<function=get_weather>{_ARGS}</function>"),
    ("glm", f"<tool_call>get_weather\n{_PAIRS}"),
    ("glm", f"<tool_call>get_weather{_PAIRS}".replace("\n", "")),
    ("glm", f"<tool_calls>\n<tool_call>get_weather<tool_sep>{_PAIRS}\n</tool_calls>"),
    ("kimi-k2", f"<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{_ARGS}<|tool_call_end|>"),
    (
        "kimi-k2",
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:7 <|tool_call_argument_begin|> "
            f"{_ARGS} <|tool_call_end|><|tool_calls_section_end|>"
        ),
    ),
    (
        "kimi-k3",
        (
            '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" '
            'type="string"<|sep|>Oslo<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>3<|close|>'
            "argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"
        ),
    ),
    ("invoke", _INVOKE),
    ("invoke", _INVOKE.replace('"', "'")),
    ("invoke", _INVOKE.replace('"', "")),
    *(
        ("invoke", f"<{wrapper}>\n{_INVOKE}\n</{wrapper}>")
        for wrapper in ("function_calls", "minimax:tool_call", "tool_calls", "dots_function_call")
    ),
    ("invoke", _tags('<function name="get_weather">', '<param name="{}">', "</param>", "</function>")),
    *(
        (
            "dsml",
            f"<{bar}DSML{bar}{name}>\n"
            + _tags(
                f'<{bar}DSML{bar}invoke name="get_weather">',
                f'<{bar}DSML{bar}parameter name="{{}}">',
                f"</{bar}DSML{bar}parameter>",
                f"</{bar}DSML{bar}invoke>",
            )
            + f"\n</{bar}DSML{bar}{name}>",
        )
        for bar in ("｜", "｜｜", "‖", "|", "||")
        for name in ("function_calls", "tool_calls")
    ),
    (
        "dsml",
        (
            '<｜DSML｜ calls><｜DSML｜ invoke name="get_weather">'
            '<｜DSML｜ parameter name="city">Oslo</｜DSML｜ parameter>'
            '<｜DSML｜ parameter name="days" string="false">3</｜DSML｜ parameter></｜DSML｜ invoke></｜DSML｜ calls>'
        ),
    ),
    ("mistral", f"[TOOL_CALLS] [{_JSON}]"),
    ("mistral", f"[TOOL_CALLS]get_weather[ARGS]{_ARGS}"),
    ("mistral", f"[TOOL_CALLS]get_weather{_ARGS}"),
    (
        "deepseek",
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
            f"{_ARGS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
    ),
    ("deepseek", f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{_ARGS}<｜tool▁call▁end｜>"),
    ("gemma", '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>'),
    ("gemma", "<start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:3}<end_function_call>"),
    ("harmony", f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{_ARGS}<|call|>"),
    ("harmony", f"<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{_ARGS}"),
    (
        "minimax-m3",
        (
            f'{_M3}<tool_call>\n{_M3}<invoke name="get_weather">{_M3}<city>Oslo{_M3}</city>{_M3}<days>3{_M3}</days>'
            f"{_M3}</invoke>\n{_M3}</tool_call>"
        ),
    ),
    (
        "step3",
        (
            '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_weather">'
            '<steptml:parameter name="city">Oslo</steptml:parameter>'
            '<steptml:parameter name="days">3</steptml:parameter>'
            "</steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>"
        ),
    ),
    ("granite", f"<|tool_call|>[{_JSON}]"),
    ("granite-20b", f"<function_call> {_JSON}</function_call>"),
    ("llama", f"<|python_tag|>{_PARAMETERS}<|eom_id|>"),
    ("jamba", f"<tool_calls>[{_JSON}]</tool_calls>"),
    ("longcat", f"<longcat_tool_call>{_JSON}</longcat_tool_call>"),
    ("nemotron", f"<TOOLCALL>[{_JSON}]</TOOLCALL>"),
    ("nemotron", f"<TOOLCALL>{_JSON}</TOOLCALL>"),
    ("lm-studio", f"[TOOL_REQUEST]{_JSON}[END_TOOL_REQUEST]"),
    ("internlm", f"<|action_start|> <|plugin|>\n{_PARAMETERS}<|action_end|>"),
    (
        "command",
        f'<|START_ACTION|>[{{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {_ARGS}}}]<|END_ACTION|>',
    ),
    ("apertus", f'<|tools_prefix|>[{{"get_weather": {_ARGS}}}]<|tools_suffix|>'),
    ("inkling", f'<|content_invoke_tool_json|>{{"name": "get_weather", "args": {_ARGS}}}'),
    ("gigachat", f"<|function_call|>{_JSON}"),
    ("llama4", '<|python_start|>[get_weather(city="Oslo", days=3)]<|python_end|>'),
    ("llama4", f"<|python_start|>{_JSON}<|python_end|>"),
    ("lfm2", "<|tool_call_start|>[get_weather(city='Oslo', days=3)]<|tool_call_end|>"),
    ("lfm2", f"<|tool_call_start|>[{_JSON}]<|tool_call_end|>"),
    ("olmo3", '<function_calls>\nget_weather(city="Oslo", days=3)\n</function_calls>'),
]
# These have to be the whole content.
WHOLE: list[tuple[str, str]] = [
    ("bare-json", _JSON),
    ("bare-json", _PARAMETERS),
    ("bare-json", f"[{_JSON}]"),
    ("bare-json", f"```json\n{_JSON}\n```"),
    ("bare-json", f"```\n{_JSON}\n```\n"),
    ("bare-json", f'{{"tool_call": {_JSON}}}'),
    ("bare-json", f'{{"tool_calls": [{{"type": "function", "function": {_JSON}}}]}}'),
    ("bare-json", f"{_JSON}\n</tool_call>"),
    ("functools", f"functools[{_JSON}]"),
    ("harmony-stripped", f"commentary to=functions.get_weather json{_ARGS}"),
    ("harmony-stripped", f"assistantcommentary to=functions.get_weather json {_ARGS}"),
    ("bare-code", '[get_weather(city="Oslo", days=3)]'),
    ("bare-code", '```tool_code\nget_weather(city="Oslo", days=3)\n```'),
    ("bare-code", '```tool_code\nprint(get_weather(city="Oslo", days=3))\n```'),
    ("kimi-k2", f"get_weather:0<|tool_call_argument_begin|>{_ARGS}<|tool_call_end|>"),
]
OPT_IN: list[tuple[str, str]] = [
    ("functionary", f">>>get_weather\n{_ARGS}"),
    ("react", f"Action: get_weather\nAction Input: {_ARGS}"),
    ("calling-tool", f"[Calling tool: get_weather({_ARGS})]"),
]


class Result:
    """All that a scanner said of a text."""

    def __init__(self) -> None:
        self.text = ""
        self.reasoning = ""
        self.source = ""
        self.residue = ""
        self.calls: list[LeakedCall] = []
        self.refusals: list[Refusal] = []
        self.most_held = 0

    def said(self) -> tuple[object, ...]:
        refusals = sorted((one.format, one.rule.value) for one in self.refusals)
        return self.text, self.reasoning, self.source, self.residue, self.calls, refusals


def scan(
    pieces: list[str],
    *,
    names: tuple[str, ...] = AUTO,
    channel: str = "content",
    declared: tuple[str, ...] = tuple(SCHEMAS),
    messages: tuple[str, ...] = (),
    whole: bool = True,
    structured: bool = False,
    hold_limit: int = 1 << 20,
) -> Result:
    result = Result()
    scanner = Scanner(
        declared,
        SCHEMAS,
        chosen(names),
        channel="reasoning" if channel == "reasoning" else "content",
        quoted=lambda text: any(text in message for message in messages),
        hold_limit=hold_limit,
    )
    scanner.structured = structured
    for piece in [*pieces, None]:
        scanned = scanner.close(whole=whole) if piece is None else scanner.feed(piece)
        result.text += scanned.text
        result.reasoning += scanned.reasoning
        result.source += scanned.source
        result.residue += scanned.residue
        result.calls += scanned.calls
        result.refusals += scanned.refusals
        result.most_held = max(result.most_held, scanner.held)
    assert scanner.held == 0
    return result


def every_format() -> set[str]:
    return {one.name for one in FORMATS}


# --- texts without a call ----------------------------------------------------------------------------------------


def wrapped(sample: str) -> Iterator[str]:
    """A documented call, as people and models show one."""
    line = sample.replace("\n", " ")
    undeclared = sample.replace("get_weather", "get_tides")
    yield f"The format looks like this:\n\n```\n{sample}\n```\n\nOne block for each call."
    yield f"Example:\n~~~xml\n{sample}\n~~~\nThat is all."
    yield f"1. Write the block:\n\n   ```xml\n   {sample}\n   ```\n2. Wait for the result."
    yield f"Use `{line}` for that."
    yield f'The log said "{sample}" and nothing else.'
    yield f"It printed “{sample}” once."
    yield "You wrote:\n" + "".join(f"> {part}\n" for part in sample.split("\n")) + "What did you mean?"
    yield f"An undeclared one: {undeclared} stays as it is."
    half = sample[: len(sample) * 2 // 3]
    yield f"It was cut here: {half}"
    yield f"{undeclared}\n{undeclared}\n"


ORDINARY = [
    "Oslo will be cold for three days. Take a coat, and call me when you arrive.",
    "You can call get_weather with a city, e.g. get_weather(city='Oslo'), and it returns the forecast.",
    "I have three tools: get_weather, write_file and now. Which one shall I use?",
    "The function get_weather takes two parameters: city (a string) and days (an integer).",
    "Now is the time. now() returns the current time; write_file writes a file.",
    "now",
    "get_weather",
    "get_weather: the tool for forecasts",
    "functools is a module of Python; functools.partial and functools[0] are not the same.",
    "commentary to the text: none. analysis: the numbers fall.",
    "assistant: I am here to help. final answer: 42",
    "a < b and c > d, so a <b> c is no tag, and x <- y is R.",
    "if (a < b) { return [1, 2, 3]; } else { return {}; }",
    "Use <b>bold</b> and <i>italic</i> in HTML; <tool> and <function> are no elements.",
    "List<String> names = new ArrayList<>(); Map<String, List<Integer>> map = null;",
    "std::vector<std::function<void(int)>> callbacks; template <typename T> struct f {};",
    "The operator you want is <tool",
    "The matrix [1, 2, 3] has a row [TOOL, CALL] and a footnote [1].",
    "See [the manual](https://example.org/manual) and [TOOLS.md](TOOLS.md).",
    "- [ ] write tests\n- [x] read the paper\n- [ ] call the bank",
    "Q: What is 2 < 3?\nA: true\n\nQ: and 3 < 2?\nA: false",
    'He said "use the tool", and she said \'no\', and that was "it".',
    "Temperatures: Oslo <0, Bergen <5, Tromso <-10.",
    "Mail from <someone@example.org> to <list@example.org>: Re: <no subject>",
    (
        "2026-01-02T10:00:00Z INFO call started id=7 tool=get_weather args=[redacted]\n"
        "2026-01-02T10:00:01Z INFO call finished id=7 status=ok"
    ),
    "Traceback (most recent call last):\n  File \"<stdin>\", line 1, in <module>\nNameError: name 'now' is not defined",
    '<html>\n<head><title>x</title></head>\n<body class="a"><p>Hello</p><!-- tool --></body>\n</html>',
    '<?xml version="1.0"?>\n<project><dependencies><dependency><name>x</name></dependency></dependencies></project>',
    "<invoice><name>ACME</name><parameters><city>Oslo</city></parameters></invoice>",
    "<function>f(x) = x^2</function> is no tag of HTML.",
    "<parameter> and </parameter> stand around a value.",
    '{"city": "Oslo", "temperature": -3, "unit": "C"}',
    '{"name": "Oslo", "population": 700000}',
    '{"name": "get_weather", "description": "Forecast", "version": 2}',
    '[{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}]',
    "[1, 2, 3]",
    '["get_weather", "now"]',
    '{"result": {"name": "get_weather", "arguments": {"city": "Oslo"}}}',
    '```json\n{"city": "Oslo", "days": 3}\n```',
    '```json\n[{"name": "Ada"}]\n```\nThat is the list.',
    "```python\nprint(get_weather(city='Oslo'))\n```",
    "```\nnow\n```",
    "[get_tides(city='Oslo')] is what I would call.",
    "[see below] The forecast is fine.",
    "Action: none. Thought: I know the answer.",
    "Step 1: think.\nStep 2: act.\nStep 3: observe.",
    "| tool | what |\n|---|---|\n| get_weather | forecast |\n| now | time |",
    "The tokens <|im_start|> and <|im_end|> mark a turn; <|endoftext|> ends the text; <s> and </s> too.",
    "Ich rufe das Werkzeug auf: « get_weather ». Danach „fertig“.",
    "ツールを呼び出します。天気は晴れです。",
    "🙂 <3 you, and <3 the weather in Oslo 🙂",
    "Escape it as &lt;tool_call&gt; in HTML, or as \\<tool_call\\> in Markdown.",
    "x = {'name': 'get_weather', 'arguments': {'city': 'Oslo'}} is a dict.",
    'curl -d \'{"name": "get_weather", "arguments": {"city": "Oslo"}}\' http://127.0.0.1/run',
    'The request body is {"name": "get_weather", "arguments": {"city": "Oslo"}} and you POST it to /run.',
    "Dear all,\n\n    indented text\n\nand a    gap.\n\n\n\nBye",
    "A\n\n---\n\nB\n***\nC\n\n# D\n## E <f>\n",
    "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a < b\n+a > b\n",
    "SELECT name, arguments FROM calls WHERE id < 7 AND name = 'get_weather';",
    "f(x) := [x < 0] * -x + [x >= 0] * x",
]
MENTIONS = [
    "I open with `{}` and close it later.",
    "Some models write {} before a call, others do not.",
    "What does {} mean? It is a marker.",
    "{} is a token.",
    'The text "{}" is not special.',
]

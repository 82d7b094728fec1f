"""What fuzzing found, made small: each of these inputs once broke a property of its target."""

from __future__ import annotations

import gzip

import pytest

from fuzz.targets import TARGETS

MESSAGES = b'{"client": "anthropic-messages"}\n'
DOCUMENT = b'{"client": "anthropic-messages", "stream": false}\n'
TEXT = (
    b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
    b'data: {"type":"content_block_delta","index":0'
)
RESPONSES = b'{"client": "openai-responses"}\n'
PLAIN = b'{"stream": false, "annotations": "never"}\n'
CHAT = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"Hi"},"finish_reason":"stop"}],"usage":null}'
)
EVENT = (
    b'data: {"id":"c", "object":"chat.completion.chunk","created":%b,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
)
TOOLS = b'{"request": {"tools": [{"type": "function", "function": {"name": "f"}}]}}\n'
PLAIN_MESSAGES = b'{"client": "anthropic-messages", "stream": false, "annotations": "problems"}\n'
MESSAGE = (
    b'{"id":"m","type":"message","role":"assistant","model":"m","content":[{"type":"thinking","thinking":"H"},'
    b'{"type":"text","text":"Hi"}],"stop_reason":"end_turn","stop_sequence":null,'
    b'"usage":{"input_tokens":1,"output_tokens":1}}'
)
PLAIN_RESPONSES = b'{"client": "openai-responses", "stream": false, "annotations": "problems"}\n'
RESPONSE = (
    b'{"id":"r","object":"response","created_at":1,"model":"m","status":"completed","output":[{"type":"reasoning",'
    b'"summary":[{"type":"summary_text","text":"H"}]},{"type":"message","role":"assistant",'
    b'"content":[{"type":"output_text","text":"Hi"}]}],"usage":null}'
)
SMALL = b'{"small": true, "cut": "byte"}\n'
WHOLE = b'{"cut": "byte"}\n'
HELD = (
    b'{"small": true, "repeat": [0, 2000], "request": {"tools": [{"type": "function", "function": {"name": "f"}}]}}\n'
)
GOOD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
A = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
FINDINGS = [
    # a reader that let an exception out
    ("what follows a document is not part of it", "openai-chat", b"{}\n[{}]:0000000000000000000"),
    ("a reply in a list keeps its long integers", "openai-chat", b'{}\n[{"choices":[{"":9223372036854775808}]}]'),
    (
        "a time of creation that is no number",
        "openai-chat",
        b'{}\ndata:{"created":NaN,"choices":[],"id":"c","model":""}',
    ),
    (
        "a thousand levels of brackets",
        "openai-chat",
        b'{}\ndata: {"choices":[{"delta":{"content":"a","x":' + b"[" * 1_000 + b"]" * 1_000 + b"}}]}\n\n",
    ),
    (
        "white space that goes over its limit while a failed reply lets go of it",
        "anthropic-messages",
        HELD + b'data:{"delta":{"text":"    "}}\n\n',
    ),
    # text that nobody said
    (
        "a line behind the end of a reply that came at once",
        "ollama-chat",
        b'{"stream": false}\n{"message":{"content":""},"done":true}\n{"message":{"content":"\\ud83d"},"done":false}',
    ),
    # a success that nothing confirms
    (
        "a message with nothing in it",
        "anthropic-messages",
        b'{}\ndata:{"delta":{"thinking":"H"}}\n\ndata:{"type":"message"}\n\n',
    ),
    ("a message of one text", "anthropic-messages", b'{}\ndata:{"type":"message","content":"T"}'),
    # an exception
    (
        "a call is required, and a second choice came alone",
        "gemini",
        (
            b'{"request": {"n": 2, "tool_choice": {"type": "function", "function": {"name": "f"}}}}\n'
            b'{"candidates":[{"index":1}]}'
        ),
    ),
    # another cut, another answer
    (
        "[DONE] in the midst of an array, and more behind it",
        "gemini",
        b'{}\n[{"candidates":[{"content":{"parts":[{"text":"i "}],"role":"model"},"index":0}]},\r\n[DONE]{}],rts": [{',
    ),
    # an answer that a strict client cannot read
    (
        "a final delta that has a type, a content and a role of its own",
        "anthropic-messages",
        (
            b'{"client": "anthropic-messages", "stream": false}\n'
            b'{"delta":{"stop_reason":"t","type":"","content":[],"role":"user","id":1}}'
        ),
    ),
    (
        "an event without its type",
        "anthropic-messages",
        MESSAGES + b'data:{"index":0,"delta":{"type":"text_delta","text":"W"}}',
    ),
    (
        "an event whose type is a list",
        "anthropic-messages",
        MESSAGES + b'data:{"type":[],"index":0,"delta":{"type":"text_delta","text":"W"}}',
    ),
    (
        "an index that is true",
        "anthropic-messages",
        MESSAGES
        + b'data:{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"a"}}\n\n'
        + b'data:{"type":"content_block_start","index":1,"content_block":{"type":"text","text":"b"}}\n\n'
        + b'data:{"type":"content_block_delta","index":true,"delta":{"type":"text_delta","text":"c"}}\n\n',
    ),
    (
        "the input of a block of the upstream's own, as a value",
        "anthropic-messages",
        MESSAGES + b'{"content_block":{"type":"x"}}{"delta":{"partial_json":{}}}data:{"type":"content_block_stop"}\n\n',
    ),
    ("fields beside white space", "anthropic-messages", MESSAGES + b'{"delta":{"text":"\\n","":3}}'),
    ("an error whose message is no text", "anthropic-messages", MESSAGES + b'data:{"error":{"message":[[]]}}'),
    ("an error of white space", "anthropic-messages", MESSAGES + b'{"error":" "}'),
    ("an error of markup alone", "ollama-chat", b'{}\n{"error":"<"}'),
    (
        "an incomplete reply without its reason",
        "openai-responses",
        RESPONSES + b'event:response.incomplete\ndata:{"response":{"incomplete_details":{"":""}}}',
    ),
    (
        "a document that is no reply, where nothing is to be changed",
        "openai-responses",
        b'{"client": "openai-responses", "stream": false, "annotations": "problems"}\n{"type":"response.incomplete"}',
    ),
    *(
        (
            f"{what} of parts beside text",
            "anthropic-messages",
            TOOLS + b'data: {"delta":{"text":"r","content":%b}}' % parts,
        )
        for what, parts in (("a list", b'[""]'), ("two", b'["", ""]'), ("objects", b"[{}, {}]"))
    ),
    *(
        (
            f"{what}, {name}",
            "anthropic-messages",
            head + block + b',"delta":' + delta + b'}\n\ndata: {"type":"message_stop"}\n\n',
        )
        for name, head in (("stream", MESSAGES), ("document", DOCUMENT))
        for what, block, delta in (
            ("a delta whose type is empty", TEXT, b'{"type":""}'),
            ("a delta of another kind that says nothing", TEXT, b'{"type":"x","text":""}'),
            ("a delta of another kind whose text is a number", TEXT, b'{"type":"x","text":5}'),
        )
    ),
    ("a signature that is none", "anthropic-messages", MESSAGES + b'{"delta":{"type":"signature_delta"}}'),
    ("half a character as a thought", "anthropic-messages", MESSAGES + b'data:{"delta":{"thinking":"\xed\xa0\xbd"}}'),
    (
        "a byte that is no UTF-8",
        "anthropic-messages",
        MESSAGES
        + b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
        + b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\xc3"}}\n\n',
    ),
    (
        "half a character as bytes, where nothing is to be changed",
        "openai-chat",
        PLAIN
        + b'{"id":"c","object":"chat.completion","created":1,"model":"m",'
        + b'"choices":[{"index":0,"message":{"role":"assistant","content":"a \xed\xa0\xbd"},"finish_reason":"stop"}]}',
    ),
    (
        "a head of odd types, where nothing is to be changed",
        "openai-chat",
        PLAIN
        + b'{"id":"c","object":"","created":1.5,"model":"m",'
        + b'"choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}]}',
    ),
    *(
        (
            f"{field} that is {kind}",
            "openai-chat",
            b'{"stream": false}\n{"choices":[{"message":{"%b":%b},"finish_reason":"stop"}]}' % (field.encode(), value),
        )
        for field in ("reasoning_content", "reasoning", "refusal")
        for kind, value in (("a number", b"1"), ("an object", b'{"text":"a"}'), ("a list", b"[[]]"))
    ),
    *(
        (f"a reply with {what}, where nothing is to be changed", "openai-chat", PLAIN + reply)
        for what, reply in (
            ("a number as reasoning", CHAT.replace(b'"Hi"', b'"Hi","reasoning":1')),
            ("content that is no number of JSON", CHAT.replace(b'"Hi"', b"NaN")),
            ("an index that is a fraction", CHAT.replace(b'"index":0', b'"index":-0.0')),
            ("no index", CHAT.replace(b"index", b"x")),
            ("half a character as an escape", CHAT.replace(b"null", b'"\\ud83d"')),
        )
    ),
    ("a time of creation with a fraction or an exponent", "openai-chat", b"{}\n" + EVENT % (b"1e38", b"t") * 3),
    (
        "a part without a type",
        "openai-responses",
        RESPONSES + b'{"output":[{"type":"message","content":[{}]},{"type":"reasoning","content":[{"type":""}]}]}',
    ),
    (
        "texts where lists belong",
        "openai-responses",
        RESPONSES
        + b'event:response.output_item.added\ndata:{"item":{"type":"reasoning","content":"","summary":"x"}}\n\n'
        + b'event:response.completed\ndata:{"response":{"output":[{"type":"reasoning","summary":"x","content":'
        + b'[{"type":"reasoning_text","text":"a"}]}]}}\n\n',
    ),
    (
        "an incomplete reply whose reason is empty",
        "openai-responses",
        RESPONSES + b'event:response.incomplete\ndata:{"response":{"incomplete_details":{"reason":""}}}',
    ),
    *(
        (f"a message with {what}, where nothing is to be changed", "anthropic-messages", PLAIN_MESSAGES + message)
        for what, message in (
            ("another role", MESSAGE.replace(b"assistant", b"user")),
            ("no role", MESSAGE.replace(b"role", b"rule")),
            ("no stop sequence", MESSAGE.replace(b"stop_sequence", b"x")),
            ("usage without counts", MESSAGE.replace(b"_tokens", b"")),
            ("usage that is a number", MESSAGE.replace(b"}}", b"}").replace(b'{"input_tokens":', b'1,"x":')),
            ("content that is a number", MESSAGE.replace(b"[", b'1,"x":[')),
            ("a text that is a number", MESSAGE.replace(b'"Hi"', b"1")),
            ("an empty text", MESSAGE.replace(b"Hi", b"")),
            ("a thought that is a list", MESSAGE.replace(b'"H"', b"[]")),
            ("a thought without its text", MESSAGE.replace(b',"thinking"', b',"x"')),
        )
    ),
    *(
        (f"a response with {what}, where nothing is to be changed", "openai-responses", PLAIN_RESPONSES + response)
        for what, response in (
            ("a part that is a list", RESPONSE.replace(b'{"type":"output_text","text":"Hi"}', b"[]")),
            ("a text that is a number", RESPONSE.replace(b'"Hi"', b"1")),
            ("content that is a number", RESPONSE.replace(b'"content":[', b'"content":1,"x":[')),
            ("no content", RESPONSE.replace(b"content", b"x")),
            ("a summary without its text", RESPONSE.replace(b',"text":"H"', b"")),
            ("no usage", RESPONSE.replace(b"usage", b"x")),
            ("another status", RESPONSE.replace(b"completed", b"incomplete")),
        )
    ),
    (
        "half a character before a reset",
        "gemini",
        b'{"end": "reset"}\ndata:{"candidates":[{"index":0,"content":{"parts":[{"text":"o\\ud83d"}]}}]}\n\n',
    ),
    (
        "text behind a call that was begun and is cut",
        "openai-chat",
        (
            b'{"client": "anthropic-messages", "delivery": "live", '
            b'"request": {"tools": [{"type": "function", "function": {"name": "f"}}]}}\n'
            b'data:{"choices":[{"index":0,"delta":{"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{"}}]'
            b'}}]}\n\ndata:{"choices":[{"index":0,"delta":{"content":"H"}}]}\n\n'
        ),
    ),
    # an answer that depends on how the network cut the reply
    (
        "a piece that says nothing before a broken event",
        "anthropic-messages",
        b'{"client": "openai-responses", "cut": "whole"}\ndata:{"delta":{"type":"signature_delta"}}\n\ndata:}\n\n',
    ),
    (
        "text that looks like a call's key and ends in white space, in a flow or not",
        "openai-chat",
        b'{"cut": "byte"}\n' + EVENT % (b"1", b"t") * 3 + EVENT % (b"1", b"_call "),
    ),
    ("lines behind the end", "openai-chat", WHOLE + b'data: [DONE]\n\n{"error": 1}\n\n'),
    (
        "lines behind the end of a good reply",
        "openai-chat",
        WHOLE
        + b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
        + b'data: [DONE]\n\nerror: {"a"\n{\n\n',
    ),
    *(
        (f"text before {what}", "openai-chat", SMALL + A + rest)
        for what, rest in (
            ("an event beyond its limit", b"data: " + b" " * 2_100 + b"\n\n"),
            ("an event beyond its limit that does not end", b"data: " + b" " * 2_100),
            ("a reply beyond its limit", b": x\n\n" * 12_000),
        )
    ),
    ("more than is held in the first read", "openai-chat", SMALL + A * 90),
    (
        "an error whose compressed body breaks after some members",
        "openai-chat",
        b'{"status": 500, "encoding": "gzip, as said", "cut": "byte"}\n'
        + gzip.compress(b"no", mtime=0) * 3
        + b"\x1f\x8b\7",
    ),
    *(
        (
            f"text before a break in its compressed body, as {dialect}",
            dialect,
            b'{"encoding": "gzip, as said", "cut": "byte"}\n' + gzip.compress(A * 4, mtime=0)[:-8] + b"\7" * 8,
        )
        for dialect in ("openai-chat", "anthropic-messages")
    ),
    (
        "one document over several lines, the first of which looks like one of a stream",
        "ollama-chat",
        b'{}\n{"model": "",\n "message": {"role": 0, "content": "<|DSML|function_calls>"}}',
    ),
    (
        "a first text that was held, in another envelope and without a role",
        "openai-chat",
        TOOLS + (EVENT % (b"1", b"</fun")).replace(b'"model":"m"', b'"model":""') * 3,
    ),
    ("an event of just its limit", "framing", b"sse 8\ndata: xx\n\n"),
    ("an element behind white space", "framing", b"array 3\n[    1,2]"),
    ("a document over several lines whose second is long", "framing", b"body-lines 12\n{\n" + b" " * 12 + b'"a": 1}'),
    ("what stands behind an array", "framing", b"array 60\n[<html><}bodstream k(i"),
    (
        "a broken request behind a good one",
        "http",
        GOOD + b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
    ),
    ("a name that is whole at once and undeclared", "markup", b'\n<|tools_prefix|>{"O"'),
    (
        "calls of a history with arguments of so many levels",
        "requests",
        b'openai-chat\n{"model":"m","messages":[{"role":"assistant","tool_calls":[%b]}]}'
        % b",".join(
            b'{"id":"%d","type":"function","function":{"name":"f","arguments":"{\\"a\\":%b%b}"}}'
            % (levels, b"[" * levels, b"]" * levels)
            for levels in (200, 238, 239, 240, 241, 253, 300, 1_100)
        ),
    ),
    (
        "an input that is the text of too many levels",
        "requests",
        b'anthropic-messages\n{"model":"m","max_tokens":5,"messages":[{"role":"assistant","content":['
        b'{"type":"tool_use","id":"a","name":"f","input":"{\\"a\\":%b%b}"}]}]}' % (b"[" * 260, b"]" * 260),
    ),
    *(
        (
            f"a custom tool whose format is {form.decode()}",
            "requests",
            b'openai-responses\n{"model":"m","input":"x","tools":[{"type":"custom","name":"c","format":%b}]}' % form,
        )
        for form in (b'"text"', b"[1]", b"5", b"true")
    ),
    (
        "the model is asked again for arguments of too many levels",
        "anthropic-messages",
        b'{"reask": 1, "request": {"tools": [{"type": "function", "function": {"name": "f"}}]}}\n'
        b'data: {"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"f",'
        b'"input":{}}}\n\n'
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta",'
        b'"partial_json":"{\\"a\\":%b%b}"}}\n\n'
        b'data: {"type":"content_block_stop","index":0}\n\n'
        b'data: {"type":"message_delta","delta":{"stop_reason":"tool_use"}}\n\n'
        b'data: {"type":"message_stop"}\n\n' % (b"[" * 300, b"]" * 300),
    ),
    ("a name with a blank behind it", "markup", b'\n<tool_call>{"name": "now ", "arguments": {}}</tool_call>'),
]


@pytest.mark.parametrize(("target", "data"), [pytest.param(t, d, id=f"{t}: {name}") for name, t, d in FINDINGS])
def test_what_fuzzing_found_holds(target: str, data: bytes) -> None:
    TARGETS[target].check(data)

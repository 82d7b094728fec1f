"""Quirks: departures from a clean stream that a rule mends. Each has one row: code, meaning, evidence.

A quirk is counted per backend (`wholecall_quirks_total`) and listed in the reply's report. It is a value and never
raises. `evidence` names the backends on which the shape was seen in public reports, or the rule that asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class QuirkRow:
    meaning: str
    evidence: str


class Quirk(StrEnum):
    """The names are what reports, metrics and `wholecall explain` use."""

    # framing of the body
    BOM = "bom"
    EVENT_UNTERMINATED = "event_unterminated"
    EVENTS_GLUED = "events_glued"
    DONE_PADDED = "done_padded"
    ERROR_FIELD = "error_field"
    EMPTY_EVENT = "empty_event"
    FOREIGN_EVENT = "foreign_event"
    INVALID_UTF8 = "invalid_utf8"
    SURROGATES_SPLIT = "surrogates_split"
    JSON_FOR_STREAM = "json_for_stream"
    STREAM_FOR_JSON = "stream_for_json"
    # the envelope
    ENVELOPE_CHANGED = "envelope_changed"
    ROLE_MISSING = "role_missing"
    ROLE_REPEATED = "role_repeated"
    CHOICE_INDEX_IGNORED = "choice_index_ignored"
    TYPE_MISSING = "type_missing"
    MESSAGE_FOR_DELTA = "message_for_delta"
    MESSAGE_BESIDE_DELTA = "message_beside_delta"
    CONTENT_PARTS = "content_parts"
    PART_NOT_CARRIED = "part_not_carried"
    CONTENT_REPEATED = "content_repeated"
    BLANK_TEXT_DROPPED = "blank_text_dropped"
    USAGE_MISPLACED = "usage_misplaced"
    USAGE_REPEATED = "usage_repeated"
    # the end
    FINISH_MISSING = "finish_missing"
    FINISH_REPEATED = "finish_repeated"
    FINISH_WORD = "finish_word"
    FINISH_WRONG = "finish_wrong"
    DONE_MISSING = "done_missing"
    FRAGMENT_AFTER_FINISH = "fragment_after_finish"
    RESET_AFTER_END = "reset_after_end"
    # which call a delta belongs to
    INDEX_MISSING = "index_missing"
    INDEX_UNUSABLE = "index_unusable"
    INDEX_REUSED = "index_reused"
    INDEX_SHIFTED = "index_shifted"
    INDEX_GAP = "index_gap"
    CALL_REPEATED = "call_repeated"
    PHANTOM_CALL = "phantom_call"
    NULL_PADDING = "null_padding"
    FUNCTION_MISSING = "function_missing"
    TOOL_CALLS_OBJECT = "tool_calls_object"
    FIELDS_IN_FUNCTION = "fields_in_function"
    LEGACY_FUNCTION_CALL = "legacy_function_call"
    FUNCTION_CALL_ECHO = "function_call_echo"
    # identity
    ID_MISSING = "id_missing"
    ID_LATE = "id_late"
    ID_REPEATED = "id_repeated"
    ID_CHANGED = "id_changed"
    ID_DUPLICATE = "id_duplicate"
    ID_NUMBER = "id_number"
    ITEM_ID_CHANGED = "item_id_changed"
    ITEM_UNANNOUNCED = "item_unannounced"
    NAME_REPEATED = "name_repeated"
    NAME_LATE = "name_late"
    NAME_SPLIT = "name_split"
    NAME_TRIMMED = "name_trimmed"
    NAME_PREFIXED = "name_prefixed"
    NAME_MISSING = "name_missing"
    # arguments
    FINAL_TEXT_DIFFERS = "final_text_differs"
    ARGS_EMPTY = "args_empty"
    ARGS_NULL = "args_null"
    ARGS_OBJECT = "args_object"
    ARGS_MERGED = "args_merged"
    ARGS_LEADING_EMPTY = "args_leading_empty"
    ARGS_CUMULATIVE = "args_cumulative"
    ARGS_REPEATED = "args_repeated"
    ARGS_CONTROL_TAIL = "args_control_tail"
    ARGS_DOUBLE_ENCODED = "args_double_encoded"
    BIG_INTEGER = "big_integer"
    REPLACEMENT_CHARACTER = "replacement_character"
    KEYS_DIFFER_IN_CASE = "keys_differ_in_case"
    PROTOTYPE_KEY = "prototype_key"
    # schemas and the request
    SCHEMA_MENDED = "schema_mended"
    SCHEMA_UNCOMPILABLE = "schema_uncompilable"
    REQUIRED_CALL_MISSING = "required_call_missing"
    TOKENS_WITHOUT_OUTPUT = "tokens_without_output"
    REASK_REPEAT = "reask_repeat"
    # calls that came as text
    LEAKED_AS_TEXT = "leaked_as_text"
    LEAKED_ECHO = "leaked_echo"
    MARKUP_RESIDUE = "markup_residue"
    FIELD_NOT_CARRIED = "field_not_carried"
    HISTORY_ARGS_WRAPPED = "history_args_wrapped"
    HISTORY_RESULT_ORPHANED = "history_result_orphaned"
    HISTORY_ID_DOUBLED = "history_id_doubled"
    HISTORY_ID_MAPPED = "history_id_mapped"


QUIRKS: dict[Quirk, QuirkRow] = {
    Quirk.BOM: QuirkRow(
        "a byte order mark before the first event was removed", "WHATWG HTML 9.2.6; seen on proxies on Windows"
    ),
    Quirk.EVENT_UNTERMINATED: QuirkRow(
        "the body ended inside an event that was complete JSON; it was counted", "llama.cpp, small relays"
    ),
    Quirk.EVENTS_GLUED: QuirkRow(
        "several JSON documents stood in one event; they were taken apart", "relays that lose the blank line"
    ),
    Quirk.DONE_PADDED: QuirkRow("[DONE] came with blanks around it", "relays that join lines"),
    Quirk.ERROR_FIELD: QuirkRow("an error came in an SSE field named error:", "older Ollama relays"),
    Quirk.EMPTY_EVENT: QuirkRow(
        "an event with nothing in it (empty, null or a colon) was dropped", "vLLM behind keep-alive relays"
    ),
    Quirk.FOREIGN_EVENT: QuirkRow(
        "an event without choices and without an error was dropped", "gateways that send pings as data"
    ),
    Quirk.INVALID_UTF8: QuirkRow(
        "bytes that are no UTF-8 were replaced by U+FFFD", "servers that cut tokens inside a character"
    ),
    Quirk.SURROGATES_SPLIT: QuirkRow(
        "the two halves of one character came in two events; they were joined", "vLLM, SGLang with byte-level tokens"
    ),
    Quirk.JSON_FOR_STREAM: QuirkRow(
        "a stream was asked for and one JSON document came; it was sent as a stream", "LM Studio, Bedrock gateways"
    ),
    Quirk.STREAM_FOR_JSON: QuirkRow(
        "JSON was asked for and events came; they were put together", "relays that always stream"
    ),
    Quirk.ENVELOPE_CHANGED: QuirkRow(
        "id, created or model changed within the reply; the first ones were kept", "LiteLLM, Azure, GitHub Copilot"
    ),
    Quirk.ROLE_MISSING: QuirkRow("no delta named the role; it was added", "Ollama, TGI"),
    Quirk.ROLE_REPEATED: QuirkRow("the role came again and was dropped", "vLLM, OpenRouter"),
    Quirk.CHOICE_INDEX_IGNORED: QuirkRow(
        "a choice index other than 0 came though one choice was asked for", "relays that count choices over requests"
    ),
    Quirk.TYPE_MISSING: QuirkRow(
        "an event, block, delta, item or field had no type, or another word than the format has; what came with it "
        "told what it is",
        "relays that translate from another dialect",
    ),
    Quirk.MESSAGE_FOR_DELTA: QuirkRow("message stood in place of delta and was read as one", "MLX, older relays"),
    Quirk.MESSAGE_BESIDE_DELTA: QuirkRow("message stood beside delta and was dropped", "Perplexity"),
    Quirk.CONTENT_PARTS: QuirkRow(
        "content was a list of parts; text became content, thinking became reasoning", "Mistral Magistral"
    ),
    Quirk.PART_NOT_CARRIED: QuirkRow(
        "a part of the reply other than text, reasoning and calls has no place in the client's dialect; it was dropped",
        "Gemini (images, code that the backend ran itself)",
    ),
    Quirk.CONTENT_REPEATED: QuirkRow(
        "the whole content came again with the call and was dropped", "relays that flush the message at the end"
    ),
    Quirk.BLANK_TEXT_DROPPED: QuirkRow(
        "white space was the only text before a call; it was dropped",
        "Qwen templates; pydantic-ai takes it for the answer",
    ),
    Quirk.USAGE_MISPLACED: QuirkRow(
        "usage stood on a chunk with choices or inside a choice; it was moved to its own chunk",
        "Moonshot, Groq, vLLM continuous usage",
    ),
    Quirk.USAGE_REPEATED: QuirkRow("usage came more than once; the last one was kept", "LangChain adds them up"),
    Quirk.FINISH_MISSING: QuirkRow("the reply ended with [DONE] but without a finish_reason", "llama.cpp, Copilot"),
    Quirk.FINISH_REPEATED: QuirkRow(
        "finish_reason came more than once for a choice", "OpenRouter, Gemini's chat endpoint"
    ),
    Quirk.FINISH_WORD: QuirkRow(
        "finish_reason was a word that the dialect does not have; it was translated", "eos, tool_use, max_tokens"
    ),
    Quirk.FINISH_WRONG: QuirkRow(
        "finish_reason said tool_calls without a call, or something else with one", "Ollama, DeepSeek relays, SGLang"
    ),
    Quirk.DONE_MISSING: QuirkRow(
        "the body ended, or fell silent, after finish_reason without [DONE]", "Ollama relays, MiniMax"
    ),
    Quirk.FRAGMENT_AFTER_FINISH: QuirkRow(
        "fragments of a call came after finish_reason; they were counted", "vLLM, GitHub Copilot"
    ),
    Quirk.RESET_AFTER_END: QuirkRow(
        "the connection broke after the reply had ended", "servers that reset after the last chunk"
    ),
    Quirk.INDEX_MISSING: QuirkRow("a tool_calls entry had no index", "Gemini's chat endpoint, Ollama"),
    Quirk.INDEX_UNUSABLE: QuirkRow("an index was negative, a boolean or no integer", "vLLM pythonic parsers (-1)"),
    Quirk.INDEX_REUSED: QuirkRow("a second call came on an index that was taken", "SGLang, vLLM, Azure Foundry"),
    Quirk.INDEX_SHIFTED: QuirkRow(
        "fragments came on an index that no head had opened; they went to the call in progress", "vLLM Hermes parser"
    ),
    Quirk.INDEX_GAP: QuirkRow(
        "indexes did not count 0, 1, 2 in the order of opening; they were numbered anew",
        "Anthropic adapters that copy block indexes",
    ),
    Quirk.CALL_REPEATED: QuirkRow(
        "the same call came again as a whole and was dropped", "llama-cpp-python, OpenRouter"
    ),
    Quirk.PHANTOM_CALL: QuirkRow(
        "an entry without id, name and arguments opened nothing", "LM Studio, Qwen on DashScope"
    ),
    Quirk.NULL_PADDING: QuirkRow(
        "null or empty fields padded a fragment of a call; they count as absent", "SGLang, llama-cpp-python"
    ),
    Quirk.FUNCTION_MISSING: QuirkRow("an entry had no function object", "relays"),
    Quirk.TOOL_CALLS_OBJECT: QuirkRow("tool_calls was an object in place of a list", "TGI"),
    Quirk.FIELDS_IN_FUNCTION: QuirkRow("id or index sat inside function", "Ollama's native index"),
    Quirk.LEGACY_FUNCTION_CALL: QuirkRow(
        "the old function_call form was read as an ordinary call", "older Azure deployments"
    ),
    Quirk.FUNCTION_CALL_ECHO: QuirkRow(
        "function_call repeated what tool_calls said; it was dropped", "llama-cpp-python"
    ),
    Quirk.ID_MISSING: QuirkRow("a call had no id; one was made", "Ollama, Gemini, TGI"),
    Quirk.ID_LATE: QuirkRow("the id came after the call had begun", "vLLM, MiniMax"),
    Quirk.ID_REPEATED: QuirkRow("the id came again with later fragments", "llama-cpp-python, SGLang"),
    Quirk.ID_CHANGED: QuirkRow(
        "a call's fragments carried another id; the first one was kept", "vLLM before 0.9, relays"
    ),
    Quirk.ID_DUPLICATE: QuirkRow(
        "the id was already used in this reply or in the request; a new one was made", "Kimi, Cohere, DeepSeek relays"
    ),
    Quirk.ID_NUMBER: QuirkRow("the id was a number; its decimal text was used", "SGLang, small relays"),
    Quirk.ITEM_ID_CHANGED: QuirkRow(
        "the id of an output item changed within the reply; the first one was kept",
        "GitHub Copilot's Responses endpoint",
    ),
    Quirk.ITEM_UNANNOUNCED: QuirkRow(
        "content of an output item came before the item was announced", "Responses-compatible servers, Azure"
    ),
    Quirk.NAME_REPEATED: QuirkRow("the name came again with later fragments", "llama.cpp, Databricks"),
    Quirk.NAME_LATE: QuirkRow("the name came after arguments", "vLLM required-tool mode"),
    Quirk.NAME_SPLIT: QuirkRow("the name came in pieces; they were joined", "Mistral relays, vLLM"),
    Quirk.NAME_TRIMMED: QuirkRow(
        "blanks around the name, or a control token behind it, were removed", "gpt-oss (Harmony), mlx-lm"
    ),
    Quirk.NAME_PREFIXED: QuirkRow(
        "a namespace before the declared name was removed", "Kimi (functions.), Gemini (default_api.)"
    ),
    Quirk.NAME_MISSING: QuirkRow("a call had no name", "TGI with a forced tool"),
    Quirk.FINAL_TEXT_DIFFERS: QuirkRow(
        "deltas of an item were missing, or not its final text; final arguments were taken, missing text was added",
        "GitHub Copilot (ciphertext in deltas), Codex models, Kimi",
    ),
    Quirk.ARGS_EMPTY: QuirkRow("empty arguments were taken as {}", "most backends for tools without parameters"),
    Quirk.ARGS_NULL: QuirkRow("null arguments were taken as {}", "SGLang, vLLM"),
    Quirk.ARGS_OBJECT: QuirkRow(
        "arguments were a JSON value in place of text; its own characters were used", "Ollama, llama.cpp"
    ),
    Quirk.ARGS_MERGED: QuirkRow(
        "several argument objects came for one call; later keys won", "backends that send snapshots of the arguments"
    ),
    Quirk.ARGS_LEADING_EMPTY: QuirkRow(
        "a {} before the arguments was removed", "Anthropic adapters (input {} at the start)"
    ),
    Quirk.ARGS_CUMULATIVE: QuirkRow(
        "each fragment repeated all arguments so far; the last one was taken", "DashScope, GLM relays"
    ),
    Quirk.ARGS_REPEATED: QuirkRow(
        "the same arguments came more than once; they were taken once", "vLLM end-of-stream flush"
    ),
    Quirk.ARGS_CONTROL_TAIL: QuirkRow(
        "control tokens behind the arguments were removed", "Hermes and ChatML templates"
    ),
    Quirk.ARGS_DOUBLE_ENCODED: QuirkRow(
        "the arguments were a JSON string that held the object; it was unwrapped once", "GLM, Qwen relays"
    ),
    Quirk.BIG_INTEGER: QuirkRow(
        "an integer has more digits than a JavaScript number keeps", "snowflake ids; JSON.parse rounds them"
    ),
    Quirk.REPLACEMENT_CHARACTER: QuirkRow(
        "U+FFFD stood in the arguments: text was lost before it came here", "byte-level detokenizers"
    ),
    Quirk.KEYS_DIFFER_IN_CASE: QuirkRow(
        "two keys of one object differ in letter case only", "Go and .NET decoders match keys by any case"
    ),
    Quirk.PROTOTYPE_KEY: QuirkRow(
        "an undeclared key __proto__, constructor or prototype", "JavaScript merges and lookups are polluted by them"
    ),
    Quirk.SCHEMA_MENDED: QuirkRow(
        "a harmless deviation in the tool's schema was mended before use", "Gemini type names, OpenAPI forms"
    ),
    Quirk.SCHEMA_UNCOMPILABLE: QuirkRow(
        "the tool's schema does not compile; only JSON was checked", "policy.uncompilable_schema = skip"
    ),
    Quirk.REQUIRED_CALL_MISSING: QuirkRow(
        "tool_choice asked for a call and none came", "backends without tool_choice, Ollama among them"
    ),
    Quirk.LEAKED_AS_TEXT: QuirkRow(
        "the call was written in the text, in the model's own markup", "vLLM, SGLang, Ollama, aggregators"
    ),
    Quirk.LEAKED_ECHO: QuirkRow(
        "the text repeated a call that also came structured; it was removed", "gpt-oss (livekit/agents-js#1632)"
    ),
    Quirk.MARKUP_RESIDUE: QuirkRow(
        "remains of call markup beside a structured call were removed", "Bedrock (DeepSeek), Qwen3-Coder"
    ),
    Quirk.TOKENS_WITHOUT_OUTPUT: QuirkRow(
        "tokens were generated but neither text nor a call came: a parser of the backend lost them",
        "vLLM and SGLang tool parsers that swallow what they cannot read",
    ),
    Quirk.REASK_REPEAT: QuirkRow(
        "asked to correct a call, the model repeated one that was accepted; the repeat was dropped",
        "policy.reask; models answer with the whole turn again",
    ),
    Quirk.FIELD_NOT_CARRIED: QuirkRow(
        "a field of the request has no place in the backend's dialect and does not matter there",
        "prompt cache keys, metadata",
    ),
    Quirk.HISTORY_ARGS_WRAPPED: QuirkRow(
        'a call in the request\'s history had arguments that are no JSON object; they went up as {"_raw": text}',
        "agents that keep a faulty call; vLLM, Anthropic and Gemini refuse it",
    ),
    Quirk.HISTORY_RESULT_ORPHANED: QuirkRow(
        "a tool result in the request's history had no call; it went up as user text",
        "agents that cut their history",
    ),
    Quirk.HISTORY_ID_DOUBLED: QuirkRow(
        "a call id stood twice in the request's history; the later call and its result got a suffix",
        "Kimi ids that begin anew each turn",
    ),
    Quirk.HISTORY_ID_MAPPED: QuirkRow(
        "a call id in the request's history has a form that the backend refuses; call and result got a short one",
        "OpenAI (40 characters), Anthropic (letters, digits, _ and -)",
    ),
}

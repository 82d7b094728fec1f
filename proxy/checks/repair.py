"""Repairs of argument text that is not JSON: a closed list, each with its name.

What they have in common: every token of the text is kept, in its order; only how it is written changes, and there is
one way to change it. Nothing that was cut is closed, no value is made up, no member dropped, no type changed; a text
that needs any of that stays as it is. The text is cut into tokens first, so that nothing inside a string is touched.
The honest limit: `[1,]` may have lost a 2; what is kept is what was written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_TOKEN = re.compile(
    r"""[ \t\r\n]++ | "(?:[^"\\]++|\\.)*+" | '(?:[^'\\]++|\\.)*+' | [{}\[\]:,] | [^\s{}\[\]:,"']++""",
    re.VERBOSE | re.DOTALL,
)
_FENCE = re.compile(r"```[ \t]*[A-Za-z0-9_+-]*[ \t\r\n]*")
_JSON_WORD = re.compile(r"json[ \t\r\n]*+:?[ \t\r\n]*+(?=\{)", re.IGNORECASE)
_KEY = re.compile(r"[^\W\d][\w$-]*|\$[\w$-]*")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPE_OR_CONTROL = re.compile(r"\\.|[\x00-\x1f]", re.DOTALL)
_LITERALS = {"True": "true", "False": "false", "None": "null"}
_NO_KEYS = frozenset({*_LITERALS, *_LITERALS.values(), "NaN", "Infinity", "undefined"})
_SHORT = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_BLANK = " \t\r\n"


def repair(text: str, accept: Callable[[str], bool]) -> tuple[str, tuple[str, ...]] | None:
    """The repaired text and the names of the repairs, or None.

    `accept` says whether a text is strict JSON that the schema takes. Repairs are added one by one until it does.
    """
    names: list[str] = []
    for unwrap in (code_fence, json_word):
        bare = unwrap(text)
        if bare != text:
            text = bare
            names.append(unwrap.__name__)
    if names and accept(text):
        return text, tuple(names)
    tokens = _tokens(text)
    if tokens is None:
        return None
    for step in (single_quotes, unquoted_keys, python_literals, control_characters, trailing_commas, surplus_closer):
        changed = step(tokens)
        if changed != tokens:
            tokens = changed
            names.append(step.__name__)
            text = "".join(tokens)
            if accept(text):
                return text, tuple(names)
    return None


def code_fence(text: str) -> str:
    """The text without the Markdown code fence around it, or the half of it that came."""
    bare = text.strip(_BLANK)
    opener = _FENCE.match(bare)
    if opener is not None:
        bare = bare[opener.end() :]
    if bare.endswith("```"):
        bare = bare[:-3].rstrip(_BLANK)
    return bare if len(bare) < len(text.strip(_BLANK)) else text


def json_word(text: str) -> str:
    """The text without the word `json` before its object."""
    bare = text.lstrip(_BLANK)
    word = _JSON_WORD.match(bare)
    return text if word is None else bare[word.end() :]


def single_quotes(tokens: list[str]) -> list[str]:
    """Strings in single quotes get double ones, unless a quote stands inside or an escape that JSON reads otherwise."""
    return [f'"{token[1:-1]}"' if token[0] == "'" and _plain(token[1:-1]) else token for token in tokens]


def _plain(body: str) -> bool:
    if '"' in body or "'" in body:
        return False
    return all(escape.group(1) in "bfnrtu\\" for escape in _ESCAPE.finditer(body))


def unquoted_keys(tokens: list[str]) -> list[str]:
    """Identifiers as keys get their quotes. Not `True: 1` or `1: 2`, where the key is no string."""
    changed = list(tokens)
    for at, before, after in _neighbours(tokens):
        token = tokens[at]
        if after == ":" and before in ("{", ",") and _KEY.fullmatch(token) and token not in _NO_KEYS:
            changed[at] = f'"{token}"'
    return changed


def python_literals(tokens: list[str]) -> list[str]:
    """Python's True, False and None as values."""
    changed = list(tokens)
    for at, _, after in _neighbours(tokens):
        if tokens[at] in _LITERALS and after != ":":
            changed[at] = _LITERALS[tokens[at]]
    return changed


def control_characters(tokens: list[str]) -> list[str]:
    """Raw control characters inside strings are escaped, unless a backslash stands before one: two readings then."""
    return [_escaped(token) if token[0] == '"' else token for token in tokens]


def _escaped(token: str) -> str:
    if any(escape.group(1) < " " for escape in _ESCAPE.finditer(token)):
        return token

    def one(found: re.Match[str]) -> str:
        what = found.group()
        return what if what[0] == "\\" else _SHORT.get(what, f"\\u{ord(what):04x}")

    return _ESCAPE_OR_CONTROL.sub(one, token)


def trailing_commas(tokens: list[str]) -> list[str]:
    """One comma between a value and the bracket that closes its list or object."""
    drop: set[int] = set()
    depth = 0
    for at, before, after in _neighbours(tokens):
        sign = tokens[at]
        depth += (sign in ("{", "[")) - (sign in ("}", "]"))
        if sign == "," and depth > 0 and after in ("}", "]") and before not in ("", "{", "[", ",", ":"):
            drop.add(at)
    return [sign for at, sign in enumerate(tokens) if at not in drop] if drop else tokens


def surplus_closer(tokens: list[str]) -> list[str]:
    """One closing bracket behind a complete object."""
    solid = [at for at, token in enumerate(tokens) if token[0] not in _BLANK]
    if len(solid) < 3 or tokens[solid[0]] != "{" or tokens[solid[-1]] not in ("}", "]"):
        return tokens
    depth = 0
    for at in solid[:-1]:
        depth += (tokens[at] in ("{", "[")) - (tokens[at] in ("}", "]"))
        if depth == 0 and at != solid[-2]:
            return tokens
    return tokens[: solid[-1]] + tokens[solid[-1] + 1 :] if depth == 0 else tokens


def _tokens(text: str) -> list[str] | None:
    """The text cut into tokens; None where a string does not end or a character belongs to none."""
    tokens: list[str] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            return None
        tokens.append(token.group())
        at = token.end()
    return tokens


def _neighbours(tokens: list[str]) -> Iterator[tuple[int, str, str]]:
    """(position, token before, token behind) of every token, white space left out; empty at the ends."""
    solid = [at for at, token in enumerate(tokens) if token[0] not in _BLANK]
    for number, at in enumerate(solid):
        before = tokens[solid[number - 1]] if number else ""
        yield at, before, tokens[solid[number + 1]] if number + 1 < len(solid) else ""

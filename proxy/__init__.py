"""Wholecall: a reverse proxy for LLM APIs whose tool calls are whole.

Glossary (one word for one idea)

    backend        a configured LLM API; the `upstream` of an exchange is the backend that answers it
    downstream     the client's side; `client` is whoever calls the proxy
    exchange       one client request and everything done for it; `attempt`: one backend asked within it
    dialect        a wire format: openai-chat, openai-responses, anthropic-messages, gemini, ollama-chat
    frame          one server-sent event, one line, or one whole body, as bytes
    delta          what an upstream claimed in one event; nullable, not yet believed
    piece          the part of an event that passes on at once: text, reasoning and fields that are not ours
    choice         one of the request's `n` answers
    call           a tool call; `held` until the reply has ended
    fragment       a piece of a call's arguments text
    slot           the place where a call of a choice is put together
    finish reason  why a choice ended; `proof`: the upstream confirmed the end of the reply
    quirk          a departure from a clean stream that a rule mends; counted and reported
    verdict        the judgement on one finished call
    repair         a named change of characters that makes arguments strict JSON again without a guess
    report         the key `wholecall` on the reply: verdicts, quirks, repairs
    policy         what becomes of a faulty call: annotate, block (error or drop)
    fault          a broken exchange; never a model's mistake
    hold           keeping a call, or blank text before one, until it can be judged
    route          model name patterns -> backends

Floors (a module imports only lower floors and its own package)

    0  proxy.model, proxy.faults      values
    1  proxy.wire                     framing, content-encoding, JSON documents
    2  proxy.dialects                 one folder a dialect: request, decode, encode
    3  proxy.assembly, proxy.checks   which call a delta belongs to; what is wrong with it
    4  proxy.policy, proxy.routing    one upstream reply, its calls, what the client gets; which backend is asked
    5  proxy.exchange                 the whole machine of one request, sans-I/O
    6  proxy.library                  the core as an import: bytes in, judged calls out
       proxy.config                   the configuration file -> the lower floors' settings
    7  proxy.server, proxy.replay     the ASGI shell; the embedded replay backend
    8  proxy.conformance              scoring a backend: asks as the server does, judges as a replay does
    9  proxy.cli, proxy.demo          the command line; what wires it together

The one path of an upstream byte: server/http_client -> server/pump -> Exchange.receive -> wire ->
dialects/<upstream>/decode -> assembly -> (end of the reply) checks -> policy -> dialects/<client>/encode -> Send.
"""

__version__ = "0.1.0"

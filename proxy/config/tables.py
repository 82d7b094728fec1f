"""The tables of the file as immutable, typed models, and `Config`, the whole of it."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict

from proxy.config.mask import Mask
from proxy.config.values import (
    CONNECTION_HEADERS,
    CREDENTIAL_HEADERS,
    FORWARDED_BY_DEFAULT,
    ApiKey,
    Secret,
    check_all_different,
    check_api_key,
    check_base_url,
    check_built,
    check_client_key,
    check_forwarded_name,
    check_glob,
    check_header_name,
    check_header_value,
    check_host,
    check_name,
    check_not_empty,
    check_public_name,
    check_recover,
    check_token,
    check_traces,
    markup_formats,
)
from proxy.exchange import ExchangeSettings
from proxy.routing.plan import Route, Router

Bytes = Annotated[int, Field(ge=1, le=1 << 32)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Seconds = Annotated[float, Field(ge=0.001, le=86_400)]
Port = Annotated[int, Field(ge=0, le=65_535)]
Name = Annotated[str, AfterValidator(check_name)]
_Token = Annotated[bytes, BeforeValidator(check_token), Field(repr=False, exclude=True)]
_List = Strict(False)  # TOML has lists where an immutable model has tuples


class Table(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        hide_input_in_errors=True,  # an input may be a secret
    )


class Listen(Table):
    """Where the proxy is reached. `port` 0: the system picks a free one. `admin_port` 0: metrics and health are on
    `port`. `hosts`: public names that it answers to where `host` is a loopback address."""

    host: Annotated[str, AfterValidator(check_host)] = "127.0.0.1"
    hosts: Annotated[tuple[Annotated[str, AfterValidator(check_public_name)], ...], _List] = ()
    port: Port = 8080
    admin_port: Port = 0
    notice_s: Annotated[float, Field(ge=0, le=3_600)] = 0.0
    drain_s: Annotated[float, Field(ge=0, le=86_400)] = 30.0


class Policy(Table):
    """What happens to faulty calls. Also the form of a route's or backend's overrides: then only the set keys count."""

    mode: Literal["block", "annotate"] = "block"
    block_as: Literal["error", "drop"] = "error"
    delivery: Literal["held", "live"] = "held"
    repair: Literal["safe", "off"] = "safe"
    recover: Annotated[str | tuple[str, ...], BeforeValidator(check_recover)] = "auto"
    reask: Annotated[int, Field(ge=0, le=3)] = 0
    reask_s: Seconds = 60.0
    reask_tokens: Count = 32_768
    annotations: Literal["always", "problems", "never"] = "problems"
    report_bytes: Annotated[int, Field(ge=0, le=1 << 20)] = 4096
    uncompilable_schema: Literal["reject", "skip"] = "reject"
    formats: bool = False


class Limits(Table):
    """Also the form of a backend's overrides: then only the set keys count."""

    max_request_bytes: Bytes = 33_554_432
    max_head_bytes: Annotated[int, Field(ge=1024, le=1 << 20)] = 32_768
    max_headers: Annotated[int, Field(ge=8, le=10_000)] = 100
    max_schema_bytes: Annotated[int, Field(ge=1, le=1 << 20)] = 262_144
    max_event_bytes: Bytes = 4_194_304
    max_arguments_bytes: Bytes = 4_194_304
    max_held_bytes: Bytes = 8_388_608
    max_calls: Count = 128
    max_events: Count = 1_000_000
    max_reply_bytes: Annotated[int, Field(ge=1, le=1 << 40)] = 134_217_728
    max_streams: Annotated[int, Field(ge=1, le=100_000)] = 1000
    head_s: Seconds = 10.0
    body_s: Seconds = 60.0
    connect_s: Seconds = 5.0
    first_byte_s: Seconds = 300.0
    idle_s: Seconds = 120.0
    total_s: Seconds = 3600.0
    send_s: Seconds = 60.0
    settle_ms: Annotated[int, Field(ge=0, le=60_000)] = 300
    keepalive_s: Seconds = 10.0


class Log(Table):
    level: Literal["debug", "info", "warning", "error"] = "info"


class Telemetry(Table):
    """OpenTelemetry. `traces` needs the extra `otel`; `arguments`: those of tool calls are in the spans."""

    traces: Annotated[bool, AfterValidator(check_traces)] = False
    arguments: bool = False


class Inspector(Table):
    """`/inspect`. `token` is the SHA-256 of the token, b"" for none. `entries` and `bytes` bound what is kept of all
    replies, `entry_bytes` what is kept of one."""

    enabled: bool = False
    token: _Token = b""
    redact: bool = True
    entries: Annotated[int, Field(ge=1, le=100_000)] = 200
    bytes: Annotated[int, Field(ge=4096, le=1 << 32)] = 33_554_432
    entry_bytes: Annotated[int, Field(ge=4096, le=1 << 28)] = 1_048_576

    def knows(self, token: str) -> bool:
        """Takes the same time wherever a token differs."""
        digest = hashlib.sha256(token.encode(errors="surrogatepass")).digest()
        return hmac.compare_digest(self.token, digest)


class Backend(Table):
    """An upstream. `headers` has lower-case names; `base_url` has no slash at its end."""

    name: Name
    dialect: Annotated[
        Literal["openai-chat", "openai-responses", "anthropic-messages", "gemini", "ollama-chat"],
        AfterValidator(check_built),
    ]
    base_url: Annotated[str, AfterValidator(check_base_url)]
    api_key: Annotated[ApiKey, BeforeValidator(check_api_key)] = ApiKey("none")
    headers: Annotated[
        Mapping[
            Annotated[str, AfterValidator(check_header_name)], Annotated[Secret, BeforeValidator(check_header_value)]
        ],
        AfterValidator(MappingProxyType),
    ] = Field(default={}, validate_default=True)
    forward_headers: Annotated[tuple[Annotated[str, AfterValidator(check_forwarded_name)], ...], _List] = ()
    policy: Policy = Policy()
    limits: Limits = Limits()

    def forwards(self, header: str) -> bool:
        """Whether the client's `header` (lower-case name) goes upstream. Never a credential: see `api_key`."""
        if header in CREDENTIAL_HEADERS or header in CONNECTION_HEADERS:
            return False
        names, prefixes = self._forwarded
        return header in names or header.startswith(prefixes)

    @cached_property
    def _forwarded(self) -> tuple[frozenset[str], tuple[str, ...]]:
        """Whole names, and what others begin with."""
        patterns = (*FORWARDED_BY_DEFAULT, *self.forward_headers)
        names = frozenset(pattern for pattern in patterns if not pattern.endswith("*"))
        return names, tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))


class RouteTable(Table):
    models: Annotated[tuple[Annotated[str, AfterValidator(check_glob)], ...], _List, AfterValidator(check_not_empty)]
    backends: Annotated[tuple[str, ...], _List, AfterValidator(check_not_empty), AfterValidator(check_all_different)]
    weights: Annotated[tuple[Annotated[float, Field(ge=0, le=1_000_000)], ...], _List] = ()
    strip_prefix: Annotated[str, Field(max_length=256)] = ""
    model: Annotated[str, Field(max_length=256)] = ""
    policy: Policy = Policy()


class Client(Table):
    """Who may use the proxy. `key` is the SHA-256 of the key. 0: no limit of its own."""

    name: Name
    key: Annotated[bytes, BeforeValidator(check_client_key), Field(repr=False, exclude=True)]
    max_streams: Annotated[int, Field(ge=0, le=100_000)] = 0
    requests_per_minute: Annotated[int, Field(ge=0, le=1_000_000)] = 0


class Config(Table):
    """The whole file, checked. Immutable."""

    listen: Listen = Listen()
    policy: Policy = Policy()
    limits: Limits = Limits()
    log: Log = Log()
    telemetry: Telemetry = Telemetry()
    inspector: Inspector = Inspector()
    backends: Annotated[tuple[Backend, ...], _List] = ()
    routes: Annotated[tuple[RouteTable, ...], _List] = ()
    clients: Annotated[tuple[Client, ...], _List] = ()

    @cached_property
    def router(self) -> Router:
        """The routes; with none in the file, everything goes to the only backend."""
        tables = self.routes or (RouteTable(models=("*",), backends=(self.backends[0].name,)),)
        return Router(
            [Route(index, t.models, t.backends, t.weights, t.strip_prefix, t.model) for index, t in enumerate(tables)]
        )

    def backend(self, name: str) -> Backend:
        return self._backends[name]

    def settings_for(self, route: Route, backend: Backend) -> ExchangeSettings:
        """What the core needs for an attempt: [policy] and [limits] with the route's, then the backend's overrides."""
        return self._settings[route.index, backend.name]

    def policy_for(self, route: Route, backend: Backend) -> Policy:
        own = self.routes[route.index].policy if self.routes else Policy()
        return _overridden(_overridden(self.policy, own), backend.policy)

    def limits_for(self, backend: Backend) -> Limits:
        """[limits] with the backend's overrides. `max_streams` counts that backend's streams; `self.limits` has the
        one for all."""
        return self._limits[backend.name]

    def client_for(self, key: str) -> Client | None:
        """The client that has `key`; None: nobody. Takes the same time wherever the keys differ."""
        digest = hashlib.sha256(key.encode(errors="surrogatepass")).digest()
        found = None
        for client in self.clients:
            if hmac.compare_digest(client.key, digest):
                found = client
        return found

    @cached_property
    def mask(self) -> Mask:
        """Over every credential that backends are sent."""
        return Mask(self.credentials())

    def credentials(self) -> Iterator[str]:
        """What backends are sent: keys, and headers of the file's."""
        for backend in self.backends:
            yield backend.api_key.secret.reveal()
            for value in backend.headers.values():
                yield value.reveal()

    @cached_property
    def _backends(self) -> dict[str, Backend]:
        return {backend.name: backend for backend in self.backends}

    @cached_property
    def _limits(self) -> dict[str, Limits]:
        return {backend.name: _overridden(self.limits, backend.limits) for backend in self.backends}

    @cached_property
    def _settings(self) -> dict[tuple[int, str], ExchangeSettings]:
        return {
            (route.index, name): _exchange_settings(
                self.policy_for(route, self.backend(name)), self.limits_for(self.backend(name))
            )
            for route in self.router.routes
            for name in route.backends
        }


TableT = TypeVar("TableT", bound=Table)


def _overridden(base: TableT, own: TableT) -> TableT:
    return base.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})


def _exchange_settings(policy: Policy, limits: Limits) -> ExchangeSettings:
    return ExchangeSettings(
        mode=policy.mode,
        block_as=policy.block_as,
        delivery=policy.delivery,
        annotations=policy.annotations,
        report_bytes=policy.report_bytes,
        repair=policy.repair == "safe",
        recover=markup_formats(policy.recover),
        reask=policy.reask,
        reask_s=policy.reask_s,
        reask_tokens=policy.reask_tokens,
        formats=policy.formats,
        skip_uncompilable=policy.uncompilable_schema == "skip",
        max_event_bytes=limits.max_event_bytes,
        max_arguments_bytes=limits.max_arguments_bytes,
        max_held_bytes=limits.max_held_bytes,
        max_calls=limits.max_calls,
        max_events=limits.max_events,
        max_reply_bytes=limits.max_reply_bytes,
        settle_s=limits.settle_ms / 1000,
        keepalive_s=limits.keepalive_s,
    )

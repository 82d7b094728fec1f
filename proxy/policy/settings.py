"""What configuration decides about an exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from proxy.dialects.markup import AUTO
from proxy.policy.report import Annotations
from proxy.policy.rules import BlockAs, Mode


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """Bytes and seconds; `config/wholecall.toml` explains each key."""

    mode: Mode = "block"
    block_as: BlockAs = "error"
    delivery: Literal["held", "live"] = "held"
    annotations: Annotations = "problems"
    report_bytes: int = 4096
    repair: bool = True
    recover: tuple[str, ...] = AUTO
    reask: int = 0
    reask_s: float = 60.0
    reask_tokens: int = 32_768
    formats: bool = False
    skip_uncompilable: bool = False
    max_event_bytes: int = 4_194_304
    max_arguments_bytes: int = 4_194_304
    max_held_bytes: int = 8_388_608
    max_calls: int = 128
    max_events: int = 1_000_000
    max_reply_bytes: int = 134_217_728
    settle_s: float = 0.3
    keepalive_s: float = 10.0

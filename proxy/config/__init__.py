"""Floor 6: the TOML file in, the lower floors' own settings out.

`load` reports every mistake of a file at once, each with its key path and what to do. `config/wholecall.toml` shows
every key with its unit and default. Secrets are resolved on loading and never shown: not in a message, not in a repr.
"""

from proxy.config.load import check, from_document, load, summary, warnings
from proxy.config.problems import ConfigError, Problem
from proxy.config.tables import (
    Backend,
    Client,
    Config,
    Inspector,
    Limits,
    Listen,
    Log,
    Policy,
    RouteTable,
    Telemetry,
)
from proxy.config.values import HASHED, MAX_SECRET_BYTES, ApiKey, Secret, client_key_digest, is_loopback

__all__ = [
    "HASHED",
    "MAX_SECRET_BYTES",
    "ApiKey",
    "Backend",
    "Client",
    "Config",
    "ConfigError",
    "Inspector",
    "Limits",
    "Listen",
    "Log",
    "Policy",
    "Problem",
    "RouteTable",
    "Secret",
    "Telemetry",
    "check",
    "client_key_digest",
    "from_document",
    "is_loopback",
    "load",
    "summary",
    "warnings",
]

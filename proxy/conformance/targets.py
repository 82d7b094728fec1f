"""Who is asked: a backend of the configuration file, or an address, with a model."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from proxy.config import Backend, Config, ConfigError, Secret, from_document, load
from proxy.config.mask import Mask


@dataclass(frozen=True, slots=True)
class Target:
    """`config` is the one that `backend` belongs to; `key` is sent where the backend's api_key is "forward"."""

    label: str
    backend: Backend
    config: Config
    model: str
    key: Secret
    mask: Mask


def find_targets(
    names: Sequence[str], path: Path, models: Sequence[str], dialect: str, key_variable: str
) -> list[Target]:
    """`names`: addresses, names of backends in the file at `path`, or NAME=MODEL. Raises ValueError with one line.

    Each is asked for its own model, else for each of `models`.
    """
    key = _key(key_variable)
    found: list[Target] = []
    config: Config | None = None
    for name in names:
        if "://" in name:
            one = _of_url(name, dialect, key)
            found += _with_models(one, one.backends[0], name, models, key)
            continue
        if ":" in name.partition("=")[0] or "/" in name.partition("=")[0]:
            raise ValueError(f"{name}: an address begins with http:// or https://")
        config = config or _load(path)
        stem, equals, model = name.partition("=")
        if equals and not model:
            raise ValueError(f"{name!r}: there is no model after =; write NAME=MODEL, or NAME alone and --model MODEL")
        known = {backend.name: backend for backend in config.backends}
        if stem not in known:
            raise ValueError(f"{path}: there is no backend {stem!r}; there are {', '.join(known)}")
        backend = known[stem]
        if backend.api_key.mode == "forward" and not key.reveal():
            raise ValueError(
                f"backend {stem!r} is sent the client's key: name the variable that holds it: --api-key-env"
            )
        found += _with_models(config, backend, stem, [model] if model else models, key)
    labels = [target.label for target in found]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"{label} is named twice; once is enough, --runs asks more often")
    return found


def _with_models(config: Config, backend: Backend, name: str, models: Sequence[str], key: Secret) -> list[Target]:
    if not models:
        raise ValueError(f"{name}: which model is asked for? Give --model MODEL")
    mask = Mask([*config.credentials(), key.reveal()])
    return [Target(f"{name} {model}", backend, config, model, key, mask) for model in models]


def _key(variable: str) -> Secret:
    if not variable:
        return Secret("")
    text = os.environ.get(variable, "").strip()
    if not text:
        raise ValueError(f"--api-key-env: the environment variable {variable!r} is not set, or empty; set it")
    return Secret(text)


def _of_url(url: str, dialect: str, key: Secret) -> Config:
    backend = {"name": "probed", "dialect": dialect, "base_url": url, "api_key": "forward" if key.reveal() else ""}
    try:
        return from_document({"backends": [backend]}, {})
    except ConfigError as error:
        shown = re.sub("//[^/]*@", "//***@", url)
        raise ValueError(f"{shown}: {error.problems[0].message}") from None


def _load(path: Path) -> Config:
    try:
        return load(path, os.environ)
    except ConfigError as error:
        raise ValueError(str(error)) from None

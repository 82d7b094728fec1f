"""The shape of the code base: who may import whom, what the core may not touch, what lies at the top level."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROXY = ROOT / "proxy"

# From the ground up; the names of one row are siblings and never meet. faults.py lies under model/ on floor 0.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("faults",),
    ("model",),
    ("wire",),
    ("dialects",),
    ("assembly", "checks"),
    ("policy", "routing"),
    ("exchange",),
    ("library", "config"),
    ("server", "replay"),
    ("conformance",),
    ("demo",),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}
TOP_OF_CORE = LEVEL["exchange"]

CORE_LIBRARIES = {"orjson", "jsonschema_rs"}
# What does I/O, tells the time, draws lots, logs or runs beside the caller.
CORE_BANNED = {
    "asyncio", "concurrent", "contextvars", "datetime", "ftplib", "glob", "http", "importlib", "io", "logging", "mmap",
    "multiprocessing", "os", "pathlib", "pickle", "queue", "random", "resource", "sched", "secrets", "select",
    "selectors", "shutil", "signal", "smtplib", "socket", "socketserver", "sqlite3", "ssl", "subprocess", "sys",
    "syslog", "tempfile", "threading", "time", "urllib", "uuid", "_thread",
}  # fmt: skip
CORE_BANNED_CALLS = {"__import__", "breakpoint", "eval", "exec", "input", "open", "print"}
CHILD_MAIN = PROXY / "checks" / "child.py"  # the main of the killable child process: it talks over stdin and stdout

MODULES = sorted(PROXY.rglob("*.py"))
IDS = [str(path.relative_to(ROOT)) for path in MODULES]


def top(path: Path) -> str:
    """The part of the product a module belongs to: `wire` for proxy/wire/sse.py, `exchange` for proxy/exchange.py."""
    return path.relative_to(PROXY).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of all that a module imports, also inside functions and under TYPE_CHECKING."""
    package = ("proxy", *path.relative_to(PROXY).parent.parts)
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join((*base, *([node.module] if node.module else [])))
            # `from proxy import wire` imports proxy.wire: each name is looked at as if it were a module.
            for alias in node.names:
                yield node.lineno, f"{stem}.{alias.name}"


def may_import(importer: str, imported: str) -> bool:
    return importer == imported or LEVEL[imported] < LEVEL[importer]


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_a_module_imports_only_lower_floors_and_its_own_package(path: Path) -> None:
    wrong = []
    for line, name in imports(path):
        parts = name.split(".")
        if parts[0] != "proxy" or len(parts) < 2 or parts[1] == "__version__":
            continue
        if top(path) == "__init__":
            wrong.append(f"{path}:{line}: proxy/__init__.py imports nothing of the product, here {name}")
        elif parts[1] not in LEVEL:
            wrong.append(f"{path}:{line}: {name} is on no floor")
        elif not may_import(top(path), parts[1]):
            wrong.append(f"{path}:{line}: {top(path)} may not import {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", [p for p in MODULES if top(p) == "dialects"], ids=lambda p: str(p.relative_to(ROOT)))
def test_no_dialect_imports_another_one(path: Path) -> None:
    inside = path.relative_to(PROXY / "dialects").parts
    if len(inside) == 1:  # the package's own modules may know all of them
        return
    dialects = {folder.name for folder in (PROXY / "dialects").iterdir() if folder.is_dir()}
    wrong = [
        f"{path}:{line}: {name}"
        for line, name in imports(path)
        if name.startswith("proxy.dialects.") and name.split(".")[2] in dialects - {inside[0], "markup"}
    ]
    assert not wrong, "\n".join(wrong)


CORE = [p for p in MODULES if top(p) in LEVEL and LEVEL[top(p)] <= TOP_OF_CORE and p != CHILD_MAIN]


@pytest.mark.parametrize("path", CORE, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_core_does_no_io_and_knows_no_clock_no_chance_and_no_log(path: Path) -> None:
    wrong = []
    for line, name in imports(path):
        package = name.split(".")[0]
        if package in CORE_BANNED:
            wrong.append(f"{path}:{line}: {package} is banned from the core")
        elif package not in CORE_LIBRARIES | sys.stdlib_module_names | {"proxy"}:
            wrong.append(f"{path}:{line}: {package} is neither the standard library nor one of {CORE_LIBRARIES}")
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CORE_BANNED_CALLS:
            wrong.append(f"{path}:{node.lineno}: {node.func.id}() is banned from the core")
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            wrong.append(f"{path}:{node.lineno}: the core is synchronous")
    assert not wrong, "\n".join(wrong)


def test_every_part_of_the_product_is_on_a_floor_and_in_the_map() -> None:
    parts = {top(path) for path in MODULES} - {"__init__"}
    assert parts <= LEVEL.keys(), f"on no floor: {sorted(parts - LEVEL.keys())}"
    map_of_floors = ast.get_docstring(ast.parse((PROXY / "__init__.py").read_bytes())) or ""
    missing = sorted(part for part in parts - {"__main__"} if part not in map_of_floors)
    assert not missing, f"the map in proxy/__init__.py does not name {missing}"


def test_every_package_of_the_product_has_an_init_file() -> None:
    folders = {path.parent for path in MODULES}
    assert all((folder / "__init__.py").exists() for folder in folders)


def test_the_core_imports_without_the_shells_libraries() -> None:
    """The import graph as it really is: loading the exchange loads no event loop, server or client."""
    code = "import sys, proxy.exchange; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    shell = {"asyncio", "httptools", "pydantic", "prometheus_client", "starlette", "uvicorn", "click", "rich"}
    assert not shell & set(done.stdout.split())


TOP_LEVEL = {
    ".ci", ".dockerignore", ".gitignore", "Dockerfile", "README.md", "compose.yaml", "config", "proxy",
    "pyproject.toml", "requirements.lock", "tests",
}  # fmt: skip


def test_the_top_level_holds_only_what_belongs_there() -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git work tree")
    assert {name.split("/")[0] for name in listed.stdout.splitlines()} == TOP_LEVEL


def test_the_schema_library_is_used_at_one_place_and_never_by_its_meta_functions() -> None:
    """`jsonschema_rs.meta` reaches the network even where validators do not, and all threads wait meanwhile."""
    users = [path for path in MODULES if any(name.split(".")[0] == "jsonschema_rs" for _, name in imports(path))]
    assert users == [PROXY / "checks" / "schema.py"]
    for node in ast.walk(ast.parse(users[0].read_bytes())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "jsonschema_rs":
            banned = {"meta", "is_valid", "validate", "iter_errors", "evaluate", "validator_for", "validator_cls_for"}
            assert node.attr not in banned
        if isinstance(node, ast.Attribute):
            assert node.attr != "iter_errors"

"""The rules of the house about imports, as a checker over source text.

``violations`` takes a whole tree as ``{path: source}`` and imports nothing from it, so it can be
asked about the real tree and about small made-up ones alike. The rules:

* An import points along an arrow of ``MAY_IMPORT``; each layer may import itself. Imports under
  ``TYPE_CHECKING`` and inside functions count: they too say who knows whom.
* No cycle between modules. Imports under ``TYPE_CHECKING`` are left out here, because they do
  not happen when the program runs.
* Nobody imports names from the package ``nsqpy`` itself, which would load the client on demand;
  ``nsqpy/__init__.py`` in turn is exempt from direction.
* ``nsqpy/cli.py`` and ``nsqpy/__main__.py`` import a program only inside its own subcommand.
* Base modules, protocol, storage and core do no I/O, read no clock and draw no unseeded random
  number. The two seams are exempt: ``nsqpy/clock.py`` and ``nsqpy/storage/files.py``.
* ``pyspark`` is imported in ``nsqpy/spark/`` only.
* A public module says what it offers in ``__all__``; no file holds a fix-me mark.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

__all__ = ["layer_of", "violations"]

# The table of layers. B base modules, P protocol, S storage, C core, N net, D daemon, L client,
# X Spark, K lookupd, A admin, T tools and the command line.
MAY_IMPORT: Mapping[str, str] = {
    "B": "",
    "P": "B",
    "S": "B",
    "C": "BPS",
    "N": "B",
    "D": "BPSCN",
    "L": "BPN",
    "X": "BL",
    "K": "BPN",
    "A": "BN",
    "T": "BPNDLXKA",
}
_SUBPACKAGES: Mapping[str, str] = {
    "protocol": "P",
    "storage": "S",
    "core": "C",
    "net": "N",
    "daemon": "D",
    "client": "L",
    "spark": "X",
    "tools": "T",
}
_FRONT = ("nsqpy/cli.py", "nsqpy/__main__.py")
_ROOT_PACKAGE = "nsqpy/__init__.py"

_EVENT_LOOPS = {"asyncio", "uvloop", "aiohttp", "anyio", "trio"}
_SOCKETS = {"socket", "socketserver", "ssl", "select", "selectors", "http.client", "http.server"}
_SOCKETS |= {"urllib.request", "requests", "httpx"}
_FILE_MODULES = {"io", "shutil", "tempfile", "fcntl", "mmap", "glob", "fileinput", "subprocess"}
_RANDOM_MODULES = {"secrets", "uuid"}

_CLOCK_CALLS = {
    *("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter"),
    *("time.perf_counter_ns", "time.process_time", "time.process_time_ns", "time.sleep"),
    *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today"),
    *("datetime.date.today",),
}
_FILE_CALLS = {"open", "io.open", "pathlib.Path.cwd", "pathlib.Path.home"}
_PATH_METHODS = {
    *("read_text", "read_bytes", "write_text", "write_bytes", "unlink", "mkdir", "rmdir"),
    *("iterdir", "rglob", "stat", "exists", "is_file", "is_dir", "resolve", "symlink_to"),
}
# What the base modules may still ask of ``os``: text about paths, and the environment.
_HARMLESS_OS = ("os.path.basename", "os.path.dirname", "os.path.join", "os.fspath", "os.environ")


def layer_of(path: str) -> str | None:
    """The layer's letter, or None for the exempt ``nsqpy/__init__.py`` and for what is no package.

    ``path`` is relative to the repository, with forward slashes.
    """
    parts = PurePosixPath(path).parts
    if parts[0] == "nsqpy_lookupd":
        return "K"
    if parts[0] == "nsqpy_admin":
        return "A"
    if parts[0] != "nsqpy" or path == _ROOT_PACKAGE:
        return None
    if path in _FRONT:
        return "T"
    return "B" if len(parts) == 2 else _SUBPACKAGES.get(parts[1])


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: its dotted path as written, resolved if it was relative."""

    target: str
    line: int
    only_typing: bool
    in_function: bool


@dataclass(slots=True)
class Module:
    """One parsed file."""

    path: str
    tree: ast.Module
    imports: list[Import] = field(default_factory=list)
    # Local name -> dotted path it stands for.
    names: dict[str, str] = field(default_factory=dict)


class _Reader(ast.NodeVisitor):
    """Collects the imports of one module, and where they stand."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.typing_depth = 0
        self.function_depth = 0

    def visit_If(self, node: ast.If) -> None:
        only_typing = ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
        self.typing_depth += only_typing
        for statement in node.body:
            self.visit(statement)
        self.typing_depth -= only_typing
        for statement in node.orelse:
            self.visit(statement)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.function_depth += 1
        self.generic_visit(node)
        self.function_depth -= 1

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node.lineno)
            local = alias.asname or alias.name.split(".")[0]
            self.module.names[local] = alias.name if alias.asname else local

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            # The package that holds this file, and then one up for each further dot.
            package = PurePosixPath(self.module.path).parent.parts
            kept = package[: len(package) - (node.level - 1)]
            base = ".".join([*kept, *([base] if base else [])])
        for alias in node.names:
            self._add(f"{base}.{alias.name}", node.lineno)
            self.module.names[alias.asname or alias.name] = f"{base}.{alias.name}"

    def _add(self, target: str, line: int) -> None:
        self.module.imports.append(
            Import(target, line, self.typing_depth > 0, self.function_depth > 0)
        )


def violations(tree: Mapping[str, str]) -> list[str]:
    """What breaks a rule, as ``path:line: what``, in the order of the paths."""
    modules = {path: _parse(path, source) for path, source in sorted(tree.items())}
    found: list[str] = []
    for path, module in modules.items():
        found += _mark_violations(path, tree[path])
        found += _export_violations(module)
        found += _foreign_violations(module)
        found += _arrow_violations(module, modules)
        if layer_of(path) in {"B", "P", "S", "C"}:
            found += _purity_violations(module)
    return [*found, *_cycles(modules)]


def _parse(path: str, source: str) -> Module:
    module = Module(path, ast.parse(source, path))
    _Reader(module).visit(module.tree)
    return module


def _mark_violations(path: str, source: str) -> Iterator[str]:
    mark = "FIX" + "ME"
    for number, line in enumerate(source.splitlines(), 1):
        if mark in line:
            yield f"{path}:{number}: {mark}"


def _export_violations(module: Module) -> Iterator[str]:
    name = PurePosixPath(module.path).stem
    if name.startswith("_") or not module.path.startswith("nsqpy"):
        return
    for statement in module.tree.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return
    yield f"{module.path}:1: no __all__"


def _foreign_violations(module: Module) -> Iterator[str]:
    if module.path.startswith("nsqpy/spark/"):
        return
    for imported in module.imports:
        if imported.target.split(".")[0] == "pyspark":
            yield f"{module.path}:{imported.line}: pyspark outside nsqpy/spark"


def _arrow_violations(module: Module, modules: Mapping[str, Module]) -> Iterator[str]:
    layer = layer_of(module.path)
    if layer is None:
        return
    allowed = MAY_IMPORT[layer] + layer
    for imported in module.imports:
        target = _file_of(imported.target, modules)
        where = f"{module.path}:{imported.line}"
        if target is None:
            continue
        if target == _ROOT_PACKAGE:
            yield f"{where}: imports {imported.target}; name the module that defines it"
            continue
        target_layer = layer_of(target)
        if target_layer is None or target_layer not in allowed:
            yield f"{where}: {layer} may not import {target_layer} ({imported.target})"
        elif (
            module.path in _FRONT
            and target not in _FRONT
            and target_layer != "B"
            and not imported.in_function
        ):
            yield f"{where}: {imported.target} belongs inside its own subcommand"


def _file_of(target: str, modules: Mapping[str, Module]) -> str | None:
    """The file of this tree that an imported name comes from, or None for a foreign one."""
    parts = target.split(".")
    for end in range(len(parts), 0, -1):
        stem = "/".join(parts[:end])
        for path in (f"{stem}.py", f"{stem}/__init__.py"):
            if path in modules:
                return path
    return None


def _purity_violations(module: Module) -> Iterator[str]:
    if module.path in {"nsqpy/clock.py", "nsqpy/storage/files.py"}:
        return
    layer = layer_of(module.path)
    banned = _EVENT_LOOPS | _SOCKETS | _FILE_MODULES | _RANDOM_MODULES
    if layer != "B":
        banned |= {"time", "os"}
    for imported in module.imports:
        where = f"{module.path}:{imported.line}"
        if any(
            imported.target == name or imported.target.startswith(f"{name}.") for name in banned
        ):
            yield f"{where}: {layer} may not use {imported.target}"
        elif layer != "B" and imported.target == "pathlib.Path" and not imported.only_typing:
            yield f"{where}: {layer} may not use pathlib.Path; PurePath will do"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            reason = _impure_call(node, module)
            if reason:
                yield f"{module.path}:{node.lineno}: {layer} may not {reason}"


def _impure_call(node: ast.Call, module: Module) -> str | None:
    called = _dotted(node.func, module)
    if called in _CLOCK_CALLS:
        return f"read a clock ({called})"
    if called in _FILE_CALLS or (called.startswith("os.") and not called.startswith(_HARMLESS_OS)):
        return f"touch files ({called})"
    if called.startswith("random.") and not (called == "random.Random" and node.args):
        return f"draw unseeded random numbers ({called})"
    knows_paths = any(target.startswith("pathlib") for target in module.names.values())
    # The seam over the file system has methods of these names too.
    on_seam = called.rpartition(".")[0].endswith("files")
    if knows_paths and not on_seam and called.rpartition(".")[2] in _PATH_METHODS:
        return f"touch files ({called})"
    return None


def _dotted(node: ast.expr, module: Module) -> str:
    """The called thing by its full dotted name, as far as the imports tell."""
    text = ast.unparse(node)
    head, dot, rest = text.partition(".")
    return module.names.get(head, head) + dot + rest


def _cycles(modules: Mapping[str, Module]) -> Iterator[str]:
    """One line for each cycle, met in a depth-first walk."""
    graph: dict[str, list[str]] = {}
    for path, module in modules.items():
        targets = (
            _file_of(found.target, modules) for found in module.imports if not found.only_typing
        )
        graph[path] = sorted({target for target in targets if target and target != path})
    done: set[str] = set()
    trail: list[str] = []

    def walk(path: str) -> Iterator[str]:
        if path in trail:
            yield "cycle: " + " -> ".join([*trail[trail.index(path) :], path])
            return
        if path in done:
            return
        trail.append(path)
        for target in graph[path]:
            yield from walk(target)
        trail.pop()
        done.add(path)

    for path in graph:
        yield from walk(path)

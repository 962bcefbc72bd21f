"""Finds code in workflows that a replay cannot repeat, before it runs.

The lint reads the syntax trees of a workflow's function and of the functions of its module that it calls. It also finds what
the guards cannot reach: ``datetime.now``, names from ``from time import time``, sets, globals, and jobs that nobody awaits. It
does not look into ``with workflow.unguarded():``, nor into the functions of steps and side effects.
"""

from __future__ import annotations

import ast
import builtins
import datetime as dt
import inspect
import random
import textwrap
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mainspring.workflow_code.guards import CLOCK, ORIGINALS, WITH_TIME
from mainspring.workflow_code.handlers import HandlerMethod, methods_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Finding(NamedTuple):
    """Code of a workflow that a replay cannot repeat."""

    file: str
    line: int
    function: str
    message: str
    """A sentence with the remedy."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: in {self.function}: {self.message}"


def lint(call: Callable[..., Any]) -> list[Finding]:
    """Return the findings in a workflow's function and in the functions of its module that it calls, in order.

    Of a class, these are its ``run``, its ``__init__`` and its handlers, with the methods that they call.
    """
    findings: list[Finding] = []
    seen: set[object] = set()
    kind: type | None = getattr(call, "workflow_class", None)
    unread: list[Any] = [inspect.unwrap(call)]
    if kind is not None:
        unread += [kind.__init__, *(method.method for method in methods_of(kind))]  # type: ignore[misc] # of a class
    while unread:
        function = unread.pop(0)
        if function in seen or not isinstance(function, FunctionType):
            continue
        seen.add(function)
        reader = _Reader(function, kind)
        if reader.read():
            findings += reader.findings
            unread += reader.calls
    return findings


_STEP: Final = "or do it in a step, `await workflow.step(f, …)`"
_CLOCK: Final = f"use `workflow.now()`, {_STEP}"
_CHANCE: Final = f"use `workflow.rng()` or `workflow.uuid()`, {_STEP}"
_IO: Final = "do it in a step, `await workflow.step(f, …)`, or in an activity"
_SET: Final = "its order is another one in each process: iterate over `sorted(…)`, or use a list or a dict"
_AWAIT: Final = "write `await`, or keep the job and await it later; it is dropped when the workflow returns"

_CLOCK_METHODS: Final = {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today")}
_CHANCE_MODULES: Final = frozenset({"secrets"})
_IO_MODULES: Final = frozenset(
    "aiohttp ftplib http httpx psycopg requests shutil smtplib socket socketserver sqlite3 ssl subprocess tempfile urllib".split()  # noqa: SIM905
)
_THREAD_MODULES: Final = frozenset({"threading", "_thread", "multiprocessing", "concurrent"})
_OS_PURE: Final = frozenset({"fspath", "fsencode", "fsdecode", "getcwd", "cpu_count", "strerror", "path", "environ"})
_FILE_METHODS: Final = frozenset({"read_text", "write_text", "read_bytes", "write_bytes", "iterdir", "unlink", "mkdir"})
_SET_METHODS: Final = frozenset({"union", "intersection", "difference", "symmetric_difference"})
_ORDERED_BY: Final = frozenset({"list", "tuple", "enumerate", "iter", "zip", "map", "filter"})
"""Functions that keep the order of an iterable."""
_UNREAD_ARGUMENTS: Final = frozenset({"step", "side_effect", "submit"})
"""Functions of their arguments run elsewhere."""
_LOST: Final = frozenset({"submit", "step"})
_UNKNOWN: Final = object()


class _Reader(ast.NodeVisitor):
    """Reads one function."""

    def __init__(self, function: FunctionType, kind: type | None = None) -> None:
        self._function = function
        parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
        self._kind = kind if parameters and f".{function.__name__}" in function.__qualname__ else None
        """The class of the workflow, if the function is a method."""
        self._self = parameters[0] if self._kind is not None else ""
        self._names: Mapping[str, Any] = {}
        self._local: set[str] = set()
        self._sets: set[str] = set()
        self.findings: list[Finding] = []
        self.calls: list[Any] = []

    def read(self) -> bool:
        """Read the function; return False if it has no source."""
        function = self._function
        try:
            lines, first = inspect.getsourcelines(function)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            return False
        ast.increment_lineno(tree, first - 1)
        closure = {
            name: cell.cell_contents
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
            if not _is_empty(cell)
        }
        self._names = {**vars(builtins), **function.__globals__, **closure}
        self._local = {
            node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        } | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        self._local -= {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
        for node in tree.body:
            # Decorators and defaults belong to the module.
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for statement in node.body:
                    self.visit(statement)
            else:
                self.visit(node)
        return True

    def _find(self, node: ast.AST, message: str) -> None:
        line = getattr(node, "lineno", 0)
        code = self._function.__code__
        self.findings.append(Finding(code.co_filename, line, self._function.__qualname__, message))

    def _resolve(self, node: ast.AST) -> Any:
        """Return the object that a name or an attribute of a module or class stands for."""
        if isinstance(node, ast.Name):
            return _UNKNOWN if node.id in self._local else self._names.get(node.id, _UNKNOWN)
        if isinstance(node, ast.Attribute):
            owner = self._resolve(node.value)
            if self._kind is not None and isinstance(node.value, ast.Name) and node.value.id == self._self:
                found = getattr(self._kind, node.attr, _UNKNOWN)
                return found.method if isinstance(found, HandlerMethod) else found
            if isinstance(owner, (ModuleType, type)):
                return getattr(owner, node.attr, _UNKNOWN)
        return _UNKNOWN

    # ---- statements ----

    def visit_With(self, node: ast.With) -> None:
        """Skip a block without guards."""
        if not any(_last_name(item.context_expr) == "unguarded" for item in node.items):
            self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        """Find assigned globals."""
        self._find(
            node, f"it assigns the global {', '.join(node.names)}, which all runs share: pass values and return them"
        )

    def visit_Assign(self, node: ast.Assign) -> None:
        """Note names of sets, and find changed globals."""
        for target in node.targets:
            if isinstance(target, ast.Name):
                if self._is_set(node.value):
                    self._sets.add(target.id)
                else:
                    self._sets.discard(target.id)
            self._check_target(target)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Find changed globals."""
        self._check_target(node.target)
        self.generic_visit(node)

    def _check_target(self, target: ast.expr) -> None:
        root = target
        while isinstance(root, (ast.Attribute, ast.Subscript)):
            root = root.value
        if root is target or not isinstance(root, ast.Name) or root.id in self._local:
            return
        if root.id in self._function.__globals__:
            self._find(target, f"it changes the global {root.id}, which all runs share: pass values and return them")

    def visit_Expr(self, node: ast.Expr) -> None:
        """Find jobs and coroutines that nobody awaits, and ends of runs that nobody raises."""
        value = node.value
        if isinstance(value, ast.Call):
            name = _last_name(value.func)
            if isinstance(value.func, ast.Attribute) and name in _LOST:
                self._find(value, f"nobody awaits {ast.unparse(value.func)}(…): {_AWAIT}")
            elif name == "continue_as_new":
                self._find(value, f"{ast.unparse(value.func)}(…) alone does nothing: write `raise` before it")
            elif inspect.iscoroutinefunction(self._resolve(value.func)):
                self._find(value, f"nobody awaits {ast.unparse(value.func)}(…), so it does not run: write `await`")
        self.generic_visit(node)

    # ---- iteration ----

    def visit_For(self, node: ast.For) -> None:
        """Find iterations over sets."""
        self._check_iteration(node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """Find iterations over sets."""
        self._check_iteration(node.iter)
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        """Find unpacked sets."""
        if isinstance(node.ctx, ast.Load):
            self._check_iteration(node.value)
        self.generic_visit(node)

    def _check_iteration(self, node: ast.expr) -> None:
        if isinstance(node, ast.Call) and _last_name(node.func) in _ORDERED_BY:
            for argument in node.args:
                self._check_iteration(argument)
        elif self._is_set(node):
            self._find(node, f"it iterates over a set, and {_SET}")

    def _is_set(self, node: ast.expr) -> bool:
        if isinstance(node, (ast.Set, ast.SetComp)):
            return True
        if isinstance(node, ast.Name):
            return node.id in self._sets or (
                node.id not in self._local and isinstance(self._names.get(node.id), (set, frozenset))
            )
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)):
            return self._is_set(node.left) or self._is_set(node.right)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in _SET_METHODS:
                return self._is_set(node.func.value)
            return self._resolve(node.func) in {set, frozenset}
        return False

    # ---- calls ----

    def visit_Call(self, node: ast.Call) -> None:
        """Find the clock, chance, I/O and threads."""
        target = self._resolve(node.func)
        message = _judge(target, node) if target is not _UNKNOWN else _judge_method(node)
        if message:
            self._find(node, f"{ast.unparse(node.func)}(…) {message}")
        elif isinstance(target, FunctionType) and target.__module__ == self._function.__module__:
            self.calls.append(target)
        if _last_name(node.func) in _ORDERED_BY and isinstance(node.func, ast.Name):
            for argument in node.args:
                if self._is_set(argument):
                    self._find(argument, f"it keeps the order of a set, and {_SET}")
        if _last_name(node.func) == "undo" and isinstance(node.func, ast.Attribute) and node.args:
            self._check_undo(node.args[0])
        elsewhere = _last_name(node.func) in _UNREAD_ARGUMENTS
        self.visit(node.func)
        for argument in (*node.args, *(word.value for word in node.keywords)):
            if not (elsewhere and isinstance(argument, ast.Lambda)):
                self.visit(argument)

    def _check_undo(self, first: ast.expr) -> None:
        """Find compensations that run at once, and read those that are functions."""
        target = self._resolve(first)
        if isinstance(target, FunctionType) and target.__module__ == self._function.__module__:
            self.calls.append(target)
        if isinstance(first, ast.Call) and (
            (isinstance(first.func, ast.Attribute) and first.func.attr in _LOST)
            or hasattr(self._resolve(first.func), "submit")
            or inspect.iscoroutinefunction(self._resolve(first.func))
        ):
            self._find(
                first,
                f"{ast.unparse(first.func)}(…) runs now, and not when the saga undoes: give undo the function and its arguments, "
                "`saga.undo(refund, payment)`",
            )


def _judge(target: Any, node: ast.Call) -> str:
    """Return what is wrong with a call of an object; empty if nothing is."""
    if isinstance(target, FunctionType):
        target = ORIGINALS.get(target, target)
    name: str = getattr(target, "__name__", "")
    module = (getattr(target, "__module__", None) or "").partition(".")[0]
    owner = getattr(target, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, dt.date):
        bare = "datetime" if issubclass(owner, dt.datetime) else "date"
        return f"reads the clock: {_CLOCK}" if (bare, name) in _CLOCK_METHODS else ""
    if module == "time":
        if name in CLOCK or len(node.args) <= WITH_TIME.get(name, -1):
            return f"reads the clock: {_CLOCK}"
        return f"blocks the worker: use `await workflow.sleep(…)`, {_STEP}" if name == "sleep" else ""
    if (isinstance(owner, random.Random) and owner is getattr(random, "_inst", None)) or module in _CHANCE_MODULES:
        return f"uses chance: {_CHANCE}"
    if (target is random.Random and not node.args) or target is random.SystemRandom:
        return f"uses chance: {_CHANCE}"
    if module == "uuid" and name in {"uuid1", "uuid4", "uuid6", "uuid7"}:
        return f"uses chance: {_CHANCE}"
    if module in {"posix", "nt", "os"} and name not in _OS_PURE:
        return f"uses chance: {_CHANCE}" if name in {"urandom", "getrandom"} else f"does input or output: {_IO}"
    if target is open or target is input or module in _IO_MODULES:
        return f"does input or output: {_IO}"
    if target is print:
        return "prints in each replay: use `workflow.log`"
    if module in _THREAD_MODULES:
        return f"uses threads or processes: {_IO}"
    if module == "asyncio":
        return _judge_asyncio(name, node)
    return ""


def _judge_asyncio(name: str, node: ast.Call) -> str:
    if name == "to_thread":
        return f"uses threads or processes: {_IO}"
    if name in {"open_connection", "start_server", "create_subprocess_exec", "create_subprocess_shell", "run"}:
        return f"does input or output: {_IO}"
    if name in {"Future", "Task"}:
        return (
            "has an address as its hash: use `asyncio.get_running_loop().create_future()` or `asyncio.create_task(…)`"
        )
    if name in {"as_completed", "gather", "wait_for"} and isinstance(node.func, ast.Name):
        return f"may resume the code in another order with another version of Python: write `asyncio.{name}(…)`"
    return ""


def _judge_method(node: ast.Call) -> str:
    name = _last_name(node.func)
    if isinstance(node.func, ast.Attribute):
        if name in _FILE_METHODS:
            return f"does input or output: {_IO}"
        if name == "run_in_executor":
            return f"uses threads or processes: {_IO}"
    return ""


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_empty(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False

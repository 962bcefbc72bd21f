"""Templates of webhooks: a small part of jinja2's language, in its sandbox.

A template comes from a user and runs in the node, between everything else on its loop. The sandbox keeps it from Python's
objects. But it limits neither time nor memory: ``'x' * 10**9`` or a text that is doubled thirty times would stop the node. So
only harmless parts of the language are accepted (`_check`): names, attributes, conditions, loops, comparisons and the filters
below, but no calls, no arithmetic and no variables. Loops, filters and searches count as steps, and the steps
of a rendering are limited.

In a template for JSON every value is escaped for the string around it, as templates of pages escape for HTML. So no text of an
error ends a string and adds fields of its own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from jinja2 import ChainableUndefined, TemplateError, Undefined, nodes, pass_context
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mainspring.errors import UsageError
from mainspring.quantities import spell_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

STEPS: Final = 500
"""Turns of loops, filters, and searches in lists, in one rendering."""
LONGEST_TEXT: Final = 20_000
"""Characters in the result of a filter: some results are twice as long as the value, and a template may apply hundreds."""
NAMES: Final = frozenset({"id", "type", "time", "namespace", "function", "subject", "job", "data", "link"})
"""The names that a template has, beside those of its loops."""
_DEEPEST: Final = 30
"""Levels of blocks and expressions."""
_DEEPEST_LOOP: Final = 3
_MOST_PARTS: Final = 600
"""Nodes of a template: compiling takes 0.1 ms for each."""
_MOST_IN_LOOPS: Final = 200
"""Nodes inside of loops."""
_LONGEST_LIST: Final = 32
"""Elements of a list that is written in a template."""
_LOOP: Final = frozenset({"first", "last", "index", "index0", "length"})
"""The attributes of ``loop``."""
_STEPS_LEFT: Final = "_steps"
"""The name of the count in the context: a template cannot have it, because it begins with an underscore."""
_COUNTED: Final = "_counted"
_SEARCHED: Final = "_searched"
_PERMITTED: Final = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For),
    *(nodes.Name, nodes.Const, nodes.List, nodes.Tuple, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Neg),
    *(
        nodes.Filter,
        nodes.Test,
        nodes.Compare,
        nodes.Operand,
        nodes.And,
        nodes.Or,
        nodes.Not,
        nodes.CondExpr,
        nodes.Keyword,
    ),
)
_encode: Final = msgspec.json.encode


class _Ready(str):
    """Text that is JSON already."""

    __slots__ = ()


def _json(value: Any) -> _Ready:
    if isinstance(value, _Ready):
        value = str(value)
    return _Ready(_encode(None if isinstance(value, Undefined) else value).decode())


def _text(value: Any) -> str:
    """Return a value as text: nothing for nothing, and JSON for other values than texts."""
    if value is None or isinstance(value, Undefined):
        return ""
    return str(value) if isinstance(value, str) else _json(value)


def _for_json(value: Any) -> str:
    """Return a value for a template that makes JSON: a text as the inside of a string, another value as JSON."""
    if isinstance(value, _Ready):
        return value
    if isinstance(value, (str, Undefined)):
        return _json(_text(value))[1:-1]
    return _json(value)


# ---- filters ----


def _slack(value: Any) -> str:
    """Return text that Slack shows as it is, without links and mentions."""
    return _text(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("`", "'")


def _join(value: Any, separator: Any = ", ") -> str:
    between = _text(separator)
    if not isinstance(value, (list, tuple)) or len(between) > _LONGEST_LIST:
        raise UsageError("the filter join takes a list, and a short text for between")
    return between.join(map(_text, value))


def _truncate(value: Any, length: Any = 200) -> str:
    text = _text(value)
    if not isinstance(length, int) or length < 1:
        raise UsageError("the filter truncate takes a number of characters")
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _default(value: Any, other: Any = "") -> Any:
    return other if value is None or value == "" or isinstance(value, Undefined) else value


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple, dict)) else 0


def _duration(value: Any) -> str:
    return spell_duration(value) if isinstance(value, (int, float)) and 0 <= value < 1e12 else _text(value)


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "json": _json,
    "tojson": _json,
    "slack": _slack,
    "upper": lambda value: _text(value).upper(),
    "lower": lambda value: _text(value).lower(),
    "join": _join,
    "truncate": _truncate,
    "default": _default,
    "length": _length,
    "duration": _duration,
}
"""The filters of templates. They have no others, and no methods of texts: one of those makes any length of two letters."""
TESTS: Final[Mapping[str, Callable[..., Any]]] = {
    "defined": lambda value: not isinstance(value, Undefined),
    "none": lambda value: value is None,
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, (int, float)),
}


def _step(context: Context, number: int = 1) -> None:
    left = context.parent[_STEPS_LEFT]
    left[0] -= number
    if left[0] < 0:
        raise UsageError(f"the template takes more than {STEPS} turns of loops and filters")


def _charged(function: Callable[..., Any]) -> Callable[..., Any]:
    @pass_context
    def charged(context: Context, *arguments: Any, **named: Any) -> Any:
        _step(context)
        result = function(*arguments, **named)
        if isinstance(result, str) and len(result) > LONGEST_TEXT:
            raise UsageError(f"a filter of the template makes more than {LONGEST_TEXT:,} characters")
        return result

    return charged


@pass_context
def _count(context: Context, value: Any) -> Any:
    """Return the elements of a loop, and count them as steps."""
    if isinstance(value, Undefined) or value is None:
        return ()
    if not isinstance(value, (list, tuple, dict)):
        raise UsageError("a loop of a template takes a list, or an object for its names")
    _step(context, len(value))
    return list(value)


@pass_context
def _elements(context: Context, value: Any) -> Any:
    """Return the right side of ``in``, and count a step: a search in a long text takes a while, so there is none."""
    _step(context)
    if value is None or isinstance(value, Undefined):
        return ()
    if not isinstance(value, (list, tuple, dict)):
        raise UsageError("in looks into a list, or into the names of an object, not into a text")
    return value


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, in which an attribute is an element of an object of JSON, and nothing of Python."""

    def __init__(self, *, is_json: bool) -> None:
        super().__init__(
            undefined=ChainableUndefined,
            finalize=_for_json if is_json else _text,
            optimized=False,
            autoescape=False,
            cache_size=0,
        )
        self.globals.clear()
        self.filters = {name: _charged(function) for name, function in FILTERS.items()}
        self.filters |= {_COUNTED: _count, _SEARCHED: _elements}
        self.tests = dict(TESTS)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, LoopContext) and attribute in _LOOP:
            return getattr(obj, attribute)
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, (dict, list, tuple, str)):
            try:
                return obj[argument]
            except (LookupError, TypeError):
                pass
        return self.undefined(name=str(argument)[:_LONGEST_LIST])


_ENVIRONMENTS: Final = {is_json: _Environment(is_json=is_json) for is_json in (False, True)}


class Template:
    """A compiled template."""

    def __init__(self, text: str, *, is_json: bool) -> None:
        """Raises UsageError for a text that is not accepted."""
        self._is_json = is_json
        environment = _ENVIRONMENTS[is_json]
        try:
            tree = environment.parse(text)
            _check(tree)
            for loop in list(tree.find_all(nodes.For)):
                loop.iter = _filtered(loop.iter, _COUNTED, environment)
            for operand in list(tree.find_all(nodes.Operand)):
                if operand.op in {"in", "notin"}:
                    operand.expr = _filtered(operand.expr, _SEARCHED, environment)
            self._template = environment.from_string(tree)
        except TemplateError as error:
            line = getattr(error, "lineno", None)
            where = f"line {line} of the template" if line else "the template"
            raise UsageError(f"{where} cannot be read: {error.message}") from None
        except (RecursionError, MemoryError, SyntaxError):
            raise UsageError("the template has too many levels") from None

    def render(self, names: Mapping[str, Any], most: int) -> str:
        """Return the text for the values of `NAMES`, of at most ``most`` bytes. Raises UsageError if the template fails."""
        try:
            text = self._text(names, most)
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - comparisons and filters raise whatever they do for wrong values
            raise UsageError(f"the template fails: {type(error).__name__}: {error}") from None
        if self._is_json:
            try:
                msgspec.json.decode(text)
            except (ValueError, RecursionError) as error:
                raise UsageError(f"the template does not make JSON: {error}") from None
        return text

    def _text(self, names: Mapping[str, Any], most: int) -> str:
        parts: list[str] = []
        size = 0
        for part in self._template.generate({**names, _STEPS_LEFT: [STEPS]}):
            size += len(part.encode())
            if size > most:
                raise UsageError(f"the template makes more than {most:,} bytes")
            parts.append(part)
        return "".join(parts).strip()


@lru_cache(maxsize=256)
def compile_template(text: str, is_json: bool = True) -> Template:
    """Return a template. Raises UsageError for a text that is not accepted."""
    return Template(text, is_json=is_json)


def _filtered(node: nodes.Node, name: str, environment: _Environment) -> nodes.Filter:
    return nodes.Filter(cast("nodes.Expr", node), name, [], [], None, None, lineno=node.lineno, environment=environment)


def _check(tree: nodes.Template) -> None:
    """Raise UsageError for everything that is not permitted in a template."""
    places: list[tuple[nodes.Node, int, int]] = [(tree, 0, 0)]
    bound = {name.name for loop in tree.find_all(nodes.For) for name in loop.target.find_all(nodes.Name)}
    bound |= {loop.target.name for loop in tree.find_all(nodes.For) if isinstance(loop.target, nodes.Name)}
    parts = in_loops = 0
    while places:
        node, depth, loops = places.pop()
        parts += 1
        in_loops += loops > 0
        loops += isinstance(node, nodes.For)
        sentence = _refusal(node, bound)
        if depth > _DEEPEST or loops > _DEEPEST_LOOP:
            sentence = "it has too many levels"
        if parts > _MOST_PARTS or in_loops > _MOST_IN_LOOPS:
            sentence = "it has too many parts"
        if sentence:
            raise UsageError(f"line {node.lineno} of the template is not accepted: {sentence}")
        places += [(child, depth + 1, loops) for child in node.iter_child_nodes()]


def _refusal(node: nodes.Node, bound: set[str]) -> str:
    """Return why a node is not permitted, apart from its children; empty if it is."""
    if not isinstance(node, _PERMITTED):
        return f"templates have no {type(node).__name__.lower()}: no calls, no arithmetic, no variables, no other templates"
    if isinstance(node, nodes.For) and node.recursive:
        return "a loop does not call itself"
    if isinstance(node, nodes.Name):
        if node.name.startswith("_"):
            return "names do not begin with an underscore"
        if node.name not in NAMES and node.name not in bound and node.name != "loop":
            return f"there is no {node.name}; there are {', '.join(sorted(NAMES))}"
    if isinstance(node, nodes.Getattr) and node.attr.startswith("_"):
        return "names do not begin with an underscore"
    if isinstance(node, (nodes.List, nodes.Tuple)) and len(node.items) > _LONGEST_LIST:
        return f"a list has at most {_LONGEST_LIST} elements"
    if isinstance(node, nodes.Filter) and (node.name not in FILTERS or node.node is None):
        return f"there is no filter {node.name}; there are {', '.join(sorted(FILTERS))}"
    if isinstance(node, nodes.Test) and node.name not in TESTS:
        return f"there is no test {node.name}; there are {', '.join(sorted(TESTS))}"
    return ""

"""Finds metrics and their labels in source code, since vLLM creates many of its metrics rarely."""

import ast
from collections.abc import Iterator

# Classes of metrics, and vLLM's names for them.
CLASSES = {"Counter", "Gauge", "Histogram", "_counter_cls", "_gauge_cls", "_histogram_cls"}
# Names of the argument with the labels that most of vLLM's metrics have.
ENGINE_ARGUMENTS = {"labelnames", "self._labelnames"}


class MetricsSource:
    """A module's source, in which metrics are found."""

    def __init__(self, source: str, name: str) -> None:
        self._name = name
        nodes = [node for node in ast.walk(ast.parse(source)) if hasattr(node, "lineno")]
        self._nodes = sorted(nodes, key=lambda node: node.lineno)

    def metrics(self) -> Iterator[tuple[str, set[str]]]:
        """Yield each metric's name, or else the module's, and its labels."""
        self._values: dict[str, ast.expr] = {}
        for node in self._nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self._values |= {ast.unparse(target): node.value for target in targets}
            if not isinstance(node, ast.Call):
                continue
            arguments = {keyword.arg: keyword.value for keyword in node.keywords}
            if ast.unparse(node.func).rpartition(".")[2] in CLASSES:
                names = ("name", "documentation", "labelnames")
                arguments |= dict(zip(names, node.args, strict=False))
            if "labelnames" in arguments:
                yield self._constant(arguments.get("name")), self._labels(arguments["labelnames"])

    def _constant(self, expression: ast.expr | None) -> str:
        if expression is not None:
            expression = self._values.get(ast.unparse(expression), expression)
        return str(expression.value) if isinstance(expression, ast.Constant) else self._name

    def _labels(self, expression: ast.expr) -> set[str]:
        """Return the labels in an expression; one that is no constant by its expression."""
        match expression:
            case ast.Constant(value=str(label)):
                return {label}
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return set().union(*map(self._labels, parts))
            case ast.BinOp(left=left, right=right):
                return self._labels(left) | self._labels(right)
        text = ast.unparse(expression)
        if text in ENGINE_ARGUMENTS:
            return set()
        return self._labels(self._values[text]) if text in self._values else {text}

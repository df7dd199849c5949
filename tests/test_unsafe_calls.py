"""No module of the product unpickles data, evaluates text as code, or starts a shell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("models", "media", "index", "service", "trainer", "api", "cli", "docker", "deploy")
MODULES = ("pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib", "jsonpickle")
BUILTINS = ("eval", "exec", "compile", "__import__")
UNSAFE_YAML = ("load", "load_all", "full_load", "full_load_all", "unsafe_load", "unsafe_load_all")
SHELLS = ("os.system", "os.popen", "commands.getoutput", "subprocess.getoutput", "subprocess.getstatusoutput")
ALLOWED = {
    # The class of an error that torch raises.
    ("trainer/training_checkpoint.py", "pickle"),
    # Bytes that the learning worker itself passes to the process that it starts, by value and not through a file.
    ("trainer/training_replicas.py", "torch.load without weights_only"),
}


def unsafe_calls(source: str) -> Iterator[str]:
    """Yield the unsafe imports and calls of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield str(node.module)
        elif isinstance(node, ast.Call):
            yield from _unsafe_call(node)


def _unsafe_call(call: ast.Call) -> Iterator[str]:
    name = ast.unparse(call.func)
    options = {option.arg: ast.unparse(option.value) for option in call.keywords}
    if name in BUILTINS or name in SHELLS:
        yield name
    if name.startswith("yaml.") and name.split(".")[1] in UNSAFE_YAML:
        yield name
    if name == "torch.load" and options.get("weights_only") != "True":
        yield "torch.load without weights_only"
    if name in ("np.load", "numpy.load") and options.get("allow_pickle", "False") != "False":
        yield "np.load with pickle"
    if options.get("shell", "False") != "False":
        yield "shell"


def test_product_has_no_unsafe_call() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(files) > 200
    found = {
        (path.relative_to(ROOT).as_posix(), call)
        for path in files
        for call in unsafe_calls(path.read_text(encoding="utf-8"))
    }
    assert found == ALLOWED

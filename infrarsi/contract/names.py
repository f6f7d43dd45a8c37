"""What a path may be called: names that git, Python or pytest act on, names that hide another module or look alike."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

# What git, Python or pytest read by name, wherever it stands: a change there changes more than the file.
_SPECIAL_NAMES = {
    ".gitattributes": "git applies it to other files",
    ".gitmodules": "git fetches what it names",
    ".gitignore": "it decides what git sees",
    ".lfsconfig": "git-lfs takes its server from it",
    "conftest.py": "pytest imports it by itself",
    "pyvenv.cfg": "Python takes its paths from it",
    "pip.conf": "pip takes its sources from it",
    ".env": "it sets environment variables; those are knobs",
    ".envrc": "it sets environment variables; those are knobs",
    "infrarsi.toml": "it is the contract",
    "infrarsi.lock": "it is the contract",
}
_SPECIAL_STEMS = {"sitecustomize": "Python imports it at start", "usercustomize": "Python imports it at start"}
_COMPILED = "it is compiled code that nobody can read"
_SPECIAL_SUFFIXES = {
    ".pth": "Python executes it at start",
    "._pth": "Python takes its paths from it",
    **dict.fromkeys((".pyc", ".pyo", ".so", ".pyd", ".dylib", ".dll", ".a", ".o"), _COMPILED),
    ".egg-link": "it changes where modules come from",
}
# An entry point in such a folder is imported by torch, at its own import, before anything else runs.
_PACKAGE_SUFFIXES = (".dist-info", ".egg-info", ".egg")
# Imported by every training, most of them by torch itself; used where the training's own packages are not known.
_LIBRARIES = frozenset(
    (
        *("torch", "torchvision", "torchaudio", "torchgen", "functorch", "triton", "numpy", "scipy", "pandas", "yaml"),
        *("transformers", "datasets", "tokenizers", "safetensors", "accelerate", "deepspeed", "lightning", "einops"),
        *(
            "sympy",
            "mpmath",
            "networkx",
            "jinja2",
            "markupsafe",
            "filelock",
            "fsspec",
            "typing_extensions",
            "packaging",
        ),
        *("setuptools", "pkg_resources", "psutil", "tqdm", "requests", "regex", "wandb", "tensorboard", "tiktoken"),
    )
)


def special(path: str) -> str:
    """Return why a name has powers beyond its file, or nothing. Case does not count: some file systems ignore it."""
    parts = [_folded(part) for part in PurePosixPath(path).parts]
    if not parts:
        return "it has no name"
    if ".git" in parts or ".." in parts or path.startswith("/") or any(part.startswith("git~") for part in parts):
        return "it is not a path of the work tree"
    name = ".env" if parts[-1].startswith(".env.") else parts[-1]
    reason = _SPECIAL_NAMES.get(name, "")
    for part in parts:
        reason = reason or _SPECIAL_STEMS.get(part.partition(".")[0], "")
        if part.endswith(_PACKAGE_SUFFIXES):
            reason = reason or "Python takes it for an installed package"
    return reason or next((why for suffix, why in _SPECIAL_SUFFIXES.items() if name.endswith(suffix)), "")


def odd(path: str) -> str:
    """Return what is wrong with the name of a new file, or nothing: it must read as what it is, everywhere."""
    if not path.isascii():
        return "its name holds letters that can look like others"
    if not path.isprintable() or "\\" in path or any(c in path for c in '"<>|:*?'):
        return "its name holds characters that other systems read as something else"
    parts = path.split("/")
    if any(part != part.strip() or part.endswith(".") or part.startswith("-") or not part for part in parts):
        return "its name begins or ends with a character that is easily overlooked"
    return ""


def twin(path: str, known: Collection[str]) -> str:
    """Return a path (or folder) of the base that differs from this new one in case or form only."""
    folded = {_folded(str(place)): str(place) for name in known for place in (name, *PurePosixPath(name).parents)}
    for place in (PurePosixPath(path), *PurePosixPath(path).parents):
        other = folded.get(_folded(str(place)))
        if other is not None and other != str(place):
            return other
    return ""


def hides(
    path: str, before: Collection[str], after: Collection[str], roots: Collection[str], installed: Collection[str]
) -> str:
    """Return the module outside the tree that a new Python file would be imported instead of, or nothing.

    `roots` are the folders on the import path. A name that the base's tree already answers for is the base's own.
    """
    libraries = _LIBRARIES | sys.stdlib_module_names | set(installed)
    for name, place in _import_names(path, after, roots):
        own = (f"{place}.py", f"{place}/__init__.py")
        if name in libraries and not any(o in before for o in own):
            return name
    return ""


def import_roots(entry: str) -> tuple[str, ...]:
    """Return the folders below the work tree that a trial has on its import path: top, `src`, and the script's own."""
    folder = str(PurePosixPath(entry).parent) if entry.endswith(".py") else ""
    return tuple(dict.fromkeys(("", "src", "" if folder == "." else folder)))


def _import_names(path: str, after: Collection[str], roots: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield (top-level name, its place) under which `path` can be imported: from each root, from its own package."""
    item = PurePosixPath(path)
    module = item.parent if item.name == "__init__.py" else item.with_suffix("")
    for root in roots:
        base = PurePosixPath(root)
        if module.is_relative_to(base) and module != base:
            top = base / module.relative_to(base).parts[0]
            # A folder without __init__.py is a namespace package, which an installed one goes before.
            if top == module or f"{top}/__init__.py" in after:
                yield top.name, str(top)
    while module.parent.name and f"{module.parent}/__init__.py" in after:
        module = module.parent
    yield module.name, str(module)


def _folded(name: str) -> str:
    """Return a name as the most forgiving file system compares it: no case, one form, no invisible letters."""
    shown = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) not in ("Cf", "Cc"))
    return shown.casefold()

"""Source code in colours, by Pygments' lexers.

Rules:

- The languages are those of the table: the lexer is known from the name of a file or of a block, never guessed, and
  no plugin is loaded.
- Lexers only choose colours. The text is taken from the source, so nothing is lost or added.
- A dozen classes are used instead of Pygments' hundred; `content.css` has a colour for each, light and dark.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

from turnspan.page.content.markup import painted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pygments.lexer import Lexer
    from pygments.token import _TokenType

    from turnspan.page.content.markup import Run
    from turnspan.page.content.section import Budget

_LONGEST_LINE: Final = 5_000  # longer ones are minified or data: colours would not help
_LONGEST_GAP: Final = 1_000  # characters of white space: some lexers take quadratic time for them
_NOT_SPACE: Final = re.compile(r"\S+")
_CLOCK_EVERY: Final = 256  # tokens between two looks at the clock

# Pygments' name of each language, with the file suffixes and names of blocks that mean it.
_LANGUAGES: Final = {
    "bash": "bash sh zsh shell bashrc profile",
    "batch": "bat cmd",
    "c": "c h",
    "cmake": "cmake",
    "console": "console shell-session",
    "cpp": "cpp cc cxx hpp hh c++",
    "csharp": "cs csharp c#",
    "css": "css",
    "dart": "dart",
    "diff": "diff patch",
    "docker": "dockerfile docker containerfile",
    "elixir": "ex exs elixir",
    "erlang": "erl hrl erlang",
    "go": "go golang",
    "graphql": "graphql gql",
    "groovy": "groovy gradle",
    "haskell": "hs haskell",
    "html": "html htm vue svelte",
    "http": "http",
    "ini": "ini cfg conf editorconfig properties",
    "java": "java",
    "javascript": "js mjs cjs jsx javascript",
    "json": "json jsonl jsonc ipynb webmanifest",
    "kotlin": "kt kts kotlin",
    "lua": "lua",
    "make": "makefile make mk",
    "markdown": "md markdown mdx",
    "nginx": "nginx",
    "nix": "nix",
    "objective-c": "m mm objective-c",
    "ocaml": "ml mli ocaml",
    "perl": "pl pm perl",
    "php": "php",
    "powershell": "ps1 psm1 powershell pwsh",
    "protobuf": "proto protobuf",
    "python": "py pyi pyw python python3 py3",
    "pycon": "pycon",
    "pytb": "pytb traceback",
    "r": "r",
    "rst": "rst",
    "ruby": "rb ruby gemfile rakefile",
    "rust": "rs rust",
    "scala": "scala sc",
    "scss": "scss sass less",
    "sql": "sql psql mysql sqlite",
    "swift": "swift",
    "terraform": "tf tfvars hcl terraform",
    "toml": "toml lock",
    "typescript": "ts mts cts typescript",
    "tsx": "tsx",
    "xml": "xml svg xsd xsl plist csproj",
    "yaml": "yaml yml",
    "zig": "zig",
}
_BY_NAME: Final = {name: language for language, names in _LANGUAGES.items() for name in (language, *names.split())}
_JSON_LOCKS: Final = ("package-lock.json", "composer.lock")

# The class of each of Pygments' kinds of tokens; a kind without one has that of the kind above it.
_CLASSES: Final = {
    "Comment": "h-c", "Comment.Preproc": "h-k", "Keyword": "h-k", "Keyword.Constant": "h-n", "Keyword.Type": "h-t",
    "Operator.Word": "h-k", "Name.Builtin": "h-b", "Name.Builtin.Pseudo": "h-v", "Name.Class": "h-t",
    "Name.Constant": "h-n", "Name.Decorator": "h-d", "Name.Exception": "h-t", "Name.Function": "h-f",
    "Name.Namespace": "h-t", "Name.Tag": "h-g", "Name.Attribute": "h-b", "Name.Variable": "h-v", "Literal": "h-n",
    "Literal.String": "h-s", "Literal.String.Escape": "h-e", "Literal.String.Interpol": "h-e",
    "Literal.String.Doc": "h-c", "Literal.String.Affix": "h-k", "Literal.Number": "h-n", "Generic.Deleted": "h-del",
    "Generic.Inserted": "h-ins", "Generic.Heading": "h-g", "Generic.Subheading": "h-g", "Generic.Prompt": "h-c",
    "Generic.Output": "h-o", "Generic.Error": "h-del", "Generic.Traceback": "h-del",
}  # fmt: skip


def language_of(file: str) -> str:
    """Return the language of a file by its name; "" if unknown."""
    name = file.replace("\\", "/").rpartition("/")[2].lower()
    if name in _JSON_LOCKS:
        return "json"
    return (
        _BY_NAME.get(name.lstrip(".")) or _BY_NAME.get(name.rpartition(".")[2], "")
        if "." in name
        else (_BY_NAME.get(name, ""))
    )


def language_named(name: str) -> str:
    """Return the language that a block of code names; "" if unknown."""
    return _BY_NAME.get(name.strip().lower().removeprefix("{.").removesuffix("}"), "")


def highlighted(text: str, language: str, budget: Budget, changed: Sequence[tuple[int, int]] = ()) -> list[str]:
    """Return the lines of a text as markup; without colours for an unknown language or beyond the budget."""
    return painted(text, _runs(text, language, budget), changed)


def _runs(text: str, language: str, budget: Budget) -> Iterator[Run]:
    if not language or not budget.allows_code(text) or _is_unusual(text):
        return
    for number, (start, kind, value) in enumerate(_lexer(language).get_tokens_unprocessed(text)):
        if number % _CLOCK_EVERY == 0 and budget.is_out_of_time():
            return
        css = _class_of(kind)
        if css and value:
            yield start, start + len(value), css


def _is_unusual(text: str) -> bool:
    return len(text) > _LONGEST_GAP and (
        max(map(len, text.split("\n"))) > _LONGEST_LINE or max(map(len, _NOT_SPACE.split(text))) > _LONGEST_GAP
    )


@cache
def _lexer(language: str) -> Lexer:
    from pygments.lexers import get_lexer_by_name  # noqa: PLC0415 - only content that is code needs it

    return get_lexer_by_name(language, stripnl=False, ensurenl=False)


@cache
def _class_of(kind: _TokenType) -> str:
    names = list(kind)
    while names:
        if (css := _CLASSES.get(".".join(names))) is not None:
            return css
        names.pop()
    return ""

"""Markdown as markup, parsed by markdown-it.

Rules:

- Raw HTML is text. Links lead to http, https and mail addresses only, without a referrer; any other link is text.
- Images are never loaded: their description and address are shown.
- What a user typed is not an article: its asterisks, underscores, backslashes and number signs stay.
- A text of which the parser would drop a part (cells that a table has no column for, nesting over its limit) is shown
  as plain text.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

from turnspan.page.content.code import highlighted, language_named
from turnspan.page.content.markup import MASK, attribute, clean, shown, tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

    from turnspan.page.content.section import Budget

_SAFE_LINK: Final = re.compile(r"(?:https?://|mailto:)[^\s\x00-\x1f]+", re.IGNORECASE)
_ADDRESS: Final = re.compile(r"https?://[^\s<>\"'`\x00-\x1f\u2028\u2029]{1,2000}")
_NOT_AT_THE_END: Final = ".,;:!?*_'\"»)]}"
_TASK: Final = re.compile(r"\[([ xX])\] ")
# For words that a user typed: keep what these rules would take away.
_ARTICLE_RULES: Final = ("emphasis", "strikethrough", "escape", "heading", "lheading", "code", "hr")
# Elements without attributes. Their names are not taken from the parser.
_ELEMENTS: Final = {
    "paragraph": "p", "blockquote": "blockquote", "bullet_list": "ul", "ordered_list": "ol", "list_item": "li",
    "em": "em", "strong": "strong", "s": "s", "table": "table", "thead": "thead", "tbody": "tbody", "tr": "tr",
    "th": "th", "td": "td",
}  # fmt: skip
_ALIGNED: Final = {"text-align:right": "c-right", "text-align:center": "c-center"}
_HEADINGS: Final = ("h1", "h2", "h3", "h4", "h5", "h6")


def markdown(text: str, budget: Budget, *, is_typed: bool = False) -> str:
    """Return Markdown as markup. `is_typed`: a user wrote it."""
    text = clean(text)
    if not budget.allows_markdown(text):
        return plain(text)
    tokens = _parser(is_typed=is_typed).parse(text)
    if _letters(text) > sum(map(_kept, tokens)):
        return plain(text)
    return tag("div", "".join(_blocks(tokens, budget)), "c-md")


def plain(text: str) -> str:
    """Return a text as it is."""
    return tag("pre", shown(clean(text)), "c-text")


@cache
def _parser(*, is_typed: bool) -> MarkdownIt:
    from markdown_it import MarkdownIt  # noqa: PLC0415 - only content that is Markdown needs it

    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 40})
    parser.enable(["table", "strikethrough"])
    # References and entities would disappear from the text.
    parser.disable(["reference", "entity", "html_block", "html_inline", *(_ARTICLE_RULES if is_typed else ())])
    parser.inline.ruler.before("backticks", "mask", _mask_rule)
    parser.validateLink = lambda url: _SAFE_LINK.fullmatch(url) is not None  # type: ignore[method-assign] # documented
    return parser


def _mask_rule(state: StateInline, silent: bool) -> bool:
    """Recognise a masked part before it is taken for a link."""
    if state.src[state.pos] != "[":
        return False
    mask = MASK.match(state.src, state.pos, state.posMax)
    if mask is None:
        return False
    if not silent:
        state.push("text", "", 0).content = mask[0]
    state.pos = mask.end()
    return True


def _letters(text: str) -> int:
    return sum(map(str.isalnum, text))


def _kept(token: Token) -> int:
    """Return how many letters of the source are in a block."""
    if token.type in {"inline", "code_block"}:
        return _letters(token.content)
    if token.type in {"fence", "list_item_open"}:
        return _letters(token.content) + _letters(token.info)
    return 0


# ---- from tokens to markup


def _blocks(tokens: Iterable[Token], budget: Budget) -> Iterator[str]:
    is_item = False  # at the beginning of a list item
    for token in tokens:
        name, _, edge = token.type.rpartition("_")
        if token.type == "inline":
            children = token.children or []
            if is_item and (box := _TASK.match(token.content)) is not None and children[0].type == "text":
                yield tag("span", "☐" if box[1] == " " else "☑", "c-box")
                children[0].content = children[0].content[box.end() :]
            yield from _inline(children, budget)
        elif token.type in _LEAVES:
            yield _LEAVES[token.type](token, budget)
        elif token.type == "list_item_open" and token.info:
            yield f'<li value="{int(token.info)}">'
        elif token.type in {"th_open", "td_open"}:
            css = _ALIGNED.get(str(token.attrGet("style") or ""), "")
            yield f'<{_ELEMENTS[name]} class="{css}">' if css else f"<{_ELEMENTS[name]}>"
        elif name in _ELEMENTS and not token.hidden:
            yield f"<{_ELEMENTS[name]}>" if edge == "open" else f"</{_ELEMENTS[name]}>"
        elif name == "heading" and token.tag in _HEADINGS:
            yield f"<{token.tag}>" if edge == "open" else f"</{token.tag}>"
        elif name == "paragraph" and edge == "close":
            yield "\n"
        is_item = token.type == "list_item_open" or (is_item and token.type == "paragraph_open")


def _inline(tokens: Iterable[Token], budget: Budget) -> Iterator[str]:
    in_link = False
    for token in tokens:
        name, _, edge = token.type.rpartition("_")
        if token.type == "text":
            yield shown(token.content) if in_link else _with_addresses(token.content)
        elif token.type == "link_open":
            in_link = True
            yield _link(str(token.attrGet("href") or ""), str(token.attrGet("title") or ""))
        elif token.type == "link_close":
            in_link = False
            yield "</a>"
        elif token.type in _LEAVES:
            yield _LEAVES[token.type](token, budget)
        elif name in _ELEMENTS:
            yield f"<{_ELEMENTS[name]}>" if edge == "open" else f"</{_ELEMENTS[name]}>"


def _link(address: str, title: str = "") -> str:
    value = attribute(address)
    hint = f"{value} {attribute(title)}" if title else value
    return f'<a href="{value}" title="{hint}" rel="noreferrer noopener nofollow" target="_blank">'


def _with_addresses(text: str) -> str:
    """Return a text with its web addresses as links."""
    if "://" not in text:
        return shown(text)
    pieces: list[str] = []
    at = 0
    for found in _ADDRESS.finditer(text):
        address = found[0]
        mask = address.find("[")  # a masked part, or the end of a bracket
        address = (address[:mask] if mask > 0 else address).rstrip(_NOT_AT_THE_END)
        pieces += (shown(text[at : found.start()]), _link(address), shown(address), "</a>")
        at = found.start() + len(address)
    pieces.append(shown(text[at:]))
    return "".join(pieces)


def code_block(text: str, language: str, budget: Budget, name: str = "") -> str:
    """Return a block of code; `name` is shown above it."""
    head = tag("div", shown(name), "c-name") if name else ""
    lines = highlighted(clean(text).removesuffix("\n"), language, budget)
    return tag("div", head + tag("pre", "\n".join(lines), "c-code"), "c-block")


def _fence(token: Token, budget: Budget) -> str:
    info = token.info.strip()
    return code_block(token.content, language_named(info.split(maxsplit=1)[0] if info else ""), budget, info)


def _image(token: Token, _budget: Budget) -> str:
    address = str(token.attrGet("src") or "")
    return tag("span", f"{shown(token.content)} {tag('span', shown(address), 'c-faint')}", "c-image")


def _text_of(name: str) -> Callable[[Token, Budget], str]:
    return lambda token, _budget: tag(name, shown(token.content))


_LEAVES: Final[dict[str, Callable[[Token, Budget], str]]] = {
    "code_inline": _text_of("code"),
    "code_block": lambda token, budget: code_block(token.content, "", budget),
    "fence": _fence,
    "image": _image,
    "hr": lambda _token, _budget: "<hr>",
    "softbreak": lambda _token, _budget: "<br>",
    "hardbreak": lambda _token, _budget: "<br>",
}

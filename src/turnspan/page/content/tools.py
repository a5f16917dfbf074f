"""The content of tool calls: what each tool of Claude Code was asked for, and what it returned.

Rules:

- A tool with a function here is shown in its own way; all others as arguments and output.
- Arguments are whatever the model wrote: where a field is missing or has another type, the call is shown as JSON.
- Fields that a function does not show itself are listed next to the name of the file or the command.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan.page.content import documents
from turnspan.page.content.code import language_of
from turnspan.page.content.console import console
from turnspan.page.content.diff import added, diff
from turnspan.page.content.documents import folded, section
from turnspan.page.content.files import found, numbered, path
from turnspan.page.content.markdown import code_block
from turnspan.page.content.markup import shown, tag
from turnspan.page.content.section import Section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from turnspan.page.content.section import Budget

_EXIT_CODE: Final = re.compile(r"Exit code (\d{1,5})(?:\n|$)")
_WRAPPED: Final = re.compile(r"\s*<tool_use_error>(.*)</tool_use_error>\s*", re.DOTALL)
_REMINDER: Final = re.compile(r"\n*<system-reminder>\n?")
_LINKS: Final = re.compile(r"(?:^|\n)Links: (\[.*\])(?:\n|$)")
_TASK_LINE: Final = re.compile(r"#(\d{1,9})\.? \[(\w{1,20})\] (.*)")
_ENDINGS: Final = {"permission_denied": "Refused", "interrupted": "Interrupted"}
_LONGEST_OPTION: Final = 200


class Call(msgspec.Struct, frozen=True):
    """A call of a tool; `output` is None where it is shown elsewhere or missing."""

    name: str
    arguments: str
    output: str | None = None
    error: str | None = None
    exit_code: int | None = None
    is_background: bool = False


class _UnexpectedError(ValueError):
    """The arguments are not those that the tool takes."""


class _Arguments:
    """The arguments of a call, and which of them were shown."""

    def __init__(self, text: str) -> None:
        try:
            values = msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
            raise _UnexpectedError from exc
        if not isinstance(values, dict):
            raise _UnexpectedError
        self._values: dict[str, Any] = values
        self._used: set[str] = set()

    def text(self, name: str) -> str:
        """Return a field that is text. Raises _UnexpectedError."""
        value = self._values.get(name)
        if not isinstance(value, str):
            raise _UnexpectedError
        self._used.add(name)
        return value

    def optional(self, name: str) -> str:
        """Return a field that is text; "" if it is missing or not text."""
        return self.text(name) if isinstance(self._values.get(name), str) else ""

    def items(self, name: str) -> list[dict[str, Any]]:
        """Return a field that is a list of objects. Raises _UnexpectedError."""
        value = self._values.get(name)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise _UnexpectedError
        self._used.add(name)
        return value

    def others(self) -> str:
        """Return the fields that were not used, as markup."""
        pairs = [(name, value) for name, value in self._values.items() if name not in self._used]
        return "".join(f" {tag('span', shown(f'{name}: {_option(value)}'), 'c-option')}" for name, value in pairs)


def _option(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST_OPTION else f"{text[:_LONGEST_OPTION]}… ({len(text):,} characters)"


def tool_sections(call: Call, budget: Budget) -> Iterator[Section]:
    """Yield the sections of a call."""
    show = _TOOLS.get(call.name)
    if show is not None:
        try:
            asked = _Arguments(call.arguments)
            shown_sections = list(show(call, asked, budget))
        except _UnexpectedError:
            pass
        else:
            yield from shown_sections
            return
    if call.arguments not in {"", "{}"}:
        yield documents.arguments("Arguments", call.arguments, budget)
    yield from _result(call, budget)


def _result(call: Call, budget: Budget, label: str = "Output") -> Iterator[Section]:
    """Yield what a call returned."""
    if call.output is None:
        return
    if call.error is not None:
        yield _failure(call, budget)
    elif call.output.strip():
        yield documents.output(label, call.output, budget)


def _failure(call: Call, budget: Budget) -> Section:
    text = call.output or ""
    wrapped = _WRAPPED.fullmatch(text)
    return documents.error(_ENDINGS.get(call.error or "", "Error"), wrapped[1] if wrapped is not None else text, budget)


def _report(call: Call, budget: Budget, label: str = "Output") -> Iterator[Section]:
    """Yield a result that is Markdown."""
    if call.output and call.error is None:
        yield documents.prose(label, call.output, budget)
    else:
        yield from _result(call, budget, label)


def _head(body: str, asked: _Arguments) -> str:
    return tag("div", body + asked.others(), "c-head")


# ---- files


def _edit(call: Call, asked: _Arguments, budget: Budget) -> Iterator[Section]:
    file, old, new = asked.text("file_path"), asked.text("old_string"), asked.text("new_string")
    yield _diff_section([(old, new)], file, asked, budget)
    yield from _file_result(call, budget)


def _multi_edit(call: Call, asked: _Arguments, budget: Budget) -> Iterator[Section]:
    file = asked.text("file_path")
    edits = [(edit.get("old_string"), edit.get("new_string")) for edit in asked.items("edits")]
    if not all(isinstance(old, str) and isinstance(new, str) for old, new in edits):
        raise _UnexpectedError
    yield _diff_section([(str(old), str(new)) for old, new in edits], file, asked, budget)
    yield from _file_result(call, budget)


def _diff_section(edits: list[tuple[str, str]], file: str, asked: _Arguments, budget: Budget) -> Section:
    html, is_cut = _head(path(file), asked), False
    for old, new in edits:
        before, is_old_cut = budget.beginning(old)
        after, is_new_cut = budget.beginning(new)
        is_cut |= is_old_cut or is_new_cut
        html += diff(before, after, language_of(file), budget)
    return Section("Edit", "diff", html, size=sum(len(old) + len(new) for old, new in edits), is_cut=is_cut)


def _write(call: Call, asked: _Arguments, budget: Budget) -> Iterator[Section]:
    file, content = asked.text("file_path"), asked.text("content")
    head = _head(path(file), asked)
    yield section("Write", "diff", content, lambda part: head + added(part, language_of(file), budget), budget)
    yield from _file_result(call, budget)


def _notebook_edit(call: Call, asked: _Arguments, budget: Budget) -> Iterator[Section]:
    file, source = asked.text("notebook_path"), asked.text("new_source")
    language = "markdown" if asked.optional("cell_type") == "markdown" else "python"
    head = _head(path(file), asked)
    yield section("Edit", "diff", source, lambda part: head + added(part, language, budget), budget)
    yield from _file_result(call, budget)


def _file_result(call: Call, budget: Budget) -> Iterator[Section]:
    """Yield the result of an edit, folded unless it failed: it says that the file was written."""
    for result in _result(call, budget):
        yield result if result.kind == "error" else folded(result)


def _read(call: Call, asked: _Arguments, budget: Budget) -> Iterator[Section]:
    file = asked.text("file_path")
    head = _head(path(file), asked)
    if call.output is None or call.error is not None:
        yield Section("Read", "file", head, size=len(file))
        yield from _result(call, budget)
        return
    text, reminder = _without_reminder(call.output)
    beginning, is_cut = budget.beginning(text)
    lines = numbered(beginning, file, budget)
    if lines is None:
        yield Section("Read", "file", head, size=len(file))
        yield from _result(call, budget)
        return
    yield Section("Read", "file", head + lines, size=len(text), is_cut=is_cut)
    if reminder:
        yield folded(section("Added by the client", "text", reminder, _plain, budget))


def _plain(text: str) -> str:
    return tag("pre", shown(text), "c-text c-faint")


def _without_reminder(text: str) -> tuple[str, str]:
    """Return the text of a file, and what the client added below it for the model."""
    at = text.rfind("<system-reminder>")
    if at < 0 or not text.rstrip().endswith("</system-reminder>"):
        return text, ""
    return text[:at].rstrip("\n"), text[at:].strip()


def _search(call: Call, asked: _Arguments, budget: Budget) -> Iterator[Section]:
    head = _head(tag("code", shown(asked.text("pattern"))), asked)
    if call.output is None or call.error is not None:
        yield Section(call.name, "file", head)
        yield from _result(call, budget)
        return
    yield section(call.name, "file", call.output, lambda part: head + found(part, budget), budget)


# ---- commands


def _bash(call: Call, asked: _Arguments, budget: Budget) -> Iterator[Section]:
    command, text = asked.text("command"), call.output or ""
    description = asked.optional("description")
    status, is_bad = "", call.error is not None
    code = _EXIT_CODE.match(text)
    if code is not None and is_bad:
        status, text = f"exit code {code[1]}", text[code.end() :]
    elif call.exit_code is not None:
        status = f"exit code {call.exit_code}"
    elif is_bad:
        status = _ENDINGS.get(call.error or "", "failed").lower()
    elif call.is_background:
        status = "running in the background"
    wrapped = _WRAPPED.fullmatch(text)
    text = wrapped[1] if wrapped is not None else text
    others = asked.others()
    head = tag("div", shown(description) + others, "c-head") if description or others else ""
    first, is_command_cut = budget.beginning(command)
    beginning, is_cut = budget.beginning(text)
    html = head + console(first, beginning, status, budget, is_bad=is_bad)
    yield Section("Command", "terminal", html, size=len(command) + len(text), is_cut=is_cut or is_command_cut)


# ---- lists of tasks


def _todo_write(call: Call, asked: _Arguments, budget: Budget) -> Iterator[Section]:
    items = [(str(item.get("status") or ""), str(item.get("content") or "")) for item in asked.items("todos")]
    html = documents.check_list(items)
    yield Section("To do", "todos", html + asked.others(), size=sum(len(text) for _, text in items))
    yield from _file_result(call, budget)


def _task_create(call: Call, asked: _Arguments, budget: Budget) -> Iterator[Section]:
    subject, details = asked.text("subject"), asked.optional("description")
    html = documents.check_list([("pending", subject)]) + (tag("pre", shown(details), "c-text") if details else "")
    yield Section("New task", "todos", html + asked.others(), size=len(subject) + len(details))
    yield from _file_result(call, budget)


def _task_update(call: Call, asked: _Arguments, budget: Budget) -> Iterator[Section]:
    number, status = asked.text("taskId"), asked.text("status")
    subject = asked.optional("subject")
    html = documents.check_list([(status, f"#{number} {subject}".rstrip())])
    yield Section("Task", "todos", html + asked.others(), size=len(subject))
    yield from _file_result(call, budget)


def _task_list(call: Call, asked: _Arguments, budget: Budget) -> Iterator[Section]:
    text = (call.output or "").strip()
    beginning, is_cut = budget.beginning(text)
    lines = beginning.split("\n")
    tasks = [_TASK_LINE.fullmatch(line) for line in lines]
    if call.error is not None or asked.others():
        raise _UnexpectedError
    items = [(task[2], f"#{task[1]} {task[3]}") for task in tasks if task is not None]
    if len(items) < len(lines):
        raise _UnexpectedError
    yield Section("Tasks", "todos", documents.check_list(items), size=len(text), is_cut=is_cut)


# ---- agents, plans, the web


def _agent(call: Call, asked: _Arguments, budget: Budget) -> Iterator[Section]:
    prompt = asked.text("prompt")
    description, kind = asked.optional("description"), asked.optional("subagent_type")
    words = tag("b", shown(description)) + (f" {tag('span', shown(kind), 'c-option')}" if kind else "")
    made = documents.prose("Task", prompt, budget)
    yield msgspec.structs.replace(made, html=_head(words, asked) + made.html)
    yield from _report(call, budget, "Report")


def _plan(call: Call, asked: _Arguments, budget: Budget) -> Iterator[Section]:
    made = documents.prose("Plan", asked.text("plan"), budget)
    others = asked.others()
    yield msgspec.structs.replace(made, html=(tag("div", others, "c-head") if others else "") + made.html)
    yield from _file_result(call, budget)


def _web_fetch(call: Call, asked: _Arguments, budget: Budget) -> Iterator[Section]:
    made = documents.prose("Page", asked.text("url"), budget)
    question = asked.optional("prompt")
    html = _head("", asked) + made.html + (tag("pre", shown(question), "c-text") if question else "")
    yield msgspec.structs.replace(made, html=html)
    yield from _report(call, budget)


def _web_search(call: Call, asked: _Arguments, budget: Budget) -> Iterator[Section]:
    query = asked.text("query")
    yield Section("Search", "text", _head(tag("code", shown(query)), asked), size=len(query))
    text = call.output or ""
    links = _LINKS.search(text)
    if links is None or call.error is not None:
        yield from _report(call, budget)
        return
    try:
        pages = msgspec.json.decode(links[1], type=list[dict[str, str]])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pages = []
    if not pages:
        yield from _report(call, budget)
        return
    lines = "".join(f"- {page.get('title', '')} {page.get('url', '')}\n" for page in pages)
    yield documents.prose("Pages", lines, budget, is_typed=True)
    rest = text[: links.start()] + "\n" + text[links.end() :]
    yield documents.prose("Output", rest.strip(), budget)


def _skill(call: Call, asked: _Arguments, budget: Budget) -> Iterator[Section]:
    name = asked.text("skill")
    yield Section("Skill", "text", _head(tag("code", shown(name)), asked), size=len(name))
    yield from _result(call, budget)


def _code_tool(call: Call, asked: _Arguments, budget: Budget) -> Iterator[Section]:
    code = asked.text("code")
    head = _head("", asked)
    yield section("Code", "code", code, lambda part: head + code_block(part, "python", budget), budget)
    yield from _result(call, budget)


_TOOLS: Final[dict[str, Callable[[Call, _Arguments, Budget], Iterator[Section]]]] = {
    "Edit": _edit, "MultiEdit": _multi_edit, "Write": _write, "NotebookEdit": _notebook_edit, "Read": _read,
    "Grep": _search, "Glob": _search, "Bash": _bash, "TodoWrite": _todo_write, "TaskCreate": _task_create,
    "TaskUpdate": _task_update, "TaskList": _task_list, "Task": _agent, "Agent": _agent, "ExitPlanMode": _plan,
    "WebFetch": _web_fetch, "WebSearch": _web_search, "Skill": _skill, "mcp__ide__executeCode": _code_tool,
}  # fmt: skip

"""The subagents of a session: what each did for which call, and when that is exported.

How an agent is linked to its call is described in `agent_links`. What is exported when:

| agent | exported | as |
|---|---|---|
| foreground | with the turn that launched it | spans below the call |
| background | when it has finished | further spans of the launching turn's trace, below the call |
| sent on by a later call (a message, a resume) | as if launched by that call | another agent span |
| launched by an agent | with that agent, to a depth of 12 | spans below that agent's call |
| linked to no call, with a label in its id (`acompact-…`) | when it has finished, if it said anything | own trace |
| linked to no call, other | when the session is over or idle, and nothing in it is open | a trace of its own |
| foreground, without a file (2.1.9 to 2.1.47) | as above, from `progress` rows | as above |
| of a session whose own file is missing | as if linked to no call, with the agents that it launched | own trace |
| warm-up (2.0.x) | never; counted | - |

Rules:

- An agent **has finished** when the client says so (SubagentStop, `finished` in `meta.json`), when the session is over,
  or when its file has been idle. SubagentStop can precede the last rows: then the answer is missing, and the worker
  waits for it.
- Each **run** of an agent (a turn of its file) belongs to the last call before it, whenever it is read. A foreground
  call ends with its result; what the agent does later was asked for by another call. If an agent is sent on before its
  previous run was exported, that run is exported first.
- An open turn can contain calls that are not recorded yet. So runs that began after it are not exported before it.
- An agent that no call has claimed can still be claimed while a turn is open: exporting it as a trace of its own would
  be wrong, and could not be undone.

Finding and recording are separate: `Links.find` and `read_runs` only look; `collect` and `remaining` record launches
and positions in `Links`, and return what is to be exported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.source import sessions
from turnspan.source.agent_links import Links, ParentSpan, agent_calls
from turnspan.source.agent_progress import progress_agents, progress_responses, without_responses
from turnspan.source.agent_runs import Runs, identities, read_runs, started_ns
from turnspan.source.scan import first_row_time_ns, first_time_ns, last_time_ns
from turnspan.trace.build import Agent, Launch, build_agent, trace_of_agent
from turnspan.trace.facts import agent_arguments
from turnspan.transcript.rows import WARMUP
from turnspan.transcript.turns import AGENT_TOOLS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from turnspan.source.agent_links import AgentLink
    from turnspan.source.agent_progress import ProgressAgent
    from turnspan.source.ending import Ending
    from turnspan.source.progress import Launched, Progress
    from turnspan.source.sessions import AgentFile, SessionFile
    from turnspan.trace.cost import Prices
    from turnspan.trace.model import Trace
    from turnspan.transcript.lines import Anomalies
    from turnspan.transcript.turns import Turn

_MAX_DEPTH: Final = 12
_LATEST_AGENTS: Final = 32


class Collected(msgspec.Struct):
    """The foreground agents of a turn, and traces that must be exported before it."""

    agents: dict[str, list[Agent]] = {}  # by the call that launched them
    earlier: list[Trace] = []  # what they did for earlier calls, not exported yet

    def merge(self, other: Collected) -> None:
        """Add what was collected for a nested agent."""
        self.agents |= other.agents
        self.earlier += other.earlier


class Agents:
    """Reads the subagents of one session. After it: whether one is still running, or its answer is missing."""

    def __init__(
        self, session: SessionFile, progress: Progress, ending: Ending, anomalies: Anomalies, prices: Prices | None
    ) -> None:
        self._session = session
        self._ending = ending
        self._noticed = anomalies
        self._prices = prices
        self.links = Links(session, progress)
        self.has_unsealed = False  # a turn of the session or an agent is still running
        self.is_answer_missing = False  # the client says that an agent has finished, and its file does not show it yet
        self.is_adding = False  # an agent is being added: progress made with it must not be stored
        self.warmups = 0
        self.skipped: set[str] = set()  # responses and calls of warm-ups

    def last_write_ns(self) -> int:
        """Return the last time at which any agent wrote something, as far as the ends of their files show."""
        return max((last_time_ns(file.path) or 0 for file in self.links.files.values()), default=0)

    # ---- with their turn

    def collect(self, turn: Turn, parent: ParentSpan, depth: int = 1) -> Collected:
        """Return the foreground agents that a turn launched, and record every launch."""
        collected = Collected()
        calls = agent_calls(turn)
        if not calls or depth > _MAX_DEPTH:
            return collected
        in_progress = progress_agents(self._session, turn, calls) if depth == 1 and parent.agent_id is None else {}
        for call in calls:
            link = self.links.find(call, turn, parent)
            if link is not None:
                self._follow(link, parent, depth, collected)
                if call.id in in_progress and not link.launched.is_background:
                    self._add_progress(link, in_progress[call.id], collected)
        return collected

    def _add_progress(self, link: AgentLink, found: ProgressAgent, collected: Collected) -> None:
        """Add what only the session's progress rows show of a foreground agent."""
        agents = collected.agents.setdefault(link.call.id, [])
        if not agents:
            self.links.record(found.agent_id, link.launched)  # its file may appear later
            turns = found.turns()
            kind, is_partial = agent_arguments(link.call)[1], not (turns and turns[-1].has_answer)
            agents.append(Agent(found.agent_id, kind, tuple(turns), is_partial=is_partial))
            return
        known = {response.key for agent in agents for turn in agent.turns for response in turn.responses}
        left = without_responses(found.turns(), known) if found.responses - known else ()
        if left:
            agents[0] = msgspec.structs.replace(agents[0], turns=(*agents[0].turns, *left))

    def _follow(self, link: AgentLink, parent: ParentSpan, depth: int, collected: Collected) -> None:
        """Record a link, and add its foreground agents with the agents they launched."""
        self.links.record_missing(link)
        launched = link.launched
        for file in link.files:
            since_ns = launched.since_ns if file.agent_id in self.links.launched else 0
            self.links.record(file.agent_id, launched)
            if launched.is_background:
                continue
            read = self._runs(file, is_over=True, since_ns=since_ns, until_ns=link.until_ns)
            self.links.positions[file.agent_id] = read.position
            collected.earlier += self._traces(file, [run for run in read.turns if started_ns(run) < since_ns])
            runs = [run for run in read.turns if started_ns(run) >= since_ns]
            below = ParentSpan(parent.trace_id, parent.name, file.agent_id)
            for run in runs:
                collected.merge(self.collect(run, below, depth + 1))
            collected.agents.setdefault(link.call.id, []).append(_agent(file, runs, launched))

    # ---- after their turn

    def remaining(self, *, open_ns: int | None, has_unsealed: bool) -> Iterator[list[Trace]]:
        """Yield the traces of agents that were not exported with a turn: background ones, late rows, unclaimed ones.

        `open_ns`: when the turn began that is still open; `has_unsealed`: whether there is one.
        """
        self.has_unsealed |= has_unsealed
        done: set[str] = set()
        # Launched agents first: they may have launched others, which then are not unclaimed.
        while launched := [agent_id for agent_id in self.links.launched if agent_id not in done]:
            done.update(launched)
            for agent_id in self._possibly_changed(launched):
                file = self.links.file_of(agent_id)
                if file is not None:
                    yield from self._export(file, open_ns)
        for agent_id, file in self._other_files().items():
            if agent_id not in done and (agent_id in self.links.positions or self._is_unclaimed(file)):
                yield from self._export(file, open_ns)

    def _possibly_changed(self, launched: list[str]) -> list[str]:
        """Return the agents that may have written something new.

        One that was read to its end rarely continues without another call. So an event looks at the latest of what may
        be a thousand agents; the end of the session, recovery and backfill look at all.
        """
        ending, positions = self._ending, self.links.positions
        if ending.is_over or ending.now_ns is not None:
            return launched
        settled = {a for a in launched[:-_LATEST_AGENTS] if a in positions and not positions[a].carry.turns}
        settled -= {*ending.agents}
        return [agent_id for agent_id in launched if agent_id not in settled]

    def _other_files(self) -> dict[str, AgentFile]:
        files = dict(self.links.files)
        if not self.has_unsealed and (self._ending.is_over or self._is_idle(self._session.path)):
            files |= {file.agent_id: file for file in sessions.flat_agent_files(self._session)}
        if self._session.is_lost:  # an agent before those that it launched
            files = dict(sorted(files.items(), key=lambda pair: (first_time_ns(pair[1].path) or 0, pair[0])))
        return files

    def _export(self, file: AgentFile, open_ns: int | None) -> Iterator[list[Trace]]:
        """Yield the traces of what an agent did since it was last read, if it has finished."""
        if file.size <= self.links.position_of(file).offset:
            return
        is_over = self._ending.is_over or self._is_idle(file.path)
        is_reported = file.agent_id in self._ending.agents
        if not (is_over or is_reported or file.is_finished):
            self.has_unsealed = True
            return
        runs = self._runs(file, is_over=is_over, until_ns=open_ns)
        if runs.is_open:
            self.has_unsealed = True
            self.is_answer_missing |= is_reported
        if not runs.turns:
            return
        self.is_adding = True
        turns = self._with_content(file, runs.turns)
        if self._was_in_progress_rows(file):
            turns = without_responses(turns, progress_responses(self._session, file.agent_id))
        self.links.positions[file.agent_id] = runs.position
        is_warmup = self._is_warmup(file, runs.turns)
        self.warmups += is_warmup
        self.skipped |= identities(runs.turns[0]) if is_warmup else set()
        traces = [] if is_warmup else self._traces(file, turns)
        self.is_adding = False
        yield traces

    def _runs(self, file: AgentFile, *, is_over: bool, since_ns: int = 0, until_ns: int | None = None) -> Runs:
        """Return what an agent did since it was last read."""
        return read_runs(
            file, self.links.position_of(file), self._session.session_id, self._noticed,
            is_over=is_over, since_ns=since_ns, until_ns=until_ns,
        )  # fmt: skip

    def _traces(self, file: AgentFile, turns: Sequence[Turn]) -> list[Trace]:
        """Return an agent's runs as traces, each below the call that it was run for."""
        traces: list[Trace] = []
        for turn in turns:
            call = self.links.call_before(file.agent_id, started_ns(turn))
            agent = _agent(file, turns, call, is_late=True)
            launch: Launch | None = None
            if call is not None:
                launch = Launch(bytes.fromhex(call.trace_id), bytes.fromhex(call.span_id), call.name)
                parent = ParentSpan(launch.trace_id, launch.name, file.agent_id)
            else:
                parent = ParentSpan(trace_of_agent(file.agent_id, turn), agent.type or "agent", file.agent_id)
            collected = self.collect(turn, parent)
            traces += collected.earlier
            traces.append(build_agent(agent, turn, launch, collected.agents, prices=self._prices))
        return traces

    # ---- queries

    def _with_content(self, file: AgentFile, turns: list[Turn]) -> list[Turn]:
        """Return the runs of an agent; none of one that the client started by itself and that did not respond."""
        if file.agent_id in self.links.launched or not sessions.label_of(file.agent_id):
            return turns
        return turns if any(turn.responses for turn in turns) else []

    def _was_in_progress_rows(self, file: AgentFile) -> bool:
        """Whether an agent was exported from its session's progress rows before its file appeared."""
        launched = self.links.launched.get(file.agent_id, ())
        return bool(launched) and not launched[0].is_background and file.agent_id not in self.links.positions

    def _is_unclaimed(self, file: AgentFile) -> bool:
        """Whether no call will ever claim an agent: its id says what it is for, or the session is over."""
        if sessions.label_of(file.agent_id) and file.tool_use_id is None:
            return True
        return not self.has_unsealed and (self._ending.is_over or self._is_idle(file.path))

    def _is_warmup(self, file: AgentFile, turns: Sequence[Turn]) -> bool:
        """Whether the client started an agent by itself, to be ready for others (2.0.x).

        2.0.55 records no prompts of agents. There it is one that answered before the session called any agent.
        """
        turn = turns[0]
        if file.agent_id in self.links.launched:
            return False
        if len(turns) > 1 or turn.prompt is not None:
            return len(turns) == 1 and turn.prompt is not None and turn.prompt.text.strip() == WARMUP
        if not turn.version.startswith("2.0.") or self._session.is_lost:
            return False
        called_ns = first_row_time_ns(self._session.path, *(("name", b'"%b"' % name.encode()) for name in AGENT_TOOLS))
        return called_ns is None or max(turn.times, default=0) < called_ns

    def _is_idle(self, path: Path) -> bool:
        if self._ending.now_ns is None:
            return False  # without opening the file
        last_ns = last_time_ns(path)
        return last_ns is not None and self._ending.is_idle(last_ns)


def _agent(file: AgentFile, turns: Sequence[Turn], call: Launched | None, *, is_late: bool = False) -> Agent:
    """Return an agent; `is_late` if it is exported after the turn that launched it."""
    kind = (call.type if call is not None else "") or file.type or sessions.label_of(file.agent_id)
    return Agent(file.agent_id, kind, tuple(turns), file.description, file.depth, is_late and call is not None)

"""Images of a span, for the page: only if the user has set `view_images`, and only where the trace mentions them.

They are read from the transcript when the page asks for one, and go to the browser on this machine, nowhere else.
Secrets in an image cannot be masked: that is why the setting is off by default.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from turnspan.settings.project import narrowed
from turnspan.source.images import image_of_call, image_of_prompt
from turnspan.trace.model import Kind, Media, parts_of

if TYPE_CHECKING:
    from turnspan.settings.config import Config, Destination
    from turnspan.source.images import Image
    from turnspan.source.sessions import SessionFile
    from turnspan.trace.model import Span

_MARK: Final = re.compile(r"^\[([\w.+/-]{1,100}), (\d{1,15}) bytes\]$", re.MULTILINE)  # in the result of a tool


def images_allowed(config: Config, destination: Destination, cwd: str) -> bool:
    """Return whether images of a working directory may be shown on the page."""
    narrowing = config.narrowing(cwd)
    return bool(
        config.values["view_images"]
        and not config.is_invalid
        and not narrowing.is_off
        and narrowed(destination.policy, narrowing)["images"]
    )


def sizes_in(span: Span) -> list[tuple[str, int]]:
    """Return the type and size of the images and documents that a prompt or a tool result mentions."""
    if span.kind is Kind.TURN:
        return [(media.mime, media.bytes) for media in parts_of(span.input, Media)]
    if span.kind is Kind.TOOL and isinstance(span.output, str):
        return [(mime, int(size)) for mime, size in _MARK.findall(span.output)]
    return []


def image_of(session: SessionFile, span: Span, number: int) -> Image | None:
    """Return one of the images of a span; None if it cannot be found or shown."""
    sizes = [size for _, size in sizes_in(span)]
    if not 0 <= number < len(sizes):
        return None
    if span.kind is Kind.TURN:
        return image_of_prompt(session, span.start_ns, sizes, number)
    return image_of_call(session, str(span.facts.get("tool_call_id") or ""), sizes, number)

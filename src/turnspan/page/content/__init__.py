"""The content of spans as people read it: safe markup made from Markdown, code, diffs, terminal output, JSON.

Rules:

- Only this room turns content into markup, and every string of content goes through `markup.shown`: escaped, control
  and direction characters made visible, masked parts as `<mark>`. Tags, classes and attributes are our own literals;
  the only attributes with content are `href` and `title` of links to http, https and mail addresses.
- The text stays complete: what a format would hide (an image, a cell too many, a quote nested too deep) is shown as
  text instead.
- Rendering takes linear time. Texts over a budget are shown as plain text, and without `is_full` only their beginning.
"""

from turnspan.page.content.section import Section
from turnspan.page.content.spans import conversation, sections

__all__ = ["Section", "conversation", "sections"]

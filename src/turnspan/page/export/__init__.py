"""A session as one file to share: a page that needs no server and no script, or Markdown.

Rules:

- The content is that of the page: what would be exported, masked, rendered by `view.content`.
- Everything is made turn by turn, as it is read: a long session is never held in memory.
- The file loads nothing: styles are part of it, images are not shown, and its content security policy forbids the rest.
"""

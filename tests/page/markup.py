"""Reads markup back: its text, and every tag and attribute that is not on the list."""

from html.parser import HTMLParser

TAGS = {
    "a", "b", "blockquote", "br", "code", "details", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "li",
    "mark", "ol", "p", "pre", "s", "span", "strong", "summary", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
EMPTY = {"br", "hr"}
SCHEMES = ("http://", "https://", "mailto:")


class Markup(HTMLParser):
    """What a browser makes of markup."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.marks = []
        self.links = []
        self.hidden = ""  # the values of attributes that a reader sees
        self.problems = []
        self._open = []
        self.feed(html)
        self.close()
        if self._open:
            self.problems.append(f"not closed: {self._open}")

    def handle_starttag(self, tag, attrs):
        """Compare a tag with the list."""
        if tag not in TAGS:
            self.problems.append(f"tag {tag}")
        for name, value in attrs:
            if not self._is_allowed(tag, name, value):
                self.problems.append(f"{tag} {name}={value}")
        if tag not in EMPTY:
            self._open.append(tag)
        if tag == "br":
            self.text += "\n"
        if tag == "mark":
            self.marks.append("")

    def _is_allowed(self, tag, name, value):
        if name == "class":
            return all(part.startswith(("c-", "h-")) for part in value.split())
        if tag == "li" and name == "value":
            self.hidden += f" {value}"
            return value.isdigit()
        if tag == "a" and name == "href":
            self.links.append(value)
            self.hidden += f" {value}"
            return value.lower().startswith(SCHEMES)
        if tag == "a" and name == "title":
            self.hidden += f" {value}"
            return True
        return tag == "a" and (name, value) in {("rel", "noreferrer noopener nofollow"), ("target", "_blank")}

    def handle_endtag(self, tag):
        """Require the tag that was opened last."""
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"closes {tag}")

    def handle_data(self, data):
        """Collect the text."""
        self.text += data
        if "mark" in self._open:
            self.marks[-1] += data

    def handle_comment(self, data):
        """Refuse comments."""
        self.problems.append(f"comment {data}")

    def handle_decl(self, decl):
        """Refuse declarations."""
        self.problems.append(f"declaration {decl}")

    def handle_pi(self, data):
        """Refuse processing instructions."""
        self.problems.append(f"instruction {data}")

    def unknown_decl(self, data):
        """Refuse sections such as CDATA."""
        self.problems.append(f"section {data}")

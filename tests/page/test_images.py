"""Images on the page: only if the user allows them, only real ones, and nowhere else."""

import base64
import struct
import zlib

import browser
import pytest
from rows import Writer, save_agent
from session_pages import Page
from test_view import SESSION, ask, records_of, viewing

from turnspan.source import images
from turnspan.source.sessions import session_of

ALLOWED = "view_images = true\n"


def png(width=40, height=20):
    """A picture."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"\x40\x80\xc0" * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def block(data, mime="image/png"):
    """An image as a client writes it."""
    encoded = data if isinstance(data, str) else base64.b64encode(data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": mime, "data": encoded}}


def written(home, *, prompt=(), result=(), settings=ALLOWED, cwd="/home/ada/loom"):
    """Write a session with images in its prompt and in the result of a tool."""
    (home / "turnspan").mkdir(mode=0o700, exist_ok=True)
    (home / "turnspan" / "config.toml").write_text(settings)
    writer = Writer(SESSION, cwd=cwd)
    writer.prompt([{"type": "text", "text": "what is this?"}, *prompt])
    call = writer.call("Screenshot", {"url": "x"})
    writer.result(call, [{"type": "text", "text": "taken"}, *result])
    writer.say("A picture.")
    return writer.save(home / "projects" / "-home-ada-loom")


def spans_with_images(viewer):
    """The records of the spans that have images: (where to ask for them, the record)."""
    found = []
    for turn in (one for one in records_of(viewer, f"session/{SESSION}") if one["is"] == "turn"):
        where = f"{SESSION}?at={turn['at']}&trace={turn['trace']}"
        for row in records_of(viewer, f"trace/{where}")[0]["spans"]:
            (span,) = records_of(viewer, f"span/{where}&span={row['id']}")
            if span["images"]:
                found.append((f"{where}&span={row['id']}", span))
    return found


def test_images_of_prompts_and_results_are_served(tmp_path):
    """Each with its own bytes, as the type that it is."""
    other, gif, webp = png(8, 8), b"GIF89a" + bytes(20), b"RIFF\x10\0\0\0WEBPVP8 "
    written(tmp_path, prompt=[block(png()), block(gif, "image/png")], result=[block(other), block(webp, "image/webp")])
    with viewing(tmp_path) as viewer:
        found = spans_with_images(viewer)
        assert [span["kind"] for _, span in found] == ["turn", "tool"]
        answers = [
            ask(viewer, f"/{viewer.key}/image/{where}&number={number}") for where, _ in found for number in (0, 1)
        ]
        for (status, headers, body), (mime, data) in zip(
            answers,
            [("image/png", png()), ("image/gif", gif), ("image/png", other), ("image/webp", webp)],
            strict=True,
        ):
            assert (status, headers["Content-Type"], body) == (200, mime, data)
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Content-Security-Policy"] == "default-src 'none'"
        assert "img-src 'self'" in ask(viewer, f"/{viewer.key}/")[1]["Content-Security-Policy"]
        for number in ("2", "-1", "99999999", "x", ""):
            assert ask(viewer, f"/{viewer.key}/image/{found[0][0]}&number={number}")[0] == 404


@pytest.mark.parametrize(
    "settings",
    ["", "view_images = false\n", f"{ALLOWED}images = false\n", f'{ALLOWED}off = ["/home/**"]\n', 'view_images = "x"\n',
     f'{ALLOWED}capture = "metadata"\n'],
)  # fmt: skip
def test_nothing_is_shown_that_is_not_allowed(tmp_path, settings):
    """Off by default; and a user or a project that withholds images withholds them here, too."""
    written(tmp_path, prompt=[block(png())], result=[block(png())], settings=ALLOWED)
    with viewing(tmp_path) as viewer:
        places = [where for where, _ in spans_with_images(viewer)]
        assert len(places) == 2
    (tmp_path / "turnspan" / "config.toml").write_text(settings)
    with viewing(tmp_path) as viewer:
        assert spans_with_images(viewer) == []
        assert [ask(viewer, f"/{viewer.key}/image/{where}&number=0")[0] for where in places] == [404, 404]
        is_allowed = ALLOWED in settings
        assert ("img-src" in ask(viewer, f"/{viewer.key}/")[1]["Content-Security-Policy"]) == is_allowed


@pytest.mark.parametrize(
    "data",
    [b"<svg xmlns='http://www.w3.org/2000/svg' onload='x'/>", b"<html><script>x</script>", b"", b"\x89PNG", b"%PDF-1.7",
     "not base64!", "\u202e", "AAA"],
)  # fmt: skip
def test_only_known_formats_are_served(tmp_path, data):
    """What an image is decides its content, whatever the transcript says it is."""
    written(tmp_path, prompt=[block(data)])
    with viewing(tmp_path) as viewer:
        for where, _ in spans_with_images(viewer):
            assert ask(viewer, f"/{viewer.key}/image/{where}&number=0")[0] == 404


def test_a_large_image_is_not_served(tmp_path, monkeypatch):
    """There is a limit."""
    monkeypatch.setattr(images, "MOST_BYTES", 50)
    written(tmp_path, prompt=[block(png())])
    with viewing(tmp_path) as viewer:
        ((where, _),) = spans_with_images(viewer)
        assert ask(viewer, f"/{viewer.key}/image/{where}&number=0")[0] == 404


def test_an_image_of_a_subagent_is_found(tmp_path):
    """Subagents have files of their own."""
    path = written(tmp_path)
    writer = Writer(SESSION, version="2.1.200")
    writer.prompt("look")
    call = writer.call("Task", {"description": "x", "prompt": "go", "subagent_type": "Explore"})
    agent = Writer(SESSION, tag="a", version="2.1.200", agentId="a1", isSidechain=True)
    agent.now = writer.now
    agent.prompt("go")
    shot = agent.call("Screenshot", {})
    agent.result(shot, [block(png(3, 3))])
    agent.say("done")
    writer.now = agent.now
    writer.result(call, "done", outcome={"agentId": "a1"})
    writer.say("Good.")
    writer.save(path.parent)
    meta = {"agentType": "Explore", "description": "x", "toolUseId": call["message"]["content"][0]["id"]}
    save_agent(agent, path.parent, "a1", meta)
    with viewing(tmp_path) as viewer:
        ((where, _),) = spans_with_images(viewer)
        assert ask(viewer, f"/{viewer.key}/image/{where}&number=0")[2] == png(3, 3)


def test_a_call_without_an_id_or_time_has_no_image(tmp_path):
    """Nothing to look for finds nothing, at once."""
    session = session_of(written(tmp_path, result=[block(png())]))
    assert images.image_of_call(session, "", [1], 0) is None
    assert images.image_of_prompt(session, 2**62, [1], 0) is None
    assert images.image_of_prompt(session, 0, [1], 0) is None


def test_an_exported_file_has_no_images(tmp_path):
    """They are shown on the page only."""
    written(tmp_path, prompt=[block(png())], result=[block(png())])
    with viewing(tmp_path) as viewer:
        for form in ("html", "md"):
            body = ask(viewer, f"/{viewer.key}/export/{SESSION}.{form}")[2]
            assert base64.b64encode(png())[:40] not in body
            assert b"<img" not in body


@pytest.mark.slow
@pytest.mark.skipif(browser.found() is None, reason="there is no Chromium on this machine")
def test_the_page_shows_images(tmp_path):
    """In the panel and in the conversation, from this server; one that is not an image is named instead."""
    written(tmp_path, prompt=[block(png()), block(b"<svg/>")], result=[block(png(8, 8))])
    width = "document.querySelector('.picture img')?.naturalWidth"
    with viewing(tmp_path) as viewer, Page() as page:
        (turn, _), (tool, _) = spans_with_images(viewer)
        trace, span = turn.split("trace=")[1].split("&span=")
        page.open(viewer, f"#/s/{SESSION}/t/{trace}/{span}", f"{width} === 40")
        page.wait("document.querySelector('#details').innerText.includes('cannot be shown: image/png')")
        page.open(viewer, f"#/s/{SESSION}/t/{trace}/{tool.split('&span=')[1]}", f"{width} === 8")
        page.open(viewer, f"#/s/{SESSION}?view=chat", f"document.querySelector('.talk .prompt') && {width} === 40")
        page.said[:] = [said for said in page.said if "404" not in said]  # of the one that is not an image
        page.check()

"""Makes names and texts from files and users safe to show, without control characters and CI commands."""

from __future__ import annotations

import re

#: Maximum number of characters of a word and of a whole text in a message. The middle of a longer word or
#: text is left out.
_RUN, _TEXT = 400, 4000
#: Matches the start of a command that a CI runner would execute if a log contains it: ``::command`` at a
#: line's start, ``##[`` and ``##vso[`` anywhere (github.com/actions/runner, ActionCommand.cs;
#: github.com/microsoft/azure-pipelines-agent, Command.cs).
_COMMAND = r"^(\s*):(?=:)|#(?=#[A-Za-z]*\[)"
#: Splits a URL into scheme, user, path and query. The user, which ends at the last ``@``, and the query may
#: contain secrets. The pattern is a text that is compiled on first use, to keep pytest's start fast.
_URL = r"(?s)(?P<scheme>[^:/]*://)(?:(?P<user>.*)@)?(?P<path>[^?#]*)(?P<query>.*)"
#: Minimum length, in characters, of a secret that is replaced in texts. A shorter secret would also be found
#: in ordinary words.
_LEAST_SECRET = 4
_HIDDEN = "***"


def shown(text: str) -> str:
    r"""Return ``text`` as one line that is safe to print.

    Characters that are not printable become escapes like ``\n`` or ``\x1b``. Commands to CI runners are made
    ineffective. Long words and texts lose their middle. Any other text stays unchanged, so a second call
    changes nothing.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if "::" in text or "##" in text:
        text = re.sub(_COMMAND, lambda found: f"{found[1] or ''}\\x{ord(found[0][-1]):02x}", text)
    if len(text) > _RUN:
        text = re.sub(rf"\S{{{_RUN + 1},}}", lambda found: _cut(found[0], _RUN), text)
    return _cut(text, _TEXT)


def shown_lines(text: str) -> str:
    """Return ``text`` with each line as :func:`shown` returns it; tabs are kept."""
    return "\n".join("\t".join(map(shown, line.split("\t"))) for line in text.split("\n"))


def wrapped(line: str, width: int) -> list[str]:
    """Return ``line`` wrapped to at most ``width`` characters; lines after the first are indented further.

    Words are not broken: a path that is longer than a line stays in one piece, so that it can be copied. A
    number stays on one line with its unit, or with the limit that it is compared with.
    """
    if len(line) <= width:
        return [line]
    import textwrap  # imported here to keep pytest's start fast

    glued = re.sub(r" (?=%)|(?<=[<>]) |(?<=[<>]=) | (?=[<>]=? )", "\N{NO-BREAK SPACE}", line)
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    lines = textwrap.wrap(
        glued,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part.replace("\N{NO-BREAK SPACE}", " ") for part in lines]


def in_markdown(text: str) -> str:
    """Return ``text`` on one line, escaped for Markdown and HTML, so that a table's cell can also hold it."""
    import html

    plain = html.escape(shown(" ".join(text.split())), quote=False)
    return re.sub(r"([\\`*_{}\[\]()#+!|~:@$-])", r"\\\1", plain)


def in_code(name: str) -> str:
    """Return ``name`` as code in Markdown, or as :func:`in_markdown` does if code cannot contain the name."""
    return in_markdown(name) if set("`|") & set(name) or not name.strip() else f"`{shown(name)}`"


def file_name(name: str) -> str:
    """Return ``name`` as a portable file name: at most 100 characters of ``A-Za-z0-9_.-``, no leading dot."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_.-") or "unnamed"
    return plain if len(plain) <= 100 else f"{plain[:80]}-{digest(name)}"


def digest(name: str) -> str:
    """Return a hash of ``name``, 8 hex digits. Appended to shortened names, it keeps them different."""
    import hashlib  # imported here to keep pytest's start fast

    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def _cut(text: str, most: int) -> str:
    """Return ``text`` in about ``most`` characters: its beginning, a digest of ``text``, and its end."""
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]}...[{digest(text)}, {len(text)} characters]...{text[-most // 6 :]}"


def is_url(where: str) -> bool:
    """Return whether ``where`` is an fsspec URL, such as ``s3://bucket/folder``, and not a path."""
    return "://" in where


def safe_url(url: str) -> str:
    """Return ``url`` with ``***`` in place of user, password and query; a path stays as it is."""
    return "::".join(_safe_link(link) for link in _links(url))


def without_secrets(text: str, *urls: str) -> str:
    """Return ``text`` with ``***`` in place of each secret in ``urls``, percent-encoded or not."""
    for secret in sorted({s for url in urls for s in _secrets(url)}, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return text


def _links(url: str) -> list[str]:
    """Split a chained fsspec URL, such as ``simplecache::s3://bucket``, into its links."""
    return re.split(r"::(?=[A-Za-z0-9+.-]+://)", url)


def _safe_link(url: str) -> str:
    found = re.fullmatch(_URL, url)
    if found is None:
        return url
    user = f"{_HIDDEN}@" if found["user"] is not None else ""
    query = f"{found['query'][0]}{_HIDDEN}" if found["query"] else ""
    return f"{found['scheme']}{user}{found['path']}{query}"


def _secrets(url: str) -> set[str]:
    """Return the texts that may be secrets in ``url``: user, password, and the query with its values.

    Each is returned as written, percent-encoded and decoded. The user with its password is also returned in
    Base64, as HTTP sends it.
    """
    import base64
    from urllib.parse import quote, unquote

    written: set[str] = set()
    sent: set[str] = set()
    for found in filter(None, (re.fullmatch(_URL, link) for link in _links(url))):
        user = found["user"] or ""
        values = re.findall(r"=([^&;]*)", found["query"])
        written |= {user, user.partition(":")[2] or user, found["query"][1:], *values}
        sent.add(base64.b64encode(unquote(user).encode("utf-8", "surrogateescape")).decode())
    known = written | {unquote(text) for text in written} | {quote(text, safe="") for text in written} | sent
    return {text for text in known if len(text) >= _LEAST_SECRET}

"""Every way to get a spec wrong: each mistake told once, at its place, in words that say what to mend."""

from __future__ import annotations

from mistakes import read
from spec_texts import MINIMAL

ADDED = read("spec", "malformed_keys.txt")
FILES = {
    **read("spec", "malformed_files.txt"),
    "windows line ends": (MINIMAL.replace("\n", "\r\n") + "batch: 0\r\n", ["4:8 batch:"]),
    "syntax: tab": ("model: a\nint8:\n\tscales: s", ["3:1 not valid YAML: a tab; indent with spaces"]),
    "control character": (
        "model: a\nname: a\x07b",
        ["2:8 control character U+0007 is not allowed in YAML; remove it"],
    ),
    "null character": ("model: a\0", ["1:9 control character U+0000"]),
}

# Files that are not even text.
BYTES = {
    "latin-1": (
        "model: a\nname: café".encode("latin-1"),
        ["2:10 byte 0xe9 is not UTF-8; save the file as UTF-8"],
    ),
    "binary": (b"\x89PNG\r\n\x1a\n", ["1:1 byte 0x89 is not UTF-8"]),
    "utf-16": (MINIMAL.encode("utf-16"), ["1:1 the file is UTF-16; save it as UTF-8"]),
    "utf-16 big": (
        b"\xfe\xff" + MINIMAL.encode("utf-16-be"),
        ["1:1 the file is UTF-16; save it as UTF-8"],
    ),
    "byte order mark": (b"\xef\xbb\xbfzebra: 1\n" + MINIMAL.encode(), ["1:1 unknown key 'zebra'"]),
    "cut in a character": (b"model: \xc3", ["1:8 byte 0xc3 is not UTF-8"]),
    "surrogate in bytes": (b"model: \xed\xa0\x80", ["1:8 byte 0xed is not UTF-8"]),
    "too large": (b"# " + b"x" * (1 << 20), ["1:1 the file is larger than 1 MiB, too large for a spec"]),
}

ALL = (
    {f"added: {k}": ((MINIMAL + text).encode(), expected) for k, (text, expected) in ADDED.items()}
    | {k: (text.encode(), expected) for k, (text, expected) in FILES.items()}
    | BYTES
)

"""A password or a token in a URL that a user gives appears in nothing that a run writes."""

from __future__ import annotations

import pytest
from golden_support import BASE, MINMAX, write_project
from plugin_support import CONFTEST, LOAD, spec

pytest.importorskip("jinja2", reason="pip install jinja2")

pytestmark = pytest.mark.usefixtures("quick_processes")

#: URLs with secrets or without, and what is said of them.
URLS = {
    "password": ("s3://joe:hunter2@host/engines", "s3://***@host/engines"),
    "with signs": ("s3://joe:hun/t@er2?hunter2#@host/engines", "s3://***@host/engines"),
    "token": ("https://hunter2hunter2@host/engines", "https://***@host/engines"),
    "query": ("https://host/engines?sig=hunter2&se=1", "https://host/engines?***"),
    "chain": ("simplecache::s3://joe:hunter2@host/engines", "simplecache::s3://***@host/engines"),
    "pattern in a chain": ("zip://*.bin::ftp://joe:hunter2@host/a.zip", "zip://*.bin::ftp://***@host/a.zip"),
    "no secret": ("http://host:8080/engines", "http://host:8080/engines"),
    "a path": ("/home/joe@work/engines", "/home/joe@work/engines"),
}
#: A file system whose errors and logs tell all that they know.
TALKATIVE = """
import logging
from base64 import b64encode
from urllib.parse import unquote

import fsspec
import pytest


class Vault(fsspec.AbstractFileSystem):
    protocol = "vault"

    @classmethod
    def _strip_protocol(cls, path):
        return path

    @staticmethod
    def _get_kwargs_from_urls(path):
        return {"url": path}

    def _fail(self, path, *args, **kwargs):
        logging.getLogger("vault").warning("asking for %s", path)
        user = path.partition("//")[2].partition("@")[0]
        words = [path, user, unquote(user).partition(":")[2], "a/bcd"]
        words.append(b64encode(unquote(user).encode()).decode())
        raise ConnectionError(f"no way in with {' and '.join(words)}: " + "x" * 300)

    cat_file = exists = find = makedirs = pipe_file = _fail


fsspec.register_implementation("vault", Vault, clobber=True)
"""
OWN_TEST = """
import logging

import numpy as np


def test_by_fixture(int8acc_golden):
    int8acc_golden("logits", np.zeros(3))


def test_that_fails_otherwise(int8acc_golden, pytestconfig):
    url = pytestconfig.getini("int8acc_goldens")
    logging.getLogger("own").warning("goldens in %s", url)
    print(int8acc_golden)
    assert not url
"""


def written(pytester: pytest.Pytester, result: pytest.RunResult) -> str:
    """All that a run has said and left, but for the configuration that the secret is in."""
    files = [path for path in (pytester.path / "out").rglob("*") if path.is_file()]
    return "\n".join([result.stdout.str(), result.stderr.str(), *(path.read_text() for path in files)])


@pytest.mark.parametrize(
    ("kind", "where"), [*((kind, "option") for kind in URLS), ("password", "ini"), ("query", "ini")]
)
def test_of_the_engine_store_in_a_report(pytester, kind, where):
    url, safe = URLS[kind]
    pytester.makeconftest(CONFTEST)
    (pytester.path / "a.int8acc.yaml").write_text(spec("good", "bad", "broken"))
    given = [f"--int8acc-cache-dir={url}"] if where == "option" else ["-o", f"int8acc_cache_dir={url}"]
    reports = ("--int8acc-report=out", "--junitxml=out/junit.xml")
    result = pytester.runpytest(*LOAD, "--int8acc", "-vv", *reports, *given)
    result.assert_outcomes(passed=1, failed=1, errors=1)
    said = written(pytester, result)
    assert "hunter2" not in said
    assert "t@er2" not in said
    assert f"cache_dir {safe} (" in said


@pytest.mark.parametrize("more", [(), ("-n2",)], ids=["plain", "n2"])
def test_of_goldens_in_errors_logs_and_tracebacks(pytester, more):
    pytest.importorskip("fsspec")
    write_project(pytester.path)
    (pytester.path / "net.int8acc.yaml").write_text(f"{BASE}{MINMAX}golden: true\n")
    pytester.makeconftest(TALKATIVE)
    pytester.makepyfile(OWN_TEST)
    pytester.makeini("[pytest]\nint8acc_goldens = vault://joe:p%40ss+word@host/goldens?sig=a%2Fbcd\n")
    reports = ("--int8acc-report=out", "--junitxml=out/junit.xml", "--showlocals", "--tb=long")
    wanted = (*LOAD, "--int8acc", "-vv", *reports, *more)
    for run in ((),) if more else ((), ("--int8acc-update=all",), ("--int8acc-prune=delete",)):
        result = pytester.runpytest(*wanted, *run)
        result.assert_outcomes(failed=2, errors=1)
        result.stdout.fnmatch_lines(["*shared storage vault://***@host/goldens*fails: ConnectionError: *"])
        said = written(pytester, result)
        for secret in ("p%40ss+word", "p@ss+word", "am9lOnBAc3Mrd29yZA==", "a/bcd", "a%2Fbcd"):
            assert secret not in said


def test_a_report_folder_is_no_url(pytester):
    pytester.makeconftest(CONFTEST)
    (pytester.path / "a.int8acc.yaml").write_text(spec("good"))
    result = pytester.runpytest(*LOAD, "--int8acc", "--int8acc-report=s3://joe:hunter2@host/out")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--int8acc-report: s3://***@host/out is a URL: *folder*"])
    assert "hunter2" not in result.stderr.str()
    assert not (pytester.path / "s3:").exists()

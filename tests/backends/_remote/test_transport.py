"""One request: what each failure means, and where the key never goes."""

from __future__ import annotations

import logging
import pickle
import re
import socket
import ssl
import subprocess
import sys
import tomllib
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from helpers.pages import ROOT
from helpers.servers import Reply, json_reply, scripted

from pbsdk.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    BadAnswer,
    InputError,
    QueryRefused,
    SetupError,
)
from pbsdk_backends._remote.transport import Network, Transport, read_json

KEY = "sk-very-secret-0123456789"


def transport(url: str, key: str | None = None, **options) -> Transport:
    return Transport(url, Network.of(options), key=key)


def failure(reply: Reply, **options) -> BackendError:
    with scripted(lambda _: reply) as server, pytest.raises(BackendError) as caught:
        transport(server.url, **options).post("/x", {"a": 1})
    return caught.value


@pytest.mark.parametrize("status", [408, 409, 425, 429])
def test_a_server_that_asks_for_patience_is_retryable_and_did_not_run(status):
    error = failure(json_reply({"error": "later"}, status))
    assert (type(error), error.retryable, error.may_have_run) == (BackendUnavailable, True, False)


@pytest.mark.parametrize("status", [500, 502, 503, 504, 529])
def test_a_server_that_breaks_is_retryable_and_may_have_run(status):
    error = failure(json_reply({}, status))
    assert (error.retryable, error.may_have_run, error.retry_after) == (True, True, None)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 422])
def test_a_refusal_is_final_and_did_not_run(status):
    error = failure(json_reply({"error": {"message": "no\n such  thing"}}, status))
    assert isinstance(error, QueryRefused)
    assert (error.retryable, error.may_have_run) == (False, False)
    assert f"{status}: no such thing" in str(error)


def test_a_model_that_loads_says_for_how_long_and_did_not_run():
    error = failure(json_reply({"error": "Model x is currently loading", "estimated_time": 12.5}, 503))
    assert (error.retryable, error.may_have_run, error.retry_after) == (True, False, 12.5)
    assert "loading" in str(error)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0.25"}, 0.25),
        ({"retry-after-ms": "1500", "Retry-After": "9"}, 1.5),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "Mon, 01 Jan 99999999999 00:00:00 GMT"}, None),
        ({"Retry-After": "Mon, 01 Jan 2024 00:00:00 +99999999999999999999"}, None),
    ],
)
def test_retry_after_is_understood_in_all_its_forms(headers, seconds):
    assert failure(json_reply({}, 429, **headers)).retry_after == seconds


def test_a_date_is_read_by_the_servers_own_clock():
    now = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
    headers = {"Date": format_datetime(now, usegmt=True)}
    headers["Retry-After"] = format_datetime(now + timedelta(seconds=90), usegmt=True)
    with scripted(lambda _: json_reply({})) as server:
        broken = Transport(server.url, Network())
        from pbsdk_backends._remote.transport import Reply as Read

        with pytest.raises(BackendUnavailable) as caught:
            broken._checked(Read(429, headers, b""))
        assert caught.value.retry_after == 90
        late = {"Retry-After": headers["Retry-After"]}
        with pytest.raises(BackendUnavailable) as caught:
            broken._checked(Read(503, late, b""))
        assert caught.value.retry_after == 0


def test_a_server_that_is_not_there_did_not_run():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(BackendUnavailable, match="can't be reached") as caught:
            transport(address).get("/")
    assert not caught.value.may_have_run


@pytest.mark.parametrize("fault", ["reset", "cut"])
def test_a_connection_that_breaks_after_sending_may_have_run(fault):
    error = failure(Reply(200, b"x" * 1000, fault=fault))
    assert (type(error), error.retryable, error.may_have_run) == (BackendTimeout, True, True)
    assert "broke" in str(error)


def test_silence_ends_in_a_time_out_that_may_have_run():
    error = failure(Reply(fault="stall"), read_timeout=0.2)
    assert (type(error), error.retryable, error.may_have_run) == (BackendTimeout, True, True)
    assert "silent" in str(error)


def test_a_server_that_trickles_meets_the_deadline():
    error = failure(Reply(200, b"x" * 1000, fault="trickle"), read_timeout=30, deadline=0.3)
    assert type(error) is BackendTimeout
    assert "did not end" in str(error)


def test_an_answer_that_is_too_large_is_refused_before_it_is_read():
    error = failure(Reply(200, b"x" * 100_000), max_bytes=1000)
    assert isinstance(error, QueryRefused)
    assert "1,000 bytes" in str(error)


def test_a_compressed_answer_is_refused():
    asked = Reply(200, b"\x1f\x8b", {"Content-Encoding": "gzip"})
    assert isinstance(failure(asked), BadAnswer)
    with scripted(lambda _: Reply(200, b"{}")) as server:
        transport(server.url).get("/")
        assert server.asked[0].headers["Accept-Encoding"] == "identity"


def test_connections_are_used_again():
    ports = set()
    with scripted(lambda _: Reply(200, b"{}")) as server:
        original = server.handle

        def noting(handler):
            ports.add(handler.client_address[1])
            original(handler)

        server.handle = noting
        pool = transport(server.url)
        for _ in range(5):
            pool.post("/", {})
    assert len(ports) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed_and_the_key_stays_here(status):
    with scripted(lambda _: json_reply({})) as thief:
        reply = Reply(status, b"", {"Location": f"{thief.url}/steal"})
        with scripted(lambda _: reply) as server:
            with pytest.raises(QueryRefused, match="redirects to 127"):
                transport(server.url, KEY).post("/", {})
            assert server.asked[0].headers["Authorization"] == f"Bearer {KEY}"
        assert thief.asked == []


def test_netrc_is_not_used(tmp_path, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password netrc-secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with scripted(lambda _: Reply(200, b"{}")) as server:
        transport(server.url).get("/")
        transport(server.url, KEY).get("/")
        assert "Authorization" not in server.asked[0].headers
        assert server.asked[1].headers["Authorization"] == f"Bearer {KEY}"


def test_cookies_are_not_kept():
    with scripted(lambda _: Reply(200, b"{}", {"Set-Cookie": "track=1"})) as server:
        pool = transport(server.url)
        pool.get("/")
        pool.get("/")
        assert "Cookie" not in server.asked[1].headers


def test_this_machine_is_reached_without_the_environments_proxy(monkeypatch):
    with scripted(lambda _: Reply(418, b"")) as proxy, scripted(lambda _: Reply(200, b"{}")) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        transport(server.url).get("/")
        with pytest.raises(QueryRefused, match="418"):
            transport("http://example.invalid", allow_plain_http="example.invalid").get("/")
        assert [asked.path for asked in proxy.asked] == ["http://example.invalid/"]


def test_tls_is_verified(certificate):
    """A certificate that nobody signed is refused, finally."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with scripted(lambda _: Reply(200, b"{}")) as server:
        server._server.socket = context.wrap_socket(server._server.socket, server_side=True)
        address = f"https://localhost:{server._server.server_address[1]}"
        with pytest.raises(QueryRefused, match="certificate"):
            transport(address, KEY).get("/")
        assert server.asked == []
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("REQUESTS_CA_BUNDLE", str(certificate[0]))
            transport(address, KEY).get("/")
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://example.org", 'allow_plain_http="example.org"'),
        ("ftp://example.org", "not a valid address"),
        ("example.org", "not a valid address"),
        ("https://me:word@example.org", "name or password"),
        ("https://example.org/?key=1", "after \\?"),
        ("https://example.org:port", "not a valid address"),
    ],
)
def test_addresses_that_leak_or_mean_nothing_are_refused(url, message):
    with pytest.raises(SetupError, match=message):
        transport(url, KEY)


def test_plain_http_can_be_allowed_by_name_only():
    assert transport("http://example.org", allow_plain_http="example.org").url == "http://example.org"
    with pytest.raises(SetupError):
        transport("http://example.org", allow_plain_http="example.com")


@pytest.mark.parametrize("options", [{"workers": 0}, {"deadline": -1}, {"wrokers": 3}, {"requests_per_second": 0}])
def test_options_that_make_no_sense_are_named(options):
    with pytest.raises(InputError, match=next(iter(options))):
        Network.of(options)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "[-Infinity]", '{"a": 1, "a": 2}', "{", "[" * 100_000])
def test_json_outside_the_standard_is_a_bad_answer(text):
    with pytest.raises(BadAnswer):
        read_json(text.encode())


def test_the_key_shows_nowhere(caplog):
    """Not in a repr, a message, a traceback with its variables, a log or a pickle."""
    caplog.set_level(logging.DEBUG)
    seen = []
    replies = [
        json_reply({"error": f"Incorrect API key provided: {KEY}"}, 401),
        Reply(fault="reset"),
        Reply(200, b"xx", fault="cut"),
        Reply(fault="stall"),
    ]
    for reply in replies:
        with scripted(lambda _, reply=reply: reply) as server:
            pool = transport(server.url, KEY, read_timeout=0.2)
            with pytest.raises(BackendError) as caught:
                pool.post("/", {})
            error = caught.value
            # From the first frame of the library's on: this test's own variables hold the key.
            inner = error.__traceback__.tb_next
            report = traceback.TracebackException(type(error), error, inner, capture_locals=True)
            assert (error.__cause__, error.__context__) == (None, None)
            assert server.asked[0].headers["Authorization"].endswith(KEY)
            seen += [str(error), repr(error), "".join(report.format()), repr(error.__dict__)]
            seen += [repr(pool), repr(vars(pool)), pickle.dumps(pool).decode("latin-1")]
    assert len(seen) == 4 * 7
    assert not [text for text in [*seen, caplog.text] if KEY in text]


def test_a_pickled_transport_finds_the_key_again_in_the_environment(monkeypatch):
    monkeypatch.setenv("PBSDK_API_KEY", KEY)
    with scripted(lambda _: json_reply({})) as server:
        pickle.loads(pickle.dumps(transport(server.url))).get("/")
        assert server.asked[0].headers["Authorization"] == f"Bearer {KEY}"


def test_a_missing_package_names_the_extra():
    code = (
        "import sys; sys.modules['requests'] = None\n"
        "from pbsdk.errors import MissingExtra\n"
        "try:\n import pbsdk_backends.http\nexcept MissingExtra as error:\n print(error)\n"
        "sys.modules['uvicorn'] = None\n"
        "try:\n import pbsdk_backends.serve\nexcept MissingExtra as error:\n print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for extra, said in zip(("remote", "serve"), done.stdout.splitlines(), strict=True):
        assert f"pbsdk[{extra}]" in said
        assert [name for name in (re.split("[<>=]", needed)[0] for needed in extras[extra]) if name not in said] == []


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"error": ' * 200_000,
        b'{"error": {"message": "slow down", "estimated_time": ' + b"9" * 5000 + b"}}",
        b'{"error": "' + b"x" * 1_000_000 + b'"}',
        b'{"error": "\xff"}',
        b'{"error": NaN}',
        b'{"error": "a", "error": "b"}',
    ],
    ids=["nested lists", "nested objects", "a long number", "a long text", "no text", "no number", "twice"],
)
@pytest.mark.parametrize("status", [400, 503])
def test_a_refusal_that_is_made_to_harm_is_a_short_error(body, status):
    with scripted(lambda _: Reply(status, body)) as server, pytest.raises(BackendError) as caught:
        transport(server.url).get("/")
    assert f"answered {status}" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_what_a_provider_says_cannot_steer_the_terminal():
    said = "\x1b[2Jno\rsuch\x9b31m model\u202e\nerror: all is well"
    reply = json_reply({"error": {"message": said}}, 404)
    with scripted(lambda _: reply) as server, pytest.raises(QueryRefused) as caught:
        transport(server.url).get("/")
    assert "\\x1b[2Jno such\\x9b31m model\\u202e error: all is well" in str(caught.value)
    assert not set("\x1b\r\n\x9b\u202e") & set(str(caught.value) + "".join(caught.value.args))


@pytest.mark.parametrize(
    "text", ["9" * 5000, '{"n": 1e999}', '{"deep":' * 500 + "1" + "}" * 500, "[" + "[]," * 2_000_001 + "1]"]
)
def test_an_answer_made_to_harm_is_a_bad_answer(text):
    with pytest.raises(BadAnswer, match="not JSON that can be read"):
        read_json(text.encode())

"""One request to one server: what is sent, what is accepted, and what each failure means.

Every remote adapter holds a `Transport`: a pool of connections to one address. It is strict where the
HTTP library is lenient. The key goes only to that address: redirects are not followed, cookies are not
kept, and `.netrc` is not read (proxies and certificate bundles from the environment are used). Plain http
is allowed only to this machine, or to a host that is allowed by name. Certificates are verified. A request
has a time-out to connect, one for silence, and a deadline for all of it; an answer has a maximum
size and comes uncompressed, so that a small one can't expand into a large one.

A failure becomes one of pbsdk's errors, which says what the meter must know:

    refused, no such host, 408 409 425 429    retryable      did not run
    503 that says how long to wait            retryable      did not run
    silence, reset, cut answer, other 5xx     retryable      may have run
    other 4xx, a redirect, a bad certificate  final          did not run
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, TypedDict, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from pbsdk.backend import MaskDistribution, bounded_json, visible
from pbsdk.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    BadAnswer,
    InputError,
    MissingExtra,
    ModelUnusable,
    QueryRefused,
    SetupError,
)
from pbsdk_backends._protocol.address import checked_address, is_loopback
from pbsdk_backends._remote.parallel import Job, Pace, run_jobs

try:
    import requests
    from requests.auth import AuthBase
    from urllib3.exceptions import (
        ConnectTimeoutError,
        HTTPError,
        MaxRetryError,
        NewConnectionError,
        ReadTimeoutError,
    )
    from urllib3.exceptions import ProxyError as RawProxyError

    from pbsdk_backends._remote.deadline import Watch, WatchedPool
    from pbsdk_backends._remote.keys import ProviderKey, find_key
except ImportError as error:
    raise MissingExtra(
        f"remote adapters need requests, urllib3 and, for kserve, tokenizers ({error}); "
        'install them: pip install "pbsdk[remote]"'
    ) from error

__all__ = [
    "HttpRefusal",
    "Network",
    "NetworkOptions",
    "Reply",
    "Transport",
    "read_json",
    "setup_error",
    "validated",
    "waiting_time",
]

ROUNDS_A_BATCH = 4
"""How many requests of one batch each worker handles: enough to smooth out slow ones."""

_WAIT_AND_SEE = frozenset({408, 409, 425, 429})
_CHUNK = 1 << 16
_EXPLANATION = 1 << 16
"""How many bytes of JSON a refusal may come with, to be read and quoted."""


class NetworkOptions(TypedDict, total=False):
    """What every remote adapter takes besides its own options; see `Network`."""

    workers: int
    requests_per_second: float | None
    connect_timeout: float
    read_timeout: float
    deadline: float
    max_bytes: int
    allow_plain_http: str | None


class Network(BaseModel):
    """How to talk to a server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workers: int = Field(default=8, ge=1, le=256)
    """Requests under way at once."""
    requests_per_second: float | None = Field(default=None, gt=0)
    """The provider's limit, over all workers together."""
    connect_timeout: float = Field(default=10.0, gt=0)
    read_timeout: float = Field(default=60.0, gt=0)
    """Seconds of silence after which a request is given up."""
    deadline: float = Field(default=120.0, gt=0)
    """Seconds that one request may take in total."""
    max_bytes: int = Field(default=64 << 20, ge=1)
    """The largest answer that is read."""
    allow_plain_http: str | None = None
    """A host, besides this machine, that may be talked to without encryption."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Network:
        """Check the options of an adapter."""
        try:
            return cls(**options)
        except ValidationError as error:
            first = error.errors()[0]
            names = ", ".join(cls.model_fields)
            raise InputError(f"{first['loc'][0]}: {first['msg']}; the network options are {names}") from None


@dataclass(frozen=True)
class Reply:
    """A server's answer, read whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)  # a server may quote the key that it refuses


class HttpRefusal(QueryRefused):
    """A final refusal, with the server's status."""

    status = 0
    sent = 0
    """How many of the request's queries the server says it sent before it refused; a server may quote a key in all else it says."""


class _Auth(AuthBase):
    """Puts the key into its header; being there at all, it keeps the library from `.netrc`."""

    def __init__(self, key: SecretStr | None, header: str) -> None:
        self._key = key
        self._header = header

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._key is not None:
            scheme = "Bearer " if self._header == "Authorization" else ""
            request.headers[self._header] = scheme + self._key.get_secret_value()
        return request


class Transport:
    """A pool of connections to one address.

    Args:
        url: the address that all paths start with.
        network: workers, time-outs and limits.
        key: the key, if given; else it is looked for in the environment.
        own: the provider's own keys there, the first that is set.
        header: which header carries the key.
        query: what every address ends with, after a question mark.
    """

    def __init__(  # noqa: PLR0913 - what a provider's way of being asked consists of, given by keyword
        self,
        url: str,
        network: Network,
        *,
        key: str | SecretStr | None = None,
        own: Sequence[ProviderKey] = (),
        header: str = "Authorization",
        query: str = "",
    ) -> None:
        self.url = checked_address(url, network.allow_plain_http)
        self.network = network
        self._own = own
        self._header = header
        self._query = query
        self._key = find_key(key, url, *own)
        self._pace = Pace(network.requests_per_second)
        self._session = requests.Session()
        self._session.auth = _Auth(self._key, header)
        # An answer comes as it is: what unfolds can't be capped, and our codes hardly shrink.
        self._session.headers["Accept-Encoding"] = "identity"
        self._pool = WatchedPool(pool_connections=1, pool_maxsize=network.workers, max_retries=0)
        around = self._session.merge_environment_settings(self.url, {}, stream=True, verify=True, cert=None)
        self._bundle: str | bool = around["verify"] or True
        self._proxies = {} if is_loopback(urlsplit(self.url).hostname or "") else around["proxies"]

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process finds the key in its own environment; it is not written down.
        again = partial(Transport, own=self._own, header=self._header, query=self._query)
        return again, (self.url, self.network)

    def __repr__(self) -> str:
        return f"Transport({self.url!r})"

    @property
    def batch_size(self) -> int:
        """How many requests one call of `fill` should hold."""
        return self.network.workers * ROUNDS_A_BATCH

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()
        self._session.close()

    def fill(self, jobs: Sequence[Job]) -> list[MaskDistribution]:
        """Run a batch's requests over the workers; see `run_jobs`."""
        network = self.network
        return run_jobs(jobs, workers=network.workers, deadline=network.deadline, pace=self._pace)

    def get(self, path: str, /, **headers: str) -> Reply:
        """Ask for `path`, and return the answer of a request that succeeded."""
        return self._checked(self._send(requests.Request("GET", self._address(path), headers=headers)))

    def post(self, path: str, body: bytes | object, /, **headers: str) -> Reply:
        """Send bytes, or anything else as JSON, and return the answer of a request that succeeded."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        request = requests.Request("POST", self._address(path), data=data, headers={"Content-Type": kind, **headers})
        return self._checked(self._send(request))

    def _address(self, path: str) -> str:
        return self.url + path + (f"?{self._query}" if self._query else "")

    def _send(self, request: requests.Request) -> Reply:
        watch = Watch(self.network.deadline)
        try:
            return self._exchange(request, watch)
        except (requests.RequestException, HTTPError, OSError, ValueError) as error:
            problem = self._late(watch) if watch.cut else self._problem(error)
        # Raised here and not above: the library's error holds the request, and with it the key.
        raise problem

    def _exchange(self, request: requests.Request, watch: Watch) -> Reply:
        prepared = self._session.prepare_request(request)
        waits = (
            min(self.network.connect_timeout, self.network.deadline),
            min(self.network.read_timeout, self.network.deadline),
        )
        with watch:
            # Through the pool, not the session: a session would follow redirects and keep cookies.
            response = self._pool.send(prepared, stream=True, timeout=waits, verify=self._bundle, proxies=self._proxies)
            try:
                body = self._body(response, watch)
            except BaseException:
                response.raw.close()  # half-read: this connection can't be used again
                raise
        response.raw.release_conn()
        return Reply(response.status_code, response.headers, body)

    def _body(self, response: requests.Response, watch: Watch) -> bytes:
        limit = self.network.max_bytes
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise BadAnswer("the server compressed an answer that was requested uncompressed")
        chunks: list[bytes] = []
        size = 0
        while chunk := response.raw.read1(_CHUNK):
            size += len(chunk)
            if size > limit:
                raise QueryRefused(
                    f"the answer is larger than {limit:,} bytes; raise max_bytes, or ask for fewer at once",
                    may_have_run=True,
                )
            chunks.append(chunk)
        if watch.cut:  # a body without a length ends where the connection does
            raise self._late(watch)
        return b"".join(chunks)

    def _late(self, watch: Watch) -> BackendError:
        host, seconds = urlsplit(self.url).netloc, f"{self.network.deadline:g} s"
        if not watch.sent:
            return BackendUnavailable(f"{host} can't be reached within {seconds}; is the URL right?")
        return BackendTimeout(f"the answer of {host} did not end within {seconds}")

    def _problem(self, error: Exception) -> BackendError:
        host = urlsplit(self.url).netloc
        cause = error.args[0] if error.args and isinstance(error.args[0], Exception) else error
        if isinstance(cause, MaxRetryError) and cause.reason is not None:
            cause = cause.reason
        if isinstance(error, requests.exceptions.SSLError):
            return QueryRefused(f"{host} has no certificate that can be trusted, or doesn't speak TLS; check the URL")
        if isinstance(cause, ConnectTimeoutError | NewConnectionError | RawProxyError) or isinstance(
            error, requests.exceptions.ConnectTimeout | requests.exceptions.ProxyError
        ):
            return BackendUnavailable(f"{host} can't be reached; is the server running, and the URL right?")
        if isinstance(error, requests.exceptions.Timeout) or isinstance(cause, ReadTimeoutError | TimeoutError):
            return BackendTimeout(f"{host} fell silent for {self.network.read_timeout:g} s")
        if isinstance(error, requests.exceptions.InvalidURL | requests.exceptions.InvalidSchema):
            return QueryRefused(f"{self.url} is not a valid address; check the URL")
        return BackendTimeout(f"the connection to {host} broke ({type(cause).__name__})")

    def _checked(self, reply: Reply) -> Reply:
        if 200 <= reply.status < 300:
            return reply
        said = self._said(reply)
        where = urlsplit(self.url).netloc
        if 300 <= reply.status < 400:
            target = urlsplit(reply.headers.get("Location", "")).netloc or where
            refusal = HttpRefusal(
                f"{where} redirects to {target}; redirects are not followed, give the final address as the URL"
            )
            refusal.status = reply.status
            raise refusal
        message = f"{where} answered {reply.status}{said}"
        wait = _wait(reply)
        if reply.status in _WAIT_AND_SEE:
            raise BackendUnavailable(message, retry_after=wait)
        if reply.status >= 500:
            told_to_wait = reply.status == 503 and wait is not None
            raise BackendUnavailable(message, may_have_run=not told_to_wait, retry_after=wait)
        cure = {401: "; check the key", 403: "; check what the key may do", 404: "; check the URL and the model's name"}
        refusal = HttpRefusal(message + cure.get(reply.status, ""))
        refusal.status, refusal.sent = reply.status, _sent(reply)
        raise refusal

    def _said(self, reply: Reply) -> str:
        said = _explained(reply)
        for key in ("error", "message", "detail"):
            said = said.get(key, said) if isinstance(said, dict) else said
        if said is None:
            return ""
        text = " ".join((said if isinstance(said, str) else json.dumps(said)).split())
        if self._key is not None:
            text = text.replace(self._key.get_secret_value(), "***")
        return f": {visible(text[:300])}"


def _sent(reply: Reply) -> int:
    said = _explained(reply)
    sent = said.get("sent") if isinstance(said, dict) else 0
    return sent if isinstance(sent, int) else 0


def _explained(reply: Reply) -> Any:
    """Return what a refusal says, or None if that is not JSON, or more than an explanation."""
    if len(reply.body) > _EXPLANATION:
        return None
    try:
        return bounded_json(reply.body)
    except ValueError:
        return None


def waiting_time(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server's headers ask us to wait."""
    seconds = _number(headers.get("retry-after-ms"))
    if seconds is not None:
        return seconds / 1000
    after = headers.get("Retry-After")
    seconds = _number(after)
    return _until(after, headers.get("Date")) if after is not None and seconds is None else seconds


def _wait(reply: Reply) -> float | None:
    """Return the seconds that the server asks us to wait, in whichever form it says so."""
    seconds = waiting_time(reply.headers)
    said = _explained(reply)
    return _number(said.get("estimated_time")) if seconds is None and isinstance(said, dict) else seconds


def _number(text: object) -> float | None:
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return max(0.0, value) if math.isfinite(value) else None


def _until(date: str, now: str | None) -> float | None:
    try:
        then = _moment(date)
        # By the server's own clock if it sends the time: ours may differ.
        start = _moment(now) if now else datetime.now(UTC)
    except (ValueError, OverflowError):
        return None
    return max(0.0, (then - start).total_seconds())


def _moment(date: str) -> datetime:
    moment = parsedate_to_datetime(date)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


Model = TypeVar("Model", bound=BaseModel)


def read_json(body: bytes) -> Any:
    """Read an answer's JSON; what the standard doesn't know, or what would exhaust this machine, is a `BadAnswer`."""
    try:
        return bounded_json(body)
    except ValueError as error:
        raise BadAnswer(f"the answer is not JSON that can be read: {str(error)[:100]}") from None


def validated(model: type[Model], content: object) -> Model:
    """Check an answer's form; if it doesn't fit, raise a `BadAnswer` that says where."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise BadAnswer(f"the answer doesn't have the expected form: {where}: {first['msg']}") from None


def setup_error(error: BackendError, cure: str) -> SetupError | BackendError:
    """Turn a refusal or a bad answer while connecting into a `ModelUnusable`; leave what is retryable as it is."""
    wait = error.retryable and not isinstance(error, BadAnswer)
    return error if wait else ModelUnusable(f"{error}; {cure}")

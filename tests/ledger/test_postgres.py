"""A ledger in PostgreSQL: what is special about it. What holds in a folder too is tested with both, in the tests of the meter, the gate and crashes."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from helpers.commands import called
from helpers.meter import grid, metered, query, rows, same, start, states
from helpers.postgres import PASSWORD, execute
from helpers.tampering import edit

from pbsdk import PromptBoostingClassifier, connect
from pbsdk.audit.certificate import Certificate
from pbsdk.audit.diff import AuditDiff
from pbsdk.audit.inclusion import InclusionProof
from pbsdk.audit.report import AuditReport
from pbsdk.errors import BudgetExceeded, InputError, LedgerCorrupted, LedgerError, LedgerMismatch, MissingExtra
from pbsdk.ledger.address import Address
from pbsdk.ledger.lease import Lease
from pbsdk.ledger.postgres_connection import PostgresConnection
from pbsdk.ledger.postgres_schema import check_schema
from pbsdk.ledger.verifier import verify_run
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import FakeBackend

PATIENCE = 240


@pytest.fixture
def place(postgres):
    """A schema that nobody has used."""
    return postgres.nearby()


@pytest.fixture(scope="module")
def kept(postgres):
    """A ledger that many tests look at; whoever changes it puts it back."""
    place = postgres.nearby()
    with metered(place) as lm:
        lm.fill(grid(2, 2))
    return place


def test_an_address_is_read_and_shown_without_its_password(monkeypatch):
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGDATABASE", "PGPASSWORD", "PGSSLMODE"):
        monkeypatch.delenv(name, raising=False)
    full = Address.parse("postgresql://an%20a:s%40cret@db.example:5433/team?schema=reviews&sslmode=require&lease=30")
    assert (full.user, full.host, full.port, full.database, full.secret()) == (
        "an a",
        "db.example",
        5433,
        "team",
        "s@cret",
    )
    assert str(full) == "postgresql://an%20a@db.example:5433/team?schema=reviews&sslmode=require&lease=30"
    assert Address.parse(str(full)) == full
    assert "cret" not in repr(full) + str(pickle.dumps(full))
    here = Address.parse("postgres://[::1]/x?host=/var/run/postgresql&password=hid")
    assert (str(here).partition("@")[2], here.secret()) == (":5432/x?host=/var/run/postgresql", "hid")
    monkeypatch.setenv("PGUSER", "ana")
    monkeypatch.setenv("PGHOST", "h")
    monkeypatch.setenv("PGPASSWORD", "elsewhere")
    assert str(Address.parse("postgresql:///")) == "postgresql://ana@h:5432/ana"
    assert Address.parse("postgresql:///").secret() == "elsewhere"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("postgresql://u:hid@h:port/d", "not an address"),
        ("postgresql://u:hid@h/d?scheme=x", "doesn't take scheme"),
        ("postgresql://u:hid@h/d?schema=Robert'); DROP", "small letters"),
        ("postgresql://u:hid@h/d?schema=pg_x", "small letters"),
        ("postgresql://u:hid@h/d?sslmode=maybe", "sslmode is one of"),
        ("postgresql://u:hid@h/d?lease=0", "lease is a whole number"),
        ("mysql://u:hid@h/d", "begins with mysql://"),
        (Path("postgresql://u:hid@h/d"), "given as a string"),
    ],
)
def test_an_address_that_makes_no_sense_is_refused_and_not_shown(text, said):
    with pytest.raises(InputError, match=said) as refused:
        metered(text)
    assert "hid" not in str(refused.value)


def test_a_missing_driver_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pg8000", None)
    monkeypatch.setitem(sys.modules, "pg8000.native", None)
    with pytest.raises(MissingExtra, match=r"pbsdk\[postgres\]"):
        metered("postgresql://u@127.0.0.1/d")


def test_a_server_that_cannot_be_used_is_one_clear_error(postgres, monkeypatch):
    monkeypatch.delenv("PGPASSWORD", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = free.getsockname()[1]
    for address, said in [
        (postgres.address(port=nobody), "can't be reached: .*refused; is the server running"),
        (
            postgres.address(password="wr0ng"),
            r"password authentication failed.*check the user and the password \(PGPASSWORD\)",
        ),
        (postgres.address(password=""), "PGPASSWORD"),
        (postgres.address(database="nowhere"), "createdb"),
        (postgres.address(sslmode="verify-full"), "can't be reached: .*certificate"),
    ]:
        with pytest.raises(LedgerError, match=said) as refused:
            metered(address)
        assert "wr0ng" not in str(refused.value)
        assert quote(PASSWORD, safe="") not in str(refused.value)


def test_a_connection_is_encrypted_where_the_server_can_and_checked_where_it_must(postgres):
    for options in (
        {},
        {"sslmode": "require"},
        {"sslmode": "verify-full", "sslrootcert": postgres.folder / "cert.pem"},
    ):
        shown = execute(postgres.address(**options), "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        assert shown == [(True,)]
    plain = postgres.address(sslmode="disable")
    assert execute(plain, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()") == [(False,)]


def test_a_password_is_shown_nowhere(postgres, tmp_path, monkeypatch, capfd):
    place = postgres.address()
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    shown = []
    with connect("fake", run=place) as lm:
        clf = PromptBoostingClassifier(lm, ["<input> So <mask>."], head="knn", random_state=1)
        clf.fit(["late post", "a courier", "our team", "a match"], ["post", "post", "sport", "sport"])
        clf.save(tmp_path / "model.json")
        report = lm.audit()
        shown += [
            lm,
            lm.ledger,
            lm.ledger.folder,
            lm.identity,
            report,
            report.to_json(),
            report.to_html(),
            pickle.dumps(clf.backend),
        ]
        certificate = Certificate.of(place)
        shown += [certificate.to_json(), lm.ledger.verify()]
        for attempt in (
            lambda: certificate.check(place.replace("schema=", "schema=x")),
            lambda: InclusionProof.of(place, 999, certificate),
        ):
            with pytest.raises((LedgerError, InputError)) as refused:
                attempt()
            shown.append(refused.value)
    called("audit", "export", place, tmp_path / "ledger.jsonl", "--answers")
    for command in (
        ("audit", place),
        ("audit", "verify", place),
        ("audit", "certify", place, tmp_path / "c.json"),
        ("why-miss", place),
        ("audit", place + "x"),
    ):
        ran = called(*command)
        assert "this is a bug" not in ran.stderr
        shown += [ran.stdout, ran.stderr]
    edit(place, ("UPDATE records SET read = read + 1 WHERE seq = 2",))
    with pytest.raises(LedgerCorrupted, match="record 2 was changed") as broken:
        verify_run(place)
    shown += [
        broken.value,
        *capfd.readouterr(),
        *((tmp_path / name).read_text() for name in ("model.json", "ledger.jsonl", "c.json")),
    ]
    for text in map(str, shown):
        assert PASSWORD not in text
        assert quote(PASSWORD, safe="") not in text
    stored = execute(place, "SELECT string_agg(note, ' ') FROM records", "SELECT string_agg(value, ' ') FROM meta")
    assert PASSWORD not in str(stored)


def test_a_prediction_looks_into_a_database_whose_address_has_the_password(postgres, tmp_path, monkeypatch):
    place = postgres.address()
    monkeypatch.delenv("PGPASSWORD", raising=False)
    texts, labels = ["late post", "a courier", "our team", "a match"], ["post", "post", "sport", "sport"]
    with connect("fake", run=place) as lm:
        PromptBoostingClassifier(lm, ["<input> So <mask>."], head="knn", random_state=1).fit(texts, labels).save(
            tmp_path / "model.json"
        )
    (tmp_path / "table.csv").write_text("text,label\n" + "\n".join(map(",".join, zip(texts, labels, strict=True))))
    files = tmp_path / "model.json", tmp_path / "table.csv"
    ran = called("predict", *files, "--label-column", "label", "--run", place, "--backend", "fake")
    assert ran.returncode == 0, ran.stderr
    assert "4 of 4 texts took part in a fit" in ran.stderr
    assert quote(PASSWORD, safe="") not in ran.stdout + ran.stderr


def test_another_models_ledger_or_a_newer_one_is_refused(place):
    metered(place).close()
    with pytest.raises(LedgerMismatch, match="another model"):
        metered(place, seed=5)
    edit(place, ("UPDATE meta SET value = '99' WHERE name = 'format'",))
    with pytest.raises(LedgerMismatch, match="newer pbsdk"):
        metered(place)


def test_what_is_not_a_ledger_is_refused_and_left_as_it_was(place):
    schema = Address.parse(place).schema
    execute(place, f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.customers (name text)")
    for attempt in (metered, AuditReport.read):
        with pytest.raises(LedgerError, match="not a pbsdk ledger's"):
            attempt(place)
    assert execute(place, f"SELECT relname FROM pg_class WHERE relnamespace = '{schema}'::regnamespace") == [
        ("customers",)
    ]
    with pytest.raises(LedgerError, match="holds no ledger"):
        AuditReport.read(place + "_empty")


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("ALTER TABLE passes RENAME TO hidden; CREATE VIEW passes AS SELECT * FROM hidden", "table hidden"),
        ("ALTER TABLE totals ADD more bigint", "column totals"),
        ("ALTER TABLE totals ALTER passes SET DEFAULT 0", "column totals"),
        ("ALTER TABLE records ALTER seq TYPE numeric", "column records"),
        ("ALTER TABLE records DISABLE TRIGGER records_stay", "trigger records"),
        ("DROP TRIGGER records_stay ON records", "trigger records"),
        (
            "CREATE OR REPLACE FUNCTION append_only() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
            "function append_only",
        ),
        ("ALTER TABLE answers DROP CONSTRAINT answers_pkey", "constraint answers"),
        ("CREATE INDEX extra ON records (state)", "table extra"),
        ("CREATE RULE quiet AS ON INSERT TO passes DO INSTEAD NOTHING", "rule passes"),
        (
            "ALTER TABLE inflight ENABLE ROW LEVEL SECURITY; CREATE POLICY hidden ON inflight USING (false)",
            "policy inflight",
        ),
        ("CREATE TABLE heirs () INHERITS (passes)", "heir heirs"),
        ("CREATE TRIGGER more AFTER INSERT ON passes FOR EACH ROW EXECUTE FUNCTION append_only()", "trigger passes"),
    ],
)
def test_a_schema_that_was_changed_is_refused(kept, statement, named):
    """The change is undone with the transaction that made it."""
    with closing(PostgresConnection(Address.parse(kept))) as con:
        con.run("BEGIN")
        check_schema(con, con.address)
        con.run(statement)
        with pytest.raises(LedgerCorrupted, match=f"the schema has been changed: .*{named}"):
            check_schema(con, con.address)


def test_whatever_opens_a_ledger_looks_at_its_schema_first(place):
    metered(place).close()
    execute(place, "CREATE TRIGGER more AFTER INSERT ON passes FOR EACH ROW EXECUTE FUNCTION append_only()")
    for attempt in (metered, verify_run, AuditReport.read):
        with pytest.raises(LedgerCorrupted, match="the schema has been changed: trigger passes; nothing was read"):
            attempt(place)


def test_records_are_append_only(place):
    metered(place).close()
    for statement in ("UPDATE records SET read = 1", "DELETE FROM records", "TRUNCATE records"):
        with pytest.raises(LedgerError, match="append-only"):
            execute(place, statement)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE records SET latency = latency + 1 WHERE seq = 9", "record 9 was changed"),
        ("DELETE FROM records WHERE seq = 5", "record 5 is missing"),
        ("DELETE FROM records WHERE seq = (SELECT max(seq) FROM records)", "cut off"),
        (
            "UPDATE stored SET value = value || '\\x00' WHERE key = (SELECT query FROM answers LIMIT 1)",
            "its answer was changed",
        ),
        ("DELETE FROM stored WHERE key = (SELECT query FROM answers LIMIT 1)", "its answer is missing"),
        ("INSERT INTO stored VALUES ('odd', '\\x01')", "no record mentions"),
        ("UPDATE passes SET sent = sent + 1", "the counters of example"),
        ("UPDATE totals SET passes = passes - 1", "totals"),
        ("INSERT INTO streams VALUES ('abcdefabcdef', 1)", "no record opened"),
        ("DELETE FROM names", "the text of its prompt is missing"),
    ],
)
def test_verify_finds(kept, statement, said):
    tables = [name for (name,) in execute(kept, "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace")]  # fmt: skip
    copies = [f"CREATE TABLE {{kept}}.{name} AS TABLE {name}" for name in tables]
    try:
        execute(
            kept,
            "DROP SCHEMA IF EXISTS copies CASCADE",
            "CREATE SCHEMA copies",
            *(one.format(kept="copies") for one in copies),
        )
        edit(kept, (statement,))
        with pytest.raises(LedgerCorrupted, match=said):
            verify_run(kept)
    finally:
        edit(
            kept,
            *(
                (f"{what} {name}{more}",)
                for name in tables
                for what, more in (("TRUNCATE", ""), ("INSERT INTO", f" TABLE copies.{name}"))
            ),
        )
    verify_run(kept)


def test_the_audit_is_that_of_a_folder(place, tmp_path):
    def asked(run):
        with metered(run, batch_size=3, failures=[None, None]) as lm:
            lm.fill(grid(4, 3))
            lm.fill(grid(4, 3, "predict"))
            lm.fill([query(9, 0, "validate")])
            with pytest.raises(BudgetExceeded):
                lm.fill([query(1, j) for j in range(20)])
        return AuditReport.read(run)

    here, there = asked(tmp_path / "run"), asked(place)
    counts = ("phase", "examples", "passes", "distribution", "hits", "attempts", "tokens_read", "mass_seen")
    for phase, other in zip(here.phases, there.phases, strict=True):
        assert [getattr(phase, name) for name in counts] == [getattr(other, name) for name in counts]
    assert (here.verdict, here.records) == (there.verdict, there.records)
    assert [prompt.passes for prompt in here.prompts] == [prompt.passes for prompt in there.prompts]
    compared = AuditDiff.read(tmp_path / "run", place)
    assert (compared.passes_in_both, compared.passes_only_a) == (13, 0)
    one, other = (json.loads(Certificate.of(run).to_json()) for run in (tmp_path / "run", place))
    for name in ("records", "answers", "hits", "attempts", "failed", "unknown", "tokens_read", "passes", "most"):
        assert one[name] == other[name], name


def test_certificates_proofs_and_exports_hold(place, tmp_path):
    with metered(place) as lm:
        lm.fill(grid(2, 2))
        early = Certificate.of(place)
        lm.fill(grid(3, 2))
    early.check(place)
    late = Certificate.of(place, since=early)
    late.check_growth(early)
    InclusionProof.of(place, 3, late).check(late)
    late.save(tmp_path / "certificate.json")
    assert called("audit", "export", place, tmp_path / "ledger.jsonl", "--answers").returncode == 0
    script = Path(__file__).parents[2] / "docs" / "verify_ledger.py"
    import subprocess

    ran = subprocess.run(
        [sys.executable, script, tmp_path / "ledger.jsonl", tmp_path / "certificate.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_odd_characters_are_kept(place):
    odd = "<input> a\0b\x01c\x01\x02 \ud800 <mask>"
    asked = query(1)
    strange = type(asked)(asked.parts, asked.example, odd, asked.phase)
    with metered(place) as lm:
        lm.fill([strange])
        lm.ledger.verify()
        with lm.ledger.reader() as reader:
            assert [json.loads(text) for text in reader.names().values()] == [odd]


class Cutting:
    """Stands between a client and the server, and cuts the connection at one message of the client's, once. The server isn't told.

    It is the message number `at` of those that say `what`.
    """

    def __init__(self, port, at, *, what=b"", delivered):
        self._to, self._at, self._what, self._delivered = port, at, what, delivered
        self._seen = 0
        self.cuts = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
                threading.Thread(target=self._back, args=(client, server), daemon=True).start()

    def _forward(self, client, server):
        with suppress(OSError), client, server:
            while data := client.recv(1 << 20):
                self._seen += self._what in data
                if self._what in data and self._seen == self._at:
                    self.cuts += 1
                    client.shutdown(socket.SHUT_RDWR)  # the client hears nothing more
                    if self._delivered:
                        server.sendall(data)
                        time.sleep(0.05)
                    return
                server.sendall(data)

    @staticmethod
    def _back(client, server):
        with suppress(OSError):
            while data := server.recv(1 << 20):
                client.sendall(data)

    def close(self):
        self._server.shutdown(socket.SHUT_RDWR)  # a thread still waits in accept()
        self._server.close()


def _places():
    """Yield at which messages to cut: some of those that end a transaction, and more if every one is to be tried in PostgreSQL."""
    yield from ((b"COMMIT", at) for at in (2, 3, 4, 5))
    yield b"INSERT INTO records", 3
    yield from ((b"", at) for at in (range(12, 160, 17) if os.environ.get("PBSDK_TEST_POSTGRES") else [50]))


@pytest.mark.parametrize("delivered", [False, True])
def test_a_connection_that_drops_anywhere_loses_nothing_and_pays_nothing_twice(postgres, delivered):
    place = postgres.address(sslmode="disable")
    with metered(place) as lm:
        expected = lm.fill([query("warm")])
    cut = asked = 0
    for what, at in _places():
        with closing(Cutting(postgres.port, at, what=what, delivered=delivered)) as proxy:
            through = place.replace(f":{postgres.port}/", f":{proxy.port}/")
            try:
                lm = metered(through, batch_size=2, deadline=60.0)
            except LedgerError:  # while it was being opened: nothing was asked yet
                continue
            with lm:
                wanted = [query(asked, j) for j in range(3)]
                assert all(map(same, lm.fill(wanted), FakeBackend(vocabulary_size=50).fill(wanted)))
                assert [q.prompt for q in lm.backend.asked] == [q.prompt for q in wanted]
            asked += 1
            cut += proxy.cuts
    assert cut >= 5
    with metered(place) as lm:
        found = states(lm)
        assert found["done"] == found["sent"] == 1 + 3 * asked
        assert "unknown" not in found
        assert same(lm.fill([query("warm")])[0], expected[0])
    verify_run(place)


def test_a_server_that_is_restarted_in_the_midst_of_a_run_loses_nothing(postgres):
    place = postgres.nearby()

    class Restarting(FakeBackend):
        def fill(self, queries, tokens=None):
            if len(self.calls) == 1:
                postgres.stop()
                postgres.start()
            return super().fill(queries, tokens)

    with MeteredBackend(Restarting(vocabulary_size=50, batch_size=2), place) as lm:
        assert len(lm.fill(grid(3, 2))) == 6
        assert len(lm.backend.asked) == 6
        assert {state: n for state, n in states(lm).items() if state != "hit"} == {"reserved": 6, "sent": 6, "done": 6}
    verify_run(place)


def test_a_server_that_stays_away_is_one_clear_error(postgres, monkeypatch):
    monkeypatch.setattr("pbsdk.ledger.postgres._PATIENCE", 0.3)
    proxy = Cutting(postgres.port, -1, delivered=False)
    lm = metered(postgres.address(port=proxy.port))
    proxy.close()
    lm.ledger._run._con._socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(LedgerError, match=r"can't be reached.*is the server running"):
        lm.fill([query(1)])
    assert lm.backend.asked == []
    lm.close()


def test_who_is_on_another_machine_is_alive_until_the_lease_runs_out(postgres):
    place = postgres.nearby(lease=3600)
    other = start("hang", place, 1, 2)
    assert other.stdout.readline().startswith("asked")
    execute(place, f"UPDATE {Address.parse(place).schema}.leases SET machine = 'elsewhere'")
    other.kill()
    other.communicate()
    lm = MeteredBackend(FakeBackend(vocabulary_size=20), place, deadline=0.05)
    assert "unknown" not in states(lm)  # its lease still runs
    edit(place, ("UPDATE leases SET term = 1 WHERE machine = 'elsewhere'",))
    assert len(lm.fill(grid(1, 2))) == 2
    assert states(lm) == {"reserved": 4, "sent": 4, "unknown": 2, "done": 2}
    assert rows(lm, "SELECT passes FROM totals") == [(2,)]
    assert rows(lm, "SELECT session FROM leases") == [(lm.ledger.session,)]
    lm.close()
    assert execute(place, "SELECT count(*) FROM leases") == [(0,)]
    verify_run(place)


def test_a_lease_gives_signs_of_life_and_ends_with_its_owner(postgres):
    address = Address.parse(postgres.nearby(lease=1))
    lm = metered(address)
    with closing(PostgresConnection(address)) as con:
        ((first,),) = con.run("SELECT beat FROM leases")
        limit = time.monotonic() + PATIENCE
        while con.run("SELECT beat FROM leases").fetchall() == [(first,)] and time.monotonic() < limit:
            time.sleep(0.05)
        assert con.run(f"SELECT beat > {first} FROM leases").fetchall() == [(True,)]
    lm.close()
    lease = Lease(address)
    over = lease._over
    del lease
    assert over.is_set()


def test_a_process_whose_lease_ran_out_says_so_and_goes_on(place):
    class Slow(FakeBackend):
        def fill(self, queries, tokens=None):
            if not self.calls:
                edit(place, ("UPDATE leases SET machine = 'elsewhere', term = 1",))
                metered(place).close()  # settles what the dead left
            return super().fill(queries, tokens)

    with MeteredBackend(Slow(vocabulary_size=50), place) as lm:
        with pytest.raises(LedgerError, match="longer than the lease"):
            lm.fill([query(1)])
        assert len(lm.fill([query(1)])) == 1
        found = states(lm)
        assert (found["sent"], found["unknown"], found["done"]) == (2, 1, 1)
    verify_run(place)


def test_processes_that_are_killed_and_go_on_never_take_one_pass_over(postgres):
    place, limit = postgres.nearby(), 40
    jobs = [start("one_by_one", place, 1000 * n, 25, limit) for n in range(3)]
    heard = [jobs[0].stdout.readline() for _ in range(5)]
    jobs[0].send_signal(signal.SIGKILL)
    said = "".join([*heard, *(job.communicate(timeout=PATIENCE)[0] for job in jobs)])
    with metered(place, vocabulary_size=20, budget=None) as lm:
        ((passes, held, sent),) = rows(lm, "SELECT passes, held, sent FROM totals")
        assert said.count("asked") <= sent <= passes == limit
        assert held == 0
    assert said.count("refused")
    verify_run(place)

"""Tests of the receiver against recorded deliveries: `python3 -m unittest`. No package is needed."""

import base64
import contextlib
import gzip
import hashlib
import hmac
import json
import logging
import tempfile
import unittest
from pathlib import Path

from core import columns, once
from core.app import Receiver
from core.receiver import BODY_BYTES_MAX, EventFailed
from row import Change

DELIVERY = (Path(__file__).parent / "deliveries" / "batch.json").read_bytes()
SECRET = "whsec_" + base64.b64encode(b"a secret of the tests alone").decode()
OTHER = "whsec_" + base64.b64encode(b"another secret").decode()
NOW = 1_790_000_000


def sign(body, secret=SECRET, at=NOW):
    signed = b"batch_1.%d." % at + body
    digest = hmac.new(base64.b64decode(secret[len("whsec_") :]), signed, hashlib.sha256).digest()
    signature = "v1," + base64.b64encode(digest).decode()
    return {"webhook-id": "batch_1", "webhook-timestamp": str(at), "webhook-signature": signature}


def delivery(**changes):
    return json.dumps({**json.loads(DELIVERY), **changes}).encode()


class ReceiverTest(unittest.TestCase):
    def setUp(self):
        logging.disable(logging.CRITICAL)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.database = str(Path(folder.name) / "db")
        self.ids = [event["id"] for event in json.loads(DELIVERY)["events"]]
        self.failing = {}
        self.receiver = Receiver(SECRET, self.database, self.handle, lambda: NOW)
        with contextlib.closing(once.connect(self.database)) as db:
            db.execute("CREATE TABLE applied (number INTEGER PRIMARY KEY, event_id TEXT)")

    def handle(self, change, db):
        self.assertIsInstance(change, Change)
        db.execute("INSERT INTO applied (event_id) VALUES (?)", (change.id,))
        # After the write, which must be undone.
        if change.id in self.failing:
            raise self.failing[change.id]

    def applied(self):
        with contextlib.closing(once.connect(self.database)) as db:
            return [id for (id,) in db.execute("SELECT event_id FROM applied ORDER BY number")]

    def post(self, body=DELIVERY, headers=None, **more):
        headers = {**(sign(body) if headers is None else headers), **more}
        return self.receiver.receive(headers, body)

    def refused(self, status, reply):
        self.assertEqual(status, reply[0], reply)
        self.assertTrue(reply[1]["error"])
        self.assertEqual([], self.applied())

    def test_events_are_applied_in_order_and_once(self):
        for _ in range(2):
            self.assertEqual((200, {"batchItemFailures": []}), self.post())
            self.assertEqual(self.ids, self.applied())

    def test_a_deleted_row_has_no_columns(self):
        event = {**json.loads(DELIVERY)["events"][0], "op": "delete", "after": None}
        self.assertIsNone(Change.from_json(event).row)
        self.assertEqual(200, self.post(delivery(events=[event]))[0])

    def test_an_event_that_fails_keeps_those_before_it(self):
        self.failing = {self.ids[1]: EventFailed("a value that the target rejects")}
        reply = (200, {"batchItemFailures": [{"itemIdentifier": self.ids[1]}]})
        self.assertEqual(reply, self.post())
        self.assertEqual(self.ids[:1], self.applied())
        self.failing = {}
        self.assertEqual(200, self.post()[0])
        self.assertEqual(self.ids, self.applied())

    def test_any_other_exception_undoes_the_batch(self):
        self.failing = {self.ids[1]: OSError("the target is away")}
        self.refused(503, self.post())
        self.failing = {}
        self.post()
        self.assertEqual(self.ids, self.applied())

    def test_a_database_that_is_away_is_not_the_fault_of_a_row(self):
        self.receiver.database = self.database + "/away"
        self.refused(503, self.post())

    def test_a_wrong_signature_is_rejected(self):
        self.refused(401, self.post(headers=sign(DELIVERY, OTHER)))
        self.refused(401, self.post(headers=sign(b"another body")))
        self.refused(401, self.post(headers={}))

    def test_one_good_signature_of_several_is_enough(self):
        headers = sign(DELIVERY)
        headers["webhook-signature"] = "v1,AAAA " + headers["webhook-signature"]
        self.assertEqual(200, self.post(headers=headers)[0])

    def test_an_old_request_is_rejected_after_five_minutes(self):
        for at in (NOW - 301, NOW + 301):
            self.refused(401, self.post(headers=sign(DELIVERY, at=at)))
        for at in (NOW - 300, NOW + 300):
            self.assertEqual(200, self.post(headers=sign(DELIVERY, at=at))[0])

    def test_what_is_no_batch_is_rejected(self):
        for body in (
            b"", b"null", b"[]", b"{", b"\xff", delivery(poller=None), delivery(events=None),
            delivery(events=[None]), delivery(events=[{"id": "1"}]), delivery(generation="1"),
        ):
            self.refused(400, self.post(body))

    def test_a_row_of_another_table_is_rejected(self):
        event = {**json.loads(DELIVERY)["events"][0], "after": {}}
        reply = self.post(delivery(events=[event]))
        self.refused(400, reply)
        self.assertIn("column", reply[1]["error"])

    def test_a_value_of_another_type_is_rejected(self):
        for read, values in (
            (columns.integer, (1.7, "1", True)), (columns.boolean, ("false", 0)), (columns.text, (5, True)),
            (columns.number, ("1.5", True)), (columns.decimal, (1.5, 1, "x")), (columns.uuid, (5, "x")),
            (columns.from_base64, (5, "?")),
        ):
            for value in values:
                with self.assertRaises(columns.InvalidColumn, msg=repr(value)):
                    columns.column({"name": value}, "name", read)
        self.assertEqual([2.0, 2.5], [columns.number(value) for value in (2, 2.5)])

    def test_a_gzip_body_is_accepted_and_a_false_one_rejected(self):
        for encoding in ("gzip", "GZIP"):
            reply = self.receiver.receive(
                {**sign(DELIVERY), "content-encoding": encoding}, gzip.compress(DELIVERY)
            )
            self.assertEqual(200, reply[0])
        self.setUp()
        self.refused(400, self.post(**{"content-encoding": "gzip"}))
        self.refused(400, self.post(**{"content-encoding": "br"}))

    def test_a_body_above_the_limit_is_answered_so_that_the_batch_is_halved(self):
        large = bytes(BODY_BYTES_MAX + 1)
        self.refused(413, self.receiver.receive(sign(large), large))
        packed = {**sign(large), "content-encoding": "gzip"}
        self.refused(413, self.receiver.receive(packed, gzip.compress(large, 1)))

    def test_an_instance_that_lost_its_lease_cannot_write(self):
        newer = delivery(fencing_token=json.loads(DELIVERY)["fencing_token"] + 1, events=[])
        self.assertEqual(200, self.post(newer)[0])
        reply = self.post()
        self.refused(409, reply)
        self.assertIn("fence", reply[1])

    def test_ids_are_removed_after_the_retention(self):
        self.post()
        self.receiver.clock = lambda: NOW + once.RETENTION_SECONDS + 1
        later = delivery(events=[])
        self.assertEqual(200, self.post(later, sign(later, at=NOW + once.RETENTION_SECONDS + 1))[0])
        with contextlib.closing(once.connect(self.database)) as db:
            self.assertEqual((0,), db.execute("SELECT count(*) FROM processed_events").fetchone())

    def test_a_process_without_its_settings_does_not_start(self):
        for secrets in (None, "", "bm90IGEgc2VjcmV0", "whsec_", "whsec_?"):
            with self.assertRaises(ValueError):
                Receiver(secrets, self.database)


if __name__ == "__main__":
    unittest.main()

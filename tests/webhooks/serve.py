"""Serves the receiver of docs/receivers/python. Settings: WEBHOOK_SECRETS, DATABASE.

POST /once     notes each event in a table, once; the name `poison` cannot be applied
POST /upsert   upserts each event
POST /away     as /once, on a database that is closed
GET /taken     the ids that were noted, in order
GET /orders    the rows that were upserted
"""

import json
import os
import sqlite3
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../docs/receivers/python"))

import recipes  # noqa: E402
from receiver import EventFailed, read_secrets, receive  # noqa: E402

KEYS = read_secrets(os.environ.get("WEBHOOK_SECRETS"))
DATABASE = sqlite3.connect(os.environ["DATABASE"], check_same_thread=False)
DATABASE.executescript(recipes.TABLES)
DATABASE.execute("CREATE TABLE IF NOT EXISTS taken (number INTEGER PRIMARY KEY, event_id TEXT)")


def note(database, event):
    database.execute("INSERT INTO taken (event_id) VALUES (?)", (event["id"],))
    # After the write, which must be rolled back.
    if (event["after"] or {}).get("name") == "poison":
        raise EventFailed("this is poison")


CLOSED = sqlite3.connect(":memory:")
CLOSED.close()
TAKES = {
    "/once": recipes.once(DATABASE, note),
    "/upsert": recipes.upsert(DATABASE),
    "/away": recipes.once(CLOSED, note),
}
QUERIES = {
    "/taken": "SELECT event_id FROM taken ORDER BY number",
    "/orders": "SELECT order_id, cursor, after FROM processed_orders ORDER BY order_id, cursor",
}


class Handler(BaseHTTPRequestHandler):
    # One thread, so one user of the database. Version 1.0 keeps no connection open, which would block others.

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.answer(*receive(KEYS, self.headers, raw, TAKES[self.path]))

    def do_GET(self):
        rows = DATABASE.execute(QUERIES[self.path]).fetchall()
        self.answer(200, [row[0] if len(row) == 1 else row for row in rows])

    def answer(self, status, answer):
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments):
        pass


server = HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()

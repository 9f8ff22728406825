"""Prints the events that are posted to it, one a line, and accepts them all. For trying things out: it checks no signature."""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        events = json.loads(body)["events"]
        print(f"POST {self.path} with {len(events)} event{'s' * (len(events) != 1)}")
        for event in events:
            print(json.dumps(event), flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


port = int(sys.argv[1]) if len(sys.argv) > 1 else 7072
HTTPServer(("127.0.0.1", port), Handler).serve_forever()

"""Serves the receiver on this machine: `python3 serve.py`. Settings come from local.settings.json.

In Azure, function_app.py takes its place.
"""

import json
import logging
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).parent
PATH = "/api/@@poller@@"
PORT = @@port@@


def load_settings():
    """Sets the settings of local.settings.json; the environment takes precedence."""
    values = json.loads((HERE / "local.settings.json").read_text(encoding="utf-8"))["Values"]
    for name, value in values.items():
        os.environ.setdefault(name, value)
    os.chdir(HERE)


def server(receiver, port):
    """Returns a server on 127.0.0.1."""
    from core.receiver import BODY_BYTES_MAX

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            length = int(self.headers.get("content-length") or 0)
            if self.path.split("?")[0] != PATH:
                self.close_connection = True
                return self.reply(404, {"error": f"expected a POST to {PATH}"})
            if length > BODY_BYTES_MAX:
                self.close_connection = True
                return self.reply(413, {"error": f"the body is larger than {BODY_BYTES_MAX} bytes"})
            self.reply(*receiver.receive(self.headers, self.rfile.read(length)))

        def reply(self, status, reply):
            body = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format, *arguments):
            pass  # handler.py and core/app.py log what matters

    ThreadingHTTPServer.daemon_threads = True
    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main():
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    load_settings()
    from core.app import Receiver

    with server(Receiver.from_environment(), int(os.environ.get("PORT") or PORT)) as serving:
        logging.info("receiver: http://127.0.0.1:%d%s", serving.server_port, PATH)
        try:
            serving.serve_forever()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()

"""A collector for the tests: takes OTLP over HTTP, and tells as JSON what it has decoded.

It decodes with the definitions that the OpenTelemetry project publishes, so that what is read here is
what any collector reads. `GET /seen` tells everything; `POST /be/<mode>` makes it take, refuse or hang.
"""

import gzip
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

MESSAGES = {
    "/v1/traces": ("traces", ExportTraceServiceRequest),
    "/v1/metrics": ("metrics", ExportMetricsServiceRequest),
    "/v1/logs": ("logs", ExportLogsServiceRequest),
}
mode = "take"
seen = []
lock = threading.Lock()


def unknown_fields(message):
    """Whatever the definitions do not know would be dropped in silence."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    found = len(UnknownFieldSet(message))
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for each in value if not hasattr(value, "DESCRIPTOR") else [value]:
            found += unknown_fields(each)
    return found


def families(text):
    return [
        {
            "name": family.name,
            "type": family.type,
            "samples": [
                {"name": sample.name, "labels": sample.labels, "value": str(sample.value)}
                for sample in family.samples
            ],
        }
        for family in text_string_to_metric_families(text)
    ]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body=b"", kind="application/json"):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        with lock:
            self.answer(200, json.dumps(seen).encode())

    def do_POST(self):
        global mode
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path.startswith("/be/"):
            mode = self.path.removeprefix("/be/")
            return self.answer(200)
        if self.path == "/parse":
            return self.answer(200, json.dumps(families(body.decode())).encode())
        if mode == "hang":
            return threading.Event().wait(30)
        if mode == "refuse":
            return self.answer(503)
        signal, kind = MESSAGES[self.path]
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        message = kind.FromString(body)
        with lock:
            seen.append(
                {
                    "signal": signal,
                    "headers": {name.lower(): value for name, value in self.headers.items()},
                    "unknown": unknown_fields(message),
                    "message": MessageToDict(message, preserving_proto_field_name=True),
                }
            )
        self.answer(200, b"", "application/x-protobuf")

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()

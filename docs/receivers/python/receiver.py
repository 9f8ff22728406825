"""Receives Highwater's batches: checks the signature and reports which event failed.

Python 3.9 or newer, standard library only. What keeps events from being applied twice is in recipes.py.
"""

import base64
import binascii
import hashlib
import hmac
import json
import logging
import time
import zlib

# Reject a request that is older or newer than this: it may be a recorded one, sent again.
TOLERANCE_SECONDS = 5 * 60
# A small request may unpack to a huge one.
BODY_BYTES_MAX = 64 * 1024 * 1024


class Refused(Exception):
    """Answers the request with this status; no event of it is applied."""

    def __init__(self, status, reason, **details):
        super().__init__(reason)
        self.status = status
        self.details = details


class EventFailed(Exception):
    """This event cannot be applied, and the reason lies in the event itself.

    Raise it for nothing else. A database that is away is not the fault of an event: let that exception
    pass, so that the answer is 503 and the whole batch is redelivered later.
    """


def read_secrets(text):
    """Returns the keys in `text`, secrets `whsec_…` separated by blanks. Call it at start, so that a
    process without secrets does not start."""
    secrets = (text or "").split()
    if not secrets:
        raise ValueError("WEBHOOK_SECRETS is not set: expected secrets `whsec_…`, separated by blanks")
    keys = []
    for number, secret in enumerate(secrets, start=1):
        try:
            key = base64.b64decode(secret[len("whsec_") :], validate=True)
        except binascii.Error:
            key = b""
        if not secret.startswith("whsec_") or not key:
            raise ValueError(f"secret {number} of WEBHOOK_SECRETS is not `whsec_` and base64")
        keys.append(key)
    return keys


def verify(keys, headers, body, now=None):
    """Raises Refused unless a signature is good under one of `keys`."""
    message_id = headers.get("webhook-id") or ""
    timestamp = headers.get("webhook-timestamp") or ""
    now = time.time() if now is None else now
    is_number = timestamp.isascii() and timestamp.isdigit()
    if not is_number or abs(now - int(timestamp)) > TOLERANCE_SECONDS:
        raise Refused(401, "webhook-timestamp is missing or too far from now")
    signed = f"{message_id}.{timestamp}.".encode() + body
    given = (headers.get("webhook-signature") or "").split(" ")
    for key in keys:
        digest = hmac.new(key, signed, hashlib.sha256).digest()
        wanted = b"v1," + base64.b64encode(digest)
        # Constant time, so that the duration of the comparison reveals nothing.
        if any(hmac.compare_digest(wanted, signature.encode()) for signature in given):
            return
    raise Refused(401, "webhook-signature is missing or wrong")


def unpack(headers, raw):
    """Returns the body as it is signed."""
    # 413 makes the sender halve the batch.
    too_large = Refused(413, f"the body is larger than {BODY_BYTES_MAX} bytes")
    if len(raw) > BODY_BYTES_MAX:
        raise too_large
    encoding = (headers.get("content-encoding") or "identity").strip().lower()
    if encoding == "identity":
        return raw
    if encoding != "gzip":
        raise Refused(400, "content-encoding is neither gzip nor identity")
    stream = zlib.decompressobj(wbits=31)
    try:
        body = stream.decompress(raw, BODY_BYTES_MAX + 1)
    except zlib.error:
        raise Refused(400, "the body is not gzip, though content-encoding says so") from None
    if len(body) > BODY_BYTES_MAX:
        raise too_large
    if not stream.eof:
        raise Refused(400, "the gzip body is cut short")
    return body


def read_batch(body):
    """Returns the batch in a body of the form `highwater`."""
    try:
        batch = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(batch, dict):
        raise Refused(400, "the body is not an object: expected the form `highwater`")
    for field, kind in (("poller", str), ("generation", int), ("fencing_token", int), ("events", list)):
        if not isinstance(batch.get(field), kind):
            raise Refused(400, f"`{field}` is missing or of the wrong type")
    for event in batch["events"]:
        if not isinstance(event, dict) or not isinstance(event.get("id"), str):
            raise Refused(400, "an event has no `id`")
    return batch


def receive(keys, headers, raw, take, clock=time.time):
    """Handles a request; returns the status and the object to answer with.

    `take(batch, event)` applies one event, once only. It raises EventFailed for an event that cannot be
    applied; any other exception means that nothing can be applied now.
    """

    def apply(batch):
        for event in batch["events"]:
            try:
                take(batch, event)
            except EventFailed as error:
                logging.error("event %s failed: %s", event["id"], error)
                return event["id"]
        return None

    return receive_batch(keys, headers, raw, apply, clock)


def receive_batch(keys, headers, raw, apply, clock=time.time):
    """Handles a request like `receive`, for code that applies a batch as a whole.

    `apply(batch)` applies the events in order. It returns the id of the first event that cannot be applied,
    or None. Any exception means that nothing can be applied now.
    """
    try:
        body = unpack(headers, raw)
        verify(keys, headers, body, clock())
        failed = apply(read_batch(body))
        # Everything before it is applied; it and what follows are redelivered.
        failures = [] if failed is None else [{"itemIdentifier": failed}]
        return 200, {"batchItemFailures": failures}
    except Refused as refused:
        logging.warning("batch %s refused: %s", headers.get("webhook-id"), refused)
        return refused.status, {"error": str(refused), **refused.details}
    except Exception:  # the whole batch is redelivered; the log has the reason
        logging.exception("batch %s failed", headers.get("webhook-id"))
        return 503, {"error": "the batch cannot be applied now"}

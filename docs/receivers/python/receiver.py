"""Receives Highwater's batches: checks the signature and tells which event failed.

Python 3.9 or newer, standard library only. What keeps events from being taken twice is in recipes.py.
"""

import base64
import binascii
import hashlib
import hmac
import json
import logging
import time
import zlib

# A request that is older or younger than this may be one that somebody kept and sends again.
TOLERANCE_SECONDS = 5 * 60
# A small request may unpack to a huge one.
BODY_BYTES_MAX = 64 * 1024 * 1024


class Refused(Exception):
    """The request is answered with this status, and nothing of it is taken."""

    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status


def verify(secrets, headers, body, now=None):
    """Raises Refused unless a signature is good under one of `secrets`, each `whsec_…`."""
    message_id = headers.get("webhook-id") or ""
    timestamp = headers.get("webhook-timestamp") or ""
    now = time.time() if now is None else now
    if not timestamp.isdigit() or abs(now - int(timestamp)) > TOLERANCE_SECONDS:
        raise Refused(401, "webhook-timestamp is missing or too far from now")
    signed = f"{message_id}.{timestamp}.".encode() + body
    given = (headers.get("webhook-signature") or "").split(" ")
    for secret in secrets:
        key = base64.b64decode(secret.removeprefix("whsec_"))
        digest = hmac.new(key, signed, hashlib.sha256).digest()
        wanted = b"v1," + base64.b64encode(digest)
        # Compared in constant time, so that the time of the answer tells nothing.
        if any(hmac.compare_digest(wanted, signature.encode()) for signature in given):
            return
    raise Refused(401, "webhook-signature is missing or wrong")


def unpack(headers, raw):
    """Returns the body as it is signed."""
    if headers.get("content-encoding") != "gzip":
        return raw
    stream = zlib.decompressobj(wbits=31)
    body = stream.decompress(raw, BODY_BYTES_MAX)
    if not stream.eof:
        raise Refused(400, "the body is cut short, or too large when unpacked")
    return body


def receive(secrets, headers, raw, take):
    """Takes a request; returns the status and the object to answer with.

    `take(batch, event)` takes one event, once only, and raises an exception if it cannot.
    """
    try:
        body = unpack(headers, raw)
        verify(secrets, headers, body)
        batch = json.loads(body)
        for event in batch["events"]:
            try:
                take(batch, event)
            except Refused:
                raise
            except Exception as error:  # whatever it is, this event comes again
                logging.error("event %s failed: %s", event["id"], error)
                # Everything before it is taken; it and what follows come again.
                return 200, {"batchItemFailures": [{"itemIdentifier": event["id"]}]}
        return 200, {"batchItemFailures": []}
    except Refused as refused:
        return refused.status, {"error": str(refused)}
    except (ValueError, KeyError, zlib.error, binascii.Error):
        return 400, {"error": "the body cannot be read"}

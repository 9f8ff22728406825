//! Signatures by the Standard Webhooks specification. Pure.
//!
//! <https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac as _};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret as _, SecretSlice};
use sha2::Sha256;
use time::OffsetDateTime;

use super::body::Body;

const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Signs requests, with several keys during a key rotation.
///
/// A receiver accepts a request if one of its signatures is valid. To rotate keys, add the new key here,
/// deploy it to the receivers, then remove the old one here.
#[derive(Clone)]
pub(super) struct Signer(Vec<SecretSlice<u8>>);

impl Signer {
    pub(super) fn new(keys: &[SecretSlice<u8>]) -> Self {
        Self(keys.to_vec())
    }

    /// Whether there is a key to sign with.
    pub(super) fn signs(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns the headers of one try: its time, and the signature if there is a key. `body` is the body before
    /// compression.
    pub(super) fn headers(&self, id: &str, now: OffsetDateTime, body: &Body) -> HeaderMap {
        let timestamp = now.unix_timestamp();
        let mut headers = HeaderMap::from_iter([(WEBHOOK_TIMESTAMP, timestamp.into())]);
        let signature = self.sign(id, timestamp, body);
        let value = signature.and_then(|text| HeaderValue::from_str(&text).ok());
        headers.extend(value.map(|value| (WEBHOOK_SIGNATURE, value)));
        headers
    }

    /// Returns the value of `webhook-signature`; `None` if there is no key.
    ///
    /// `timestamp` is in Unix seconds, and `body` is the body before compression.
    fn sign(&self, id: &str, timestamp: i64, body: &Body) -> Option<String> {
        let head = format!("{id}.{timestamp}.");
        let signatures = self.0.iter().map(|key| {
            let mut mac = Hmac::<Sha256>::new_from_slice(key.expose_secret())
                .expect("a key of any length will do");
            mac.update(head.as_bytes());
            body.pieces().for_each(|piece| mac.update(piece));
            format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
        });
        let signatures: Vec<String> = signatures.collect();
        (!signatures.is_empty()).then(|| signatures.join(" "))
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Signer({} keys)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signer(encoded: &[&str]) -> Signer {
        let key = |text: &&str| SecretSlice::from(STANDARD.decode(text).unwrap());
        Signer::new(&encoded.iter().map(key).collect::<Vec<_>>())
    }

    fn body(text: &str) -> Body {
        text.as_bytes().to_vec().into()
    }

    /// The example from the tests of the specification's own libraries.
    /// <https://github.com/standard-webhooks/standard-webhooks/tree/main/libraries>
    #[test]
    fn the_published_example_has_the_published_signature() {
        let signer = signer(&["MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]);
        let body = body(r#"{"test": 2432232314}"#);
        let made = signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, &body);
        assert_eq!(made.as_deref(), Some("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="));
    }

    #[test]
    fn each_key_gives_one_signature() {
        let (one, other) =
            ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "T0xEX2h1bnRlcjJodW50ZXIyaHVudGVyMg==");
        let both = signer(&[one, other]).sign("id", 1, &body("{}")).unwrap();
        let each = [one, other].map(|key| signer(&[key]).sign("id", 1, &body("{}")).unwrap());
        assert_eq!(both, each.join(" "));
        assert_ne!(each[0], each[1]);
        assert_eq!(signer(&[]).sign("id", 1, &body("{}")), None);
    }

    #[test]
    fn a_signature_covers_id_time_and_body() {
        let signer = signer(&["MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]);
        let made = signer.sign("id", 1, &body("{}"));
        for (id, timestamp, text) in [("ie", 1, "{}"), ("id", 2, "{}"), ("id", 1, "{ }")] {
            assert_ne!(signer.sign(id, timestamp, &body(text)), made);
        }
        assert_eq!(format!("{signer:?}"), "Signer(1 keys)");
    }
}

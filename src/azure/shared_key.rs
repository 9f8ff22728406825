//! Signs requests with an account key.
//!
//! The Azure crates support Microsoft Entra identities only. The rules are those of
//! <https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key>.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use azure_core::credentials::Secret;
use azure_core::error::ErrorKind;
use azure_core::hmac::hmac_sha256;
use azure_core::http::headers::{AUTHORIZATION, MS_DATE};
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{Context, Request};
use azure_core::time::to_rfc7231;

use highwater_engine::clock::Clock;

/// Signs each attempt of a request separately: the service rejects a signature older than 15 minutes.
pub(crate) struct SharedKey {
    account: String,
    key: Secret,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SharedKey").field("account", &self.account).finish_non_exhaustive()
    }
}

impl SharedKey {
    pub(crate) fn new(account: &str, key: Secret, clock: Arc<dyn Clock>) -> Self {
        Self { account: account.to_owned(), key, clock }
    }

    fn sign(&self, request: &mut Request) -> azure_core::Result<()> {
        request.insert_header(MS_DATE, to_rfc7231(&self.clock.now()));
        let signature = hmac_sha256(&string_to_sign(&self.account, request), &self.key)?;
        let value = format!("SharedKey {}:{signature}", self.account);
        request.insert_header(AUTHORIZATION, value);
        Ok(())
    }
}

#[expect(elided_lifetimes_in_paths, reason = "the trait hides the lifetime, and both must agree")]
#[async_trait]
impl Policy for SharedKey {
    async fn send(
        &self,
        context: &Context,
        request: &mut Request,
        next: &[Arc<dyn Policy>],
    ) -> PolicyResult {
        self.sign(request)?;
        match next.split_first() {
            Some((policy, rest)) => policy.send(context, request, rest).await,
            None => Err(azure_core::Error::with_message(
                ErrorKind::Other,
                "a signed request has no transport",
            )),
        }
    }
}

/// Standard headers in the order in which the service signs them.
///
/// `Date` stays empty, since `x-ms-date` is always set.
const SIGNED_HEADERS: [&str; 11] = [
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "date",
    "if-modified-since",
    "if-match",
    "if-none-match",
    "if-unmodified-since",
    "range",
];

fn string_to_sign(account: &str, request: &Request) -> String {
    let mut lines = vec![request.method().as_str().to_owned()];
    let value = |wanted: &str| {
        request.headers().iter().find(|(name, _)| name.as_str() == wanted).map(|(_, v)| v.as_str())
    };
    // Not every client sets the length itself; otherwise the transport does.
    let length = request.body().len().map(|length| length.to_string()).unwrap_or_default();
    let value = |wanted: &str| match (wanted, value(wanted)) {
        ("content-length", None) => Some(length.as_str()),
        (_, value) => value,
    };
    lines.extend(SIGNED_HEADERS.iter().map(|name| match (*name, value(name)) {
        ("date", _) | ("content-length", Some("0")) | (_, None) => String::new(),
        (_, Some(value)) => value.to_owned(),
    }));
    let mut own: Vec<_> = request
        .headers()
        .iter()
        .filter(|(name, _)| name.as_str().starts_with("x-ms-"))
        .map(|(name, value)| format!("{}:{}", name.as_str(), value.as_str().trim()))
        .collect();
    own.sort();
    lines.append(&mut own);
    lines.push(format!("/{account}{}", request.url().path()));
    let mut query: Vec<_> = request
        .url()
        .query_pairs()
        .map(|(name, value)| format!("{}:{value}", name.to_ascii_lowercase()))
        .collect();
    query.sort();
    lines.append(&mut query);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use azure_core::http::{Method, Url};
    use expect_test::expect;
    use highwater_engine::clock::TokioClock;
    use time::macros::datetime;

    use super::*;

    fn request() -> Request {
        let url =
            "https://acme.blob.core.windows.net/db-state/state/app/a%25b.json?timeout=4&comp=x%20y";
        let mut request = Request::new(Url::parse(url).unwrap(), Method::Put);
        for (name, value) in [
            ("content-length", "11"),
            ("content-type", "application/octet-stream"),
            ("if-match", "\"0x8D\""),
            ("x-ms-version", "2026-04-06"),
            ("x-ms-blob-type", "BlockBlob"),
        ] {
            request.insert_header(name, value);
        }
        request
    }

    #[test]
    fn the_signed_text_holds_the_conditions_of_a_write() {
        expect![[r#"
            PUT


            11

            application/octet-stream


            "0x8D"



            x-ms-blob-type:BlockBlob
            x-ms-version:2026-04-06
            /acme/db-state/state/app/a%25b.json
            comp:x y
            timeout:4"#]]
        .assert_eq(&string_to_sign("acme", &request()));
    }

    #[test]
    fn an_empty_body_is_signed_without_its_length() {
        let mut empty = request();
        empty.insert_header("content-length", "0");
        empty.insert_header("if-none-match", "*");
        let text = string_to_sign("acme", &empty);
        assert_eq!(text.lines().nth(3), Some(""));
        assert_eq!(text.lines().nth(9), Some("*"));
    }

    #[test]
    fn a_length_that_the_transport_will_set_is_signed() {
        let url = Url::parse("https://acme.queue.core.windows.net/changes/messages").unwrap();
        let mut request = Request::new(url, Method::Post);
        assert_eq!(string_to_sign("acme", &request).lines().nth(3), Some(""));
        request.set_body("<QueueMessage/>");
        assert_eq!(string_to_sign("acme", &request).lines().nth(3), Some("15"));
    }

    #[tokio::test(start_paused = true)]
    async fn each_attempt_is_dated_and_signed_separately() {
        let clock = TokioClock::starting_at(datetime!(2026-11-20 8:00 UTC));
        let signer = SharedKey::new("acme", "a2V5".into(), Arc::new(clock));
        let mut request = request();
        let mut seen = Vec::new();
        for _ in 0..2 {
            signer.sign(&mut request).unwrap();
            let header = |name| request.headers().get_optional_string(&name).unwrap();
            seen.push((header(MS_DATE), header(AUTHORIZATION)));
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
        }
        assert_eq!(seen[0].0, "Fri, 20 Nov 2026 08:00:00 GMT");
        assert_eq!(seen[1].0, "Fri, 20 Nov 2026 08:00:01 GMT");
        assert_ne!(seen[0].1, seen[1].1);
        assert!(!format!("{signer:?}").contains("a2V5"));
    }
}

//! Authentication of requests, and that no secret appears in errors.

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};

use super::*;
use crate::config::HttpAuth;
use crate::redaction::{hold, hold_token};

/// Gives numbered tokens for one scope.
#[derive(Debug, Default)]
struct Identity(AtomicUsize);

#[async_trait]
impl TokenCredential for Identity {
    async fn get_token(
        &self,
        scopes: &[&str],
        _options: Option<TokenRequestOptions<'_>>,
    ) -> azure_core::Result<AccessToken> {
        if scopes != ["api://orders/.default"] {
            std::future::pending::<()>().await;
        }
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        if number > 1 {
            let kind = azure_core::error::ErrorKind::Credential;
            return Err(azure_core::Error::with_message(kind, "no identity is assigned"));
        }
        Ok(AccessToken::new(format!("s3cret-{number}"), datetime!(2099-01-01 00:00 UTC)))
    }
}

fn identity() -> HttpAuth {
    HttpAuth::Identity { audience: "api://orders".to_owned(), client_id: None }
}

fn with(auth: HttpAuth, url: &str) -> Http {
    handler_of(&HttpConfig { auth, ..config(url, 2) })
}

#[tokio::test]
async fn a_key_goes_into_its_header_and_nowhere_else() {
    hold(["s3cret-key"]);
    for (auth, header) in [
        (HttpAuth::FunctionKey("s3cret-key".into()), "x-functions-key"),
        (
            HttpAuth::Header { name: "x-api-key".to_owned(), value: "s3cret-key".into() },
            "x-api-key",
        ),
    ] {
        let echo = "you sent s3cret-key as the key".to_owned();
        let (receiver, url) = Receiver::start(&[Reply(401, &[], echo)]).await;
        let handler = with(auth, &url);
        let error = handler.handle(Sample::new(1).delivery()).await.unwrap_err();
        assert!(
            error.to_string().ends_with("answered 401: you sent [redacted] as the key"),
            "{error}"
        );
        assert!(!format!("{handler:?}").contains("s3cret"));
        let (headers, body) = receiver.requests().pop().unwrap();
        assert_eq!(headers[header], "s3cret-key");
        assert!(!String::from_utf8_lossy(&body).contains("s3cret"));
    }
}

#[tokio::test]
async fn each_try_uses_a_current_token() {
    hold_token("s3cret-1");
    let echo = "Bearer s3cret-1 expired".to_owned();
    let (receiver, url) = Receiver::start(&[status(500), Reply(401, &[], echo)]).await;
    let handler = with(identity(), &url);
    let handler = handler.with_tokens(Tokens::of(Arc::new(Identity::default()), "api://orders/"));
    let error = handler.handle(Sample::new(1).delivery()).await.unwrap_err();
    assert!(error.to_string().ends_with("answered 401: Bearer [redacted] expired"), "{error}");
    let requests = receiver.requests();
    let sent: Vec<&HeaderValue> =
        requests.iter().map(|(headers, _)| &headers["authorization"]).collect();
    assert_eq!(sent, ["Bearer s3cret-0", "Bearer s3cret-1"]);
    // The next token request fails: nothing is sent, and the target is not blamed.
    let error = handler.handle(Sample::new(1).delivery()).await.unwrap_err();
    assert!(matches!(error, HandlerError::Misconfigured(_)), "{error:?}");
    assert!(error.to_string().starts_with("get a token for audience `api://orders/`: "), "{error}");
    assert_eq!(receiver.requests().len(), 2);
}

#[tokio::test]
async fn without_a_token_nothing_is_sent() {
    let (receiver, url) = Receiver::start(&[status(200)]).await;
    let error = with(identity(), &url).handle(Sample::new(1).delivery()).await.unwrap_err();
    assert_eq!(error.to_string(), "no identity to get a token from");
    let url = url.replace("hook", "slow");
    let silent = Tokens::of(Arc::new(Identity::default()), "api://others");
    let handler = with(identity(), &url).with_tokens(silent);
    let error = handler.handle(Sample::new(1).delivery()).await.unwrap_err();
    assert_eq!(error.to_string(), "get a token: no answer from the identity within 50ms");
    assert!(receiver.requests().is_empty());
}

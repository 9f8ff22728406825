use std::collections::VecDeque;
use std::sync::Mutex;

use azure_core::http::{Method, Url};
use tokio::time::Instant;

use super::*;

const GRANT: &str = r#"{"access_token":"t","expires_in":3600}"#;

/// Status, headers, body; a status of 0 means no answer.
type Said<'a> = (u16, &'static [(&'static str, &'static str)], &'a str);
type Scripted = (u16, &'static [(&'static str, &'static str)], String);

/// Answers by a script.
#[derive(Debug, Default)]
struct Endpoint(Mutex<VecDeque<Scripted>>);

impl Endpoint {
    fn of(answers: &[Said<'_>]) -> Arc<Self> {
        let answers =
            answers.iter().map(|(status, headers, body)| (*status, *headers, (*body).to_owned()));
        Arc::new(Self(Mutex::new(answers.collect())))
    }

    fn left(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

#[async_trait]
impl HttpClient for Endpoint {
    async fn execute_request(&self, _: &Request) -> azure_core::Result<AsyncRawResponse> {
        let (status, headers, body) = self.0.lock().unwrap().pop_front().expect("asked again");
        if status == 0 {
            return Err(Error::with_message(ErrorKind::Connection, "connection refused"));
        }
        let mut answer_headers = Headers::new();
        for (name, value) in headers {
            answer_headers.insert(*name, *value);
        }
        Ok(AsyncRawResponse::from_bytes(status.into(), answer_headers, body))
    }
}

fn request() -> Request {
    let url = Url::parse("https://login.example/acme/oauth2/v2.0/token?x=1").unwrap();
    let mut request = Request::new(url, Method::Post);
    request.insert_header(IDENTITY_HEADER, "header-s3cret");
    request.set_body("client_id=app&client_secret=s%3B1+%C3%BC&client_assertion=assertion-s3cret");
    request
}

async fn ask(token_client: &TokenClient) -> Result<Vec<u8>, Error> {
    let response = token_client.execute_request(&request()).await?;
    let (.., body) = response.deconstruct();
    Ok(body.collect().await?.to_vec())
}

async fn refusal(token_client: &TokenClient) -> String {
    ask(token_client).await.unwrap_err().to_string()
}

#[tokio::test(start_paused = true)]
async fn a_busy_endpoint_is_retried_after_its_pause_and_no_earlier() {
    let endpoint = Endpoint::of(&[
        (429, &[("retry-after", "3")], "<html>busy</html>"),
        (503, &[], ""),
        (200, &[], GRANT),
        (0, &[], ""),
        (500, &[], ""),
        (200, &[], GRANT),
    ]);
    let token_client = TokenClient::new(endpoint.clone());
    let began = Instant::now();
    assert_eq!(ask(&token_client).await.unwrap(), GRANT.as_bytes());
    let within = |least: u64, most: u64| {
        let elapsed = began.elapsed();
        assert!(
            elapsed.as_millis() >= least.into() && elapsed.as_millis() <= u128::from(most) + 2,
            "{elapsed:?}"
        );
    };
    // Three seconds as requested, then a second delay of one to two.
    within(4_000, 5_000);
    assert_eq!(ask(&token_client).await.unwrap(), GRANT.as_bytes());
    // A first and a second delay.
    within(5_500, 8_000);
    assert_eq!(endpoint.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_stays_busy_gets_three_requests() {
    let endpoint =
        Endpoint::of(&[(502, &[], ""), (504, &[], ""), (429, &[], ""), (200, &[], GRANT)]);
    let token_client = TokenClient::new(endpoint.clone());
    assert_eq!(refusal(&token_client).await, "`login.example` answered HTTP 429");
    assert_eq!(endpoint.left(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_request_is_sent_during_a_long_pause() {
    let endpoint = Endpoint::of(&[(429, &[("retry-after", "90")], ""), (200, &[], GRANT)]);
    let token_client = TokenClient::new(endpoint.clone());
    let began = Instant::now();
    assert_eq!(refusal(&token_client).await, "`login.example` answered HTTP 429");
    tokio::time::advance(Duration::from_secs(30)).await;
    let text = refusal(&token_client).await;
    assert_eq!(text, "`login.example` asked for a pause; 60 s are left");
    assert_eq!((began.elapsed(), endpoint.left()), (Duration::from_secs(30), 1));
    tokio::time::advance(Duration::from_secs(56)).await;
    assert_eq!(ask(&token_client).await.unwrap(), GRANT.as_bytes());
    assert_eq!(began.elapsed(), Duration::from_secs(90), "the rest was short enough to wait for");
}

#[tokio::test(start_paused = true)]
async fn a_pause_outlives_a_caller_that_was_dropped_in_it() {
    let endpoint = Endpoint::of(&[(429, &[("retry-after", "4")], ""), (200, &[], GRANT)]);
    let token_client = TokenClient::new(endpoint.clone());
    let began = Instant::now();
    tokio::time::timeout(Duration::from_secs(1), ask(&token_client)).await.unwrap_err();
    ask(&token_client).await.unwrap();
    assert_eq!(began.elapsed(), Duration::from_secs(4));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_reported_at_once_readable_and_without_secrets() {
    let echo = r#"{"error":"invalid_client","error_codes":[7000215],"error_description":
        "AADSTS7000215: `s;1 ü` and assertion-s3cret are bad, eyJhbGciOiJub25lIn0.e30.AAAA too. Trace ID: 1"}"#;
    let long = format!(r#"{{"message":"{}"}}"#, "x".repeat(500));
    let endpoint = Endpoint::of(&[
        (401, &[], echo),
        (400, &[], r#"{"statusCode":400,"message":"no identity for header-s3cret"}"#),
        (400, &[], r#"{"error":{"code":"header-s3cret"}}"#),
        (403, &[], "<html>header-s3cret</html>"),
        (400, &[], &long),
    ]);
    let token_client = TokenClient::new(endpoint);
    for expected in [
        "`login.example` answered HTTP 401 AADSTS7000215: `[redacted]` and [redacted] are bad, [redacted] too",
        "`login.example` answered HTTP 400 no identity for [redacted]",
        "`login.example` answered HTTP 400",
        "`login.example` answered HTTP 403",
    ] {
        assert_eq!(refusal(&token_client).await, expected);
    }
    assert!(refusal(&token_client).await.len() < 250);
}

#[tokio::test(start_paused = true)]
async fn an_invalid_token_response_is_never_reported() {
    for body in [
        "",
        "<html>t0ken</html>",
        r#""t0ken""#,
        r#"{"token":"t0ken"}"#,
        r#"{"access_token":"","expires_in":1}"#,
        r#"{"access_token":["t0ken"],"expires_in":1}"#,
        r#"{"access_token":"t0ken"}"#,
        &format!(r#"{{"access_token":"{}","expires_in":1}}"#, "t".repeat(1 << 18)),
    ] {
        let token_client = TokenClient::new(Endpoint::of(&[(200, &[], body)]));
        let error = ask(&token_client).await.unwrap_err();
        assert_eq!(error.to_string(), "`login.example` returned an invalid token response");
        assert!(error.http_status().is_none() && !format!("{error:?}").contains("t0ken"));
    }
}

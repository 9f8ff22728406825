use std::collections::VecDeque;
use std::sync::Mutex;

use azure_core::http::{AsyncRawResponse, Body};
use expect_test::{Expect, expect};
use highwater_engine::clock::TokioClock;
use tokio::time::Instant;

use super::*;
use crate::CachedToken;

const SCOPE: &str = "https://database.windows.net/.default";

/// Status, headers, body.
type Scripted = (u16, &'static [(&'static str, &'static str)], String);

/// A double of Microsoft Entra: records requests and answers by a script.
#[derive(Debug, Default)]
struct Entra {
    answers: Mutex<VecDeque<Scripted>>,
    asked: Mutex<Vec<(String, String)>>,
}

impl Entra {
    fn answers(
        self: &Arc<Self>,
        status: u16,
        headers: &'static [(&'static str, &'static str)],
        body: impl Into<String>,
    ) {
        self.answers.lock().unwrap().push_back((status, headers, body.into()));
    }

    fn grants(self: &Arc<Self>, token: &str, expires_in: u32) {
        let body = format!(r#"{{"access_token":"{token}","expires_in":{expires_in}}}"#);
        self.answers(200, &[], body);
    }

    fn refuses(self: &Arc<Self>, code: u32) {
        let words = format!("AADSTS{code}: Some words.\\r\\nTrace ID: 1\\r\\nCorrelation ID: 2");
        let body = r#"{"error":"invalid_grant","error_description":""#.to_owned();
        self.answers(400, &[], format!(r#"{body}{words}","error_codes":[{code}]}}"#));
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }
}

#[async_trait]
impl HttpClient for Entra {
    async fn execute_request(&self, request: &Request) -> azure_core::Result<AsyncRawResponse> {
        assert_eq!(request.method(), Method::Post);
        let Body::Bytes(body) = request.body() else { panic!("a form is bytes") };
        let body = String::from_utf8(body.to_vec()).unwrap();
        self.asked.lock().unwrap().push((request.url().to_string(), body));
        let (status, headers, body) =
            self.answers.lock().unwrap().pop_front().expect("asked again");
        let mut answer_headers = Headers::new();
        for (name, value) in headers {
            answer_headers.insert(*name, *value);
        }
        Ok(AsyncRawResponse::from_bytes(status.into(), answer_headers, body))
    }
}

fn user() -> User {
    User {
        name: "ada@acme.example".to_owned(),
        password: "p;w&1 ü".into(),
        tenant: "organizations".to_owned(),
        authority: None,
    }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(TokioClock::starting_at(time::OffsetDateTime::UNIX_EPOCH))
}

fn credential(entra: &Arc<Entra>) -> UserPassword {
    UserPassword::new(user(), entra.clone(), clock()).unwrap()
}

async fn token(credential: &dyn TokenCredential) -> Result<String, String> {
    let token = credential.get_token(&[SCOPE], None).await;
    token.map(|token| token.token.secret().to_owned()).map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_token_request_has_the_form_of_the_grant() {
    let entra = Arc::new(Entra::default());
    entra.grants("t", 3600);
    assert_eq!(token(&credential(&entra)).await.unwrap(), "t");
    let (url, form) = entra.asked.lock().unwrap().remove(0);
    assert_eq!(url, "https://login.microsoftonline.com/organizations/oauth2/v2.0/token");
    let expected = "client_id=2fd908ad-0664-4344-b9be-cd3e8b574c38&grant_type=password\
                    &username=ada%40acme.example&password=p%3Bw%261+%C3%BC\
                    &scope=https%3A%2F%2Fdatabase.windows.net%2F.default";
    assert_eq!(form, expected);
}

#[test]
fn tenant_and_cloud_can_be_set_and_are_validated() {
    for (tenant, authority, expected) in [
        (
            "organizations",
            None,
            "https://login.microsoftonline.com/organizations/oauth2/v2.0/token",
        ),
        ("acme.example", None, "https://login.microsoftonline.com/acme.example/oauth2/v2.0/token"),
        (
            "a-1",
            Some("https://login.chinacloudapi.cn/"),
            "https://login.chinacloudapi.cn/a-1/oauth2/v2.0/token",
        ),
    ] {
        let tenant = tenant.to_owned();
        let authority = authority.map(str::to_owned);
        assert_eq!(endpoint(&User { tenant, authority, ..user() }).unwrap().as_str(), expected);
    }
    for (tenant, authority, expected) in [
        ("a/b", None, "tenant `a/b` must be an id or a domain"),
        ("", None, "tenant `` must be"),
        (
            "acme",
            Some("http://login.example"),
            "`AZURE_AUTHORITY_HOST` is `http://login.example`, must",
        ),
        ("acme", Some("login.example"), "must be like `https://login.microsoftonline.com`"),
    ] {
        let tenant = tenant.to_owned();
        let authority = authority.map(str::to_owned);
        let text = endpoint(&User { tenant, authority, ..user() }).unwrap_err().to_string();
        assert!(text.contains(expected), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_is_cached_and_replaced_before_its_expiry() {
    let entra = Arc::new(Entra::default());
    let clock = clock();
    let credential = UserPassword::new(user(), entra.clone(), clock.clone()).unwrap();
    let kept = CachedToken::new(Arc::new(credential), clock);
    entra.grants("first", 3600);
    entra.grants("a-second-token", 3600);
    assert_eq!(token(&kept).await.unwrap(), "first");
    tokio::time::advance(Duration::from_secs(54 * 60)).await;
    assert_eq!(token(&kept).await.unwrap(), "first");
    assert_eq!(entra.asked(), 1);
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(token(&kept).await.unwrap(), "a-second-token");
    assert_eq!(entra.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_busy_service_is_retried_after_its_pause_and_no_earlier() {
    let entra = Arc::new(Entra::default());
    let credential = credential(&entra);
    let began = Instant::now();
    entra.answers(429, &[("retry-after", "3")], "");
    entra.answers(503, &[], "");
    entra.grants("t", 3600);
    assert_eq!(token(&credential).await.unwrap(), "t");
    // Three seconds as requested, then a second delay of one to two.
    let elapsed = began.elapsed();
    assert!(
        elapsed >= Duration::from_secs(4) && elapsed <= Duration::from_millis(5_002),
        "{elapsed:?}"
    );
    for _ in 0..3 {
        entra.answers(429, &[("retry-after", "1")], "");
    }
    let text = token(&credential).await.unwrap_err();
    assert_eq!(text, "Microsoft Entra answered HTTP 429");
    assert_eq!(entra.asked(), 6);
}

#[tokio::test(start_paused = true)]
async fn no_request_is_sent_during_a_long_pause() {
    let entra = Arc::new(Entra::default());
    let credential = credential(&entra);
    let began = Instant::now();
    entra.answers(429, &[("retry-after", "90")], r#"{"error":"temporarily_unavailable"}"#);
    let text = token(&credential).await.unwrap_err();
    assert_eq!(text, "Microsoft Entra answered HTTP 429 temporarily_unavailable");
    assert_eq!(began.elapsed(), Duration::ZERO);
    tokio::time::advance(Duration::from_secs(30)).await;
    let text = token(&credential).await.unwrap_err();
    assert_eq!(text, "Microsoft Entra asked for a pause; 60 s are left");
    assert_eq!(entra.asked(), 1);
    tokio::time::advance(Duration::from_secs(60)).await;
    entra.grants("t", 3600);
    assert_eq!(token(&credential).await.unwrap(), "t");
}

#[tokio::test]
async fn each_refusal_says_what_to_do_and_never_the_password() {
    let entra = Arc::new(Entra::default());
    let credential = credential(&entra);
    let mut texts = String::new();
    for code in [50_076, 50_126, 50_034, 50_053, 50_055, 50_020, 90_002, 65_001, 12_345] {
        entra.refuses(code);
        texts.push_str(&token(&credential).await.unwrap_err());
        texts.push('\n');
    }
    let echo =
        r#"{"error":"p;w&1 ü","error_description":"AADSTS1: `p;w&1 ü` is bad. Trace ID: 1"}"#;
    entra.answers(400, &[], echo);
    entra.answers(502, &[], "<html>p;w&1 ü</html>");
    entra.answers(200, &[], r#"{"token":"p;w&1 ü"}"#);
    for _ in 0..3 {
        texts.push_str(&token(&credential).await.unwrap_err());
        texts.push('\n');
    }
    assert!(!texts.contains("p;w"), "{texts}");
    assert!(!format!("{credential:?} {:?}", credential.user).contains("p;w"));
    let check = |texts: &str, expected: Expect| expected.assert_eq(texts);
    check(
        &texts,
        expect![[r#"
            Microsoft Entra answered HTTP 400 AADSTS50076: the tenant requires more than a password from this user, which an app cannot provide: use `Active Directory Managed Identity` or `Active Directory Service Principal`
            Microsoft Entra answered HTTP 400 AADSTS50126: the user or the password is wrong, or the password is managed outside of Microsoft Entra: check `User ID` and `Password`, or use `Active Directory Managed Identity` or `Active Directory Service Principal`
            Microsoft Entra answered HTTP 400 AADSTS50034: the tenant does not know the user: check `User ID`, and `AZURE_TENANT_ID` if it is set, or use `Active Directory Managed Identity` or `Active Directory Service Principal`
            Microsoft Entra answered HTTP 400 AADSTS50053: the user is locked, disabled or not allowed to log in: ask an administrator of the tenant, or use `Active Directory Managed Identity` or `Active Directory Service Principal`
            Microsoft Entra answered HTTP 400 AADSTS50055: the password has expired: change it, or use `Active Directory Managed Identity` or `Active Directory Service Principal`
            Microsoft Entra answered HTTP 400 AADSTS50020: a guest's password cannot be used: use a user of the tenant, or use `Active Directory Managed Identity` or `Active Directory Service Principal`
            Microsoft Entra answered HTTP 400 AADSTS90002: the tenant does not exist: check `AZURE_TENANT_ID`, or use `Active Directory Managed Identity` or `Active Directory Service Principal`
            Microsoft Entra answered HTTP 400 AADSTS65001: the tenant does not allow Microsoft.Data.SqlClient to log in its users: ask an administrator of the tenant, or use `Active Directory Managed Identity` or `Active Directory Service Principal`
            Microsoft Entra answered HTTP 400 AADSTS12345: Some words
            Microsoft Entra answered HTTP 400 [redacted]: AADSTS1: `[redacted]` is bad
            Microsoft Entra answered HTTP 502
            Microsoft Entra returned an invalid token response
        "#]],
    );
}

#[tokio::test]
async fn a_refusal_differs_from_an_unavailable_service() {
    let entra = Arc::new(Entra::default());
    let credential = credential(&entra);
    for (status, refused) in [(400, true), (401, true), (500, false)] {
        entra.answers(status, &[], "");
        let error = credential.get_token(&[SCOPE], None).await.unwrap_err();
        let status = error.http_status().map(u16::from).unwrap();
        assert_eq!((400..500).contains(&status), refused, "{status}");
    }
}

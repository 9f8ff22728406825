//! An HTTP request as the Functions host forwards it, and the response through the output binding.
//!
//! With `enableForwardingHttpRequest` off, the host POSTs the request as data of the binding. So the host checks
//! function keys, and all requests have the same form. The query is a JSON object or, in most versions, a string
//! with a JSON object (`HttpRequestExtensions.GetRequestAsJObject`).

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value as Json, json};
use url::form_urlencoded;

use super::fields::{each_field, field, parsed};
use super::{for_each, parts};
use crate::page::{self, PageRequest, PageResponse};
use crate::status::StatusReader;

/// Name of the output binding; `project` checks that the function uses it.
const OUTPUT: &str = "res";
/// Name of the view that is the page; without a name, the JSON is returned.
const PAGE: &str = "page";
/// Name of the view for uptime monitors: one word, without the name of a poller or a cause.
const HEALTH: &str = "health";
/// Query parameter with the key of a row to explain.
const KEY: &str = "key";
/// Refresh interval of the page. Each refresh is an execution that is billed.
const REFRESH_SECONDS: u32 = 15;

/// The relevant parts of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Call {
    /// The part of the route that names the view, in lower case; empty if there is none.
    view: String,
    /// Names are in lower case: the host accepts its own `code` in any case too.
    query: BTreeMap<String, String>,
    /// Whether the path ends with `/`, which changes what relative addresses refer to.
    has_slash: bool,
    /// Whether this is a HEAD request, as from uptime monitors.
    is_head: bool,
}

impl Call {
    /// Reads the body of an invocation; missing fields and unknown formats are ignored.
    fn read(body: &[u8]) -> Self {
        let data = parts(body).ok().and_then(|(data, _)| data);
        let mut request = None;
        for_each(data, |_, value| {
            if request.is_none() && field(value, "Method").is_some() {
                request = Some(value);
            }
        });
        let Some(request) = request else { return Self::default() };
        let text =
            |value: Option<&RawValue>| -> String { value.and_then(parsed).unwrap_or_default() };
        let url = text(field(request, "Url"));
        let path = url.split(['?', '#']).next().unwrap_or_default();
        let view = field(request, "Params").and_then(|params| field(params, "view"));
        Self {
            view: text(view).to_ascii_lowercase(),
            query: field(request, "Query").map(query).unwrap_or_default(),
            has_slash: path.ends_with('/'),
            is_head: text(field(request, "Method")).eq_ignore_ascii_case("HEAD"),
        }
    }

    /// Returns where to redirect to, if the requested address is not that of the page.
    ///
    /// `func` prints the route literally as `status/{view?}`, and people open that. Its `?` starts the query.
    fn moved(&self) -> Option<String> {
        let to = match self.view.as_str() {
            PAGE if self.has_slash => "../page",
            "{view" | "{view?}" => "page",
            _ => return None,
        };
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(self.query.iter().filter(|(name, _)| *name != "}"));
        let query = query.finish();
        Some(if query.is_empty() { to.to_owned() } else { format!("{to}?{query}") })
    }

    fn question(&self) -> PageRequest<'_> {
        let text = |name: &str| self.query.get(name).map(String::as_str);
        PageRequest {
            page: self.view == PAGE,
            poller: text("poller"),
            key: text(KEY),
            runbook: text("runbook"),
            html: self.query.contains_key("html"),
            code: text("code"),
            actions: None,
            refresh_seconds: REFRESH_SECONDS,
        }
    }
}

fn query(value: &RawValue) -> BTreeMap<String, String> {
    let text: Option<String> = parsed(value);
    let json = text.as_deref().unwrap_or(value.get());
    let mut query = BTreeMap::new();
    let read = each_field(json.as_bytes(), |name, value| {
        // Several values of one name are joined by commas, or are a list in some versions; the first one counts. The
        // key of a row may contain commas itself.
        let list = || parsed(parsed::<Vec<&RawValue>>(value)?.first()?);
        let text: Option<String> = parsed(value).or_else(list);
        if let Some(text) = text {
            let name = name.to_ascii_lowercase();
            let first = text.split(',').next().filter(|_| name != KEY).map(str::to_owned);
            query.insert(name, first.unwrap_or(text));
        }
    });
    if read.is_ok() { query } else { BTreeMap::new() }
}

/// Returns the outputs of an invocation for the status page. `board` is `Err` with the reason if settings are
/// invalid.
pub(super) async fn status(board: Result<&StatusReader, &str>, body: &[u8]) -> Map<String, Json> {
    let call = Call::read(body);
    let question = call.question();
    let moved = call.moved();
    let answer = match (board, call.view.as_str()) {
        _ if moved.is_some() => page::failed(302, "the page has another address", question),
        (Err(_), HEALTH) => page::unavailable(),
        (Ok(board), HEALTH) => page::readiness(board).await,
        (Err(reason), _) => page::failed(503, reason, question),
        (Ok(board), "" | PAGE) => page::answer(board, question).await,
        (Ok(_), _) => {
            page::failed(404, "unknown view, expected none, `page` or `health`", question)
        }
    };
    outputs(&call, answer, moved)
}

/// Returns the outputs of an invocation of the function that needs no key, whatever its path and parameters.
pub(super) fn health(answer: &PageResponse, body: &[u8]) -> Map<String, Json> {
    outputs(&Call::read(body), answer.clone(), None)
}

fn outputs(call: &Call, mut answer: PageResponse, moved: Option<String>) -> Map<String, Json> {
    if call.is_head {
        answer.body.clear();
    }
    Map::from_iter([(OUTPUT.to_owned(), output(&answer, moved))])
}

/// Returns the value from which the host creates the response. It requires all four fields, and both numbers as
/// text (`HttpOutputBindingResponse`).
fn output(answer: &PageResponse, location: Option<String>) -> Json {
    let location = location.map(|location| ("Location", location));
    let headers: Map<String, Json> = answer
        .headers()
        .into_iter()
        .chain(location)
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    let status = answer.status.to_string();
    json!({ "statusCode": status, "status": status, "headers": headers, "body": answer.body })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(request: &Json) -> Call {
        Call::read(json!({ "Data": { "request": request }, "Metadata": {} }).to_string().as_bytes())
    }

    #[test]
    fn requests_of_all_host_versions_are_read() {
        let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let both = pairs(&[("code", "k="), ("poller", "a\"b")]);
        for query in [
            json!({ "code": "k=", "poller": "a\"b" }),
            json!({ "code": ["k="], "poller": ["a\"b", "c"] }),
            json!({ "CODE": "k=", "Poller": "a\"b,c" }),
            json!(r#"{"code":"k=","poller":"a\"b"}"#),
        ] {
            let request = json!({ "Method": "GET", "Query": query, "Params": { "view": "PAGE" } });
            let expected = Call { view: "page".to_owned(), query: both.clone(), ..Call::default() };
            assert_eq!(read(&request), expected);
        }
        for request in [
            json!({ "Method": "GET" }),
            json!({ "Method": "GET", "Query": "{}", "Params": {} }),
            json!({ "Method": "GET", "Query": "no", "Params": null }),
            json!({ "Schedule": {} }),
        ] {
            assert_eq!(read(&request), Call::default(), "{request}");
        }
        assert_eq!(Call::read(b"no"), Call::default());
    }

    #[test]
    fn the_key_of_a_row_keeps_its_commas() {
        for key in [json!("shop=a,line=7"), json!(["shop=a,line=7"])] {
            let call = read(&json!({ "Method": "GET", "Query": { "Key": key, "poller": "a,b" } }));
            assert_eq!(
                (call.question().key, call.question().poller),
                (Some("shop=a,line=7"), Some("a"))
            );
        }
    }

    #[tokio::test]
    async fn mistyped_addresses_redirect_to_the_page_with_their_key() {
        for (path, view, query, expected) in [
            (
                "/api/status/page/?CODE=k%3D",
                "page",
                json!({ "CODE": "k=" }),
                Some("../page?code=k%3D"),
            ),
            ("/api/status/{view?}", "{view", json!({ "}": "" }), Some("page")),
            (
                "/api/status/%7Bview%3F%7D?code=k",
                "{view?}",
                json!({ "code": "k" }),
                Some("page?code=k"),
            ),
            ("/api/status/PAGE", "PAGE", json!({}), None),
            ("/api/status/", "", json!({}), None),
        ] {
            let url = format!("http://localhost:7071{path}");
            let request =
                json!({ "Method": "GET", "Url": url, "Query": query, "Params": { "view": view } });
            let body = json!({ "Data": { "request": request } }).to_string();
            let answer = &status(Err("`X` is wrong"), body.as_bytes()).await["res"];
            assert_eq!(answer["headers"]["Location"].as_str(), expected, "{path}");
            let code = if expected.is_some() { "302" } else { "503" };
            assert_eq!(answer["statusCode"], code, "{path}");
        }
    }

    #[tokio::test]
    async fn an_uptime_monitor_gets_one_word_without_a_cause() {
        for (method, body) in [("GET", "{\"status\":\"unavailable\"}"), ("HEAD", "")] {
            let request = json!({ "Method": method, "Url": "http://localhost:7071/api/status/health",
                "Query": { "code": "k" }, "Params": { "view": "health" } });
            let sent = json!({ "Data": { "request": request } }).to_string();
            let answer = &status(Err("`X` is wrong"), sent.as_bytes()).await["res"];
            assert_eq!((&answer["statusCode"], &answer["body"]), (&json!("503"), &json!(body)));
        }
    }

    #[tokio::test]
    async fn a_head_request_gets_only_headers() {
        let request =
            json!({ "Method": "HEAD", "Url": "http://localhost:7071/api/status", "Query": {} });
        let body = json!({ "Data": { "request": request } }).to_string();
        let answer = &status(Err("`X` is wrong"), body.as_bytes()).await["res"];
        assert_eq!((&answer["statusCode"], &answer["body"]), (&json!("503"), &json!("")));
    }

    #[test]
    fn an_output_has_the_four_fields_that_the_host_requires() {
        let answer =
            PageResponse { status: 404, content_type: "text/plain", body: "no".to_owned() };
        let output = output(&answer, None);
        let fields: Vec<&String> = output.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["statusCode", "status", "headers", "body"]);
        assert_eq!((&output["statusCode"], &output["body"]), (&json!("404"), &json!("no")));
        assert_eq!(output["headers"]["Content-Type"], "text/plain");
        assert!(output["headers"].as_object().unwrap().values().all(Json::is_string));
    }
}

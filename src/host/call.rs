//! An HTTP request as the Functions host wraps it, and how an answer goes back through it.
//!
//! With `enableForwardingHttpRequest` off the host POSTs the request as data of the binding, so the key of
//! a function stays the host's affair and requests of all kinds come by one path. The query is a JSON
//! object or, in most versions, a string that holds one (`HttpRequestExtensions.GetRequestAsJObject`).

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use crate::page::{self, Answer, Question};
use crate::status::Board;

/// Name of the binding that the answer goes to; `project` wants functions to call it so.
const OUTPUT: &str = "res";
/// Name of the view that is the page; no name is the JSON behind it.
const PAGE: &str = "page";
/// How often the page asks anew: each time is an execution that is billed.
const REFRESH_SECONDS: u32 = 15;

/// What matters of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Call {
    /// The part of the route that names the view; empty where there is none.
    view: String,
    query: BTreeMap<String, String>,
}

impl Call {
    /// Reads the body of an invocation; whatever is missing or of an unknown form is left out.
    fn read(body: &[u8]) -> Self {
        let json: Json = serde_json::from_slice(body).unwrap_or_default();
        let data = json.get("Data").and_then(Json::as_object);
        let is_request = |value: &&Json| value.get("Method").is_some();
        let Some(request) = data.and_then(|data| data.values().find(is_request)) else {
            return Self::default();
        };
        let view = request.pointer("/Params/view").and_then(Json::as_str);
        Self { view: view.unwrap_or_default().to_owned(), query: query(request.get("Query")) }
    }
}

fn query(value: Option<&Json>) -> BTreeMap<String, String> {
    let parsed = value.and_then(Json::as_str).and_then(|text| serde_json::from_str(text).ok());
    let object = parsed.or_else(|| value.cloned()).unwrap_or_default();
    let pairs = object.as_object().into_iter().flatten();
    // Several values of one name come as a list; the first counts.
    let text = |value: &Json| value.as_str().or_else(|| value.get(0)?.as_str()).map(str::to_owned);
    pairs.filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect()
}

/// Answers a request for the status page: the outputs of its invocation.
pub(super) async fn status(board: &Board, body: &[u8]) -> Map<String, Json> {
    let Call { view, query } = Call::read(body);
    let text = |name: &str| query.get(name).map(String::as_str);
    let question = Question {
        page: view == PAGE,
        poller: text("poller"),
        html: query.contains_key("html"),
        code: text("code"),
        offer: None,
        refresh_seconds: REFRESH_SECONDS,
    };
    let answer = match view.as_str() {
        "" | PAGE => page::answer(board, question).await,
        _ => page::failed(404, "there is no such view, expected none or `page`", question),
    };
    let mut outputs = Map::new();
    outputs.insert(OUTPUT.to_owned(), output(&answer));
    outputs
}

/// Returns what the host makes a response of. It wants all four fields, and both numbers as text
/// (`HttpOutputBindingResponse`).
fn output(answer: &Answer) -> Json {
    let headers: Map<String, Json> =
        answer.headers().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
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
    fn a_request_is_read_in_every_form_that_hosts_give_it() {
        let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let both = pairs(&[("code", "k="), ("poller", "a\"b")]);
        for query in [
            json!({ "code": "k=", "poller": "a\"b" }),
            json!({ "code": ["k="], "poller": ["a\"b", "c"] }),
            json!(r#"{"code":"k=","poller":"a\"b"}"#),
        ] {
            let request = json!({ "Method": "GET", "Query": query, "Params": { "view": "page" } });
            assert_eq!(read(&request), Call { view: "page".to_owned(), query: both.clone() });
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
    fn an_answer_has_the_four_fields_that_the_host_wants() {
        let answer = Answer { status: 404, content_type: "text/plain", body: "no".to_owned() };
        let output = output(&answer);
        let fields: Vec<&String> = output.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["statusCode", "status", "headers", "body"]);
        assert_eq!((&output["statusCode"], &output["body"]), (&json!("404"), &json!("no")));
        assert_eq!(output["headers"]["Content-Type"], "text/plain");
        assert!(output["headers"].as_object().unwrap().values().all(Json::is_string));
    }
}

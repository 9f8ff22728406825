//! The status page: as a function of the host, alongside a timer loop, and on a terminal.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use highwater::config::{ProcessVars, Vars as _};
use highwater_fakehost::Invocation;
use highwater_test_support::json_schema::Validator;
use highwater_test_support::root;
use serde_json::{Value as Json, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::bench::{Bench, Host, LIMIT, PROGRAM, within};

/// Returns the host's request: repeated names have their values joined by commas.
fn request(view: Option<&str>, query: &Json) -> Invocation {
    let params = view.map_or(json!({}), |view| json!({ "view": view }));
    let body = json!({
        "Data": { "request": {
            "Url": "https://shop.example/api/status", "Method": "GET", "Query": query,
            "Headers": { "Accept": ["text/html"] }, "Params": params, "Identities": [],
        } },
        "Metadata": { "sys": { "MethodName": "highwater_status" } },
    });
    Invocation::new(highwater::page::FUNCTION, body.to_string())
}

/// Returns the output from which the host builds a response, and whose fields are all required.
pub(crate) async fn response(host: &Host, view: Option<&str>, query: &Json) -> Json {
    answer(host, request(view, query)).await
}

async fn answer(host: &Host, request: Invocation) -> Json {
    let outcome = host.invoke(request).await;
    assert!(outcome.verdict.is_success(), "{outcome:?}");
    let reply: Json = serde_json::from_slice(&outcome.reply.unwrap().body).unwrap();
    let response = reply["Outputs"]["res"].clone();
    for field in ["statusCode", "status", "headers", "body"] {
        assert!(!response[field].is_null(), "{field} of {response}");
    }
    assert!(response["statusCode"].is_string(), "{response}");
    if let Ok(report) = serde_json::from_str::<Json>(response["body"].as_str().unwrap())
        && report.get("pollers").is_some()
        && report.get("html").is_none()
    {
        assert_fits_schema(&report);
    }
    response
}

/// Checks a report against the schema of the documentation.
pub(crate) fn assert_fits_schema(report: &Json) {
    let schema = std::fs::read(root().join("docs/reference/status.schema.json")).unwrap();
    let schema = Validator::strict(serde_json::from_slice(&schema).unwrap());
    schema.check(report).unwrap_or_else(|error| panic!("{error}: {report}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_shows_the_page_and_the_json_behind_it() {
    let mut bench = Bench::with_rows(1..=2).await;
    bench.set("JOURNAL", "full");
    bench.schedule("0 0 3 1 1 *");
    let host = bench.host().await;
    host.run().await;
    let answer = response(&host, None, &json!({})).await;
    assert_eq!(answer["statusCode"], "200");
    assert_eq!(answer["headers"]["Content-Type"], "application/json; charset=utf-8");
    let report: Json = serde_json::from_str(answer["body"].as_str().unwrap()).unwrap();
    let nightly = &report["pollers"][0];
    assert_eq!((&nightly["poller"], &nightly["state"]), (&"nightly".into(), &"idle".into()));
    assert_eq!((&nightly["recent"][0]["rows"], &nightly["token"]), (&2.into(), &1.into()));
    assert!(nightly["next_tick_at"].is_string() && nightly["schedule"].is_string(), "{nightly}");
    assert!(nightly["journal"].is_null(), "only one poller's is read");

    let answer = response(&host, Some("page"), &json!({ "code": "k/+==" })).await;
    assert_eq!(answer["headers"]["Content-Type"], "text/html; charset=utf-8");
    let page = answer["body"].as_str().unwrap();
    assert!(page.contains("href=\"page?poller=nightly&amp;code=k%2F%2B%3D%3D\""), "{page}");
    assert!(!page.contains("<form"), "it is only read here");

    let query = json!({ "poller": "nightly", "html": "1" });
    let answer = response(&host, None, &query).await;
    let report: Json = serde_json::from_str(answer["body"].as_str().unwrap()).unwrap();
    assert!(report["html"].as_str().unwrap().contains("batch_complete"), "{report}");
    assert_eq!(report["pollers"][0]["journal"][0]["event"], "batch_complete");

    let answer = response(&host, None, &json!({ "poller": "<b>weekly" })).await;
    assert_eq!(answer["statusCode"], "404");
    let answer = response(&host, Some("other"), &json!({})).await;
    assert_eq!(answer["statusCode"], "404");
    host.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uptime_monitor_gets_503_only_while_a_poller_needs_an_operator() {
    let mut bench = Bench::with_rows(1..=1).await;
    let host = bench.host().await;
    host.run().await;
    let answer = response(&host, Some("health"), &json!({ "code": "k" })).await;
    assert_eq!(
        (&answer["statusCode"], &answer["body"]),
        (&"200".into(), &r#"{"status":"ok"}"#.into())
    );
    host.finish().await;

    bench.set("SOURCE__TABLE", "dbo.missing");
    let host = bench.host().await;
    host.run().await;
    let answer = response(&host, Some("Health"), &json!({})).await;
    let expected = (&"503".into(), &r#"{"status":"error"}"#.into());
    assert_eq!((&answer["statusCode"], &answer["body"]), expected, "no name and no cause");
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uptime_monitor_needs_no_key_only_if_a_setting_says_so() {
    let mut bench = Bench::with_rows(1..=1).await;
    // A view or a parameter that would show more on the status page.
    let asks = || {
        let body = request(Some("page"), &json!({ "poller": "nightly", "html": "1" })).body;
        Invocation::new(highwater::page::HEALTH_FUNCTION, String::from_utf8(body).unwrap())
    };
    let host = bench.host().await;
    // Only what comes through the output reaches the client.
    assert_eq!(answer(&host, asks()).await["statusCode"], "404");
    host.stop().await;

    bench.set_env("HIGHWATER__HEALTH__ANONYMOUS", "true");
    let host = bench.host().await;
    host.run().await;
    let found = answer(&host, asks()).await;
    let of = |found: &Json| (found["statusCode"].clone(), found["body"].clone());
    assert_eq!(of(&found), ("200".into(), r#"{"status":"ok"}"#.into()));
    host.finish().await;

    bench.set("SOURCE__TABLE", "dbo.missing");
    let host = bench.host().await;
    host.run().await;
    let found = answer(&host, asks()).await;
    assert_eq!(of(&found), ("503".into(), r#"{"status":"error"}"#.into()), "no name, no cause");
    host.stop().await;

    // Its file may be public, unlike that of the page.
    let root = bench.folder.path().join("root/highwater_health");
    std::fs::create_dir_all(&root).unwrap();
    let page =
        std::fs::read_to_string(highwater_test_support::root().join("docs/reference/status.md"));
    let page = page.unwrap();
    let text =
        page.split("<!-- health -->\n```json\n").nth(1).unwrap().split("```").next().unwrap();
    std::fs::write(root.join("function.json"), text).unwrap();
    let from = root.parent().unwrap().to_str().unwrap();
    for (value, expected) in [("true", "without a key"), ("false", "answers 404")] {
        bench.set_env("HIGHWATER__HEALTH__ANONYMOUS", value);
        let found = bench.command(&["validate", "--from", from]).await;
        assert!(found.data.contains(expected), "{found:?}");
        assert!(!found.data.contains("must not be public"), "{found:?}");
    }
}

/// Sends a request in a form that was observed at the host.
async fn asked(host: &Host, method: &str, path: &str, view: Option<&str>, query: Json) -> Json {
    let mut request = request(view, &query);
    let mut body: Json = serde_json::from_slice(&request.body).unwrap();
    let sent = &mut body["Data"]["request"];
    (sent["Method"], sent["Url"]) = (method.into(), format!("https://shop.example{path}").into());
    request.body = body.to_string().into_bytes();
    answer(host, request).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_page_and_monitoring_url_is_answered_through_the_host() {
    let bench = Bench::with_rows(1..=1).await;
    let host = bench.host().await;
    host.run().await;
    // The host joins the values of a repeated name.
    let path = "/api/status?poller=nightly&poller=weekly";
    let answer = asked(&host, "GET", path, None, json!({ "poller": "nightly,weekly" })).await;
    let report: Json = serde_json::from_str(answer["body"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&answer["statusCode"], &report["pollers"][0]["poller"]),
        (&"200".into(), &"nightly".into())
    );

    let answer = asked(&host, "HEAD", "/api/status", None, json!({})).await;
    assert_eq!((&answer["statusCode"], &answer["body"]), (&"200".into(), &"".into()));

    for (path, view, query, location) in [
        ("/api/status/page/", "page", json!({ "CODE": "k=" }), "../page?code=k%3D"),
        ("/api/status/{view?}", "{view", json!({ "}": "" }), "page"),
    ] {
        let answer = asked(&host, "GET", path, Some(view), query).await;
        let moved = (&answer["statusCode"], &answer["headers"]["Location"]);
        assert_eq!(moved, (&"302".into(), &location.into()), "{path}");
    }
    host.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_lists_wrong_settings_through_the_host() {
    let mut bench = Bench::new().await;
    bench.set("SOURCE__MODE", "sideways");
    bench.set("BATCH_ROWS_MAX", "none");
    let host = bench.host().await;
    let answer = response(&host, Some("page"), &json!({})).await;
    assert_eq!(answer["statusCode"], "503");
    let page = answer["body"].as_str().unwrap();
    assert!(page.contains("SOURCE__MODE") && page.contains("BATCH_ROWS_MAX"), "{page}");
    let answer = asked(&host, "HEAD", "/api/status", None, json!({})).await;
    assert_eq!((&answer["statusCode"], &answer["body"]), (&"503".into(), &"".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_serves_the_page_at_the_configured_address() {
    let bench = Bench::with_rows(1..=1).await;
    bench.schedule("0 0 3 1 1 *");
    let from = bench.folder.path().join("root");
    let mut command = Command::new(PROGRAM);
    command.args(["run", "--status", "127.0.0.1:0", "--from"]).arg(from);
    command.env_clear().envs(&bench.env).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut process = command.spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let line = within(LIMIT, lines.next_line()).await.unwrap().unwrap();
    let url = line.strip_prefix("status page: ").unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let page = client.get(url).send().await.unwrap();
    assert_eq!(page.url().path(), "/api/status/page");
    let page = page.text().await.unwrap();
    assert!(page.contains("nightly") && !page.contains("<form"), "{page}");
    let killed = Command::new("kill").arg(process.id().unwrap().to_string()).status();
    assert!(within(LIMIT, killed).await.unwrap().success());
    assert_eq!(within(LIMIT, process.wait()).await.unwrap().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_redraws_a_terminal_and_otherwise_prints_lines() {
    let bench = Bench::with_rows(1..=1).await;
    bench.host().await.run().await;
    bench.command(&["status", "--watch"]).await.failed(2, "`--output jsonl`");
    bench
        .command(&["status", "--watch", "--output", "json"])
        .await
        .failed(2, "`--watch` needs a terminal");
    bench.command(&["status", "--watch", "--every", "1ms"]).await.failed(2, "at least a second");
    bench.command(&["status", "--status-host", "x"]).await.failed(2, "--serve");
    let mut command = Command::new(PROGRAM);
    command.args(["status", "--watch", "--every", "1s", "--output", "jsonl"]);
    command.env_clear().envs(&bench.env).stdin(Stdio::null());
    command.stdout(Stdio::piped()).kill_on_drop(true);
    let mut process = command.spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let line = within(LIMIT, lines.next_line()).await.unwrap().unwrap();
        let status: Json = serde_json::from_str(&line).unwrap();
        assert_eq!(status["poller"], "nightly");
    }
    let killed = Command::new("kill").arg(process.id().unwrap().to_string()).status();
    assert!(within(LIMIT, killed).await.unwrap().success());
    assert_eq!(within(LIMIT, process.wait()).await.unwrap().code(), Some(0));
}

/// Writes an `az` that records its arguments, and then does `what`; returns the path of the record.
fn az(bench: &mut Bench, what: &str) -> std::path::PathBuf {
    let folder = bench.folder.path().join("bin");
    std::fs::create_dir_all(&folder).unwrap();
    let (program, note) = (folder.join("az"), folder.join("called"));
    let script = format!("#!/bin/sh\necho \"$*\" >>'{}'\n{what}\n", note.display());
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = ProcessVars.get("PATH").unwrap();
    bench.set_env("PATH", &format!("{}:{path}", folder.display()));
    note
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pages_url_is_printed_without_its_key_unless_requested() {
    let mut bench = Bench::new().await;
    let note = az(&mut bench, "echo 'k/+=='");
    bench.set_env("WEBSITE_HOSTNAME", "shop-x1.westeurope-01.azurewebsites.net");
    bench.set_env("WEBSITE_SITE_NAME", "shop");
    bench.set_env("WEBSITE_RESOURCE_GROUP", "rg (eu)");
    let result = bench.command(&["status", "--url"]).await;
    let url = "https://shop-x1.westeurope-01.azurewebsites.net/api/status/page";
    let keys = "function keys list -g rg (eu) -n shop --function-name highwater_status --query default -o tsv";
    let expected = format!("{url}\nkey: az functionapp {}\n", keys.replace("rg (eu)", "'rg (eu)'"));
    assert_eq!(result.done(), expected);
    assert!(!note.exists(), "the key was not requested");

    let result = bench.command(&["status", "--url", "--reveal", "--output", "json"]).await;
    let printed: Json = serde_json::from_str(result.done()).unwrap();
    assert_eq!(printed["url"], format!("{url}?code=k%2F%2B%3D%3D"));
    assert_eq!(std::fs::read_to_string(&note).unwrap(), format!("functionapp {keys}\n"));

    az(&mut bench, "echo 'Please run az login' >&2; exit 1");
    let result = bench.command(&["status", "--url", "--reveal"]).await;
    result.failed(6, "Please run az login");
    let result = bench.command(&["status", "--url", "--site", "a b; rm"]).await;
    result.failed(2, "invalid host name `a b; rm`");
}

/// What Azure has under each host name: an app, its custom domain, and a slot.
const HOSTS: [(&str, &str); 3] = [
    (
        "shop.azurewebsites.net",
        "/subscriptions/1/resourceGroups/rg/providers/Microsoft.Web/sites/shop",
    ),
    ("orders.example.org", "/subscriptions/1/resourceGroups/rg/providers/Microsoft.Web/sites/shop"),
    (
        "shop-next.azurewebsites.net",
        "/subscriptions/1/resourceGroups/rg/providers/Microsoft.Web/sites/shop/slots/next",
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_of_any_host_name_is_found_by_its_printed_command() {
    let mut bench = Bench::new().await;
    let body = bench.folder.path().join("body");
    for (host, id) in HOSTS {
        // Answers the query with the resource of that name, and prints the key of that resource alone.
        let script = format!(
            "case \"$*\" in\n*ResourceGraph*)\n  while [ \"$1\" != --body ]; do shift; done\n  printf '%s' \"$2\" >'{}'\n  \
             echo {id} ;;\n*'{id}/functions/highwater_status/listkeys?api-version='*) echo key-of-{host} ;;\n*) exit 3 ;;\nesac",
            body.display()
        );
        let note = az(&mut bench, &script);
        let result = bench.command(&["status", "--url", "--site", host]).await;
        let url = format!("https://{host}/api/status/page");
        let command = result.done().strip_prefix(&format!("{url}\nkey: ")).unwrap().trim_end();
        assert!(!note.exists() || std::fs::remove_file(&note).is_ok());
        let mut shell = Command::new("sh");
        let printed =
            shell.args(["-c", command]).env_clear().envs(&bench.env).output().await.unwrap();
        assert_eq!(
            String::from_utf8(printed.stdout).unwrap(),
            format!("key-of-{host}\n"),
            "{command}"
        );
        let asked: Json = serde_json::from_str(&std::fs::read_to_string(&body).unwrap()).unwrap();
        let query = asked["query"].as_str().unwrap();
        assert!(
            query.contains(r#"("microsoft.web/sites", "microsoft.web/sites/slots")"#),
            "{query}"
        );
        assert!(query.contains(&format!(r#"tostring(name) =~ "{host}""#)), "{query}");
        let result = bench.command(&["status", "--url", "--reveal", "--site", host]).await;
        assert!(result.done().starts_with(&format!("{url}?code=key-of-{host}\n")), "{result:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pages_address_follows_the_route_of_its_function() {
    let bench = Bench::new().await;
    let root = bench.folder.path().join("root");
    let settings = root.join("local.settings.json");
    std::fs::write(&settings, r#"{"Values":{}}"#).unwrap();
    std::fs::create_dir_all(root.join("highwater_status")).unwrap();
    let definition = include_str!("../../function-definitions/highwater_status/function.json");
    for (route, expected) in [
        ("status/{view?}", Ok("http://localhost:7071/api/status/page\n")),
        ("ops/orders/{view?}", Ok("http://localhost:7071/api/ops/orders/page\n")),
        ("ops", Err("`route` is `ops`, so the status page has no address; set `route` to")),
    ] {
        let text = definition.replace("status/{view?}", route);
        std::fs::write(root.join("highwater_status/function.json"), text).unwrap();
        let result =
            bench.command(&["--settings", settings.to_str().unwrap(), "status", "--url"]).await;
        match expected {
            Ok(url) => assert!(result.done().starts_with(url), "{result:?}"),
            Err(text) => result.failed(3, text),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_func_the_pages_address_needs_no_key() {
    let mut bench = Bench::new().await;
    let none = "\nkey: none is needed under `func start`\n";
    let result = bench.command(&["status", "--url", "--reveal"]).await;
    assert_eq!(result.done(), format!("http://localhost:7071/api/status/page{none}"));
    let settings = bench.folder.path().join("root/local.settings.json");
    std::fs::write(&settings, r#"{"Values":{},"Host":{"LocalHttpPort":7100}}"#).unwrap();
    bench.set_env("AzureFunctionsJobHost__extensions__http__routePrefix", "");
    let result =
        bench.command(&["--settings", settings.to_str().unwrap(), "status", "--url"]).await;
    assert_eq!(result.done(), format!("http://localhost:7100/status/page{none}"));
}

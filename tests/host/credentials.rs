//! Each way to get a token, against a fake of its endpoint: its requests, its behaviour if the endpoint is
//! busy, refuses or answers nonsense, and if a token is about to expire. And that no secret is ever printed.

use std::time::Duration;

use highwater_devdb::Fault;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use crate::bench::{Bench, Host, failure};
use crate::token_doubles::{Answer, SECRETS, TokenDouble, Way, read, server_config};

/// Attempts for one token if it is obtained over HTTP.
const BUSY: [Answer; 2] = [Answer::Busy(503, "0"), Answer::Busy(429, "0")];

fn login(way: Way) -> &'static str {
    match way {
        Way::Managed => "Authentication=Active Directory Managed Identity;User ID=app-1",
        Way::Workload => "Authentication=Active Directory Workload Identity;User ID=app-1",
        Way::Cli => "Authentication=Active Directory Default",
        Way::Principal => {
            "Authentication=Active Directory Service Principal;User ID=app-1;Password=s3cret-of-the-app"
        }
        Way::Password => {
            "Authentication=Active Directory Password;User ID=ada@acme.example;Password=p4ssword-of-ada"
        }
    }
}

/// The parts that a request to the endpoint must contain.
fn wanted(way: Way, resource: &str) -> Vec<String> {
    let escaped = resource.replace(':', "%3A").replace('/', "%2F");
    let scope = format!("scope={escaped}%2F.default");
    let fixed: &[&str] = match way {
        Way::Managed => &["client_id=app-1", "x-identity-header: header-of-the-host"],
        Way::Workload => &["client_id=app-1", "client_assertion=assertion-of-kubernetes"],
        Way::Cli => &["account get-access-token"],
        Way::Principal => &["client_id=app-1", "client_secret=s3cret-of-the-app"],
        Way::Password => &["grant_type=password", "password=p4ssword-of-ada"],
    };
    let audience = match way {
        Way::Managed => format!("resource={escaped}"),
        Way::Cli => format!("--scope {resource}/.default"),
        Way::Workload | Way::Principal | Way::Password => scope,
    };
    fixed.iter().map(|part| (*part).to_owned()).chain([audience]).collect()
}

fn is_asked(double: &TokenDouble, way: Way, resource: &str) {
    let request = double.last();
    for part in wanted(way, resource) {
        assert!(request.contains(&part), "`{part}` not in `{request}`");
    }
}

fn contains_no_secret(text: &str) {
    for secret in SECRETS {
        assert!(!text.contains(secret), "`{secret}` in `{text}`");
    }
}

async fn database(way: Way) -> (TokenDouble, Bench) {
    let double = TokenDouble::start(way).await;
    let mut bench = Bench::with_rows(1..=1).await;
    let port = bench.server.port();
    let server = format!("Server=127.0.0.1,{port};Database=Highwater;Encrypt=DANGER_PLAINTEXT");
    bench.set_env("SqlConnection", &format!("{server};{}", login(way)));
    double.set_up(&mut bench, "");
    (double, bench)
}

/// Runs the poller, which fails for lack of a token, and returns what it reports.
async fn fails(host: &Host, bench: &Bench) -> String {
    let outcome = host.run().await;
    assert_eq!(bench.server.faults().logins_tried(), 0, "no login without a token");
    failure(&outcome).to_owned()
}

async fn a_token_for_the_database(way: Way) {
    let (double, mut bench) = database(way).await;
    // Not even the most detailed log shows one.
    bench.set_env("HIGHWATER__LOG", "trace");
    let host = bench.host().await;
    double.script(&[Answer::Reject]);
    let reported = fails(&host, &bench).await;
    assert!(
        reported.contains("AADSTS500011") && reported.contains("get a token for the database"),
        "{reported}"
    );
    double.script(&[Answer::Garbage]);
    let reported = fails(&host, &bench).await;
    assert!(way == Way::Cli || reported.contains("invalid token response"), "{reported}");
    assert!(bench.receiver.accepted().is_empty());

    // Busy for a moment, then a token that is valid for a minute.
    double.script(&[&BUSY[..], &[Answer::Grant(60)]].concat());
    let before = double.requests();
    host.run_until(|| bench.receiver.accepted() == [1]).await;
    assert_eq!(double.requests() - before, 3);
    is_asked(&double, way, "https://database.windows.net");

    // The connection is lost: a token that is about to expire is replaced, one with time left is reused.
    bench.server.faults().only_token("t0ken-2");
    for (id, requests) in [(2, 1), (3, 0)] {
        let before = double.requests();
        bench.server.faults().arm_matching("SELECT TOP", 1, Fault::DropBeforeRun);
        bench.insert(id..=id);
        host.run_until(|| bench.receiver.accepted().contains(&id)).await;
        assert_eq!(double.requests() - before, requests, "row {id}");
    }
    assert_eq!(bench.receiver.accepted(), [1, 2, 3]);
    for record in host.journal().records() {
        contains_no_secret(&record.message);
    }
}

async fn a_long_pause_for_the_database(way: Way) {
    let (double, bench) = database(way).await;
    let host = bench.host().await;
    double.script(&[Answer::Busy(429, "3600")]);
    let began = Instant::now();
    let reported = fails(&host, &bench).await;
    assert!(reported.contains("HTTP 429"), "{reported}");
    let reported = fails(&host, &bench).await;
    assert!(reported.contains("asked for a pause; 35"), "{reported}");
    assert!(double.requests() == 1 && began.elapsed() < Duration::from_secs(10));
}

/// Answers "blob not found" to requests with a token, and refuses others.
struct Blobs {
    port: u16,
    certificate: String,
    task: AbortHandle,
}

impl Drop for Blobs {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Blobs {
    async fn start(token: &'static str) -> Self {
        let (certificate, config) = server_config();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let acceptor = TlsAcceptor::from(config);
        let task = tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let Ok(mut tls) = acceptor.accept(tcp).await else { continue };
                let request = read(&mut tls).await;
                let (status, code) = if request.contains(&format!("authorization: Bearer {token}"))
                {
                    (404, "BlobNotFound")
                } else {
                    (401, "InvalidAuthenticationInfo")
                };
                let head = format!("HTTP/1.1 {status} X\r\nx-ms-error-code: {code}\r\n");
                let rest = "date: Sat, 21 Nov 2026 12:00:00 GMT\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
                tls.write_all(format!("{head}{rest}").as_bytes()).await.unwrap();
                tls.shutdown().await.unwrap();
            }
        });
        Self { port, certificate, task: task.abort_handle() }
    }
}

async fn a_token_for_storage(way: Way) {
    const FOUND: (i32, &str) = (1, "no state document is stored");
    let by_http = way != Way::Cli;
    let busy: (i32, &str) = if by_http { FOUND } else { (6, "busy") };
    for (answers, token, (code, words)) in [
        (&[Answer::Grant(3600)][..], "t0ken-1", FOUND),
        (&[Answer::Busy(503, "0"), Answer::Busy(429, "0"), Answer::Grant(3600)], "t0ken-1", busy),
        (&[Answer::Reject], "t0ken-1", (6, "AADSTS500011")),
        (&[Answer::Garbage], "t0ken-1", (6, "")),
        (&[Answer::Busy(429, "3600")], "t0ken-1", (6, if by_http { "HTTP 429" } else { "" })),
        (
            &[Answer::Grant(3600)],
            "of-another-audience",
            (4, "the token belongs to another tenant or service"),
        ),
    ] {
        let double = TokenDouble::start(way).await;
        let blobs = Blobs::start(token).await;
        let mut bench = Bench::new().await;
        double.set_up(&mut bench, &blobs.certificate);
        double.script(answers);
        bench.set("LEASE__TTL", "60s");
        bench.set_env("HIGHWATER__STATE__STORE", "blob");
        bench.set_env("HIGHWATER__STATE__CONNECTION", "StateStorage");
        let uri = format!("https://localhost:{}/acme", blobs.port);
        bench.set_env("StateStorage__blobServiceUri", &uri);
        if by_http {
            bench.set_env("StateStorage__clientId", "app-1");
        }
        if way == Way::Principal {
            bench.set_env("StateStorage__tenantId", "acme.example");
            bench.set_env("StateStorage__clientSecret", "s3cret-of-the-app");
        }
        bench.env.remove("HIGHWATER__STATE__FOLDER");
        let began = Instant::now();
        let result = bench.command(&["state", "show", "nightly"]).await;
        let words = if words == "busy" { "" } else { words };
        assert_eq!(
            (result.code, result.rest.contains(words)),
            (code, true),
            "{answers:?} {result:?}"
        );
        assert!(began.elapsed() < Duration::from_secs(10), "{answers:?}");
        is_asked(&double, way, "https://storage.azure.com");
        contains_no_secret(&result.rest);
        contains_no_secret(&result.data);
    }
}

/// Defines a test for each way.
macro_rules! ways {
    ($($run:ident: $($name:ident = $way:ident,)*;)*) => {
        $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $run(Way::$way).await;
            }
        )*)*
    };
}

ways! {
    a_token_for_the_database:
        a_managed_identity_for_the_database = Managed,
        a_workload_identity_for_the_database = Workload,
        a_login_of_the_azure_cli_for_the_database = Cli,
        a_service_principal_for_the_database = Principal,
        a_users_password_for_the_database = Password,;
    a_long_pause_for_the_database:
        a_managed_identity_rate_limit_is_respected = Managed,
        a_workload_identity_rate_limit_is_respected = Workload,
        a_service_principal_rate_limit_is_respected = Principal,
        a_user_login_rate_limit_is_respected = Password,;
    a_token_for_storage:
        a_managed_identity_for_storage = Managed,
        a_workload_identity_for_storage = Workload,
        a_login_of_the_azure_cli_for_storage = Cli,
        a_service_principal_for_storage = Principal,;
}

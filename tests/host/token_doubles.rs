//! Fakes of token endpoints: they answer by a script, and then grant tokens. Each failure repeats the whole
//! request, as a bad endpoint might, so that tests can search for secrets that must not be printed.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use highwater::clock::{Clock as _, SystemClock};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::bench::{Bench, LIMIT};

/// Credentials, which must never be printed.
pub(crate) const SECRETS: [&str; 6] = [
    "s3cret-of-the-app",
    "assertion-of-kubernetes",
    "header-of-the-host",
    "p4ssword-of-ada",
    "t0ken-",
    "eyJhbGciOiJub25lIn0",
];

/// A response that looks like a token to people, but is not one.
const GARBAGE: &str = r#""eyJhbGciOiJub25lIn0.e30.garbage""#;

const REFUSED: &str = "AADSTS500011: The resource principal was not found";

/// The response to one request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// A token that is valid for this many seconds.
    Grant(i64),
    /// A status, and a `Retry-After`.
    Busy(u16, &'static str),
    /// This identity has no such resource.
    Reject,
    /// Something that is not a token.
    Garbage,
}

/// How a program authenticates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Managed,
    Workload,
    Cli,
    Principal,
    Password,
}

#[derive(Default)]
struct Script {
    answers: VecDeque<Answer>,
    requests: Vec<String>,
    granted: usize,
}

/// An endpoint that issues tokens, over HTTP or as the program `az`.
pub(crate) struct TokenDouble {
    way: Way,
    script: Arc<Mutex<Script>>,
    port: u16,
    certificate: String,
    task: AbortHandle,
}

impl Drop for TokenDouble {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn server_config() -> (String, Arc<ServerConfig>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], PrivateKeyDer::Pkcs8(key))
        .unwrap();
    (made.cert.pem(), Arc::new(config))
}

impl TokenDouble {
    pub(crate) async fn start(way: Way) -> Self {
        let script = Arc::new(Mutex::new(Script::default()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (certificate, config) = server_config();
        // App Service's endpoint and the program `az` are on this machine, without TLS.
        let acceptor = (!matches!(way, Way::Managed | Way::Cli)).then(|| TlsAcceptor::from(config));
        let shared = Arc::clone(&script);
        let task = tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                match &acceptor {
                    None => serve(tcp, &shared).await,
                    // A client that does not trust the certificate disconnects.
                    Some(acceptor) => {
                        if let Ok(tls) = acceptor.accept(tcp).await {
                            serve(tls, &shared).await;
                        }
                    }
                }
            }
        });
        Self { way, script, port, certificate, task: task.abort_handle() }
    }

    /// Scripts the next responses; later requests are granted a token for an hour.
    pub(crate) fn script(&self, answers: &[Answer]) {
        self.script.lock().unwrap().answers = answers.iter().copied().collect();
    }

    pub(crate) fn requests(&self) -> usize {
        self.script.lock().unwrap().requests.len()
    }

    /// Returns the last request.
    pub(crate) fn last(&self) -> String {
        self.script.lock().unwrap().requests.last().unwrap().clone()
    }

    /// Sets the environment up; `trusted` are additional certificates to trust.
    pub(crate) fn set_up(&self, bench: &mut Bench, trusted: &str) {
        let folder = bench.folder.path().to_owned();
        let file = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let pem = file("ca.pem", &format!("{}{trusted}", self.certificate));
        bench.set_env("SSL_CERT_FILE", &pem);
        match self.way {
            Way::Managed => {
                let url = format!("http://127.0.0.1:{}/msi/token", self.port);
                bench.set_env("IDENTITY_ENDPOINT", &url);
                bench.set_env("IDENTITY_HEADER", "header-of-the-host");
                // Requests to this machine do not go through a proxy.
                bench.set_env("HTTP_PROXY", "http://127.0.0.1:1");
            }
            Way::Cli => self.install_az(bench, &folder.join("bin")),
            Way::Workload | Way::Principal | Way::Password => {
                let authority = format!("https://localhost:{}/", self.port);
                bench.set_env("AZURE_AUTHORITY_HOST", &authority);
                bench.set_env("AZURE_TENANT_ID", "acme");
            }
        }
        if self.way == Way::Workload {
            let assertion = file("jwt", "assertion-of-kubernetes");
            bench.set_env("AZURE_FEDERATED_TOKEN_FILE", &assertion);
            bench.set_env("AZURE_CLIENT_ID", "app-1");
        }
    }

    /// Installs a program `az` that asks this fake, using only bash.
    fn install_az(&self, bench: &mut Bench, folder: &Path) {
        let text = format!(
            "#!/bin/bash\n\
             exec 3<>/dev/tcp/127.0.0.1/{}\n\
             printf 'GET /az HTTP/1.1\\r\\nx-arguments: %s\\r\\n\\r\\n' \"$*\" >&3\n\
             IFS= read -r status <&3\n\
             while IFS= read -r line <&3 && [ \"$line\" != $'\\r' ]; do :; done\n\
             body=$(cat <&3)\n\
             case $status in *' 200 '*) printf '%s' \"$body\";; *) printf 'ERROR: %s' \"$body\" >&2; exit 1;; esac\n",
            self.port
        );
        fs::create_dir_all(folder).unwrap();
        let az = folder.join("az");
        fs::write(&az, text).unwrap();
        fs::set_permissions(&az, fs::Permissions::from_mode(0o755)).unwrap();
        bench.set_env("PATH", &format!("{}:/usr/bin:/bin", folder.display()));
        bench.set_env("HOME", bench.folder.path().to_str().unwrap().to_owned().as_str());
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, script: &Mutex<Script>) {
    let request = read(&mut stream).await;
    let text = answer(&mut script.lock().unwrap(), &request);
    stream.write_all(text.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
}

pub(crate) async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> String {
    let mut request = String::new();
    let mut buffer = [0; 4096];
    while !is_whole(&request) {
        let length = timeout(LIMIT, stream.read(&mut buffer)).await.unwrap().unwrap();
        assert_ne!(length, 0, "half a request: `{request}`");
        request.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
    }
    request
}

fn is_whole(request: &str) -> bool {
    let Some((head, body)) = request.split_once("\r\n\r\n") else { return false };
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    body.len() >= length.map_or(0, |length| length.parse().unwrap())
}

fn answer(script: &mut Script, request: &str) -> String {
    script.requests.push(request.to_owned());
    let is_az = request.starts_with("GET /az ");
    let (status, more, body) = match script.answers.pop_front().unwrap_or(Answer::Grant(3600)) {
        Answer::Grant(life) => {
            script.granted += 1;
            (200, String::new(), grant(script.granted, life, is_az))
        }
        Answer::Busy(status, pause) => {
            (status, format!("retry-after: {pause}\r\n"), format!("<html>{request}</html>"))
        }
        // As printed by `az`.
        Answer::Reject if is_az => (400, String::new(), REFUSED.to_owned()),
        Answer::Reject => {
            let words = format!("{REFUSED} for `{request}`");
            let body = json!({ "error": "invalid_resource", "error_codes": [500_011], "error_description": words });
            (400, String::new(), body.to_string())
        }
        Answer::Garbage => (200, String::new(), GARBAGE.to_owned()),
    };
    let head =
        format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\n");
    format!("{head}{more}content-length: {}\r\n\r\n{body}", body.len())
}

/// A grant in the form of `az`, or in one that the readers of Microsoft Entra and App Service both accept.
fn grant(number: usize, life: i64, is_az: bool) -> String {
    let token = format!("t0ken-{number}");
    let end = SystemClock.now().unix_timestamp() + life;
    let grant = if is_az {
        json!({ "accessToken": token, "expires_on": end, "tokenType": "Bearer" })
    } else {
        json!({ "access_token": token, "expires_in": life, "expires_on": end.to_string(), "token_type": "Bearer", "resource": "x" })
    };
    grant.to_string()
}

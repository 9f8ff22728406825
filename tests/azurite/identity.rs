//! The blob store with the managed identity of an Azure host, over https.
//!
//! A fake host issues the tokens; Azurite checks their audience, issuer and times, but not their signature.
//! Both the token endpoint and the trusted certificate come from the environment, so the test runs its client
//! in a separate process.

use std::process::{Command, Stdio};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use highwater_azure::BlobStore;
use highwater_azure::StorageConnection;
use highwater_azure::{BlobService, IdentitySource, ServiceOptions};
use highwater_engine::clock::SystemClock;
use highwater_engine::store::conformance;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::emulator::{ACCOUNT, Azurite, TIMEOUT, fresh_container};

const CLIENT_ID: &str = "11111111-2222-3333-4444-555555555555";

/// The variable with Azurite's address for the client process.
const ADDRESS: &str = "HIGHWATER_TEST_IDENTITY_ADDRESS";

#[tokio::test]
async fn it_conforms_with_a_managed_identity() {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let arguments = ["--oauth".as_ref(), "basic".as_ref(), "--cert".as_ref(), cert.as_ref()];
    let azurite =
        Azurite::start_in_memory(&[&arguments[..], &["--key".as_ref(), key.as_ref()]].concat());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = format!("http://{}/msi/token", listener.local_addr().unwrap());
    let asked = tokio::spawn(give_tokens(listener));

    let mut client = Command::new(std::env::current_exe().unwrap());
    client
        .args(["--exact", "identity::client_process", "--nocapture"])
        .env(ADDRESS, azurite.address().to_string())
        .env("SSL_CERT_FILE", &cert)
        .env("IDENTITY_ENDPOINT", host)
        .env("IDENTITY_HEADER", "header-of-the-host")
        .stdout(Stdio::piped());
    let output = tokio::task::spawn_blocking(move || client.output().unwrap()).await.unwrap();
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.contains("1 passed") && !output.contains("skipped"), "{output}");
    asked.abort();
}

#[tokio::test]
async fn client_process() {
    let Some(address) = std::env::var_os(ADDRESS) else {
        println!("skipped: runs as a process of `it_conforms_with_a_managed_identity`");
        return;
    };
    let uri = format!("https://{}/{ACCOUNT}", address.to_str().unwrap());
    let connection = StorageConnection::from_identity(None, Some(&uri), Some(CLIENT_ID)).unwrap();
    let options = ServiceOptions {
        timeout: TIMEOUT,
        clock: Arc::new(SystemClock),
        identity: IdentitySource::ManagedIdentity,
    };
    let service = BlobService::connect(&connection, &options).unwrap();
    let service = &service;
    conformance::run(&|| async move {
        let store = BlobStore::new(service, &fresh_container(), "app").unwrap();
        assert!(store.create_container().await.unwrap(), "the name is unused");
        store
    })
    .await;
}

/// Responds like App Service, to requests for the one user-assigned identity only.
/// <https://learn.microsoft.com/azure/app-service/overview-managed-identity#rest-endpoint-reference>
async fn give_tokens(listener: TcpListener) {
    let claims = r#"{"aud":"https://storage.azure.com","iss":"https://sts.windows.net/t/","iat":1,"nbf":1,"exp":4070908800}"#;
    let parts = [r#"{"alg":"none","typ":"JWT"}"#, claims, "unsigned"];
    let token = parts.map(|part| BASE64.encode(part)).join(".");
    let body = format!(
        r#"{{"access_token":"{token}","expires_on":"4070908800","resource":"https://storage.azure.com","token_type":"Bearer"}}"#
    );
    loop {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            assert_ne!(client.read_buf(&mut request).await.unwrap(), 0, "a whole request");
        }
        let request = String::from_utf8(request).unwrap().to_ascii_lowercase();
        let good = request.contains(&format!("client_id={CLIENT_ID}"))
            && request.contains("x-identity-header: header-of-the-host");
        let status = if good { "200 OK" } else { "400 Bad Request" };
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\n");
        let rest = format!("content-length: {length}\r\nconnection: close\r\n\r\n{body}");
        client.write_all(format!("{head}{rest}").as_bytes()).await.unwrap();
    }
}

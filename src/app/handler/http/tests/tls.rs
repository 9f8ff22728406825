//! Targets with certificates from a private certificate authority.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::*;
use crate::config::Authorities;

/// Starts a server with its own certificate authority; returns its URL and the authority's certificate.
async fn start() -> (String, String) {
    let (authority_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = Issuer::from_params(&authority, &authority_key);
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/hook", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = [0; 4096];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        }
    });
    (url, pem)
}

async fn deliver_through(client: Client, url: &str) -> Result<(), HandlerError> {
    let handler = Http::new(client, &config(url, 1), Arc::new(StoppedClock));
    handler.handle(Sample::new(1).delivery()).await
}

#[tokio::test]
async fn a_private_authority_is_trusted_only_if_it_is_set() {
    let (url, pem) = start().await;
    let (_, other) = start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("company.pem");
    // One file may contain several certificates.
    std::fs::write(&path, format!("{other}{pem}")).unwrap();
    for authorities in [Authorities::Pem(pem), Authorities::File(path)] {
        deliver_through(Client::trusting(&authorities).unwrap(), &url).await.unwrap();
    }
    for client in [Client::new(), Client::trusting(&Authorities::Pem(other))] {
        let error = deliver_through(client.unwrap(), &url).await.unwrap_err();
        assert!(error.to_string().contains("certificate"), "{error}");
        assert!(matches!(error, HandlerError::Retryable(_)), "{error:?}");
    }
}

#[test]
fn authorities_without_a_certificate_are_refused() {
    let missing = Authorities::File("no/such.pem".into());
    for (authorities, text) in [
        (
            Authorities::Pem("-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----".into()),
            "",
        ),
        (Authorities::Pem("no certificate".into()), "no `-----BEGIN CERTIFICATE-----` found"),
        (missing, "from `no/such.pem`"),
    ] {
        let error = Client::trusting(&authorities).unwrap_err();
        assert!(error.to_string().ends_with(text), "{error}");
    }
}

//! The server's certificate, and the stream that carries a TLS handshake inside packets.
//!
//! TDS 7 negotiates TLS after PRELOGIN and wraps the handshake records in PRELOGIN packets; once
//! the handshake is over the records go over TCP as they are. TDS 8 starts with TLS.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};

use super::framing::{HEADER_BYTES, header, kind};

/// TLS settings and the authority a client can pin.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) ca_pem: String,
}

impl Identity {
    /// Generates an authority and a certificate for `localhost` and `127.0.0.1`.
    ///
    /// # Errors
    ///
    /// Fails if the certificate library does.
    pub(crate) fn generate() -> io::Result<Self> {
        let (ca_pem, leaf, key) = certificates().map_err(io::Error::other)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(io::Error::other)?
                .with_no_client_auth()
                .with_single_cert(vec![leaf.into()], key)
                .map_err(io::Error::other)?;
        // A ticket would follow the handshake inside the packet wrapping and confuse clients.
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![b"tds/8.0".to_vec()];
        Ok(Self { config: Arc::new(config), ca_pem })
    }
}

fn certificates() -> Result<(String, Vec<u8>, Vec<u8>), rcgen::Error> {
    let ca_key = rcgen::KeyPair::generate()?;
    let mut ca = rcgen::CertificateParams::new(Vec::new())?;
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    ca.distinguished_name.push(rcgen::DnType::CommonName, "Highwater development authority");
    ca.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::CrlSign];
    let authority = ca.self_signed(&ca_key)?;
    let leaf_key = rcgen::KeyPair::generate()?;
    let mut leaf = rcgen::CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()])?;
    leaf.distinguished_name.push(rcgen::DnType::CommonName, "localhost");
    leaf.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = leaf.signed_by(&leaf_key, &rcgen::Issuer::from_params(&ca, &ca_key))?;
    Ok((authority.pem(), certificate.der().to_vec(), leaf_key.serialize_der()))
}

/// TCP that wraps writes in PRELOGIN packets and unwraps reads, until wrapping is turned off.
#[derive(Debug)]
pub(crate) struct HandshakeStream {
    tcp: TcpStream,
    wrapping: bool,
    head: [u8; HEADER_BYTES],
    head_read: usize,
    body_left: usize,
    unsent: Vec<u8>,
    framed: bool,
}

impl HandshakeStream {
    pub(crate) fn new(tcp: TcpStream, wrapping: bool) -> Self {
        Self {
            tcp,
            wrapping,
            head: [0; HEADER_BYTES],
            head_read: 0,
            body_left: 0,
            unsent: Vec::new(),
            framed: false,
        }
    }

    pub(crate) fn stop_wrapping(&mut self) {
        self.wrapping = false;
    }

    pub(crate) fn into_tcp(self) -> TcpStream {
        self.tcp
    }

    /// Reads up to the body of the next packet.
    fn poll_header(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Ahead>> {
        while self.body_left == 0 {
            let end = if self.head_read == 0 { 1 } else { HEADER_BYTES };
            let mut part = ReadBuf::new(self.head.get_mut(self.head_read..end).unwrap_or_default());
            ready!(Pin::new(&mut self.tcp).poll_read(cx, &mut part))?;
            if part.filled().is_empty() {
                return Poll::Ready(Ok(Ahead::End));
            }
            self.head_read += part.filled().len();
            let [first, _, high, low, ..] = self.head;
            if first != kind::PRELOGIN {
                // The client has finished the handshake and sends plain records, while the TLS library still
                // reads to the end of the received data.
                (self.wrapping, self.head_read) = (false, 0);
                return Poll::Ready(Ok(Ahead::Record(first)));
            }
            if self.head_read == HEADER_BYTES {
                let length = usize::from(u16::from_be_bytes([high, low]));
                self.body_left = length.saturating_sub(HEADER_BYTES);
                self.head_read = 0;
            }
        }
        Poll::Ready(Ok(Ahead::Body))
    }
}

/// What comes next in a [`HandshakeStream`].
enum Ahead {
    /// The body of a packet.
    Body,
    /// A bare TLS record, whose first byte has been read.
    Record(u8),
    /// Nothing: the client has closed.
    End,
}

impl AsyncRead for HandshakeStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.wrapping && this.body_left == 0 {
            return Pin::new(&mut this.tcp).poll_read(cx, buffer);
        }
        match ready!(this.poll_header(cx))? {
            Ahead::Body => {}
            Ahead::Record(first) => {
                buffer.put_slice(&[first]);
                return Poll::Ready(Ok(()));
            }
            Ahead::End => return Poll::Ready(Ok(())),
        }
        let length = this.body_left.min(buffer.remaining());
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(length));
        ready!(Pin::new(&mut this.tcp).poll_read(cx, &mut part))?;
        let read = part.filled().len();
        this.body_left -= read;
        buffer.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for HandshakeStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if !self.wrapping {
            return Pin::new(&mut self.tcp).poll_write(cx, bytes);
        }
        self.unsent.extend(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.wrapping && !this.framed && !this.unsent.is_empty() {
            let head = header(kind::PRELOGIN, true, this.unsent.len(), 0);
            this.unsent.splice(0..0, head);
            this.framed = true;
        }
        while !this.unsent.is_empty() {
            let written = ready!(Pin::new(&mut this.tcp).poll_write(cx, &this.unsent))?;
            this.unsent.drain(..written);
        }
        this.framed = false;
        Pin::new(&mut this.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

//! One connection, from the first byte to the last: encryption, login, requests.

use std::{io, sync::Arc};

use tokio::{io::AsyncWriteExt, net::TcpStream};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig, server::TlsStream};

use super::{
    framing::{self, PACKET_BYTES_DEFAULT, Stream, kind},
    login::{self, Encryption, Login},
    request::{self, Answer, Request},
    tls::HandshakeStream,
};
use crate::{
    faults::{Fault, Faults, LoginFault, SeenLogin},
    session::{Engine, Session},
    types::SqlError,
};

/// Configuration shared by the connections of a server.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) user: String,
    pub(crate) password: String,
    pub(crate) database: String,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) allow_plain: bool,
    pub(crate) faults: Faults,
}

/// Serves a connection until either side closes it.
///
/// # Errors
///
/// Fails if the connection breaks or the client violates the protocol.
pub(crate) async fn serve(tcp: TcpStream, terms: Terms) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let mut first = [0];
    if tcp.peek(&mut first).await? == 0 {
        return Ok(());
    }
    // TDS 8 begins with a TLS record, TDS 7 with a PRELOGIN packet.
    let opened =
        if first == [0x16] { open_strict(tcp, &terms).await? } else { open(tcp, &terms).await? };
    let Some((mut stream, mut login)) = opened else {
        return Ok(());
    };
    terms.faults.see_login(SeenLogin {
        database: login.database.clone(),
        application: login.application.clone(),
        read_only: login.read_only,
        packet_bytes: login.packet_bytes,
    });
    if login.database.is_empty() {
        login.database.clone_from(&terms.database);
    }
    let session = terms.engine.connect(&login.database);
    if !admit(&mut *stream, &login, &terms, session.as_ref().err()).await? {
        return stream.shutdown().await;
    }
    let session = session.map_err(io::Error::other)?;
    let mut requests =
        Requests { session: Some(session), faults: terms.faults, packet_bytes: login.packet_bytes };
    requests.serve(&mut *stream).await
}

/// Answers a login; `false` if the client must disconnect. `closed` is why its database is not available.
async fn admit(
    stream: &mut dyn Stream,
    login: &Login,
    terms: &Terms,
    closed: Option<&SqlError>,
) -> io::Result<bool> {
    let right = match &login.token {
        Some(token) => terms.faults.admits(token),
        None => login.user == terms.user && login.password == terms.password,
    };
    let fault = terms.faults.on_login(right);
    let answer = match &fault {
        _ if !right => login::refused(&login::wrong(login)),
        Some(LoginFault::Drop) => return Ok(false),
        Some(LoginFault::Error(error)) => login::refused(error),
        Some(LoginFault::Redirect(host, port)) => login::accepted(login, Some((host, *port))),
        Some(LoginFault::Stall(delay)) => {
            tokio::time::sleep(*delay).await;
            login::accepted(login, None)
        }
        None => closed.map_or_else(|| login::accepted(login, None), login::refused),
    };
    framing::send(stream, &answer, PACKET_BYTES_DEFAULT).await?;
    Ok(right && closed.is_none() && matches!(fault, None | Some(LoginFault::Stall(_))))
}

type Opened = Option<(Box<dyn Stream>, Login)>;

async fn open_strict(tcp: TcpStream, terms: &Terms) -> io::Result<Opened> {
    let Some(config) = &terms.tls else {
        return Ok(None);
    };
    let mut stream = TlsAcceptor::from(config.clone()).accept(tcp).await?;
    if receive_kind(&mut stream, kind::PRELOGIN).await?.is_none() {
        return Ok(None);
    }
    let answer = login::prelogin_answer(Encryption::On);
    framing::send(&mut stream, &answer, PACKET_BYTES_DEFAULT).await?;
    receive_login(Box::new(stream)).await
}

async fn open(mut tcp: TcpStream, terms: &Terms) -> io::Result<Opened> {
    let Some(prelogin) = receive_kind(&mut tcp, kind::PRELOGIN).await? else {
        return Ok(None);
    };
    let wanted = login::wanted_encryption(&prelogin);
    let answer = match (&terms.tls, wanted) {
        (None, _) => Encryption::NotSupported,
        (Some(_), Encryption::NotSupported) if terms.allow_plain => Encryption::NotSupported,
        (Some(_), Encryption::NotSupported) => Encryption::Required,
        (Some(_), Encryption::Off) => Encryption::Off,
        (Some(_), Encryption::On | Encryption::Required) => Encryption::On,
    };
    framing::send(&mut tcp, &login::prelogin_answer(answer), PACKET_BYTES_DEFAULT).await?;
    match (&terms.tls, answer) {
        (_, Encryption::Required) => Ok(None),
        (Some(config), Encryption::Off) => {
            let mut stream = accept_wrapped(tcp, config).await?;
            let Some(message) = receive_kind(&mut stream, kind::LOGIN).await? else {
                return Ok(None);
            };
            // Only the login is encrypted: from here on both sides send plain text.
            let tcp = stream.into_inner().0.into_tcp();
            Ok(Some((Box::new(tcp), Login::parse(&message)?)))
        }
        (Some(config), Encryption::On) => {
            receive_login(Box::new(accept_wrapped(tcp, config).await?)).await
        }
        (None, _) | (Some(_), Encryption::NotSupported) => receive_login(Box::new(tcp)).await,
    }
}

async fn accept_wrapped(
    tcp: TcpStream,
    config: &Arc<ServerConfig>,
) -> io::Result<TlsStream<HandshakeStream>> {
    let wrapped = HandshakeStream::new(tcp, true);
    let mut stream = TlsAcceptor::from(config.clone()).accept(wrapped).await?;
    stream.flush().await?;
    stream.get_mut().0.stop_wrapping();
    Ok(stream)
}

async fn receive_login(mut stream: Box<dyn Stream>) -> io::Result<Opened> {
    let Some(message) = receive_kind(&mut *stream, kind::LOGIN).await? else {
        return Ok(None);
    };
    Ok(Some((stream, Login::parse(&message)?)))
}

async fn receive_kind<S: Stream + ?Sized>(
    stream: &mut S,
    wanted: u8,
) -> io::Result<Option<Vec<u8>>> {
    let message = framing::receive(stream).await?;
    Ok(message.and_then(|(kind, body)| (kind == wanted).then_some(body)))
}

struct Requests {
    /// [`None`] only while a request runs.
    session: Option<Box<dyn Session>>,
    faults: Faults,
    packet_bytes: usize,
}

impl Requests {
    async fn serve(&mut self, stream: &mut dyn Stream) -> io::Result<()> {
        while let Some((kind, body)) = framing::receive(stream).await? {
            let request = Request::parse(kind, &body)?;
            let fault = request.text().and_then(|text| self.faults.on_statement(text));
            if fault == Some(Fault::DropBeforeRun) {
                return stream.shutdown().await;
            }
            let answer = match &fault {
                Some(Fault::Error(error)) => request.failed(error),
                Some(Fault::Stall(delay)) => {
                    tokio::time::sleep(*delay).await;
                    self.run(request).await?
                }
                Some(_) | None => self.run(request).await?,
            };
            let length = match fault {
                Some(Fault::DropBeforeRun | Fault::DropBeforeAnswer) => 0,
                Some(Fault::DropAfterBytes(length)) => length,
                Some(Fault::DropAfterRows(rows)) => answer.length_of_rows(rows),
                Some(Fault::StallAfterRows(rows, delay)) => {
                    let length = answer.length_of_rows(rows);
                    let beginning = answer.bytes.get(..length).unwrap_or_default();
                    framing::send_beginning(stream, beginning, self.packet_bytes).await?;
                    tokio::time::sleep(delay).await;
                    return stream.shutdown().await;
                }
                Some(Fault::PacketBytes(size)) => {
                    framing::send(stream, &answer.bytes, size).await?;
                    continue;
                }
                Some(Fault::PacketClaims(length)) => {
                    framing::send_claiming(stream, &answer.bytes, length).await?;
                    continue;
                }
                Some(Fault::Error(_) | Fault::Stall(_)) | None => {
                    framing::send(stream, &answer.bytes, self.packet_bytes).await?;
                    continue;
                }
            };
            let Some(beginning) =
                answer.bytes.get(..length).filter(|_| length < answer.bytes.len())
            else {
                framing::send(stream, &answer.bytes, self.packet_bytes).await?;
                return stream.shutdown().await;
            };
            framing::send_beginning(stream, beginning, self.packet_bytes).await?;
            return stream.shutdown().await;
        }
        Ok(())
    }

    /// Runs a request on a thread that may block: the engine waits for locks and for the disk.
    async fn run(&mut self, request: Request) -> io::Result<Answer> {
        let Some(mut session) = self.session.take() else {
            return Err(io::Error::other("the session was lost"));
        };
        let run = move || {
            let answer = request::run(&mut *session, request);
            (session, answer)
        };
        let (session, answer) = tokio::task::spawn_blocking(run).await.map_err(io::Error::other)?;
        self.session = Some(session);
        answer
    }
}

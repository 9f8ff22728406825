//! The upper limit: the driver alone, and with each batch encoded and posted.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::TryStreamExt as _;
use highwater::config::{SqlAuth, SqlConnection};
use secrecy::ExposeSecret as _;
use serde::ser::{SerializeMap as _, Serializer as _};
use tiberius::{AuthMethod, ColumnData, Config, EncryptionLevel, Row};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::compat::{Compat, TokioAsyncWriteCompatExt as _};

use crate::job::{Drain, Texts, Took};
use crate::system;

pub(crate) type Client = tiberius::Client<Compat<TcpStream>>;

/// Batches that are read before the clock starts, so that both sides start with a warm connection.
pub(crate) const WARM_UP: u64 = 2;

/// Reads a table to its end.
pub(crate) async fn drain(job: &Drain) -> Took {
    let mut reader = Reader {
        client: connect(&job.connection).await,
        texts: job.texts.clone().unwrap(),
        batch: job.batch,
        poster: job.url.clone().map(Poster::new),
    };
    let before = reader.read(WARM_UP).await;
    let (began, cpu) = (Instant::now(), system::cpu_seconds(None));
    let took = reader.read(u64::MAX).await;
    Took {
        rows_before: before.rows,
        seconds: began.elapsed().as_secs_f64(),
        cpu_seconds: system::cpu_seconds(None) - cpu,
        peak_kib: system::peak_kib(),
        ..took
    }
}

/// Connects as a poller does: the same TLS, the same login.
pub(crate) async fn connect(connection: &str) -> Client {
    let settings = SqlConnection::parse(connection).unwrap();
    let SqlAuth::Password { user, password } = &settings.auth else { panic!("a password") };
    let mut config = Config::new();
    config.host(&settings.host);
    config.port(settings.port);
    config.database(settings.database.as_deref().unwrap());
    config.authentication(AuthMethod::sql_server(user, password.expose_secret()));
    config.encryption(EncryptionLevel::Required);
    config.trust_cert();
    let tcp = TcpStream::connect((settings.host.as_str(), settings.port)).await.unwrap();
    tcp.set_nodelay(true).unwrap();
    Box::pin(Client::connect(config, tcp.compat_write())).await.unwrap()
}

struct Reader {
    client: Client,
    texts: Texts,
    batch: usize,
    poster: Option<Poster>,
}

impl Reader {
    /// Reads from the beginning, at most `batches_max` batches.
    async fn read(&mut self, batches_max: u64) -> Took {
        let mut took = Took::default();
        let mut after = None;
        while took.batches < batches_max {
            let page = self.page(after).await;
            if page.rows == 0 {
                break;
            }
            took.rows += page.rows;
            took.batches += 1;
            if let Some(poster) = &mut self.poster {
                poster.post().await;
            }
            if !page.more {
                break;
            }
            after = Some(page.last);
        }
        took
    }

    /// Reads one batch as a poller does, with one more row, which signals that more rows follow.
    async fn page(&mut self, after: Option<(i64, i64)>) -> Page {
        let top = i64::try_from(self.batch).unwrap() + 1;
        let mut page = Page::default();
        let mut stream = match after {
            None => self.client.query(self.texts.first.as_str(), &[&top]).await.unwrap(),
            Some((version, id)) => {
                self.client.query(self.texts.next.as_str(), &[&top, &version, &id]).await.unwrap()
            }
        };
        let limit = u64::try_from(self.batch).unwrap();
        while let Some(item) = stream.try_next().await.unwrap() {
            let Some(row) = item.into_row() else { continue };
            // The table's identity and the server's properties come first, the columns last.
            if row.result_index() != 2 {
                continue;
            }
            if page.rows == limit {
                page.more = true;
                continue;
            }
            page.rows += 1;
            page.last = place(&row);
            if let Some(poster) = &mut self.poster {
                poster.add(&row);
            }
        }
        page
    }
}

#[derive(Default)]
struct Page {
    rows: u64,
    /// Version and key of its last row.
    last: (i64, i64),
    more: bool,
}

fn place(row: &Row) -> (i64, i64) {
    let id: i32 = row.get(0).unwrap();
    (row.get("__cursor").unwrap(), id.into())
}

/// Encodes rows as JSON objects and posts arrays of them.
struct Poster {
    http: reqwest::Client,
    url: String,
    body: Vec<u8>,
}

impl Poster {
    fn new(url: String) -> Self {
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { http, url, body: Vec::new() }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the types that the tables have")]
    fn add(&mut self, row: &Row) {
        self.body.push(if self.body.is_empty() { b'[' } else { b',' });
        let mut serializer = serde_json::Serializer::new(&mut self.body);
        let mut object = serializer.serialize_map(None).unwrap();
        for (column, cell) in row.cells() {
            let name = column.name();
            let added = match cell {
                ColumnData::I16(value) => object.serialize_entry(name, value),
                ColumnData::I32(value) => object.serialize_entry(name, value),
                ColumnData::I64(value) => object.serialize_entry(name, value),
                ColumnData::String(value) => object.serialize_entry(name, value),
                ColumnData::Binary(value) => {
                    let value = value.as_ref().map(|bytes| STANDARD.encode(bytes));
                    object.serialize_entry(name, &value)
                }
                ColumnData::DateTime2(value) => object.serialize_entry(name, &value.map(text)),
                cell => panic!("no column is {cell:?}"),
            };
            added.unwrap();
        }
        object.end().unwrap();
    }

    async fn post(&mut self) {
        self.body.push(b']');
        // As large as the previous one.
        let next = Vec::with_capacity(self.body.len());
        let body = std::mem::replace(&mut self.body, next);
        let request = self.http.post(&self.url).header("content-type", "application/json");
        let reply = request.body(body).send().await.unwrap();
        assert!(reply.status().is_success(), "{}", reply.status());
        drop(reply.bytes().await.unwrap());
    }
}

/// Returns a date and a time as text, as in JSON.
fn text(value: tiberius::time::DateTime2) -> String {
    /// The Julian day before the first of the year 1.
    const DAY_ONE: u32 = 1_721_426;
    let day = i32::try_from(value.date().days() + DAY_ONE).unwrap();
    let date = time::Date::from_julian_day(day).unwrap();
    let seconds = value.time().increments() / 10_u64.pow(value.time().scale().into());
    let (minutes, second) = (seconds / 60, seconds % 60);
    format!("{date}T{:02}:{:02}:{second:02}", minutes / 60, minutes % 60)
}

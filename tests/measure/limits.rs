//! Rates: the poller compared with the driver.

use serde_json::json;

use crate::child::{self, Receiver, Server};
use crate::job::{Drain, Role, Took};
use crate::options::Options;
use crate::report::{Report, Rounds, count, float};

/// Batches, in rows.
pub(crate) const BATCHES: [usize; 3] = [100, 1_000, 10_000];

/// The fraction of its limit that the poller should reach.
const WANTED: f64 = 0.8;

/// A peer, and the results of its rounds.
struct Peer {
    name: &'static str,
    is_ours: bool,
    posts: bool,
    rates: Rounds,
    /// CPU of the peer's process, in µs per row.
    cpu: Rounds,
    /// The same for the database server, which both sides wait for.
    server_cpu: Rounds,
    requests: u64,
    /// Bytes posted for each row.
    row_bytes: f64,
    rows: u64,
}

impl Peer {
    fn new(name: &'static str, is_ours: bool, posts: bool) -> Self {
        Self {
            name,
            is_ours,
            posts,
            rates: Rounds::default(),
            cpu: Rounds::default(),
            server_cpu: Rounds::default(),
            requests: 0,
            row_bytes: 0.0,
            rows: 0,
        }
    }
}

/// In table order: each limit, followed by the poller.
fn peers() -> [Peer; 4] {
    [
        Peer::new("driver", false, false),
        Peer::new("highwater, in process", true, false),
        Peer::new("driver + POST", false, true),
        Peer::new("highwater, `http`", true, true),
    ]
}

pub(crate) async fn measure(options: &Options, server: &Server, report: &mut Report) {
    let mut receiver = Receiver::start().await;
    for (table, columns) in [("dbo.flights", "flights, 13 columns"), ("dbo.wide", "rows of 1 kB")] {
        learn(server, table).await;
        let mut rows = Vec::new();
        for batch in BATCHES {
            let mut peers = peers();
            for round in 0..=options.rounds() {
                for turn in 0..peers.len() {
                    // Each round starts with another one.
                    let at = (turn + round) % peers.len();
                    run(&mut peers[at], round, (table, batch), server, &mut receiver).await;
                }
            }
            rows.extend(judge(&peers, (table, batch), report));
        }
        let heads = [
            "peer",
            "batch",
            "rows/s",
            "±",
            "of its limit",
            "CPU µs/row",
            "of its limit",
            "server CPU µs/row",
            "bytes/row",
        ];
        report.table(&format!("Rates: {columns}"), &heads, &rows);
    }
}

/// Lets a poller read the table once, so that the server records its statements.
async fn learn(server: &Server, table: &str) {
    let role = Role::Ours(Drain::of(&server.connection, table, 100));
    let took: Took = child::run(&role).await;
    assert!(took.batches > 1, "{table} needs more than one batch");
}

/// Lets a peer read the table once; the first round is not counted.
async fn run(
    peer: &mut Peer,
    round: usize,
    (table, batch): (&str, usize),
    server: &Server,
    receiver: &mut Receiver,
) {
    // The server's spelling of table names.
    let quoted = table.split('.').map(|name| format!("[{name}]")).collect::<Vec<_>>().join(".");
    let texts = Some(server.texts(&quoted).await);
    let url = peer.posts.then(|| receiver.url.clone());
    let job = Drain { url, texts, ..Drain::of(&server.connection, table, batch) };
    let role = if peer.is_ours { Role::Ours(job) } else { Role::Bare(job) };
    receiver.take_bytes().await;
    let (requests, cpu) = (server.requests().await, server.cpu_seconds());
    let took: Took = child::run(&role).await;
    let (requests, cpu) = (server.requests().await - requests, server.cpu_seconds() - cpu);
    if round == 0 {
        return;
    }
    let (rows, all) = (float(took.rows), float(took.rows + took.rows_before));
    peer.rates.add(rows / took.seconds);
    peer.cpu.add(took.cpu_seconds * 1e6 / rows);
    peer.server_cpu.add(cpu * 1e6 / all);
    peer.requests = requests;
    peer.row_bytes = float(receiver.take_bytes().await) / all;
    peer.rows = took.rows;
}

/// Compares each poller with the limit before it.
fn judge(
    peers: &[Peer; 4],
    (table, batch): (&str, usize),
    report: &mut Report,
) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (at, peer) in peers.iter().enumerate() {
        let limit = if peer.is_ours { &peers[at - 1] } else { peer };
        let rate = peer.rates.median() / limit.rates.median();
        let cpu = peer.cpu.median() / limit.cpu.median();
        rows.push(vec![
            peer.name.to_owned(),
            count(float(u64::try_from(batch).unwrap())),
            count(peer.rates.median()),
            format!("{:.0} %", peer.rates.spread()),
            format!("{rate:.2}"),
            format!("{:.1}", peer.cpu.median()),
            format!("{cpu:.2}"),
            format!("{:.1}", peer.server_cpu.median()),
            if peer.posts { count(peer.row_bytes) } else { "–".to_owned() },
        ]);
        report.keep(
            "limits",
            json!({
                "table": table, "batch": batch, "peer": peer.name, "rows": peer.rows,
                "rows_per_second": peer.rates.all(), "cpu_us_per_row": peer.cpu.all(),
                "server_cpu_us_per_row": peer.server_cpu.all(), "rate_of_limit": rate,
                "cpu_of_limit": cpu, "requests": peer.requests, "bytes_per_row": peer.row_bytes,
            }),
        );
        if peer.is_ours {
            let what = format!("{}, `{table}`, batches of {batch}", peer.name);
            let wanted = format!("≥ {WANTED} of {}", limit.name);
            report.target(&what, &wanted, &format!("{rate:.2}"), rate >= WANTED);
        }
    }
    rows
}

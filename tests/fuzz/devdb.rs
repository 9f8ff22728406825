//! What a client sends to the development server.

use std::cell::OnceCell;

use highwater_devdb::{Database, Engine, Options, Server, Session, SqlError};

use crate::host::{block_on, exchange};

/// Longest input: statements of any length take any time.
const BYTES_MAX: usize = 4_096;
/// Largest body of a packet.
const PACKET_BYTES_MAX: usize = 4_088;

/// Types of messages: <https://learn.microsoft.com/openspecs/windows_protocols/ms-tds/9420b4a3-eb9f-4f5e-90bd-3160444aa5a7>
const BATCH: u8 = 1;
const RPC: u8 = 3;
const LOGIN: u8 = 16;
const PRELOGIN: u8 = 18;

thread_local! {
    static SERVER: OnceCell<Server> = const { OnceCell::new() };
}

/// Gives each session a database of its own, so that an input always does the same.
struct Fresh;

impl Engine for Fresh {
    fn connect(&self, database: &str) -> Result<Box<dyn Session>, SqlError> {
        Engine::connect(&Database::in_memory()?, database)
    }
}

fn port() -> Option<u16> {
    if let Some(port) = SERVER.with(|server| server.get().map(Server::port)) {
        return Some(port);
    }
    let options = Options { tls: false, ..Options::default() };
    let started = block_on(Server::start(Fresh, options)).ok()?;
    Some(SERVER.with(|server| server.get_or_init(|| started).port()))
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let packets: Vec<&[u8]> =
        if body.is_empty() { vec![body] } else { body.chunks(PACKET_BYTES_MAX).collect() };
    let mut bytes = Vec::new();
    for (number, packet) in packets.iter().enumerate() {
        let length = u16::try_from(packet.len() + 8).unwrap_or(u16::MAX);
        let is_last = number + 1 == packets.len();
        bytes.extend([kind, u8::from(is_last)]);
        bytes.extend(length.to_be_bytes());
        bytes.extend([0, 0, 1, 0]);
        bytes.extend_from_slice(packet);
    }
    bytes
}

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// The messages before the first statement: PRELOGIN without encryption, and LOGIN7.
fn logged_in() -> Vec<u8> {
    let mut bytes = message(PRELOGIN, &[1, 0, 6, 0, 1, 0xFF, 2]);
    bytes.extend(message(LOGIN, &login("sa", "Highwater-1")));
    bytes
}

fn login(user: &str, password: &str) -> Vec<u8> {
    let mut head = vec![0; 94];
    head[4..8].copy_from_slice(&0x7400_0004_u32.to_le_bytes());
    head[8..12].copy_from_slice(&4_096_u32.to_le_bytes());
    let hidden: Vec<u8> = utf16(password).iter().map(|byte| byte.rotate_left(4) ^ 0xA5).collect();
    for (at, field) in
        [(40, utf16(user)), (44, hidden), (48, utf16("fuzz")), (68, utf16("Highwater"))]
    {
        let [offset, length] = [head.len(), field.len() / 2].map(|n| u16::try_from(n).unwrap_or(0));
        head[at..at + 2].copy_from_slice(&offset.to_le_bytes());
        head[at + 2..at + 4].copy_from_slice(&length.to_le_bytes());
        head.extend(field);
    }
    let length = u32::try_from(head.len()).unwrap_or(0);
    head[..4].copy_from_slice(&length.to_le_bytes());
    head
}

/// The first byte says what follows: `q` statements as text, one per message where `;;` divides them; `r` the body of a
/// procedure call; `m` messages of any type, the type first; `l` the body of a login; anything else is sent as it is.
pub(crate) fn tds(input: &[u8]) {
    let input = input.get(..BYTES_MAX).unwrap_or(input);
    let (Some(port), Some((first, rest))) = (port(), input.split_first()) else { return };
    // Headers of a request: their length alone.
    let headers = 4_u32.to_le_bytes();
    let bytes = match first {
        b'q' => {
            let mut bytes = logged_in();
            for statement in String::from_utf8_lossy(rest).split(";;") {
                bytes.extend(message(BATCH, &[&headers, utf16(statement).as_slice()].concat()));
            }
            bytes
        }
        b'r' => [logged_in(), message(RPC, &[&headers, rest].concat())].concat(),
        b'm' => match rest.split_first() {
            Some((kind, body)) => [logged_in(), message(*kind, body)].concat(),
            None => return,
        },
        b'l' => [message(PRELOGIN, &[1, 0, 6, 0, 1, 0xFF, 2]), message(LOGIN, rest)].concat(),
        _ => input.to_vec(),
    };
    drop(block_on(exchange(port, &bytes)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_login_is_accepted_and_statements_run() {
        let port = port().unwrap();
        let ask = |sql: &str| {
            let body = [&4_u32.to_le_bytes(), utf16(sql).as_slice()].concat();
            block_on(exchange(port, &[logged_in(), message(BATCH, &body)].concat())).unwrap()
        };
        let holds = |answer: &[u8], text: &str| {
            let text = utf16(text);
            answer.windows(text.len()).any(|window| window == text)
        };
        assert!(holds(&ask("SELECT N'it runs' AS answer"), "it runs"));
    }
}

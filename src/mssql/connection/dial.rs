//! Opening a TCP connection: all addresses of a name are tried.
//!
//! # Design
//!
//! An availability group listener has an address in each subnet and answers on one of them. The others
//! silently drop packets, which would use up the whole connect time-out.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::sleep;

/// Head start of an address over the next one.
/// <https://www.rfc-editor.org/rfc/rfc8305#section-5>
const HEAD_START: Duration = Duration::from_millis(250);
/// Most addresses tried, as in ADO.NET.
const ADDRESSES_MAX: usize = 64;

/// Why no address answered.
#[derive(Debug)]
pub(super) enum DialError {
    /// The name cannot be resolved.
    Lookup(io::Error),
    /// No address answered; the last error.
    Connect(io::Error),
}

/// Connects to the first address of `host` that answers.
pub(super) async fn dial(host: &str, port: u16, all_at_once: bool) -> Result<TcpStream, DialError> {
    let addresses = lookup_host((host, port)).await.map_err(DialError::Lookup)?;
    let addresses = addresses.take(ADDRESSES_MAX).collect();
    let head_start = if all_at_once { Duration::ZERO } else { HEAD_START };
    let tcp = first(addresses, head_start, TcpStream::connect).await.map_err(DialError::Connect)?;
    tcp.set_nodelay(true).map_err(DialError::Connect)?;
    Ok(tcp)
}

/// Starts one address after another, sooner after a failure; the first to answer wins.
async fn first<T, F: Future<Output = io::Result<T>>>(
    addresses: Vec<SocketAddr>,
    head_start: Duration,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T> {
    let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
    let mut waiting = addresses.into_iter();
    let mut running = FuturesUnordered::new();
    loop {
        match waiting.next() {
            Some(address) => running.push(connect(address)),
            None if running.is_empty() => return Err(failed),
            None => {}
        }
        tokio::select! {
            biased;
            Some(answer) = running.next() => match answer {
                Ok(connected) => return Ok(connected),
                Err(error) => failed = error,
            },
            () = sleep(head_start), if waiting.len() > 0 => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Mutex;

    use tokio::time::Instant;

    use super::*;

    /// Milliseconds after which an address answers, or fails.
    type Script = [Result<u64, u64>];

    /// A script, the address that answers first, when each is tried, and the total time.
    type Case = (&'static Script, Option<usize>, &'static [u128], u128);

    async fn run_script(script: &Script, head_start: Duration) -> (Option<usize>, Vec<u128>, u128) {
        let began = Instant::now();
        let starts = Mutex::new(Vec::new());
        let addresses: Vec<SocketAddr> = (0_u16..)
            .take(script.len())
            .map(|index| SocketAddr::from((Ipv4Addr::LOCALHOST, index)))
            .collect();
        let connected = first(addresses, head_start, |address| {
            starts.lock().unwrap().push(began.elapsed().as_millis());
            let index = usize::from(address.port());
            async move {
                match script[index] {
                    Ok(millis) => {
                        sleep(Duration::from_millis(millis)).await;
                        Ok(index)
                    }
                    Err(millis) => {
                        sleep(Duration::from_millis(millis)).await;
                        Err(io::Error::from(io::ErrorKind::ConnectionRefused))
                    }
                }
            }
        })
        .await;
        let starts = starts.into_inner().unwrap();
        (connected.ok(), starts, began.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_address_to_answer_wins_and_all_are_tried() {
        const NEVER: u64 = 1_000_000;
        let cases: [Case; 7] = [
            (&[], None, &[], 0),
            (&[Ok(10), Ok(1)], Some(0), &[0], 10),
            (&[Ok(NEVER), Ok(10)], Some(1), &[0, 250], 260),
            (&[Err(5), Ok(10)], Some(1), &[0, 5], 15),
            (&[Ok(300), Ok(100)], Some(0), &[0, 250], 300),
            (&[Err(5), Err(7)], None, &[0, 5], 12),
            (&[Ok(NEVER), Ok(NEVER), Ok(10)], Some(2), &[0, 250, 500], 510),
        ];
        for (script, expected, starts, millis) in cases {
            let (connected, started, took) = run_script(script, HEAD_START).await;
            assert_eq!((connected, started.as_slice(), took), (expected, starts, millis));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn parallel_dialling_does_not_wait_for_a_silent_address() {
        let silent = Ok(1_000_000);
        let (connected, _, took) =
            run_script(&[silent, silent, silent, Ok(10)], Duration::ZERO).await;
        assert_eq!(connected, Some(3));
        assert!(took < 20, "{took} ms");
    }
}

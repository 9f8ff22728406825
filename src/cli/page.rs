//! The status page of `run --status` and `status --serve`.

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::output::{Exit, Failed, print_message};
use highwater::page::{PageServer, serve};

/// A page that is served until it is closed.
pub(super) struct Page {
    close: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl Page {
    /// Starts to serve, and prints the address: with port 0, the system chooses the port.
    pub(super) async fn open(address: SocketAddr, served: PageServer) -> Result<Self, Failed> {
        let refused = |error| {
            Failed::new(
                Exit::Unavailable,
                format!("cannot serve the status page at {address}: {error}"),
            )
        };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        print_message(&format!("status page: http://{address}/"));
        let (close, closed) = oneshot::channel::<()>();
        let served = tokio::spawn(async move {
            // A dropped sender closes it too.
            let closed = async { closed.await.unwrap_or_default() };
            serve(listener, served, closed).await;
        });
        Ok(Self { close, served })
    }

    /// Stops the page, after its running requests are done.
    pub(super) async fn close(self) {
        self.close.send(()).unwrap_or_default();
        self.served.await.unwrap_or_default();
    }
}

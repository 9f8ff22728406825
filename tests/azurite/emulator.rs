//! The Azurite instance of these tests, with in-memory data, and its connection strings.

mod process;

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use azure_core::hmac::hmac_sha256;
use tokio::sync::OnceCell;

pub(crate) use self::process::{Azurite, options, service};

/// The emulator's own account; its key is public.
pub(crate) const ACCOUNT: &str = "devstoreaccount1";
pub(crate) const KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Long enough for a busy machine: only tests about timeouts wait for it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

impl Azurite {
    /// Returns the instance that all tests of this process share; each uses its own container.
    pub(crate) async fn shared() -> &'static Self {
        static SHARED: OnceCell<Azurite> = OnceCell::const_new();
        SHARED
            .get_or_init(|| async {
                tokio::task::spawn_blocking(Self::start).await.expect("starting does not panic")
            })
            .await
    }

    /// Starts one, and waits until it listens.
    pub(crate) fn start() -> Self {
        Self::start_in_memory(&[])
    }

    /// Starts one with more arguments, such as those for https.
    pub(crate) fn start_in_memory(arguments: &[&OsStr]) -> Self {
        Self::start_with(0, &[&["--inMemoryPersistence".as_ref()], arguments].concat())
    }
}

/// Returns the connection string of the emulator at `address`, as an account with a key.
pub(crate) fn with_key(address: SocketAddr, key: &str) -> String {
    let endpoint = format!("BlobEndpoint=http://{address}/{ACCOUNT}");
    format!("AccountName={ACCOUNT};AccountKey={key};{endpoint}")
}

/// Returns the connection string of the emulator at `address`, as development storage.
pub(crate) fn development(address: SocketAddr) -> String {
    format!("UseDevelopmentStorage=true;DevelopmentStorageProxyUri=http://{address}")
}

/// Returns an unused container name.
pub(crate) fn fresh_container() -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    format!("test-{}", MADE.fetch_add(1, Ordering::Relaxed))
}

/// Returns a connection string with an account signature for the blobs (`b`) or queues (`q`) of the emulator,
/// with the given permissions.
pub(crate) fn with_signature(azurite: &Azurite, service: &str, rights: &str) -> String {
    let (start, end, version) = ("2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z", "2021-08-06");
    let text = format!("{ACCOUNT}\n{rights}\n{service}\nco\n{start}\n{end}\n\n\n{version}\n\n");
    let signature = hmac_sha256(&text, &KEY.into()).unwrap();
    let signature: String = url::form_urlencoded::byte_serialize(signature.as_bytes()).collect();
    let sas =
        format!("sv={version}&ss={service}&srt=co&sp={rights}&st={start}&se={end}&sig={signature}");
    let address = azurite.address();
    format!("BlobEndpoint=http://{address}/{ACCOUNT};SharedAccessSignature={sas}")
}

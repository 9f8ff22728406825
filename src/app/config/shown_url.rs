//! How the URL of a receiver is shown.
//!
//! The path of a webhook is a credential: anyone who knows it can post to the channel. So no output has more of a URL
//! than its origin and a short hash of the path. The hash distinguishes two URLs of one host, and shows that a setting
//! was changed.

use sha2::{Digest as _, Sha256};
use url::Url;

/// Bytes of the hash that are shown: enough to compare by eye, too few to confirm a guess of a random path.
const HASH_BYTES: usize = 3;

/// Returns the scheme, host and port of a URL, and a hash of its path unless that is empty:
/// `https://hooks.contoso.com/…#3f9a1c`. User, query and fragment are omitted.
pub fn shown_url(url: &Url) -> String {
    let origin = url.origin();
    let origin = if origin.is_tuple() {
        origin.ascii_serialization()
    } else {
        format!("{}://…", url.scheme())
    };
    if matches!(url.path(), "" | "/") {
        return origin;
    }
    let hash = Sha256::digest(url.path());
    let hash: Vec<String> =
        hash.iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect();
    format!("{origin}/…#{}", hash.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        shown_url(&Url::parse(text).unwrap())
    }

    #[test]
    fn a_url_is_shown_by_its_origin_and_a_hash_of_its_path() {
        for (url, expected) in [
            ("https://hooks.contoso.com/services/T024/B012/x1Y2", "https://hooks.contoso.com/…#"),
            (
                "https://me:hunter22@contoso.com:8443/a?code=k3y&v=1#part",
                "https://contoso.com:8443/…#",
            ),
            ("http://127.0.0.1:7071/api/orders", "http://127.0.0.1:7071/…#"),
            ("http://[::1]:80/api", "http://[::1]/…#"),
            ("https://contoso.com/?code=k3y", "https://contoso.com"),
            ("https://contoso.com", "https://contoso.com"),
        ] {
            let shown = shown(url);
            assert!(shown.starts_with(expected), "{url}: {shown}");
            for secret in ["services", "T024", "hunter22", "me:", "k3y", "part", "orders"] {
                assert!(!shown.contains(secret), "`{secret}` of {url} in {shown}");
            }
        }
        assert_eq!(shown("mailto:ops@contoso.com"), shown("mailto:ops@contoso.com"));
        assert!(!shown("mailto:s3cret@contoso.com").contains("s3cret"));
    }

    #[test]
    fn the_hash_depends_on_the_path_alone() {
        assert_eq!(
            shown("https://a.contoso.com/x?code=1"),
            shown("https://me@a.contoso.com/x?code=2")
        );
        assert_ne!(shown("https://a.contoso.com/x"), shown("https://a.contoso.com/y"));
    }
}

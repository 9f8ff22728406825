//! Bodies made smaller on the way.

use std::io::{Result, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::task::yield_now;

use super::body::Body;

/// Compressed at one go: some ten milliseconds, so that the renewal of the lease is not held up.
const STEP_BYTES: usize = 1 << 20;

/// Returns a body compressed, of which these are the pieces; the same bytes each time.
///
/// # Errors
///
/// None, as long as memory can be written.
pub(super) async fn gzip(body: &Body) -> Result<Vec<u8>> {
    // Rows of one table are so much alike that the fastest level makes them several times smaller.
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 4), Compression::fast());
    for step in body.pieces().flat_map(|piece| piece.chunks(STEP_BYTES)) {
        encoder.write_all(step)?;
        yield_now().await;
    }
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    #[tokio::test]
    async fn it_unpacks_to_what_it_was_and_is_the_same_each_time() {
        let body: Vec<u8> =
            (0..300_000_u32).flat_map(|n| format!("{{\"n\":{n}}},").into_bytes()).collect();
        assert!(body.len() > 3 * STEP_BYTES);
        let whole = Body::from(body.clone());
        let packed = gzip(&whole).await.unwrap();
        assert!(packed.len() < body.len() / 3, "{} of {}", packed.len(), body.len());
        assert_eq!(packed, gzip(&whole).await.unwrap());
        let mut unpacked = Vec::new();
        GzDecoder::new(packed.as_slice()).read_to_end(&mut unpacked).unwrap();
        assert!(unpacked == body);
    }
}

//! Compression of bodies.

use std::io::{Result, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::task::yield_now;

use super::body::Body;

/// Compressed without a pause: about ten milliseconds, so that lease renewal is not delayed.
const STEP_BYTES: usize = 1 << 20;

/// Returns the compressed body. The output is deterministic.
///
/// # Errors
///
/// None in practice: writing to memory does not fail.
pub(super) async fn gzip(body: &Body) -> Result<Vec<u8>> {
    // Rows of one table are so similar that the fastest level already shrinks them several times.
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
    async fn compression_is_lossless_and_deterministic() {
        let body: Vec<u8> =
            (0..300_000_u32).flat_map(|n| format!("{{\"n\":{n}}},").into_bytes()).collect();
        assert!(body.len() > 3 * STEP_BYTES);
        let plain = Body::from(body.clone());
        let packed = gzip(&plain).await.unwrap();
        assert!(packed.len() < body.len() / 3, "{} of {}", packed.len(), body.len());
        assert_eq!(packed, gzip(&plain).await.unwrap());
        let mut unpacked = Vec::new();
        GzDecoder::new(packed.as_slice()).read_to_end(&mut unpacked).unwrap();
        assert!(unpacked == body);
    }
}

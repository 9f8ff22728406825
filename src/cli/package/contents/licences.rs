//! Licences that a package must include: ours, and those of the linked crates.

use std::io::Read as _;

use flate2::read::GzDecoder;

const OURS: &str = include_str!("../../../../LICENSE");

/// `docs/third-party-notices.txt`, compressed by `.ci/notices.mjs`; uncompressed, it would be a hundredth of
/// the program.
const THIRD_PARTY: &[u8] = include_bytes!("third-party-notices.txt.gz");

/// Returns the files by name.
pub(super) fn licences() -> [(&'static str, Vec<u8>); 2] {
    let mut third_party = Vec::new();
    let unpacked = GzDecoder::new(THIRD_PARTY).read_to_end(&mut third_party);
    unpacked.expect("a test decompresses it");
    [("LICENSE", OURS.into()), ("THIRD-PARTY-NOTICES", third_party)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notices_are_those_of_the_docs() {
        let [_, (_, third_party)] = licences();
        let docs = include_str!("../../../../docs/third-party-notices.txt");
        assert!(third_party == docs.as_bytes(), "run `node .ci/notices.mjs`");
    }
}

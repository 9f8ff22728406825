//! What a user of the package has to be given: our licence, and those of what is linked into the program.

use std::io::Read as _;

use flate2::read::GzDecoder;

const OURS: &str = include_str!("../../../../LICENSE");

/// `docs/third-party-notices.txt`, which `.ci/notices.mjs` writes with it; as it is, it would be a hundredth of
/// the program.
const OF_OTHERS: &[u8] = include_bytes!("third-party-notices.txt.gz");

/// Returns the files by name.
pub(super) fn licences() -> [(&'static str, Vec<u8>); 2] {
    let mut of_others = Vec::new();
    let unpacked = GzDecoder::new(OF_OTHERS).read_to_end(&mut of_others);
    unpacked.expect("it is whole, which a test holds");
    [("LICENSE", OURS.into()), ("THIRD-PARTY-NOTICES", of_others)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notices_are_those_of_the_docs() {
        let [_, (_, of_others)] = licences();
        let docs = include_str!("../../../../docs/third-party-notices.txt");
        assert!(of_others == docs.as_bytes(), "run `node .ci/notices.mjs`");
    }
}

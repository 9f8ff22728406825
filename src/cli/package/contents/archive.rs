//! The zip file of a package: the same bytes for the same entries, whoever makes it and whenever.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::Entry;

/// Level of compression: a package is made once and loaded at every cold start.
const LEVEL: i64 = 9;

/// Writes `entries` in their order.
///
/// What the host unpacks has to have the right to be run, so modes are kept; times are not, since they
/// would tell two packages of the same content apart.
pub(super) fn write(to: &Path, entries: &[Entry]) -> io::Result<()> {
    let mut archive = ZipWriter::new(BufWriter::new(File::create(to)?));
    for entry in entries {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .compression_level(Some(LEVEL))
            .last_modified_time(DateTime::default())
            .unix_permissions(entry.mode);
        archive.start_file(entry.path.as_str(), options)?;
        archive.write_all(&entry.bytes)?;
    }
    archive.finish()?.flush()
}

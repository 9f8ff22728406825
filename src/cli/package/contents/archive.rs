//! The zip file of a package: reproducible, with the same bytes for the same entries.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::Entry;

/// Compression level: a package is built once and loaded at every cold start.
const LEVEL: i64 = 9;

/// Writes `entries` in their order.
///
/// Modes are kept, because the host must be able to execute the program. Times are not, because packages with
/// the same content would differ.
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

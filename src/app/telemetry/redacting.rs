//! Makes log lines fit to be read just before they are written: without the secrets of this process, without characters
//! that change a terminal, and with complete commands.

use std::io::{self, Write};

use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use super::LineForm;
use crate::printable::{printable, printable_json};
use crate::redaction::{redact, redact_json};
use crate::suggestion::{with_settings, with_settings_in_json};

/// Wraps a [`MakeWriter`] and redacts the lines that are written to it.
pub(super) struct Redacting<M>(pub(super) M, pub(super) LineForm);

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for Redacting<M> {
    type Writer = RedactingWriter<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        RedactingWriter(self.0.make_writer(), self.1)
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        RedactingWriter(self.0.make_writer_for(metadata), self.1)
    }
}

/// Expects each line in one piece, as the formatter writes it.
pub(super) struct RedactingWriter<W>(W, LineForm);

impl<W: Write> Write for RedactingWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(line) {
            Ok(text) => {
                let text = match self.1 {
                    LineForm::Json => {
                        printable_json(&redact_json(&with_settings_in_json(text))).into_owned()
                    }
                    LineForm::Text | LineForm::Terminal => {
                        printable(&redact(&with_settings(text))).into_owned()
                    }
                };
                self.0.write_all(text.as_bytes())?;
            }
            // The formatter writes only UTF-8. Drop anything else, since it cannot be redacted.
            Err(_not_text) => {}
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

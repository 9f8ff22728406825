//! Redaction: keeps the secrets of this process out of what it prints, sends and stores.
//!
//! [`hold`] and [`hold_token`] register secrets; [`redact`] and [`redact_json`] replace them in a text, in whatever
//! encoding another program may have written them. Text is redacted in two places:
//!
//! - **Where it leaves the process**: log lines, replies to the Functions host, the status page, exported
//!   telemetry, command output. The guarantee rests on these few sinks.
//! - **Where foreign text comes in**, before it is shortened: errors ([`crate::error::chain`]) and excerpts of
//!   replies ([`excerpt`]). State documents, quarantine entries and journals store this text. A secret that was cut
//!   at the ends of an excerpt is redacted if at least [`SECRET_BYTES_MIN`] bytes of it remain.
//!
//! # Forms
//!
//! A secret is found in any ASCII case: verbatim, percent-encoded, form-encoded, escaped for JSON, XML or HTML, with
//! doubled quotes as in connection strings and SQL, in hexadecimal, and in base64, alone or as part of a longer text
//! (`Basic base64(user:password)`). Escapes may be nested or mixed: a text is unescaped step by step until nothing
//! changes, and each step is searched.
//!
//! # What is not redacted
//!
//! Rows are data: what handlers receive, and what `state export` and `journal export` print, is unchanged. A secret
//! shorter than [`SECRET_BYTES_MIN`] is ignored, since it would match parts of ordinary text.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use crate::printable::printable_char;

/// The replacement for a secret.
pub const MARK: &str = "[redacted]";
/// Shortest secret to search for.
pub const SECRET_BYTES_MIN: usize = 6;
/// Most tokens to remember: each identity has one or two valid ones, and old ones are useless.
const TOKENS_MAX: usize = 32;
/// Most steps of unescaping: a few nested escapes are plausible, more are not.
const LAYERS_MAX: usize = 8;

/// The secrets of this process; `None` if there are none.
static HELD: RwLock<Option<Arc<Secrets>>> = RwLock::new(None);

fn held() -> Option<Arc<Secrets>> {
    HELD.read().unwrap_or_else(PoisonError::into_inner).clone()
}

fn change(change: impl FnOnce(&mut Secrets)) {
    let mut held = HELD.write().unwrap_or_else(PoisonError::into_inner);
    let mut secrets = held.as_deref().cloned().unwrap_or_default();
    change(&mut secrets);
    *held = Some(Arc::new(secrets));
}

/// Registers secrets for the life of the process.
pub fn hold<S: AsRef<str>>(secrets: impl IntoIterator<Item = S>) {
    change(|held| held.add(secrets));
}

/// Registers a secret that is renewed from time to time; only the last few are remembered.
pub fn hold_token(token: &str) {
    if !held().is_some_and(|held| held.tokens.iter().any(|known| known == token)) {
        change(|held| held.add_token(token));
    }
}

/// Returns `text` without the secrets of this process.
pub fn redact(text: &str) -> Cow<'_, str> {
    held().map_or(Cow::Borrowed(text), |held| held.redact(text))
}

/// Returns a text without the secrets of this process; it is copied only if it contains some.
pub fn redacted(text: String) -> String {
    match redact(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(redacted) => redacted,
    }
}

/// Returns JSON text, one document or several, without the secrets of this process; it remains valid JSON.
pub fn redact_json(text: &str) -> Cow<'_, str> {
    held().map_or(Cow::Borrowed(text), |held| held.redact_json(text))
}

/// Returns the start of a foreign text for an error: on one line, without secrets, as it may be
/// printed.
pub fn excerpt(bytes: &[u8], chars_max: usize) -> String {
    let text = redact_cut(bytes);
    text.trim().chars().take(chars_max).map(printable_char).collect()
}

/// Returns the end of a foreign text for an error, like [`excerpt`].
pub fn excerpt_tail(bytes: &[u8], chars_max: usize) -> String {
    let text = redact_cut(bytes);
    let text = text.trim();
    let skipped = text.chars().count().saturating_sub(chars_max);
    let cut = if skipped > 0 { "…" } else { "" };
    cut.chars().chain(text.chars().skip(skipped).map(printable_char)).collect()
}

/// Redacts a text that may have been cut at either end, including partial secrets.
fn redact_cut(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    held().map_or_else(|| text.clone().into_owned(), |held| held.redact_cut(&text))
}

/// Secrets, and the encodings by which they are found.
#[derive(Clone, Default)]
pub struct Secrets {
    lasting: Vec<String>,
    tokens: VecDeque<String>,
    /// Encodings in lower case, by their first two bytes.
    forms: BTreeMap<u16, Vec<Form>>,
    /// A bit for each pair of bytes with which an encoding starts; empty if there are none. Most text contains no
    /// such pair, so searching costs little more than reading it.
    begins: Vec<u64>,
}

#[derive(Clone, PartialEq, Eq)]
struct Form {
    bytes: Vec<u8>,
    /// Whether it is the inner part of a base64 text, which is then removed as a whole.
    is_base64: bool,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Secrets")
            .field("count", &self.lasting.len())
            .finish_non_exhaustive()
    }
}

impl Secrets {
    /// Adds permanent secrets.
    pub fn add<S: AsRef<str>>(&mut self, secrets: impl IntoIterator<Item = S>) {
        for secret in secrets {
            let secret = secret.as_ref().trim();
            if secret.len() >= SECRET_BYTES_MIN && !self.lasting.iter().any(|known| known == secret)
            {
                self.add_forms(secret);
                self.lasting.push(secret.to_owned());
            }
        }
    }

    fn add_token(&mut self, token: &str) {
        if token.len() < SECRET_BYTES_MIN {
            return;
        }
        self.tokens.push_back(token.to_owned());
        if self.tokens.len() <= TOKENS_MAX {
            return self.add_forms(token);
        }
        self.tokens.pop_front();
        self.forms.clear();
        self.begins.clear();
        for secret in self.lasting.iter().chain(&self.tokens).cloned().collect::<Vec<_>>() {
            self.add_forms(&secret);
        }
    }

    fn add_forms(&mut self, secret: &str) {
        let escaped = [
            secret.to_owned(),
            inner_json(secret),
            percent_encoded(secret, false),
            percent_encoded(secret, true),
            entities(secret),
        ];
        for form in &escaped {
            self.add_form(form.as_bytes().to_vec(), false);
            for inner in base64_forms(form.as_bytes()) {
                self.add_form(inner, true);
            }
        }
        self.add_form(fully_unescaped(secret.as_bytes()), false);
        let hex = secret.bytes().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        self.add_form(hex.into_bytes(), false);
    }

    fn add_form(&mut self, mut bytes: Vec<u8>, is_base64: bool) {
        bytes.make_ascii_lowercase();
        let [first, second, ..] = bytes.as_slice() else { return };
        if bytes.len() < SECRET_BYTES_MIN {
            return;
        }
        let begin = u16::from_be_bytes([*first, *second]);
        self.begins.resize(1 << 10, 0);
        if let Some(word) = self.begins.get_mut(usize::from(begin >> 6)) {
            *word |= 1 << (begin & 63);
        }
        let forms = self.forms.entry(begin).or_default();
        let form = Form { bytes, is_base64 };
        if !forms.contains(&form) {
            forms.push(form);
        }
    }

    /// Returns `text` with each secret replaced by [`MARK`].
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        replaced(text, merged(text, self.find_unordered(text)))
    }

    /// Returns `text` with each secret replaced by [`MARK`], including a secret that was cut at the start or end.
    pub fn redact_cut(&self, text: &str) -> String {
        let text = text.trim();
        let mut found = self.find_unordered(text);
        let mut layer = Layer::of(text.as_bytes());
        for _ in 0..LAYERS_MAX {
            let ends = self.cut_ends(&layer.bytes);
            found.extend(ends.iter().filter_map(|range| layer.origin(range)));
            let Some(next) = layer.unescaped(begins_escape) else { break };
            layer = next;
        }
        replaced(text, merged(text, found)).into_owned()
    }

    /// Returns ranges that may be the rest of a secret at the start, and the beginning of one at the end. A cut
    /// escape may precede or follow.
    fn cut_ends(&self, text: &[u8]) -> [Range<usize>; 2] {
        const ESCAPE_BYTES_MAX: usize = 5;
        let lower = text.to_ascii_lowercase();
        let ends = |dropped: &usize| {
            let escape = lower.len().checked_sub(*dropped).and_then(|at| lower.get(at));
            *dropped == 0 || escape.is_some_and(|byte| begins_escape(*byte))
        };
        let ends: Vec<usize> = (0..=ESCAPE_BYTES_MAX).filter(ends).collect();
        let is_of_escape = |byte: &u8| byte.is_ascii_hexdigit() || b"ux#;".contains(byte);
        let starts =
            lower.iter().take(ESCAPE_BYTES_MAX).take_while(|byte| is_of_escape(byte)).count();
        let (mut at_start, mut at_end) = (0, 0);
        for Form { bytes: form, .. } in self.forms.values().flatten() {
            for length in SECRET_BYTES_MIN..form.len() {
                let first = form.get(..length).unwrap_or(form);
                let rest = form.get(form.len() - length..).unwrap_or(form);
                for dropped in 0..=starts {
                    if lower.get(dropped..).is_some_and(|text| text.starts_with(rest)) {
                        at_start = at_start.max(dropped + length);
                    }
                }
                for dropped in &ends {
                    let kept = lower.get(..lower.len().saturating_sub(*dropped));
                    if kept.is_some_and(|text| text.ends_with(first)) {
                        at_end = at_end.max(dropped + length);
                    }
                }
            }
        }
        [0..at_start, lower.len() - at_end..lower.len()]
    }

    /// Returns JSON text with each secret within a string replaced by [`MARK`]. Member names are unchanged: they are
    /// ours, or a table's.
    pub fn redact_json<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.forms.is_empty() {
            return Cow::Borrowed(text);
        }
        let (mut redacted, mut kept_from, mut at) = (String::new(), 0, 0);
        while let Some(literal) = next_literal(text, at) {
            at = literal.end;
            let rest = text.get(at..).unwrap_or_default();
            let quoted = text.get(literal.clone()).unwrap_or_default();
            if rest.trim_start().starts_with(':') {
                continue;
            }
            if let Some(clean) = self.redact_literal(quoted) {
                redacted.push_str(text.get(kept_from..literal.start).unwrap_or_default());
                redacted.push_str(&clean);
                kept_from = at;
            }
        }
        if kept_from == 0 {
            return Cow::Borrowed(text);
        }
        redacted.push_str(text.get(kept_from..).unwrap_or_default());
        Cow::Owned(redacted)
    }

    /// Returns a JSON string, including its quotes, without secrets; `None` if it has none.
    fn redact_literal(&self, quoted: &str) -> Option<String> {
        let text = if quoted.contains('\\') {
            Cow::Owned(serde_json::from_str(quoted).ok()?)
        } else {
            Cow::Borrowed(quoted.trim_matches('"'))
        };
        match self.redact(&text) {
            Cow::Borrowed(_) => None,
            Cow::Owned(clean) => serde_json::to_string(&clean).ok(),
        }
    }

    /// Returns the ranges of secrets.
    fn find_unordered(&self, text: &str) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        if self.forms.is_empty() {
            return found;
        }
        self.search(text.as_bytes(), |range| found.push(range));
        for escapes in [begins_escape, begins_backslash_escape] {
            if text.bytes().any(escapes) {
                self.search_layers(text, escapes, &mut found);
            }
        }
        found
    }

    /// Searches a text while layers of `escapes` are removed one by one.
    fn search_layers(&self, text: &str, escapes: fn(u8) -> bool, found: &mut Vec<Range<usize>>) {
        let mut layer = Layer::of(text.as_bytes());
        for _ in 0..LAYERS_MAX {
            let Some(next) = layer.unescaped(escapes) else { break };
            layer = next;
            self.search(&layer.bytes, |range| found.extend(layer.origin(&range)));
        }
    }

    fn search(&self, bytes: &[u8], mut hit: impl FnMut(Range<usize>)) {
        for (at, pair) in bytes.windows(2).enumerate() {
            let [first, second] = pair else { continue };
            let begin =
                u16::from_be_bytes([first.to_ascii_lowercase(), second.to_ascii_lowercase()]);
            let word = self.begins.get(usize::from(begin >> 6)).copied().unwrap_or_default();
            if word >> (begin & 63) & 1 == 0 {
                continue;
            }
            for Form { bytes: form, is_base64 } in self.forms.get(&begin).into_iter().flatten() {
                let end = at + form.len();
                if !bytes.get(at..end).is_some_and(|part| part.eq_ignore_ascii_case(form)) {
                    continue;
                }
                hit(if *is_base64 { around_base64(bytes, at..end) } else { at..end });
            }
        }
    }
}

/// Returns the ranges in order, without overlap, extended to whole characters.
fn merged(text: &str, mut found: Vec<Range<usize>>) -> Vec<Range<usize>> {
    found.sort_by_key(|range| (range.start, range.end));
    let mut merged: Vec<Range<usize>> = Vec::with_capacity(found.len());
    for range in found {
        match merged.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => merged.push(range),
        }
    }
    for range in &mut merged {
        // A coincidental match may start or end within a character.
        while !text.is_char_boundary(range.start) {
            range.start -= 1;
        }
        while !text.is_char_boundary(range.end) {
            range.end += 1;
        }
    }
    merged
}

/// Returns `text` with each range replaced by [`MARK`].
fn replaced(text: &str, ranges: Vec<Range<usize>>) -> Cow<'_, str> {
    if ranges.is_empty() {
        return Cow::Borrowed(text);
    }
    let (mut redacted, mut kept_from) = (String::with_capacity(text.len()), 0);
    for Range { start, end } in ranges {
        redacted.push_str(text.get(kept_from..start).unwrap_or_default());
        redacted.push_str(MARK);
        kept_from = end;
    }
    redacted.push_str(text.get(kept_from..).unwrap_or_default());
    Cow::Owned(redacted)
}

/// Extends a range to the whole surrounding run of base64.
fn around_base64(bytes: &[u8], inner: Range<usize>) -> Range<usize> {
    let is_base64 = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+/-_=".contains(byte);
    let before = bytes.get(..inner.start).unwrap_or_default();
    let after = bytes.get(inner.end..).unwrap_or_default();
    let start = inner.start - before.iter().rev().take_while(is_base64).count();
    start..inner.end + after.iter().take_while(is_base64).count()
}

/// Returns the next JSON string of `text` from `at`, including its quotes.
fn next_literal(text: &str, at: usize) -> Option<Range<usize>> {
    let start = at + text.get(at..)?.find('"')?;
    let mut is_escaped = false;
    for (offset, byte) in text.as_bytes().get(start + 1..)?.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return Some(start..start + offset + 2),
            _ => {}
        }
    }
    None
}

/// A text after some steps of unescaping.
struct Layer {
    bytes: Vec<u8>,
    /// The range of each byte in the original text.
    origins: Vec<Range<usize>>,
}

impl Layer {
    fn of(text: &[u8]) -> Self {
        Self { bytes: text.to_vec(), origins: (0..text.len()).map(|at| at..at + 1).collect() }
    }

    fn origin(&self, range: &Range<usize>) -> Option<Range<usize>> {
        let first = self.origins.get(range.start)?;
        let last = self.origins.get(range.end.checked_sub(1)?)?;
        Some(first.start..last.end)
    }

    /// Returns the text after one more step; `None` if nothing is left to unescape.
    fn unescaped(&self, escapes: fn(u8) -> bool) -> Option<Self> {
        let mut next = Self { bytes: Vec::new(), origins: Vec::new() };
        let (mut at, mut has_changed) = (0, false);
        while let Some(rest) = self.bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let unit = rest.first().filter(|first| escapes(**first)).and_then(|_| unescape(rest));
            let (decoded, length) = match unit {
                Some(unit) => {
                    has_changed = true;
                    unit
                }
                None => (rest.first().copied().into_iter().collect(), 1),
            };
            let origin = self.origin(&(at..at + length))?;
            next.origins.extend(decoded.iter().map(|_| origin.clone()));
            next.bytes.extend(decoded);
            at += length;
        }
        has_changed.then_some(next)
    }
}

fn begins_escape(byte: u8) -> bool {
    matches!(byte, b'%' | b'+' | b'\\' | b'&' | b'\'' | b'"' | b']' | b'}' | 0)
}

/// A secret may itself look like an escape of another kind, which must not be undone together with the surrounding
/// JSON escapes: the result of `%5c` would become part of the following escape.
fn begins_backslash_escape(byte: u8) -> bool {
    byte == b'\\'
}

/// Reads one escape at the start of `bytes`: its meaning, and its length.
fn unescape(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (first, rest) = bytes.split_first().filter(|(first, _)| begins_escape(**first))?;
    match (*first, rest) {
        (b'+', _) => Some((vec![b' '], 1)),
        // UTF-16 text, read as single bytes.
        (0, _) => Some((Vec::new(), 1)),
        (b'\'' | b'"' | b']' | b'}', [second, ..]) => (first == second).then(|| (vec![*first], 2)),
        (b'%', _) => Some((vec![u8::try_from(number(rest.get(..2)?, 16)?).ok()?], 3)),
        (b'\\', [b'u', ..]) => unescape_unicode(bytes),
        (b'\\', [b'x', digits @ ..]) => {
            Some((vec![u8::try_from(number(digits.get(..2)?, 16)?).ok()?], 4))
        }
        (b'\\', [escaped, ..]) => {
            let byte = match escaped {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'b' => 8,
                b'f' => 12,
                b'"' | b'\'' | b'\\' | b'/' => *escaped,
                _ => return None,
            };
            Some((vec![byte], 2))
        }
        (b'&', _) => unescape_entity(bytes),
        _ => None,
    }
}

fn unescape_unicode(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    let unit = |at: usize| {
        let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
        number(digits, 16)
    };
    let first = unit(0)?;
    if let Some(c) = char::from_u32(first) {
        return Some((utf8(c), 6));
    }
    let pair = [u16::try_from(first).ok()?, u16::try_from(unit(6)?).ok()?];
    let c = char::decode_utf16(pair).next()?.ok()?;
    Some((utf8(c), 12))
}

fn unescape_entity(bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
    /// Longest name or number of an entity.
    const NAME_MAX: usize = 10;
    let end = bytes.iter().take(NAME_MAX).position(|byte| *byte == b';')?;
    let c = match bytes.get(1..end)? {
        b"amp" => '&',
        b"lt" => '<',
        b"gt" => '>',
        b"quot" => '"',
        b"apos" => '\'',
        [b'#', b'x' | b'X', digits @ ..] => char::from_u32(number(digits, 16)?)?,
        [b'#', digits @ ..] => char::from_u32(number(digits, 10)?)?,
        _ => return None,
    };
    Some((utf8(c), end + 1))
}

fn utf8(c: char) -> Vec<u8> {
    c.to_string().into_bytes()
}

fn number(digits: &[u8], radix: u32) -> Option<u32> {
    let text = std::str::from_utf8(digits).ok()?;
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_plain.then(|| u32::from_str_radix(text, radix).ok()).flatten()
}

fn fully_unescaped(bytes: &[u8]) -> Vec<u8> {
    let mut layer = Layer::of(bytes);
    for _ in 0..LAYERS_MAX {
        let Some(next) = layer.unescaped(begins_escape) else { break };
        layer = next;
    }
    layer.bytes
}

/// Returns the content of a JSON string, without its quotes.
fn inner_json(text: &str) -> String {
    let quoted = serde_json::to_string(text).unwrap_or_default();
    let inner = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    inner.unwrap_or_default().to_owned()
}

fn percent_encoded(text: &str, is_form: bool) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        b' ' if is_form => "+".to_owned(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

fn entities(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

/// Returns the common part of the base64 of all texts that contain `bytes`, for each of the three offsets of `bytes`
/// in a group of three, in both alphabets.
fn base64_forms(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut forms = Vec::new();
    for before in 0..3 {
        let padded = [vec![0; before], bytes.to_vec()].concat();
        let encoded = STANDARD_NO_PAD.encode(&padded).into_bytes();
        // Characters at the ends also encode bits of the surrounding text.
        let (start, end) = ((before * 8).div_ceil(6), padded.len() * 8 / 6);
        let Some(inner) = encoded.get(start..end) else { continue };
        let replaced = |byte: &u8| match byte {
            b'+' => b'-',
            b'/' => b'_',
            _ => *byte,
        };
        forms.push(inner.iter().map(replaced).collect());
        // Unescaping turns `+` into a space.
        forms.push(fully_unescaped(inner));
        forms.push(inner.to_vec());
    }
    forms
}

/// Removes what follows `?` or `sig=` up to the next whitespace, and what looks like a token, and redacts the rest.
/// For texts of credentials and HTTP clients, which repeat addresses and answers.
pub fn scrub(text: &str) -> String {
    let scrubbed = |word: &str| {
        if let Some(kept) = before_token(word) {
            return format!("{kept}{MARK}");
        }
        let from = [word.find('?'), word.to_ascii_lowercase().find("sig=")].into_iter().flatten();
        match from.min().and_then(|at| word.split_at_checked(at)) {
            Some((kept, cut)) if cut.contains('=') => {
                let closing = cut.trim_end_matches([')', ':', ',', '.', '"']).len();
                format!("{kept}{MARK}{}", cut.get(closing..).unwrap_or_default())
            }
            Some(_) | None => word.to_owned(),
        }
    };
    let text = redact(text);
    text.split_whitespace().map(scrubbed).collect::<Vec<_>>().join(" ")
}

/// Shortest rest of a word that may be a token.
const TOKEN_MIN: usize = 16;

/// Returns the part of a word before something that looks like a token; `None` if nothing does.
fn before_token(word: &str) -> Option<&str> {
    // The start of a token's JSON header in base64.
    let (before, token) = word.split_once("eyJ")?;
    (token.len() >= TOKEN_MIN).then_some(before)
}

/// Returns what kind of secret a text looks like; `None` if it does not look like one.
///
/// A random word or number cannot be distinguished from a typo, so this is only a second line of defence.
pub fn looks_like(text: &str) -> Option<&'static str> {
    /// Prefixes with which services mark their keys.
    const MARKS: [&str; 8] =
        ["ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "sk_live_", "sk_test_", "xoxb-"];
    let lower = text.to_ascii_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
    let is_list = lower.contains('=') && lower.contains([';', '?']);
    if is_list || has(&["key=", "password=", "pwd=", "secret=", "sig=", "signature="]) {
        return Some("a connection string or an address with a key");
    }
    if has(&["whsec_"]) {
        return Some("a signing secret");
    }
    if MARKS.iter().any(|mark| lower.starts_with(mark)) {
        return Some("a key");
    }
    if has(&["private key"]) {
        return Some("a private key");
    }
    if text.split_whitespace().any(|word| before_token(word).is_some())
        || has(&["bearer ", "basic "])
    {
        return Some("a token");
    }
    let words = || text.split(|c: char| c.is_whitespace() || c == ',' || c == ';');
    if words().any(is_random) {
        return Some("a key");
    }
    if words().any(is_guid) {
        return Some("a GUID, which may be a key");
    }
    words().any(is_password).then_some("a password")
}

/// Whether a text is a GUID with hyphens: some services use GUIDs as keys.
pub fn is_guid(text: &str) -> bool {
    text.split('-').map(str::len).eq([8, 4, 4, 4, 12])
        && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

/// Whether a text without whitespace was most likely generated as a key: at least 32 characters of base64 or
/// hexadecimal, with more switches between letters and digits than in any name.
pub fn is_random(text: &str) -> bool {
    /// Function keys have 54 characters or more, application secrets 40, GUIDs without hyphens 32.
    const CHARS_MIN: usize = 32;
    let body = text.trim_end_matches('=');
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/-_~.".contains(&byte);
    if body.len() < CHARS_MIN || !body.bytes().all(is_base64) {
        return false;
    }
    let class = |byte: u8| match byte {
        b'0'..=b'9' => 0,
        b'a'..=b'z' => 1,
        b'A'..=b'Z' => 2,
        _ => 3,
    };
    let classes: Vec<i32> = body.bytes().map(class).collect();
    let digits = classes.iter().filter(|class| **class == 0).count();
    let separators = classes.iter().filter(|class| **class == 3).count();
    let changes = classes.windows(2).filter(|pair| pair.first() != pair.last()).count();
    // Names and paths have many separators, keys have few.
    !is_guid(body) && digits > 0 && separators * 8 < body.len() && changes * 3 >= body.len()
}

/// Whether a word follows password rules: both cases, a digit, and a symbol that names and numbers do not contain.
fn is_password(word: &str) -> bool {
    /// Shortest password that policies allow.
    const CHARS_MIN: usize = 8;
    let has = |test: fn(char) -> bool| word.chars().any(test);
    word.chars().count() >= CHARS_MIN
        && has(char::is_lowercase)
        && has(char::is_uppercase)
        && has(|c| c.is_ascii_digit())
        && has(|c| "!#$%&*+?@^~".contains(c))
}

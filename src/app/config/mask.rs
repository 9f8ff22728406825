//! `SOURCE__MASK`: columns to leave out or to hash.

use highwater_mssql::source::{Mask, MaskMethod};
use secrecy::SecretSlice;

use super::handler::{read_named, secret_name};
use super::parse::{self, Expected};
use super::read::Reader;
use super::settings;

/// Shortest secret: a shorter one could be guessed together with the values.
const SECRET_BYTES_MIN: usize = 16;

/// Methods by their names in settings.
const METHODS: [(&str, MaskMethod); 3] = [
    (MaskMethod::Drop.as_str(), MaskMethod::Drop),
    (MaskMethod::Sha256.as_str(), MaskMethod::Sha256),
    (MaskMethod::HmacSha256.as_str(), MaskMethod::HmacSha256),
];

/// Other settings of the source that name columns.
pub(super) struct Named<'a> {
    /// Columns that positions and operations depend on.
    pub(super) needed: Vec<&'a str>,
    /// `SOURCE__COLUMNS`.
    pub(super) listed: &'a [String],
}

/// Reads the mask; `None` after a mistake.
pub(super) fn read(reader: &mut Reader<'_>, segment: &str, named: &Named<'_>) -> Option<Mask> {
    let at = Some(segment);
    let is_set = reader.text(&settings::SOURCE_MASK.name_for(at)).is_some();
    let columns = reader.read_if_set(&settings::SOURCE_MASK, at, |text| columns(text, named));
    let is_keyed = |columns: &Vec<(String, MaskMethod)>| {
        columns.iter().any(|(_, method)| *method == MaskMethod::HmacSha256)
    };
    if is_set && columns.is_none() {
        return None;
    }
    let setting = &settings::SOURCE_MASK_SECRET;
    if columns.as_ref().is_some_and(is_keyed) {
        let name = reader.read(setting, at, secret_name)?;
        let secret = read_named(reader, &name, setting, at, secret)?;
        return Mask::new(columns?, Some(secret)).ok();
    }
    let unused = |_: &str| {
        Err(Expected::none(
            "nothing, since no column of `SOURCE__MASK` has the method `hmac-sha256`",
        )
        .hint("remove it, or hash a column with `hmac-sha256`"))
    };
    reader.read_if_set(setting, at, unused).unwrap_or(());
    Mask::new(columns.unwrap_or_default(), None).ok()
}

fn columns(text: &str, named: &Named<'_>) -> Result<Vec<(String, MaskMethod)>, Expected> {
    let read = parse::column_words(text)?;
    let is_same = |one: &str, other: &str| one.trim().to_lowercase() == other.to_lowercase();
    let mut columns: Vec<(String, MaskMethod)> = Vec::new();
    for (name, word) in read {
        let method = parse::one_of(&METHODS)(&word).map_err(|expected| {
            let what = format!("{} after `{name}:`", expected.what);
            Expected { what, ..expected }
        })?;
        if named.needed.iter().any(|needed| is_same(needed, &name)) {
            let what = "columns that are neither key, cursor nor soft-delete column";
            return Err(Expected::new(what).hint(format!("remove `{name}` from the list")));
        }
        let is_listed = named.listed.iter().any(|listed| is_same(listed, &name));
        if method == MaskMethod::Drop && is_listed {
            let what = format!("no `{name}:drop`, since `SOURCE__COLUMNS` lists that column");
            return Err(Expected::new(what).hint("remove the column from one of the two"));
        }
        columns.push((name, method));
    }
    Ok(columns)
}

fn secret(text: &str) -> Result<SecretSlice<u8>, Expected> {
    let fits = text.len() >= SECRET_BYTES_MIN;
    fits.then(|| SecretSlice::from(text.as_bytes().to_vec()))
        .ok_or_else(|| Expected::new(format!("at least {SECRET_BYTES_MIN} random characters")))
}

//! Masked columns: left out, or replaced by a hash.
//!
//! # Design
//!
//! Columns are masked in the reader, so nothing that delivers, stores or logs rows ever has their values. A column
//! that is left out is not even selected. Hashes are calculated here and not by the server, because the secret would
//! otherwise be part of statements, which servers trace.
//!
//! The hashed bytes are those of the delivered text (`docs/reference/types.md`), so that a receiver that knows a value
//! can calculate its hash without knowing anything else about the column.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use highwater_engine::value::{Value, push_null};
use hmac::{Hmac, Mac as _};
use secrecy::{ExposeSecret as _, SecretSlice};
use sha2::{Digest as _, Sha256};

use super::describe::Column;

/// The columns to mask.
#[derive(Clone, Debug, Default)]
pub struct Mask {
    /// Columns, each with its method.
    columns: Vec<(String, MaskMethod)>,
    /// The secret of [`MaskMethod::HmacSha256`]; `Some` if a column has that method.
    secret: Option<SecretSlice<u8>>,
}

/// A column has the method [`MaskMethod::HmacSha256`], but there is no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "column `{column}` is masked with `hmac-sha256`, which needs a secret: set `SOURCE__MASK_SECRET`"
)]
pub struct NoMaskSecret {
    /// The column.
    pub column: String,
}

impl Mask {
    /// Returns a mask of columns, each with its method.
    ///
    /// # Errors
    ///
    /// [`NoMaskSecret`] if a method needs a secret, and there is none or an empty one.
    pub fn new(
        columns: Vec<(String, MaskMethod)>,
        secret: Option<SecretSlice<u8>>,
    ) -> Result<Self, NoMaskSecret> {
        let has_secret = secret.as_ref().is_some_and(|secret| !secret.expose_secret().is_empty());
        let keyed = columns.iter().find(|(_, method)| *method == MaskMethod::HmacSha256);
        match keyed {
            Some((column, _)) if !has_secret => Err(NoMaskSecret { column: column.clone() }),
            Some(_) | None => Ok(Self { columns, secret }),
        }
    }

    /// Returns the columns, each with its method.
    pub fn columns(&self) -> &[(String, MaskMethod)] {
        &self.columns
    }

    /// Returns the secret of [`MaskMethod::HmacSha256`].
    pub fn secret(&self) -> Option<&SecretSlice<u8>> {
        self.secret.as_ref()
    }
}

/// What happens to the values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskMethod {
    /// The column is left out.
    Drop,
    /// Each value is replaced by its SHA-256.
    Sha256,
    /// Each value is replaced by its HMAC with SHA-256.
    HmacSha256,
}

impl MaskMethod {
    /// Returns the method's name in settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Sha256 => "sha256",
            Self::HmacSha256 => "hmac-sha256",
        }
    }

    /// Returns the name of the hash for display; `None` if the column is left out.
    pub(super) fn hash_name(self) -> Option<&'static str> {
        match self {
            Self::Drop => None,
            Self::Sha256 => Some("SHA-256"),
            Self::HmacSha256 => Some("HMAC-SHA-256"),
        }
    }
}

/// The hashes of the columns of a row.
#[derive(Debug)]
pub(super) struct Hashes {
    /// The method of each column that is read; `None` for columns that are delivered as they are.
    methods: Vec<Option<MaskMethod>>,
    secret: Option<SecretSlice<u8>>,
}

impl Hashes {
    /// Returns the hashes for the columns `read`; `None` if none of them is hashed.
    pub(super) fn of(
        mask: &Mask,
        masked: &[(Column, MaskMethod)],
        read: &[Column],
    ) -> Option<Self> {
        let method = |column: &Column| {
            let method = masked.iter().find(|(other, _)| other == column)?.1;
            method.hash_name().map(|_| method)
        };
        let methods: Vec<Option<MaskMethod>> = read.iter().map(method).collect();
        let is_any = methods.iter().any(Option::is_some);
        is_any.then(|| Self { methods, secret: mask.secret.clone() })
    }

    /// Returns the method of each column that is read.
    pub(super) fn methods(&self) -> &[Option<MaskMethod>] {
        &self.methods
    }

    /// Writes the hash of a value as JSON, and `null` for `NULL`.
    pub(super) fn push(&self, json: &mut String, method: MaskMethod, value: &Value) {
        let Some(bytes) = canonical(value) else { return push_null(json) };
        let hash = match (method, &self.secret) {
            (MaskMethod::HmacSha256, Some(secret)) => {
                Hmac::<Sha256>::new_from_slice(secret.expose_secret()).ok().map(|mut mac| {
                    mac.update(&bytes);
                    mac.finalize().into_bytes()
                })
            }
            (MaskMethod::Sha256, _) => Some(Sha256::digest(&bytes)),
            // `Mask::new` rejects a missing secret, and a secret of any length is valid.
            (MaskMethod::HmacSha256 | MaskMethod::Drop, _) => None,
        };
        let Some(hash) = hash else { return push_null(json) };
        json.push('"');
        for byte in hash {
            for digit in [byte >> 4, byte & 15] {
                json.push(char::from_digit(digit.into(), 16).unwrap_or_default());
            }
        }
        json.push('"');
    }
}

/// Returns the bytes to hash: those of the delivered text; `None` for `NULL`.
fn canonical(value: &Value) -> Option<Vec<u8>> {
    Some(match value {
        Value::Null => return None,
        Value::Text(text) => text.clone().into_bytes(),
        Value::Bytes(bytes) => STANDARD.encode(bytes).into_bytes(),
        Value::HalfPair(units) => generalized_utf8(units),
        Value::Bool(_) | Value::Int(_) | Value::Real(_) | Value::Float(_) => {
            let mut json = String::new();
            value.push_json(&mut json);
            json.trim_matches('"').to_owned().into_bytes()
        }
    })
}

/// Returns UTF-8, with each unpaired surrogate in the three bytes that its number would have.
fn generalized_utf8(units: &[u16]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for unit in char::decode_utf16(units.iter().copied()) {
        match unit {
            Ok(character) => {
                bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
            Err(half) => {
                let unit = half.unpaired_surrogate();
                let [high, low] = unit.to_be_bytes();
                let last = low & 0x3F;
                let middle = (high & 0x0F) << 2 | low >> 6;
                bytes.extend_from_slice(&[0xE0 | high >> 4, 0x80 | middle, 0x80 | last]);
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(method: MaskMethod, secret: Option<&[u8]>, value: &Value) -> String {
        let hashes =
            Hashes { methods: Vec::new(), secret: secret.map(|secret| secret.to_vec().into()) };
        let mut json = String::new();
        hashes.push(&mut json, method, value);
        json
    }

    #[test]
    fn hashes_are_those_of_the_standards() {
        let text = |text: &str| Value::Text(text.to_owned());
        // FIPS 180-4, and test case 2 of RFC 4231.
        assert_eq!(
            hash(MaskMethod::Sha256, None, &text("abc")),
            "\"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\""
        );
        assert_eq!(
            hash(MaskMethod::HmacSha256, Some(b"Jefe"), &text("what do ya want for nothing?")),
            "\"5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843\""
        );
    }

    #[test]
    fn a_method_with_a_secret_cannot_be_without_it() {
        let columns = |method| vec![("a".to_owned(), MaskMethod::Drop), ("b".to_owned(), method)];
        let keyed = || columns(MaskMethod::HmacSha256);
        for secret in [None, Some(Vec::new().into())] {
            let error = Mask::new(keyed(), secret).unwrap_err();
            assert_eq!(error, NoMaskSecret { column: "b".to_owned() });
        }
        let mask = Mask::new(keyed(), Some(b"secret".to_vec().into())).unwrap();
        assert_eq!(mask.columns(), keyed());
        assert!(Mask::new(columns(MaskMethod::Sha256), None).unwrap().secret().is_none());
    }

    #[test]
    fn null_stays_null_and_no_value_is_ever_delivered_without_its_hash() {
        for method in [MaskMethod::Sha256, MaskMethod::HmacSha256] {
            assert_eq!(hash(method, Some(b"secret"), &Value::Null), "null");
        }
        assert_eq!(hash(MaskMethod::HmacSha256, None, &Value::Int(1)), "null");
    }

    #[test]
    fn the_delivered_text_is_hashed() {
        for (value, expected) in [
            (Value::Int(-17), "-17"),
            (Value::Bool(true), "true"),
            (Value::Float(0.5), "0.5"),
            (Value::Float(f64::NAN), "NaN"),
            (Value::Real(0.1), "0.1"),
            (Value::Bytes(vec![0, 255]), "AP8="),
            (Value::Text("ä \"x\" ".to_owned()), "ä \"x\" "),
        ] {
            assert_eq!(canonical(&value).unwrap(), expected.as_bytes());
        }
        // As Python's `surrogatepass`.
        let half = Value::HalfPair(vec![0x61, 0xD83D, 0x62]);
        assert_eq!(canonical(&half).unwrap(), b"a\xED\xA0\xBDb");
    }
}

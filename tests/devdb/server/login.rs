//! PRELOGIN and LOGIN7: the client's options and credentials, and the responses.

use std::io;

use crate::{
    types::SqlError,
    wire::{
        COLLATION, Reader, invalid,
        tokens::{self, change},
        utf16,
    },
};

/// The extension of LOGIN7 that carries an access token.
const FEDERATED_AUTHENTICATION: u8 = 2;

/// The bit of the LOGIN7 type flags that requests a readable secondary.
const READ_ONLY_INTENT: u8 = 0x20;

/// Encryption levels of PRELOGIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encryption {
    /// For the login only.
    Off,
    /// For everything.
    On,
    NotSupported,
    /// For everything, and no connection without.
    Required,
}

impl Encryption {
    fn byte(self) -> u8 {
        match self {
            Self::Off => 0,
            Self::On => 1,
            Self::NotSupported => 2,
            Self::Required => 3,
        }
    }
}

/// Body of the response to PRELOGIN: version 16.0 and an encryption level.
pub(crate) fn prelogin_answer(encryption: Encryption) -> Vec<u8> {
    let mut out = vec![0, 0, 11, 0, 6, 1, 0, 17, 0, 1, 0xFF];
    out.extend([16, 0, 0x0F, 0xA0, 0, 0, encryption.byte()]);
    out
}

/// The encryption level that a client requests; none means not supported.
pub(crate) fn wanted_encryption(prelogin: &[u8]) -> Encryption {
    let (options, _) = prelogin.as_chunks::<5>();
    let option = options.iter().take_while(|[token, ..]| *token != 0xFF);
    let level = option.filter(|[token, ..]| *token == 1).find_map(|[_, high, low, ..]| {
        prelogin.get(usize::from(u16::from_be_bytes([*high, *low])))
    });
    match level {
        Some(0) => Encryption::Off,
        Some(1) => Encryption::On,
        Some(3) => Encryption::Required,
        Some(_) | None => Encryption::NotSupported,
    }
}

/// The content of LOGIN7.
#[derive(Debug)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
    pub(crate) database: String,
    pub(crate) application: String,
    pub(crate) read_only: bool,
    pub(crate) packet_bytes: usize,
    /// The access token, if one was sent.
    pub(crate) token: Option<String>,
}

impl Login {
    /// Reads LOGIN7.
    ///
    /// # Errors
    /// Fails for a message that is too short or points outside itself.
    pub(crate) fn parse(message: &[u8]) -> io::Result<Self> {
        let from = |at: usize| Reader::new(message.get(at..).unwrap_or_default());
        let field = |at: usize| -> io::Result<&[u8]> {
            let mut reader = from(at);
            let offset = usize::from(reader.u16()?);
            let length = usize::from(reader.u16()?) * 2;
            message.get(offset..offset + length).ok_or_else(|| invalid("login is too short"))
        };
        let clear = |byte: &u8| (byte ^ 0xA5).rotate_left(4);
        let password: Vec<u8> = field(44)?.iter().map(clear).collect();
        let packet_bytes = usize::try_from(from(8).u32()?).map_err(io::Error::other)?;
        Ok(Self {
            user: utf16(field(40)?),
            password: utf16(&password),
            database: utf16(field(68)?),
            application: utf16(field(48)?),
            read_only: from(26).u8()? & READ_ONLY_INTENT != 0,
            packet_bytes: packet_bytes.clamp(512, 32_767),
            token: if from(27).u8()? & 0x10 == 0 { None } else { token(message)? },
        })
    }
}

/// Reads the access token among the extensions of LOGIN7.
fn token(message: &[u8]) -> io::Result<Option<String>> {
    let from = |at: usize| Reader::new(message.get(at..).unwrap_or_default());
    let place = from(usize::from(from(56).u16()?)).u32()?;
    let mut features = from(usize::try_from(place).map_err(io::Error::other)?);
    loop {
        let feature = features.u8()?;
        if feature == 0xFF {
            return Ok(None);
        }
        let length = usize::try_from(features.u32()?).map_err(io::Error::other)?;
        let mut data = Reader::new(features.take(length)?);
        if feature == FEDERATED_AUTHENTICATION {
            // One byte encodes the kind of token, and whether a nonce follows it.
            data.u8()?;
            let length = usize::try_from(data.u32()?).map_err(io::Error::other)?;
            return Ok(Some(utf16(data.take(length)?)));
        }
    }
}

/// Body of the response that accepts or redirects a client.
pub(crate) fn accepted(login: &Login, route: Option<(&str, u16)>) -> Vec<u8> {
    let mut out = Vec::new();
    tokens::environment_text(&mut out, change::DATABASE, &login.database, "master");
    let collation = [&[5], &COLLATION[..]].concat();
    tokens::environment(&mut out, change::COLLATION, &collation, &[0]);
    tokens::login_acknowledged(&mut out);
    let packet_bytes = login.packet_bytes.to_string();
    tokens::environment_text(&mut out, change::PACKET_SIZE, &packet_bytes, "4096");
    if let Some((host, port)) = route {
        tokens::routing(&mut out, host, port);
    }
    tokens::done(&mut out, tokens::DONE, 0, 0);
    out
}

/// The error of a login with a wrong password or token.
pub(crate) fn wrong(login: &Login) -> SqlError {
    let user = if login.token.is_some() { "<token-identified principal>" } else { &login.user };
    SqlError::new(18456, 14, format!("Login failed for user '{user}'."))
}

/// Body of the response that rejects a client.
pub(crate) fn refused(error: &SqlError) -> Vec<u8> {
    let mut out = Vec::new();
    tokens::error(&mut out, error);
    tokens::done(&mut out, tokens::DONE, tokens::ERROR, 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encryption_option_is_found() {
        assert_eq!(wanted_encryption(&prelogin_answer(Encryption::Required)), Encryption::Required);
        assert_eq!(wanted_encryption(&prelogin_answer(Encryption::Off)), Encryption::Off);
        assert_eq!(wanted_encryption(&[0xFF]), Encryption::NotSupported);
        assert_eq!(wanted_encryption(&[1, 0xFF, 0xFF, 0, 1]), Encryption::NotSupported);
    }

    #[test]
    fn a_short_login_is_an_error() {
        for length in [0, 30, 50, 93] {
            Login::parse(&vec![0x7F; length]).unwrap_err();
        }
    }
}

//! How values become columns and columns values: text, numbers, and nothing else.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use chrono::DateTime;
use drawbridge_auth::records::{SecretHash, Time};
use serde_json::Value;
use sqlx::any::AnyRow;
use sqlx::{Any, Decode, Row as _, Type};

use crate::error::garbled;

/// The columns of a row, one after the other.
pub(crate) struct Columns<'r> {
    row: &'r AnyRow,
    next: usize,
}

impl<'r> Columns<'r> {
    pub(crate) fn of(row: &'r AnyRow) -> Self {
        Self { row, next: 0 }
    }

    /// The columns from this one on.
    pub(crate) fn skip(row: &'r AnyRow, next: usize) -> Self {
        Self { row, next }
    }

    fn take<T: Decode<'r, Any> + Type<Any>>(&mut self) -> sqlx::Result<T> {
        let value = self.row.try_get(self.next)?;
        self.next += 1;
        Ok(value)
    }

    pub(crate) fn text(&mut self) -> sqlx::Result<String> {
        self.take()
    }

    pub(crate) fn maybe_text(&mut self) -> sqlx::Result<Option<String>> {
        self.take()
    }

    pub(crate) fn number(&mut self) -> sqlx::Result<i64> {
        self.take()
    }

    pub(crate) fn time(&mut self) -> sqlx::Result<Time> {
        time(self.take()?)
    }

    pub(crate) fn maybe_time(&mut self) -> sqlx::Result<Option<Time>> {
        self.take::<Option<i64>>()?.map(time).transpose()
    }

    pub(crate) fn set(&mut self) -> sqlx::Result<BTreeSet<String>> {
        serde_json::from_str(self.take()?).map_err(|_| garbled("a set"))
    }

    pub(crate) fn json(&mut self) -> sqlx::Result<Value> {
        serde_json::from_str(self.take()?).map_err(|_| garbled("JSON"))
    }

    pub(crate) fn bytes<const N: usize>(&mut self) -> sqlx::Result<[u8; N]> {
        bytes(self.take()?)
    }

    pub(crate) fn maybe_hash(&mut self) -> sqlx::Result<Option<SecretHash>> {
        self.take::<Option<&str>>()?.map(|text| Ok(SecretHash(bytes(text)?))).transpose()
    }
}

/// Microseconds since 1970.
pub(crate) fn micros(time: Time) -> i64 {
    time.timestamp_micros()
}

fn time(micros: i64) -> sqlx::Result<Time> {
    DateTime::from_timestamp_micros(micros).ok_or_else(|| garbled("a time"))
}

/// JSON. The members of a set are in order, so equal sets have equal texts.
pub(crate) fn json(value: &impl serde::Serialize) -> sqlx::Result<String> {
    serde_json::to_string(value).map_err(|_| sqlx::Error::Encode("it has no JSON form".into()))
}

/// Hexadecimal form.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of a hexadecimal form.
pub(crate) fn unhex(text: &str) -> sqlx::Result<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    pairs.collect::<Option<_>>().ok_or_else(|| garbled("a hexadecimal form"))
}

fn bytes<const N: usize>(text: &str) -> sqlx::Result<[u8; N]> {
    unhex(text)?.try_into().map_err(|_| garbled("a hash"))
}

/// Whether there can be a record with this id. PostgreSQL refuses texts with a zero byte, even to look for them.
pub(crate) fn may_exist(id: &str) -> bool {
    !id.contains('\0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_their_hexadecimal_form() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(&hex(&all)).ok(), Some(all));
        for bad in ["0", "0g", "xyz", "äö"] {
            assert!(unhex(bad).is_err(), "{bad}");
        }
        assert!(bytes::<2>("0102").is_ok() && bytes::<2>("01").is_err());
    }
}

//! Values that must not reach a log, a message or a `Debug` output.

use std::fmt;
use std::io::Read as _;
use std::path::Path;

/// The largest secret file that is read.
const MAX_SECRET_BYTES: u64 = 64 << 10;

/// A value that is used but never shown: its `Debug` says only that it is there.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself, for the one place that has to send it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

/// The text of a secret file without the line end that editors and `echo` add.
pub(super) fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_SECRET_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_SECRET_BYTES {
        return Err(std::io::Error::other(format!("larger than {MAX_SECRET_BYTES} bytes")));
    }
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    Ok(text)
}

/// One key of the ring that seals session ids and other handles.
#[derive(Clone, PartialEq, Eq)]
pub struct SealKey {
    /// The name that a sealed handle carries, so that the right key opens it.
    pub id: String,
    key: [u8; 32],
}

impl SealKey {
    /// A key of 32 bytes under a name.
    pub fn new(id: impl Into<String>, key: [u8; 32]) -> Self {
        Self { id: id.into(), key }
    }

    /// The key itself.
    pub fn key(&self) -> &[u8; 32] {
        &self.key
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealKey").field("id", &self.id).finish_non_exhaustive()
    }
}

//! Values that must not reach a log, a message or a `Debug` output.

use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

/// The largest secret file that is read.
const MAX_SECRET_BYTES: u64 = 64 << 10;

/// A value that is used but never shown: its `Debug` says only that it is there.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    value: String,
    /// Where it is kept, if that is a file.
    file: Option<PathBuf>,
}

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self { value: value.into(), file: None }
    }

    /// A value that was read from a file.
    pub(super) fn of_file(value: impl Into<String>, file: PathBuf) -> Self {
        Self { value: value.into(), file: Some(file) }
    }

    /// The value itself, for the one place that has to send it: that of a file as it was when the configuration was read.
    pub fn expose(&self) -> &str {
        &self.value
    }

    /// Whether it is kept in a file, and so may change.
    pub fn may_change(&self) -> bool {
        self.file.is_some()
    }

    /// Where it is kept, if that is a file.
    pub(super) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The value as it is whenever it is needed: a file that was changed is read again.
    pub fn live(&self) -> drawbridge_credentials::Secret {
        match &self.file {
            None => drawbridge_credentials::Secret::fixed(&self.value),
            Some(file) => {
                let file = Watched::new(file.clone(), self.value.clone());
                drawbridge_credentials::Secret::read_by(move || file.read())
            }
        }
    }
}

/// A file is looked at this often at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A secret file that may change.
struct Watched {
    path: PathBuf,
    seen: Mutex<Seen>,
}

struct Seen {
    at: Instant,
    modified: Option<SystemTime>,
    value: String,
}

impl Watched {
    fn new(path: PathBuf, value: String) -> Self {
        // It is read at the first use: it may have changed since the configuration was read.
        let at = Instant::now().checked_sub(LOOK_EVERY).unwrap_or_else(Instant::now);
        Self { path, seen: Mutex::new(Seen { at, modified: None, value }) }
    }

    /// What is in it; what was in it before, while it can't be read.
    fn read(&self) -> String {
        let mut seen = self.seen.lock();
        if seen.at.elapsed() >= LOOK_EVERY {
            seen.at = Instant::now();
            let modified = std::fs::metadata(&self.path).and_then(|meta| meta.modified()).ok();
            if modified != seen.modified || modified.is_none() {
                match read(&self.path) {
                    Ok(value) => (seen.value, seen.modified) = (value, modified),
                    Err(error) => {
                        tracing::warn!("the secret in {} can't be read again: {error}", self.path.display());
                    }
                }
            }
        }
        seen.value.clone()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changes_is_read_again() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "one\n").unwrap();
        let watched = Watched::new(path.clone(), "one".to_owned());
        let forget = || watched.seen.lock().at = Instant::now().checked_sub(LOOK_EVERY).unwrap();
        assert_eq!(watched.read(), "one");
        std::fs::write(&path, "two\n").unwrap();
        let file = std::fs::File::options().append(true).open(&path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(watched.read(), "one", "it was looked at a moment ago");
        forget();
        assert_eq!(watched.read(), "two");
        std::fs::remove_file(&path).unwrap();
        forget();
        assert_eq!(watched.read(), "two");
        assert!(!format!("{:?}", Secret::of_file("two", path)).contains("two"));
    }
}

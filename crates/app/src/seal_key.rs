//! The key that seals session ids, where none is configured: made on first start and kept in the data directory,
//! so that sessions survive a restart.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use drawbridge_core::seal::SealKey;

const FILE: &str = "seal.key";

/// A key for this process alone.
pub fn ephemeral() -> SealKey {
    SealKey { id: "e1".to_owned(), secret: rand::random() }
}

/// The key of the data directory; makes both if they are missing.
///
/// # Errors
///
/// If the directory can't be written, or the file holds something else than a key.
pub fn of_directory(directory: &Path) -> anyhow::Result<SealKey> {
    let path = directory.join(FILE);
    let hint = || hint(&path);
    fs::create_dir_all(directory).with_context(hint)?;
    let fresh: [u8; 32] = rand::random();
    let made = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    match made {
        Ok(mut file) => {
            file.write_all(STANDARD.encode(fresh).as_bytes())
                .and_then(|()| file.sync_all())
                .with_context(hint)?;
            Ok(SealKey { id: "d1".to_owned(), secret: fresh })
        }
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => read(&path),
        Err(e) => Err(e).with_context(hint),
    }
}

/// The key of the data directory, if there is one.
///
/// # Errors
///
/// If the file can't be read, or holds something else than a key.
pub fn kept_in(directory: &Path) -> anyhow::Result<Option<SealKey>> {
    let path = directory.join(FILE);
    if path.exists() { read(&path).map(Some) } else { Ok(None) }
}

fn hint(path: &Path) -> String {
    format!(
        "{}: the seal key can't be kept here; make the directory writable, name another with data_dir, or configure seal.keys",
        path.display()
    )
}

fn read(path: &Path) -> anyhow::Result<SealKey> {
    let text = fs::read_to_string(path).with_context(|| hint(path))?;
    let bytes = STANDARD.decode(text.trim()).unwrap_or_default();
    ensure!(
        bytes.len() == 32,
        "{}: not a seal key (32 bytes in Base64); delete the file to have a new one made",
        path.display()
    );
    let mut secret = [0; 32];
    secret.copy_from_slice(&bytes);
    Ok(SealKey { id: "d1".to_owned(), secret })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_key_is_made_once_and_kept_to_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let first = of_directory(&data).unwrap();
        assert_eq!(of_directory(&data).unwrap().secret, first.secret);
        let mode = fs::metadata(data.join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(data.join(FILE), "junk").unwrap();
        let error = of_directory(&data).unwrap_err().to_string();
        assert!(error.contains("delete the file"), "{error}");
    }
}

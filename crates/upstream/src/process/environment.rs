//! Which of the gateway's environment variables a stdio server gets to see.
//!
//! The gateway's own environment holds its secrets (store passwords, keys), so the list says what passes, not
//! what is held back.

use std::ffi::{OsStr, OsString};

const NAMES: &[&str] = &[
    "HOME",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "LANG",
    "LOGNAME",
    "NO_PROXY",
    "PATH",
    "SHELL",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "VIRTUAL_ENV",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

const PREFIXES: &[&str] = &["LC_", "NODE_", "PYTHON", "UV_", "XDG_", "npm_config_"];

fn is_inherited(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    NAMES.iter().any(|passed| passed.as_bytes() == name)
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
}

/// What is left of `variables` for a server.
pub(super) fn inherited(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (OsString, OsString)> {
    variables.into_iter().filter(|(name, _)| is_inherited(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_variables_pass() {
        for name in
            ["PATH", "HOME", "LC_ALL", "https_proxy", "NODE_OPTIONS", "npm_config_cache", "PYTHONPATH"]
        {
            assert!(is_inherited(OsStr::new(name)), "{name}");
        }
        for name in
            ["DATABASE_URL", "DRAWBRIDGE_KEY", "AWS_SECRET_ACCESS_KEY", "PATHS", "LD_PRELOAD", "path", ""]
        {
            assert!(!is_inherited(OsStr::new(name)), "{name}");
        }
    }
}

//! Checks of what backends are told of callers.

use drawbridge_credentials::caller::Template;

use crate::config::check::Checker;
use crate::config::model::{BackendKind, Config};
use crate::config::raw::{AuthMode, SessionScope};

/// Checks that callers are known where backends are told of them, and that no two share a session there.
pub(super) fn all(checker: &mut Checker<'_>, config: &Config) {
    for (name, backend) in config.backends.iter().filter(|(_, backend)| backend.is_told_of_callers()) {
        let BackendKind::Http(http) = &backend.kind else { continue };
        let path = format!("backends.{name}");
        if backend.session_scope == SessionScope::Shared && !backend.is_personal() {
            let hint = "remove the key, or use `principal`";
            let path = format!("{path}.session_scope");
            checker.problem(&path, "callers that a backend is told of can't share a session", hint);
        }
        if http.identity_jwt && config.auth.mode != AuthMode::Embedded {
            let hint = "backends check the token with the keys of `auth: { mode: embedded }`; `caller_headers` need none";
            checker.problem(
                &format!("{path}.identity_jwt"),
                "there are no keys to sign with in this mode",
                hint,
            );
        }
        for (header, text) in &http.caller_headers {
            let Ok(template) = Template::parse(text) else { continue };
            let path = format!("{path}.caller_headers");
            if config.auth.mode == AuthMode::None {
                let hint = "set `auth.mode`, or remove the key";
                checker.problem(
                    &path,
                    format!("nobody is asked who they are, so {header} is never sent"),
                    hint,
                );
            } else if template.says_who() && config.auth.external.len() > 1 {
                let hint = "two issuers may call two people the same: keep one of `auth.external`";
                checker.problem(&path, format!("who {header} means depends on the issuer"), hint);
            } else if template.needs_person() && config.auth.mode == AuthMode::External {
                let message = format!(
                    "{path}: the gateway has no record of users of other issuers, so {header} is not sent for them"
                );
                checker.notice(&path, message);
            }
        }
    }
}

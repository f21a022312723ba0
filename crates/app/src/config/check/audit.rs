//! Checks of the audit trail.

use std::num::NonZeroUsize;

use drawbridge_auth::audit::Redactor;

use crate::config::check::Checker;
use crate::config::model::{Audit, Config};
use crate::config::raw::{self, AuditPayloads, AuthMode};
use crate::config::value::{ByteSize, Retention};

/// Checks the audit trail, and tells if there can be none.
pub(super) fn audit(checker: &mut Checker<'_>, raw: Option<raw::Audit>, config: &Config) -> Audit {
    let default = Audit::default();
    let Some(raw) = raw else { return default };
    if config.auth.mode == AuthMode::None && config.database.is_none() {
        let message = "audit: nothing is written down, since there is no database: auth.mode is `none`, and \
                       database.url is not set";
        checker.notice("audit", message);
    }
    let redact = raw.redact.unwrap_or_default();
    if let Err((place, why)) = Redactor::new(&redact) {
        let hint = "write the name of a member such as `card_number`, or a JSON pointer such as \
                    `/params/arguments/rows/*/card`, from /params, /result or /error on";
        checker.problem(&format!("audit.redact[{place}]"), why.to_string(), hint);
    }
    let retention = match raw.retention {
        None => default.retention,
        Some(Retention(Some(kept))) if kept.is_zero() => {
            checker.problem("audit.retention", "must be longer than 0", "write `90d`, or `forever`");
            default.retention
        }
        Some(Retention(kept)) => kept,
    };
    let interval =
        checker.positive("audit.checkpoint_interval", raw.checkpoint_interval, default.checkpoint_interval);
    Audit {
        calls: raw.calls.unwrap_or(default.calls),
        retention,
        payloads: raw.payloads == Some(AuditPayloads::Redacted),
        redact,
        max_payload_bytes: raw.max_payload_bytes.map_or(default.max_payload_bytes, |ByteSize(bytes)| bytes),
        queue: raw.queue.map_or(default.queue, NonZeroUsize::get),
        checkpoint_interval: interval,
    }
}

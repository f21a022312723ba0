//! Log levels, as in syslog.

use drawbridge_wire::{RpcError, code};
use serde_json::Value;

const NAMES: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// How severe a log message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Level(usize);

impl Level {
    pub(crate) const INFO: Self = Self(1);
    pub(crate) const NAMES: [&'static str; 8] = NAMES;

    /// The level that `value` names.
    pub(crate) fn parse(value: &Value) -> Result<Self, RpcError> {
        let index = value.as_str().and_then(|text| NAMES.iter().position(|name| *name == text));
        index.map(Self).ok_or_else(|| {
            RpcError::new(code::INVALID_PARAMS, format!("the log level is one of {}", NAMES.join(", ")))
        })
    }

    pub(crate) fn as_str(self) -> &'static str {
        NAMES[self.0]
    }
}

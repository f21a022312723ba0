//! The levels of log messages (RFC 5424), least severe first.

const LEVELS: [&str; 8] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

/// How severe a level is; `None` if there is no such level.
pub fn severity(level: &str) -> Option<usize> {
    LEVELS.iter().position(|l| *l == level)
}

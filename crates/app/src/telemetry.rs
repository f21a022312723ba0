//! Logs: to standard error, as text or JSON.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};

use drawbridge_core::request;
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

use crate::config::{Log, LogFormat};

/// Installs the process's logger. A second call changes nothing, so that tests can start several gateways.
pub fn install(log: &Log) {
    let filter = EnvFilter::try_new(&log.level).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter);
    let _already_there = match log.format {
        LogFormat::Text => {
            let text = builder.with_ansi(false).map_event_format(WithRequest::Text);
            text.with_writer(OneLine(io::stderr)).try_init()
        }
        LogFormat::Json => {
            let json = builder.json().flatten_event(true).map_event_format(WithRequest::Json);
            json.with_writer(io::stderr).try_init()
        }
    };
}

/// Adds the id of the request that an event is about.
enum WithRequest<F> {
    Text(F),
    Json(F),
}

impl<S, N, F> FormatEvent<S, N> for WithRequest<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (Self::Text(format) | Self::Json(format)) = self;
        let Some(id) = request::current() else { return format.format_event(context, writer, event) };
        let mut line = String::new();
        format.format_event(context, Writer::new(&mut line), event)?;
        match (self, line.strip_prefix('{')) {
            (Self::Json(_), Some(rest)) => write!(writer, r#"{{"request.id":"{id}",{rest}"#),
            _ => writeln!(writer, "{} request.id={id}", line.trim_end_matches('\n')),
        }
    }
}

/// Writes each event as one line of text, whatever clients and backends have put into it: nobody outside can make
/// lines that look like the gateway's own. (JSON has its own escapes.)
struct OneLine<M>(M);

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for OneLine<M> {
    type Writer = OneLine<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        OneLine(self.0.make_writer())
    }
}

impl<W: Write> Write for OneLine<W> {
    /// Takes a whole event, which the logger writes at once.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.write_all(&one_line(event))?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The event with its control characters escaped, but for the line break at its end.
fn one_line(event: &[u8]) -> Cow<'_, [u8]> {
    let (text, end) = match event.strip_suffix(b"\n") {
        Some(text) => (text, &b"\n"[..]),
        None => (event, &b""[..]),
    };
    if !text.iter().any(u8::is_ascii_control) {
        return Cow::Borrowed(event);
    }
    let escaped = text.iter().flat_map(|byte| {
        let (escape, plain) = match byte.is_ascii_control() {
            true => (Some(byte.escape_ascii()), None),
            false => (None, Some(*byte)),
        };
        escape.into_iter().flatten().chain(plain)
    });
    Cow::Owned(escaped.chain(end.iter().copied()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let lines = |event: &str| String::from_utf8(one_line(event.as_bytes()).into_owned()).unwrap();
        assert_eq!(lines("plain, ü\n"), "plain, ü\n");
        assert_eq!(lines("a\nb\r\tc\u{1b}[31m\0\n"), "a\\nb\\r\\tc\\x1b[31m\\x00\n");
        assert_eq!(lines("no end"), "no end");
    }
}

//! Logs: to standard error, as text or JSON.

mod call;
mod filter;
pub(crate) mod otlp;
mod output;

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use drawbridge_core::request;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::fmt::format::{DefaultFields, Format, Full, Json, JsonFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, field::RecordFields};

use crate::config::{Log, LogFormat};
use filter::LiveFilter;
use output::Output;

/// The target of the lines about calls.
const CALL: &str = "drawbridge::call";

/// The logger of this process.
struct Logger {
    filter: LiveFilter,
    output: Output,
}

static LOGGER: OnceLock<Logger> = OnceLock::new();
/// Whether lines are JSON now.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Makes the process log as `log` says, from now on.
pub fn apply(log: &Log) {
    IS_JSON.store(log.format == LogFormat::Json, Ordering::Relaxed);
    let filter = || {
        let filter = EnvFilter::try_new(&log.level).unwrap_or_else(|_| EnvFilter::new("info"));
        // It tells of each line that is written beside the configuration, and so of what it has told.
        match "notify=info".parse() {
            Ok(quiet) => filter.add_directive(quiet),
            Err(_) => filter,
        }
    };
    let mut is_new = false;
    let logger = LOGGER.get_or_init(|| {
        is_new = true;
        let filter = LiveFilter::new(filter());
        let output = Output::new(io::stderr());
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .fmt_fields(SpanFields)
            .event_format(Lines::default())
            .with_writer(OneLine { to: output.clone(), is_one: false });
        // Another logger may be there, as in tests; and without the thread the lines about calls wait for others.
        let _ = tracing_subscriber::registry().with(filter.clone()).with(lines).try_init();
        let _ = output.start();
        Logger { filter, output }
    });
    if !is_new {
        logger.filter.replace(filter());
    }
}

/// Writes what was logged and not written yet. To be called before the process ends.
pub fn flush() {
    if let Some(logger) = LOGGER.get() {
        logger.output.flush();
    }
}

fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// The forms of a line; each has the id of the request that it is about.
struct Lines {
    text: Format<Full>,
    json: Format<Json>,
}

impl Default for Lines {
    fn default() -> Self {
        let json = Format::default().json().flatten_event(true);
        Self { text: Format::default(), json }
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match (event.metadata().target() == CALL, is_json()) {
            (true, true) => return call::as_json(&mut writer, event),
            (true, false) => return call::as_text(&mut writer, event),
            _ => {}
        }
        let mut line = String::new();
        let (is_json, into) = (is_json(), Writer::new(&mut line));
        match is_json {
            true => self.json.format_event(context, into, event)?,
            false => self.text.format_event(context, into, event)?,
        }
        match (request::current(), line.strip_prefix('{').filter(|_| is_json)) {
            (None, _) => writer.write_str(&line),
            (Some(id), Some(rest)) => write!(writer, r#"{{"request.id":"{id}",{rest}"#),
            (Some(id), None) => writeln!(writer, "{} request.id={id}", line.trim_end_matches('\n')),
        }
    }
}

/// Fields of spans in the form of the lines.
struct SpanFields;

impl<'a> FormatFields<'a> for SpanFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'a>, fields: R) -> fmt::Result {
        match is_json() {
            true => JsonFields::new().format_fields(writer, fields),
            false => DefaultFields::new().format_fields(writer, fields),
        }
    }
}

/// Writes each event as one line of text, whatever clients and backends have put into it: nobody outside can make
/// lines that look like the gateway's own.
struct OneLine<M> {
    to: M,
    /// What comes is one line as it is.
    is_one: bool,
}

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for OneLine<M> {
    type Writer = OneLine<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        OneLine { to: self.to.make_writer(), is_one: false }
    }

    fn make_writer_for(&'a self, about: &Metadata<'_>) -> Self::Writer {
        OneLine { to: self.to.make_writer_for(about), is_one: about.target() == CALL }
    }
}

impl<W: Write> Write for OneLine<W> {
    /// Takes a whole event, which the logger writes at once.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        // JSON has its own escapes.
        let line = if self.is_one || is_json() { Cow::Borrowed(event) } else { one_line(event) };
        self.to.write_all(&line)?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
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

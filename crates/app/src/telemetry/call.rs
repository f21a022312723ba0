//! The line of a call: the same form as any other, written by the shortest way, since there is one for each call.

use std::fmt;

use drawbridge_core::request;
use drawbridge_wire::json;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

/// Writes an event as a JSON object, as the general formatter does.
pub(super) fn as_json(writer: &mut Writer<'_>, event: &Event<'_>) -> fmt::Result {
    writer.write_char('{')?;
    if let Some(id) = request::current() {
        writer.write_str(r#""request.id":""#)?;
        digits(writer, id)?;
        writer.write_str("\",")?;
    }
    writer.write_str(r#""timestamp":""#)?;
    SystemTime.format_time(writer)?;
    write_pieces(writer, &["\",\"level\":\"", event.metadata().level().as_str(), "\""])?;
    fields(writer, event, true)?;
    write_pieces(writer, &[",\"target\":\"", event.metadata().target(), "\"}\n"])
}

/// Writes an event as text, as the general formatter does.
pub(super) fn as_text(writer: &mut Writer<'_>, event: &Event<'_>) -> fmt::Result {
    SystemTime.format_time(writer)?;
    let about: &Metadata<'_> = event.metadata();
    write_pieces(writer, &["  ", about.level().as_str(), " ", about.target(), ":"])?;
    fields(writer, event, false)?;
    if let Some(id) = request::current() {
        writer.write_str(" request.id=")?;
        digits(writer, id)?;
    }
    writer.write_char('\n')
}

fn write_pieces(writer: &mut Writer<'_>, pieces: &[&str]) -> fmt::Result {
    pieces.iter().try_for_each(|piece| writer.write_str(piece))
}

fn digits(writer: &mut Writer<'_>, id: request::Id) -> fmt::Result {
    writer.write_str(std::str::from_utf8(&id.digits()).map_err(|_| fmt::Error)?)
}

fn fields(writer: &mut Writer<'_>, event: &Event<'_>, is_json: bool) -> fmt::Result {
    let mut fields = Fields { writer, is_json, outcome: Ok(()) };
    event.record(&mut fields);
    fields.outcome
}

struct Fields<'a, 'w> {
    writer: &'a mut Writer<'w>,
    is_json: bool,
    outcome: fmt::Result,
}

impl Fields<'_, '_> {
    fn add(&mut self, field: &Field, value: impl FnOnce(&mut Writer<'_>) -> fmt::Result) {
        let (writer, is_json) = (&mut *self.writer, self.is_json);
        let key = |writer: &mut Writer<'_>| match (is_json, field.name()) {
            (true, name) => write_pieces(writer, &[",\"", name, "\":"]),
            (false, "message") => writer.write_char(' '),
            (false, name) => write_pieces(writer, &[" ", name, "="]),
        };
        self.outcome = self.outcome.and_then(|()| key(writer)).and_then(|()| value(writer));
    }
}

/// Whether a text is the same with and without escapes.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\')
}

impl Visit for Fields<'_, '_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let is_json = self.is_json;
        self.add(field, |writer| match () {
            () if is_plain(value) => write_pieces(writer, &["\"", value, "\""]),
            () if is_json => writer.write_str(&json::encode_string(value)),
            () => write!(writer, "{value:?}"),
        });
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, |writer| writer.write_str(if value { "true" } else { "false" }));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, |writer| write!(writer, "{value}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, |writer| write!(writer, "{value}"));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, |writer| write!(writer, "{value}"));
    }

    /// The message.
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let is_json = self.is_json;
        self.add(field, |writer| match is_json {
            true => writer.write_str(&json::encode_string(&format!("{value:?}"))),
            false => write!(writer, "{value:?}"),
        });
    }
}

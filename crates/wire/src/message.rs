//! One JSON-RPC message: its original text and an index of the members a gateway reads.
//!
//! [`Message::parse`] makes a single pass that checks the whole text, notes where the [`Field`]s are and
//! refuses a message that has one of them twice: the gateway must not decide on one `params.name` while the
//! backend reads another. Keys are compared after decoding, so `"\u006dethod"` is `method` here too.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::error::{RpcError, code};
use crate::json::{self, JsonError, Reading, Scanner};

/// The longest request id that is accepted, in bytes of its literal.
pub const MAX_ID_BYTES: usize = 1024;

/// An object inside a message whose members are indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
    /// The message itself.
    Root,
    /// `params`.
    Params,
    /// `params._meta`.
    Meta,
    /// `result`.
    Result,
    /// `result._meta`.
    ResultMeta,
    /// `error`.
    Error,
}

macro_rules! fields {
    ($($variant:ident = $slot:ident $key:literal,)*) => {
        /// A member that the gateway reads or changes, by its place in the message.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Field { $(#[doc = concat!("`", $key, "` in the ", stringify!($slot), " object.")] $variant,)* }

        const FIELDS: &[(Field, Slot, &str)] = &[$((Field::$variant, Slot::$slot, $key),)*];
    };
}

fields! {
    Jsonrpc = Root "jsonrpc",
    Id = Root "id",
    Method = Root "method",
    Params = Root "params",
    Result = Root "result",
    Error = Root "error",
    Name = Params "name",
    Uri = Params "uri",
    Arguments = Params "arguments",
    Meta = Params "_meta",
    Cursor = Params "cursor",
    Ref = Params "ref",
    Level = Params "level",
    TaskId = Params "taskId",
    Task = Params "task",
    RequestId = Params "requestId",
    ProgressToken = Params "progressToken",
    Progress = Params "progress",
    ProtocolVersion = Params "protocolVersion",
    Capabilities = Params "capabilities",
    ClientInfo = Params "clientInfo",
    InputResponses = Params "inputResponses",
    RequestState = Params "requestState",
    Notifications = Params "notifications",
    MetaProgressToken = Meta "progressToken",
    MetaProtocolVersion = Meta "io.modelcontextprotocol/protocolVersion",
    MetaClientCapabilities = Meta "io.modelcontextprotocol/clientCapabilities",
    MetaClientInfo = Meta "io.modelcontextprotocol/clientInfo",
    MetaTraceparent = Meta "traceparent",
    MetaTracestate = Meta "tracestate",
    MetaLogLevel = Meta "io.modelcontextprotocol/logLevel",
    MetaSubscriptionId = Meta "io.modelcontextprotocol/subscriptionId",
    ResultType = Result "resultType",
    ResultIsError = Result "isError",
    ResultMeta = Result "_meta",
    TtlMs = Result "ttlMs",
    CacheScope = Result "cacheScope",
    NextCursor = Result "nextCursor",
    InputRequests = Result "inputRequests",
    ResultState = Result "requestState",
    ResultServerInfo = ResultMeta "io.modelcontextprotocol/serverInfo",
    ResultSubscriptionId = ResultMeta "io.modelcontextprotocol/subscriptionId",
    ErrorCode = Error "code",
    ErrorMessage = Error "message",
    ErrorData = Error "data",
}

impl Field {
    /// The object that has this member.
    pub fn slot(self) -> Slot {
        FIELDS[self as usize].1
    }

    /// The member's key.
    pub fn key(self) -> &'static str {
        FIELDS[self as usize].2
    }

    fn find(slot: Slot, key: &str) -> Option<Self> {
        FIELDS.iter().find(|(_, s, k)| *s == slot && *k == key).map(|f| f.0)
    }

    /// The object that this member's value opens, if its members are indexed too.
    fn opens(self) -> Option<Slot> {
        match self {
            Self::Params => Some(Slot::Params),
            Self::Meta => Some(Slot::Meta),
            Self::Result => Some(Slot::Result),
            Self::ResultMeta => Some(Slot::ResultMeta),
            Self::Error => Some(Slot::Error),
            _ => None,
        }
    }
}

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Has a method and an id.
    Request,
    /// Has a method and no id.
    Notification,
    /// Has a result.
    Result,
    /// Has an error.
    Error,
}

/// A request id: the literal as its sender wrote it, a JSON string or integer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Id(Bytes);

impl Id {
    /// An id from its JSON literal. Fails unless it is a string or an integer of at most [`MAX_ID_BYTES`].
    pub fn from_literal(literal: Bytes) -> Option<Self> {
        let integer = || {
            let digits = literal.strip_prefix(b"-").unwrap_or(&literal);
            !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
        };
        let fits = literal.len() <= MAX_ID_BYTES;
        (fits && (literal.first() == Some(&b'"') || integer())).then_some(Self(literal))
    }

    /// An id that is the string `text`.
    pub fn from_text(text: &str) -> Self {
        Self(Bytes::from(json::encode_string(text)))
    }

    /// An id that is the integer `number`.
    pub fn from_number(number: u64) -> Self {
        Self(Bytes::from(number.to_string()))
    }

    /// The JSON literal.
    pub fn literal(&self) -> &Bytes {
        &self.0
    }

    /// The text of a string id.
    pub fn text(&self) -> Option<Cow<'_, str>> {
        json::decode_string(&self.0)
    }

    /// The same id in the one spelling that equal ids share (escapes decoded).
    pub fn canonical(&self) -> Self {
        match self.text() {
            Some(Cow::Owned(text)) => Self::from_text(&text),
            _ => self.clone(),
        }
    }
}

/// Why a text is not a message the gateway handles.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Invalid {
    /// The JSON-RPC error code that says it: [`code::PARSE_ERROR`], [`code::INVALID_REQUEST`] or
    /// [`code::INVALID_PARAMS`].
    pub code: i64,
    /// What is wrong and where.
    pub reason: String,
    /// The id of the request, if it could be read.
    pub id: Option<Id>,
}

impl Invalid {
    fn new(code: i64, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), id: None }
    }

    /// The error to answer with.
    pub fn to_rpc_error(&self) -> RpcError {
        RpcError::new(self.code, self.reason.clone())
    }
}

impl From<JsonError> for Invalid {
    fn from(e: JsonError) -> Self {
        Self::new(code::PARSE_ERROR, format!("not JSON: {e}"))
    }
}

#[derive(Debug, Clone)]
struct Entry {
    field: Field,
    key: Range<u32>,
    value: Range<u32>,
}

/// A text of more bytes than this is worth no copy: it is most of the buffer that it was read into.
const LARGE: usize = 4096;

/// A checked JSON-RPC message. Cheap to clone: the text is shared.
#[derive(Debug, Clone)]
pub struct Message {
    text: Bytes,
    kind: Kind,
    root: u32,
    entries: SmallVec<[Entry; 10]>,
}

/// What a POST body or a line holds.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one message is the common case and must not be boxed")]
pub enum Incoming {
    /// One message.
    One(Message),
    /// A JSON-RPC batch, each element on its own; never empty.
    Batch(Vec<Result<Message, Invalid>>),
}

impl Incoming {
    /// Reads a message or a batch of at most `max_batch` messages.
    pub fn parse(text: Bytes, max_batch: usize) -> Result<Self, Invalid> {
        let mut s = Scanner::new(&text);
        if s.peek() != Some(b'[') {
            return Message::parse(text).map(Self::One);
        }
        check_utf8(&text)?;
        let mut ranges = Vec::new();
        s.array::<Invalid>(|s| {
            if ranges.len() == max_batch {
                return Err(Invalid::new(
                    code::INVALID_REQUEST,
                    format!("a batch has at most {max_batch} messages"),
                ));
            }
            ranges.push(s.value(1)?);
            Ok(())
        })?;
        s.end()?;
        if ranges.is_empty() {
            return Err(Invalid::new(code::INVALID_REQUEST, "an empty batch"));
        }
        Ok(Self::Batch(ranges.into_iter().map(|r| Message::parse(text.slice(r))).collect()))
    }
}

fn check_utf8(text: &[u8]) -> Result<(), Invalid> {
    match simdutf8::compat::from_utf8(text) {
        Ok(_) => Ok(()),
        Err(e) => Err(Invalid::new(code::PARSE_ERROR, format!("not UTF-8 text at byte {}", e.valid_up_to()))),
    }
}

/// The state of the one pass that indexes a message.
struct Indexer<'a> {
    text: &'a [u8],
    seen: u64,
    entries: SmallVec<[Entry; 10]>,
}

#[expect(clippy::cast_possible_truncation, reason = "Message::parse refuses texts of 4 GiB")]
fn narrow(range: &Range<usize>) -> Range<u32> {
    range.start as u32..range.end as u32
}

impl Indexer<'_> {
    fn object(&mut self, s: &mut Scanner<'_>, slot: Slot, depth: u32) -> Result<Range<usize>, Invalid> {
        s.object(|s, key| self.member(s, slot, &key, depth + 1))
    }

    fn member(
        &mut self,
        s: &mut Scanner<'_>,
        slot: Slot,
        key: &Range<usize>,
        depth: u32,
    ) -> Result<(), Invalid> {
        let name = json::decode_string(&self.text[key.clone()]);
        let Some(field) = name.and_then(|name| Field::find(slot, &name)) else {
            s.value(depth)?;
            return Ok(());
        };
        if self.seen & (1 << field as u8) != 0 {
            return Err(Invalid::new(
                code::INVALID_REQUEST,
                format!("the key \"{}\" is there twice (byte {})", field.key(), key.start),
            ));
        }
        self.seen |= 1 << field as u8;
        let at = self.entries.len();
        self.entries.push(Entry { field, key: narrow(key), value: 0..0 });
        let value = match field.opens() {
            Some(inner) if s.peek() == Some(b'{') => self.object(s, inner, depth)?,
            _ => s.value(depth)?,
        };
        self.entries[at].value = narrow(&value);
        Ok(())
    }
}

/// A number that has no fraction, however it is written: `-32042.0` is a code too.
fn whole(number: f64) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "codes are small")]
    (number.fract() == 0.0 && number.abs() < 1e9).then_some(number as i64)
}

impl Message {
    /// Reads one message, every byte of it. The text is kept as it is.
    pub fn parse(text: Bytes) -> Result<Self, Invalid> {
        Self::read(text, Reading::Whole)
    }

    /// Reads one message of a backend: what is indexed is read as strictly as by [`Message::parse`], containers
    /// within are only skipped, so whether they are JSON is for the client to find out.
    pub fn parse_trusting(text: Bytes) -> Result<Self, Invalid> {
        Self::read(text, Reading::Structure)
    }

    /// The same message, for whoever keeps it for long: its text is not a small piece of a large buffer.
    #[must_use]
    pub fn detached(self) -> Self {
        if self.text.len() > LARGE {
            return self;
        }
        Self { text: Bytes::copy_from_slice(&self.text), ..self }
    }

    fn read(text: Bytes, reading: Reading) -> Result<Self, Invalid> {
        if u32::try_from(text.len()).is_err() {
            return Err(Invalid::new(code::INVALID_REQUEST, "the message is too large"));
        }
        check_utf8(&text)?;
        let mut s = Scanner::new(&text).reading(reading);
        if s.peek() != Some(b'{') {
            // Anything that is JSON is a bad message, anything else is a bad text.
            s.value(0)?;
            s.end()?;
            return Err(Invalid::new(code::INVALID_REQUEST, "a message is a JSON object"));
        }
        let root = s.position();
        let mut indexer = Indexer { text: &text, seen: 0, entries: SmallVec::new() };
        let scanned = indexer.object(&mut s, Slot::Root, 0).and_then(|_| Ok(s.end()?));
        let entries = indexer.entries;
        let mut message =
            Self { text: text.clone(), kind: Kind::Notification, root: narrow(&(root..root)).start, entries };
        match scanned.and_then(|()| message.classify()) {
            Ok(kind) => {
                message.kind = kind;
                Ok(message)
            }
            Err(invalid) => {
                let id = (invalid.code != code::PARSE_ERROR).then(|| message.id()).flatten();
                Err(Invalid { id, ..invalid })
            }
        }
    }

    fn classify(&self) -> Result<Kind, Invalid> {
        let bad = |reason: &str| Err(Invalid::new(code::INVALID_REQUEST, reason));
        if self.text(Field::Jsonrpc).as_deref() != Some("2.0") {
            return bad("\"jsonrpc\" must be \"2.0\"");
        }
        let has = |f| self.raw(f).is_some();
        let id_ok = self.id().is_some();
        let kind = match (has(Field::Method), has(Field::Result), has(Field::Error)) {
            (true, false, false) if has(Field::Id) => Kind::Request,
            (true, false, false) => Kind::Notification,
            (false, true, false) => Kind::Result,
            (false, false, true) => Kind::Error,
            _ => return bad("a message has either a method, a result or an error"),
        };
        match kind {
            Kind::Request | Kind::Result if !id_ok => {
                return bad("\"id\" must be a string or an integer, and not too long");
            }
            Kind::Request | Kind::Notification if self.text(Field::Method).is_none() => {
                return bad("\"method\" must be a string");
            }
            Kind::Error if self.slot_start(Slot::Error).is_none() => {
                return bad("\"error\" must be an object");
            }
            _ => {}
        }
        let shape = |field: Field| match self.raw(field) {
            None | Some(b"null") => true,
            Some(raw) => raw.starts_with(b"{"),
        };
        if !shape(Field::Params) {
            return bad("\"params\" must be an object");
        }
        if !shape(Field::Meta) {
            return Err(Invalid::new(code::INVALID_PARAMS, "\"_meta\" must be an object"));
        }
        Ok(kind)
    }

    /// What kind of message it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The whole text.
    pub fn bytes(&self) -> &Bytes {
        &self.text
    }

    fn entry(&self, field: Field) -> Option<&Entry> {
        self.entries.iter().find(|e| e.field == field && !e.value.is_empty())
    }

    /// Where the value of `field` stands in the text.
    pub fn range(&self, field: Field) -> Option<Range<usize>> {
        self.entry(field).map(|e| e.value.start as usize..e.value.end as usize)
    }

    /// Where the member `field` stands: from its key to the end of its value.
    pub(crate) fn member_range(&self, field: Field) -> Option<Range<usize>> {
        self.entry(field).map(|e| e.key.start as usize..e.value.end as usize)
    }

    /// The offset of the brace that opens the object of `slot`, if the message has that object.
    pub(crate) fn slot_start(&self, slot: Slot) -> Option<usize> {
        let field = match slot {
            Slot::Root => return Some(self.root as usize),
            Slot::Params => Field::Params,
            Slot::Meta => Field::Meta,
            Slot::Result => Field::Result,
            Slot::ResultMeta => Field::ResultMeta,
            Slot::Error => Field::Error,
        };
        let range = self.range(field)?;
        (self.text[range.start] == b'{').then_some(range.start)
    }

    /// The raw value of `field`.
    pub fn raw(&self, field: Field) -> Option<&[u8]> {
        self.range(field).map(|r| &self.text[r])
    }

    /// The raw value of `field`, sharing the text.
    pub fn slice(&self, field: Field) -> Option<Bytes> {
        self.range(field).map(|r| self.text.slice(r))
    }

    /// The text of `field` if it is a string.
    pub fn text(&self, field: Field) -> Option<Cow<'_, str>> {
        self.raw(field).and_then(json::decode_string)
    }

    /// The id, if it is one that MCP allows.
    pub fn id(&self) -> Option<Id> {
        self.slice(Field::Id).and_then(Id::from_literal)
    }

    /// The method of a request or notification, else an empty text.
    pub fn method(&self) -> Cow<'_, str> {
        self.text(Field::Method).unwrap_or_default()
    }

    /// The code of an error, 0 if there is none.
    pub fn error_code(&self) -> i64 {
        let raw = self.raw(Field::ErrorCode).and_then(|raw| std::str::from_utf8(raw).ok());
        raw.and_then(|raw| raw.parse().ok().or_else(|| whole(raw.parse().ok()?))).unwrap_or_default()
    }

    /// A request made by the gateway; `params` must be a JSON object.
    pub fn request(id: &Id, method: &str, params: &[u8]) -> Self {
        Self::build(Some(id), method, params)
    }

    /// A notification made by the gateway; `params` must be a JSON object.
    pub fn notification(method: &str, params: &[u8]) -> Self {
        Self::build(None, method, params)
    }

    fn build(id: Option<&Id>, method: &str, params: &[u8]) -> Self {
        let mut text = Vec::with_capacity(64 + params.len());
        text.extend_from_slice(b"{\"jsonrpc\":\"2.0\",");
        if let Some(id) = id {
            text.extend_from_slice(b"\"id\":");
            text.extend_from_slice(id.literal());
            text.push(b',');
        }
        text.extend_from_slice(b"\"method\":");
        text.extend_from_slice(json::encode_string(method).as_bytes());
        text.extend_from_slice(b",\"params\":");
        text.extend_from_slice(params);
        text.push(b'}');
        Self::own(text)
    }

    /// The answer with `result`, which must be JSON.
    pub fn result(id: &Id, result: &[u8]) -> Self {
        let mut text = Vec::with_capacity(48 + result.len());
        text.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
        text.extend_from_slice(id.literal());
        text.extend_from_slice(b",\"result\":");
        text.extend_from_slice(result);
        text.push(b'}');
        Self::own(text)
    }

    /// A message written by the gateway itself. Falls back to an internal error if `text` is none, so that a
    /// mistake here becomes a visible answer and not a panic.
    pub(crate) fn own(text: Vec<u8>) -> Self {
        let fallback = || Self {
            text: Bytes::from_static(
                br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"internal error"}}"#,
            ),
            kind: Kind::Error,
            root: 0,
            entries: SmallVec::new(),
        };
        let parsed = Self::parse(Bytes::from(text));
        debug_assert!(parsed.is_ok(), "own message: {parsed:?}");
        parsed.unwrap_or_else(|_| fallback())
    }
}

#[cfg(test)]
mod tests;

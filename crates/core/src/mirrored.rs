//! Tool arguments that HTTP headers mirror (`Mcp-Param-*`): which they are, what the headers of a call have to be, and
//! lists without the tools whose annotations are wrong.
//!
//! What is known is learnt from the lists of tools on their way to clients, per client profile, since lists may differ
//! between profiles. It is bounded, grows old, and can always be learnt anew by asking.

mod annotations;
mod values;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Message, RpcError, code, header, json};
use memchr::memmem;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::backend::BackendName;
use crate::call::{Call, Reply};
use crate::client::{Answers, ProfileKey};
use crate::fault::Fault;
use annotations::Argument;
use values::Wrong;

/// What was learnt is good for this long.
const TTL: Duration = Duration::from_secs(600);
const MAX_PROFILES: usize = 128;
/// Of the names and paths that are kept for one profile, in bytes.
const MAX_PROFILE_BYTES: usize = 256 * 1024;
/// Tools that were warned of.
const MAX_WARNED: usize = 256;

/// The tools of a backend with mirrored arguments, by client profile.
#[derive(Debug)]
pub(crate) struct Mirrored {
    backend: BackendName,
    profiles: Mutex<HashMap<ProfileKey, Profile, ahash::RandomState>>,
    /// Whether there is a tool at all; most backends have none.
    any: AtomicBool,
    /// Held while a list is asked for.
    pub(crate) learning: tokio::sync::Mutex<()>,
    warned: Mutex<HashSet<String>>,
}

#[derive(Debug)]
struct Profile {
    tools: HashMap<String, Arc<[Argument]>, ahash::RandomState>,
    bytes: usize,
    learnt: Instant,
}

/// What is known of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tool {
    /// Its list was not seen, or long ago.
    Unknown,
    /// None of its arguments is mirrored.
    Plain,
    /// These are.
    Annotated(Arguments),
}

/// The mirrored arguments of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arguments(Arc<[Argument]>);

/// A header and its value.
pub(crate) type Header = (String, String);

/// Whether a call has headers of the kind that mirrors arguments.
pub(crate) fn has_headers(call: &Call) -> bool {
    call.params_headers.iter().any(|(name, _)| name.starts_with(header::PARAM_PREFIX))
}

impl Arguments {
    /// The headers for a call.
    pub(crate) fn headers(&self, request: &Message) -> Result<Vec<Header>, Fault> {
        values::headers(&self.0, request.raw(Field::Arguments).unwrap_or(b"{}")).map_err(fault)
    }

    /// Compares the headers that came with a call with its arguments.
    pub(crate) fn check(&self, call: &Call) -> Result<(), Fault> {
        let arguments = call.request.raw(Field::Arguments).unwrap_or(b"{}");
        values::check(&self.0, arguments, &call.params_headers).map_err(fault)
    }
}

fn fault(wrong: Wrong) -> Fault {
    match wrong {
        Wrong::Header(what) => Fault::Rpc(RpcError::new(code::HEADER_MISMATCH, what)),
        Wrong::Twice(path) => Fault::invalid_params(format!("the argument {path} is there twice")),
    }
}

impl Mirrored {
    pub(crate) fn new(backend: BackendName) -> Self {
        Self {
            backend,
            profiles: Mutex::default(),
            any: AtomicBool::new(false),
            learning: tokio::sync::Mutex::default(),
            warned: Mutex::default(),
        }
    }

    /// Whether any tool of this backend was ever seen to have mirrored arguments.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// What is known of the tool `name` for clients of this profile.
    pub(crate) fn find(&self, profile: &ProfileKey, name: &str) -> Tool {
        let profiles = self.profiles.lock();
        match profiles.get(profile).filter(|known| known.learnt.elapsed() < TTL) {
            None => Tool::Unknown,
            Some(known) => match known.tools.get(name) {
                Some(arguments) => Tool::Annotated(Arguments(arguments.clone())),
                None => Tool::Plain,
            },
        }
    }

    /// Whether the list was learnt at `since` or later.
    pub(crate) fn is_learnt(&self, profile: &ProfileKey, since: Instant) -> bool {
        self.profiles.lock().get(profile).is_some_and(|known| known.learnt >= since)
    }

    /// Notes that the list was asked for, whatever came of it, so that it isn't asked for with each call.
    pub(crate) fn asked(&self, profile: &ProfileKey) {
        self.with(profile, |known| known.learnt = Instant::now());
    }

    /// Something about the tools has changed.
    pub(crate) fn forget(&self) {
        self.profiles.lock().clear();
    }

    fn with(&self, profile: &ProfileKey, change: impl FnOnce(&mut Profile)) {
        let mut profiles = self.profiles.lock();
        if !profiles.contains_key(profile) && profiles.len() >= MAX_PROFILES {
            profiles.retain(|_, known| known.learnt.elapsed() < TTL);
            let oldest = profiles.iter().min_by_key(|(_, known)| known.learnt).map(|(key, _)| key.clone());
            if profiles.len() >= MAX_PROFILES
                && let Some(oldest) = oldest
            {
                profiles.remove(&oldest);
            }
        }
        let new = || Profile { tools: HashMap::default(), bytes: 0, learnt: Instant::now() };
        change(profiles.entry(profile.clone()).or_insert_with(new));
    }

    /// Learns from a page of the list of tools; gives the page as the client may have it. `request` is what it
    /// answers.
    pub(crate) fn listed(
        &self,
        profile: &ProfileKey,
        answers: Answers,
        request: &Message,
        reply: Reply,
    ) -> Reply {
        if answers == Answers::Live && reply.shape.is_plain() {
            // Nobody on either side has such headers.
            return reply;
        }
        let annotated = is_annotated(&reply.message);
        if !annotated && !self.any() {
            return reply;
        }
        let Some(page) = Page::read(&reply.message, annotated) else { return reply };
        let is_first = request.raw(Field::Cursor).is_none();
        let is_whole = is_first && reply.message.raw(Field::NextCursor).is_none();
        self.learn(profile, &page, is_first, is_whole);
        for (name, wrong) in page.tools.iter().filter_map(|tool| Some((&tool.name, tool.wrong?))) {
            self.warn(name, wrong);
        }
        // A backend with sessions means nothing by the annotation, so the tool works without it.
        let message = page.without_wrong(&reply.message, reply.shape.is_plain());
        Reply { message: message.unwrap_or(reply.message), shape: reply.shape }
    }

    /// Learns from a page that another client had before.
    pub(crate) fn relearn(&self, profile: &ProfileKey, request: &Message, message: &Message) {
        let known = |known: &Profile| known.learnt.elapsed() < TTL;
        if !self.profiles.lock().get(profile).is_some_and(known)
            && let Some(page) = Page::read(message, true)
        {
            let is_first = request.raw(Field::Cursor).is_none();
            self.learn(profile, &page, is_first, false);
        }
    }

    fn learn(&self, profile: &ProfileKey, page: &Page<'_>, is_first: bool, is_whole: bool) {
        if page.tools.iter().any(|tool| !tool.arguments.is_empty()) {
            self.any.store(true, Ordering::Relaxed);
        }
        self.with(profile, |known| {
            if is_whole {
                known.tools.clear();
                known.bytes = 0;
            }
            if is_first {
                known.learnt = Instant::now();
            }
            for tool in &page.tools {
                if let Some(old) = known.tools.remove(&tool.name) {
                    known.bytes -= weight(&tool.name, &old);
                }
                let bytes = weight(&tool.name, &tool.arguments);
                if tool.wrong.is_none()
                    && !tool.arguments.is_empty()
                    && known.bytes + bytes <= MAX_PROFILE_BYTES
                {
                    known.bytes += bytes;
                    known.tools.insert(tool.name.clone(), tool.arguments.clone());
                }
            }
        });
    }

    fn warn(&self, tool: &str, wrong: &str) {
        let mut warned = self.warned.lock();
        if warned.len() < MAX_WARNED && !warned.contains(tool) {
            warned.insert(tool.to_owned());
            let tool: String = tool.chars().take(64).collect();
            tracing::warn!(backend.name = %self.backend, tool.name = ?tool, "{} {wrong}", annotations::KEY);
        }
    }
}

fn weight(name: &str, arguments: &[Argument]) -> usize {
    let one = |a: &Argument| 96 + a.header.len() + a.path.iter().map(|key| 24 + key.len()).sum::<usize>();
    128 + name.len() + arguments.iter().map(one).sum::<usize>()
}

/// Whether a list has annotations, or text that looks like one.
pub(crate) fn is_annotated(message: &Message) -> bool {
    memmem::find(message.bytes(), annotations::KEY.as_bytes()).is_some()
}

/// A page of a list of tools.
struct Page<'m> {
    tools: Vec<Listed<'m>>,
    /// Where the list stands in the message.
    place: Range<usize>,
}

struct Listed<'m> {
    name: String,
    raw: &'m [u8],
    arguments: Arc<[Argument]>,
    /// Why it can't be called as its annotations say.
    wrong: Option<&'static str>,
    /// Itself without annotations, where it has wrong ones.
    stripped: Option<Bytes>,
}

impl<'m> Page<'m> {
    /// Reads a page; schemas only if it is `annotated`. `None` if it isn't one.
    fn read(message: &'m Message, annotated: bool) -> Option<Self> {
        let result = message.range(Field::Result)?;
        let inner = json::member_range(&message.bytes()[result.clone()], "tools")?;
        let place = result.start + inner.start..result.start + inner.end;
        let tools = json::elements(&message.bytes()[place.clone()]).ok()?;
        let tools = tools.into_iter().map(|raw| Listed::read(raw, annotated)).collect();
        Some(Self { tools, place })
    }

    /// The message without the tools whose annotations are wrong, or, if that is to be enough, without their
    /// annotations. `None` if nothing is wrong.
    fn without_wrong(&self, message: &Message, strip: bool) -> Option<Message> {
        if self.tools.iter().all(|tool| tool.wrong.is_none()) {
            return None;
        }
        let kept = self.tools.iter().filter_map(|tool| match tool.wrong {
            None => Some(tool.raw),
            Some(_) if strip => tool.stripped.as_deref(),
            Some(_) => None,
        });
        let text = message.bytes();
        let list = json::array(kept);
        let text = [&text[..self.place.start], &list[..], &text[self.place.end..]].concat();
        Message::parse_trusting(text.into()).ok()
    }
}

impl<'m> Listed<'m> {
    fn read(raw: &'m [u8], annotated: bool) -> Self {
        let name = json::member(raw, "name").and_then(json::decode_string).unwrap_or_default().into_owned();
        let mut tool = Self { name, raw, arguments: Arc::default(), wrong: None, stripped: None };
        if !annotated || memmem::find(raw, annotations::KEY.as_bytes()).is_none() {
            return tool;
        }
        let Some(place) = json::member_range(raw, "inputSchema") else { return tool };
        match annotations::read(&raw[place.clone()]) {
            Err(_) => tool.wrong = Some("in a schema that can't be read"),
            Ok(found) => {
                tool.wrong = found.wrong;
                if found.wrong.is_some() {
                    let schema = found.strip(&raw[place.clone()]);
                    let text = [&raw[..place.start], &schema[..], &raw[place.end..]].concat();
                    tool.stripped = Some(text.into());
                }
                tool.arguments = found.arguments.into();
            }
        }
        tool
    }
}

#[cfg(test)]
mod tests;

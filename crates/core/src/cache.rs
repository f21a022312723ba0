//! Answers of a backend that may be kept (MCP 2026-07-28, caching): where the backend says for how long, they are
//! given again without asking it.
//!
//! - Only complete results of the methods in [`METHODS`], with a `ttlMs` above zero, of a backend that marks its
//!   results; and lists of one that does not, where the configuration says for how long ([`lasting`]). Nothing that
//!   came of a retry.
//! - The key has the method and all parameters but `_meta`, the client's version and capabilities and how it answers,
//!   since all of these may shape an answer; and the principal, unless the backend says that the answer is public.
//! - A notification of a change drops what it is about, and what is being asked for at that moment is not kept.
//! - The text is kept as it came; who gets it again only sees less time left ([`Shape::Aged`], [`Shape::Lasting`]).

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Kind, Message, ProtocolVersion, json, method};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::call::{Call, Reply, Shape};
use crate::client::{Answers, Principal};

/// What a method's answers are about, for dropping them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum About {
    Tools,
    Prompts,
    Resources,
    Contents,
}

/// The methods whose answers may be kept. (`server/discover` is asked by the upstream faces, which keep what they
/// hear.)
const METHODS: [(&str, About); 5] = [
    (method::TOOLS_LIST, About::Tools),
    (method::PROMPTS_LIST, About::Prompts),
    (method::RESOURCES_LIST, About::Resources),
    (method::RESOURCES_TEMPLATES_LIST, About::Resources),
    (method::RESOURCES_READ, About::Contents),
];

/// Of one backend: answers, and bytes of them.
const MAX_ENTRIES: usize = 1024;
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// A larger answer would drive out too many others.
const MAX_ANSWER: usize = MAX_BYTES / 8;
/// What an entry costs besides its text.
const OVERHEAD: usize = 512;
/// However long a backend allows, an answer is asked for again after this time.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    /// `None` if everybody may have the answer.
    principal: Option<Principal>,
    version: ProtocolVersion,
    answers: Answers,
    capabilities: Bytes,
    method: &'static str,
    /// Raw JSON, without `_meta`.
    params: Bytes,
}

#[derive(Debug)]
struct Entry {
    message: Message,
    /// Its backend means something by its `ttlMs`.
    is_marked: bool,
    about: About,
    /// Of a resource's contents.
    uri: Option<String>,
    since: Instant,
    ttl: Duration,
    /// When it was last given, in turns.
    used: u64,
    bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<Key, Entry, ahash::RandomState>,
    bytes: usize,
    turn: u64,
    /// How many changes there were, for each [`About`].
    changes: [u64; 4],
}

/// The answers of one backend.
#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<State>);

/// Permission to keep the answer to a request.
#[derive(Debug)]
pub(crate) struct Ticket {
    key: Key,
    about: About,
    uri: Option<String>,
    changes: u64,
}

/// What the cache says to a request.
#[derive(Debug)]
pub(crate) enum Asked {
    /// It is not about this request.
    Nothing,
    /// The answer.
    Kept(Reply),
    /// The backend is to be asked.
    Missed(Ticket),
}

impl Cache {
    /// Looks for the answer to a call.
    pub(crate) fn ask(&self, call: &Call) -> Asked {
        let request = &call.request;
        let name = request.method();
        let Some(&(method, about)) = METHODS.iter().find(|(method, _)| *method == name) else {
            return Asked::Nothing;
        };
        let is_retry = [Field::InputResponses, Field::RequestState]
            .into_iter()
            .any(|field| request.raw(field).is_some());
        if is_retry {
            return Asked::Nothing;
        }
        let params = request.raw(Field::Params).unwrap_or(b"{}");
        let mut key = Key {
            principal: Some(call.client.principal.clone()),
            version: call.client.version,
            answers: call.client.answers,
            capabilities: call.client.capabilities.clone(),
            method,
            params: json::filter_members(params, |key| key != "_meta"),
        };
        let mut state = self.0.lock();
        if let Some(reply) = state.fresh(&key) {
            return Asked::Kept(reply);
        }
        let principal = key.principal.take();
        if let Some(reply) = state.fresh(&key) {
            return Asked::Kept(reply);
        }
        key.principal = principal;
        let uri = request.text(Field::Uri).filter(|_| about == About::Contents);
        let changes = state.changes[about as usize];
        Asked::Missed(Ticket { key, about, uri: uri.map(std::borrow::Cow::into_owned), changes })
    }

    /// Keeps an answer, if it may be kept.
    pub(crate) fn keep(&self, mut ticket: Ticket, reply: &Reply) {
        let Some(ttl) = ttl(reply) else { return };
        let text = reply.message.bytes();
        let bytes = OVERHEAD + text.len() + ticket.key.params.len() + ticket.key.capabilities.len();
        if bytes > MAX_ANSWER {
            return;
        }
        // A copy, since the text may be a piece of something larger.
        let Ok(message) = Message::parse_trusting(Bytes::copy_from_slice(text)) else { return };
        let is_marked = reply.shape == Shape::Marked;
        if is_marked && message.text(Field::CacheScope).as_deref() == Some("public") {
            ticket.key.principal = None;
        }
        // For the same reason.
        ticket.key.capabilities = Bytes::copy_from_slice(&ticket.key.capabilities);
        let mut state = self.0.lock();
        if state.changes[ticket.about as usize] != ticket.changes {
            return;
        }
        let Ticket { key, about, uri, .. } = ticket;
        state.remove(&key);
        state.make_room(bytes);
        let used = state.next_turn();
        state.bytes += bytes;
        let since = Instant::now();
        state.entries.insert(key, Entry { message, is_marked, about, uri, since, ttl, used, bytes });
    }

    /// Drops everything, since changes may have been missed.
    pub(crate) fn clear(&self) {
        let mut state = self.0.lock();
        state.changes.iter_mut().for_each(|count| *count += 1);
        state.drop_if(|_| true);
    }

    /// Drops what a notification is about.
    pub(crate) fn heard(&self, notification: &Message) {
        let about = match notification.method().as_ref() {
            method::TOOLS_LIST_CHANGED => About::Tools,
            method::PROMPTS_LIST_CHANGED => About::Prompts,
            method::RESOURCES_LIST_CHANGED => About::Resources,
            method::RESOURCES_UPDATED => About::Contents,
            _ => return,
        };
        let uri = notification.text(Field::Uri);
        let mut state = self.0.lock();
        state.changes[about as usize] += 1;
        state.drop_if(|entry| {
            // What was updated may be a part of what was read, or the other way round.
            let is_related = || match (&entry.uri, uri.as_deref()) {
                (Some(read), Some(updated)) => {
                    read.starts_with(updated) || updated.starts_with(read.as_str())
                }
                _ => true,
            };
            entry.about == about && (about != About::Contents || is_related())
        });
    }
}

impl State {
    fn next_turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    fn fresh(&mut self, key: &Key) -> Option<Reply> {
        let turn = self.next_turn();
        let entry = self.entries.get_mut(key)?;
        let Some(left) = entry.ttl.checked_sub(entry.since.elapsed()).filter(|left| !left.is_zero()) else {
            self.remove(key);
            return None;
        };
        entry.used = turn;
        let shape = if entry.is_marked { Shape::Aged(left) } else { Shape::Lasting(left) };
        Some(Reply { message: entry.message.clone(), shape })
    }

    fn remove(&mut self, key: &Key) {
        if let Some(old) = self.entries.remove(key) {
            self.bytes -= old.bytes;
        }
    }

    fn drop_if(&mut self, unwanted: impl Fn(&Entry) -> bool) {
        let mut dropped = 0;
        self.entries.retain(|_, entry| {
            let unwanted = unwanted(entry);
            dropped += if unwanted { entry.bytes } else { 0 };
            !unwanted
        });
        self.bytes -= dropped;
    }

    /// Drops what is stale, and then what was not used for longest, until there is room for `bytes` more.
    fn make_room(&mut self, bytes: usize) {
        let is_full = |state: &Self| state.entries.len() >= MAX_ENTRIES || state.bytes + bytes > MAX_BYTES;
        if !is_full(self) {
            return;
        }
        self.drop_if(|entry| entry.since.elapsed() >= entry.ttl);
        if !is_full(self) {
            return;
        }
        // Some more than needed, so that not every answer to come has to look for its place.
        let mut uses: Vec<u64> = self.entries.values().map(|entry| entry.used).collect();
        uses.sort_unstable();
        let oldest = uses.get(uses.len() / 4).copied().unwrap_or_default();
        self.drop_if(|entry| entry.used <= oldest);
        while is_full(self) {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone());
            let Some(oldest) = oldest else { return };
            self.remove(&oldest);
        }
    }
}

/// For how long an answer may be kept, if at all.
fn ttl(reply: &Reply) -> Option<Duration> {
    let message = &reply.message;
    if let Shape::Lasting(ttl) = reply.shape {
        return Some(ttl);
    }
    if reply.shape != Shape::Marked || message.kind() != Kind::Result {
        return None;
    }
    let is_complete = message.raw(Field::ResultType).is_none_or(|raw| raw == b"\"complete\"");
    let ttl = std::str::from_utf8(message.raw(Field::TtlMs)?).ok()?.parse().ok()?;
    let ttl = Duration::from_millis(ttl).min(MAX_AGE);
    (is_complete && !ttl.is_zero()).then_some(ttl)
}

/// Whether `call` asks for a list that the configuration may give a time.
///
/// A client with a session may have a list of its own there.
pub(crate) fn may_last(call: &Call) -> bool {
    let method = call.request.method();
    let is_list = || METHODS.iter().any(|(list, about)| *list == method && *about != About::Contents);
    call.client.answers == Answers::ByRetry && is_list()
}

/// An answer that may be kept for `ttl`, if its backend doesn't say for how long.
pub(crate) fn lasting(reply: Reply, ttl: Duration) -> Reply {
    let says_nothing = reply.shape == Shape::Plain && reply.message.raw(Field::TtlMs).is_none();
    if !says_nothing || reply.message.kind() != Kind::Result || ttl.is_zero() {
        return reply;
    }
    Reply { shape: Shape::Lasting(ttl.min(MAX_AGE)), ..reply }
}

#[cfg(test)]
mod tests;

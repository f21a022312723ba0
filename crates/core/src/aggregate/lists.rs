//! Merged lists: every backend's page, fetched at once, written one after the other.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use drawbridge_wire::message::Field;
use drawbridge_wire::{Id, Message, json, method};
use futures_util::StreamExt as _;
use futures_util::future::join_all;

use super::{Aggregate, Errand, names, owners};
use crate::backend::BackendName;
use crate::call::{Event, Events, Reply, Shape};
use crate::fault::{Deadline, Fault};
use crate::seal::Purpose;

/// A list method and how its entries are addressed.
#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    pub(super) method: &'static str,
    /// The member of the result that has the entries.
    entries: &'static str,
    /// The member of an entry that addresses it.
    address: &'static str,
    /// What an entry is called in messages.
    pub(super) noun: &'static str,
}

impl List {
    pub(super) const TOOLS: Self =
        Self { method: method::TOOLS_LIST, entries: "tools", address: "name", noun: "tool" };
    pub(super) const PROMPTS: Self =
        Self { method: method::PROMPTS_LIST, entries: "prompts", address: "name", noun: "prompt" };
    pub(super) const RESOURCES: Self =
        Self { method: method::RESOURCES_LIST, entries: "resources", address: "uri", noun: "resource" };
    pub(super) const TEMPLATES: Self = Self {
        method: method::RESOURCES_TEMPLATES_LIST,
        entries: "resourceTemplates",
        address: "uriTemplate",
        noun: "resource template",
    };
    pub(super) const TASKS: Self =
        Self { method: method::TASKS_LIST, entries: "tasks", address: "taskId", noun: "task" };
}

/// One page of one backend.
struct Part {
    backend: usize,
    entries: Bytes,
    next: Option<Bytes>,
    hints: Option<(u64, bool)>,
}

/// Where each backend's list goes on; sealed into the cursor of the merged list.
#[derive(serde::Serialize, serde::Deserialize)]
struct Position {
    endpoint: String,
    method: String,
    principal: String,
    /// Backend name and its own cursor, raw JSON.
    next: Vec<(String, String)>,
}

/// A backend may have at most this many pages when the gateway reads them for itself.
const MAX_PAGES: usize = 50;

/// The merged page that `errand` asks for.
pub(super) async fn merged(errand: &Errand, list: List) -> Result<Reply, Fault> {
    let aggregate = errand.aggregate()?;
    let wanted: Vec<(usize, Option<Bytes>)> = match errand.call.request.raw(Field::Cursor) {
        None | Some(b"null") => (0..aggregate.names.len()).map(|index| (index, None)).collect(),
        Some(_) => open_cursor(aggregate, errand, list)?,
    };
    let asked = wanted.into_iter().map(|(backend, cursor)| page(errand, list, backend, cursor));
    let mut parts = Vec::new();
    let mut first_fault = None;
    for answer in join_all(asked).await {
        match answer {
            Ok(part) => parts.push(part),
            Err(fault) => first_fault = first_fault.or(Some(fault)),
        }
    }
    match first_fault {
        Some(fault) if parts.is_empty() => Err(fault),
        _ => Ok(write(aggregate, errand, list, &parts)),
    }
}

/// Reads the whole list of one backend for the names and owners in it.
pub(super) async fn learn(errand: &Errand, list: List, backend: usize) {
    let Ok(aggregate) = errand.aggregate() else { return };
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let Ok(part) = page(errand, list, backend, cursor).await else { return };
        for entry in json::elements(&part.entries).unwrap_or_default() {
            expose(aggregate, list, backend, entry);
        }
        cursor = part.next;
        if cursor.is_none() {
            return;
        }
    }
}

/// Reads several lists of all backends.
pub(super) async fn learn_all(errand: &Errand, lists: &[List]) {
    let count = errand.endpoint.backends().len();
    let all = (0..count).flat_map(|backend| lists.iter().map(move |list| learn(errand, *list, backend)));
    join_all(all).await;
}

/// One page of one backend. A backend that does not have such lists has an empty one.
async fn page(errand: &Errand, list: List, backend: usize, cursor: Option<Bytes>) -> Result<Part, Fault> {
    let meta = errand.call.request.slice(Field::Meta);
    let members = [("_meta", meta.as_deref()), ("cursor", cursor.as_deref())];
    let params = json::object(members.into_iter().filter_map(|(key, value)| Some((key, value?))));
    let request = Message::request(&Id::from_number(0), list.method, &params);
    let target = &errand.endpoint.backends()[backend];
    let events = errand.send(backend, request);
    let part = |entries, next, hints| Part { backend, entries, next, hints };
    match last_event(events, target.name(), target.list_timeout()).await {
        Event::Done(reply) if reply.message.error_code() == drawbridge_wire::code::METHOD_NOT_FOUND => {
            Ok(part(Bytes::from_static(b"[]"), None, None))
        }
        Event::Done(reply) if reply.is_error() => {
            let text = reply.message.text(Field::ErrorMessage).unwrap_or_default().into_owned();
            Err(report(
                target.name(),
                list,
                Fault::BadAnswer { backend: target.name().to_string(), detail: text },
            ))
        }
        Event::Done(reply) => {
            let result = reply.message.slice(Field::Result).unwrap_or_default();
            let entries = json::member(&result, list.entries).map(Bytes::copy_from_slice);
            let entries = entries.unwrap_or_else(|| Bytes::from_static(b"[]"));
            let next = reply.message.slice(Field::NextCursor).filter(|raw| raw.starts_with(b"\""));
            Ok(part(entries, next, hints(&reply)))
        }
        Event::Fail(fault) => Err(report(target.name(), list, fault)),
        _ => {
            let detail = format!("it asks for input in answer to {}", list.method);
            Err(Fault::BadAnswer { backend: target.name().to_string(), detail })
        }
    }
}

fn report(backend: &BackendName, list: List, fault: Fault) -> Fault {
    tracing::warn!(backend.name = %backend, error.code = fault.code(), "left out of {}: {fault}", list.method);
    fault
}

/// The time to live and whether it may be shared, where the answer says.
fn hints(reply: &Reply) -> Option<(u64, bool)> {
    let millis = |left: Duration| u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    let public = || reply.message.text(Field::CacheScope).as_deref() == Some("public");
    match reply.shape {
        Shape::Plain => None,
        Shape::Lasting(left) => Some((millis(left), false)),
        Shape::Marked => {
            let ttl = std::str::from_utf8(reply.message.raw(Field::TtlMs)?).ok()?;
            Some((ttl.parse().unwrap_or(0), public()))
        }
        Shape::Aged(left) => Some((millis(left), public())),
    }
}

/// Waits for the terminal event of a call whose other events interest nobody.
pub(crate) async fn last_event(mut events: Events, backend: &BackendName, limit: Duration) -> Event {
    let last = async {
        while let Some(event) = events.next().await {
            if event.is_terminal() {
                return event;
            }
        }
        Event::Fail(Fault::OutcomeUnknown { backend: backend.to_string(), detail: "no answer".to_owned() })
    };
    let late = || Event::Fail(Fault::Timeout { backend: backend.to_string(), deadline: Deadline::List });
    tokio::time::timeout(limit, last).await.unwrap_or_else(|_| late())
}

/// The address of an entry as clients know it, noting who owns it. `None` if the entry has none.
fn expose(aggregate: &Aggregate, list: List, backend: usize, entry: &[u8]) -> Option<String> {
    // Of two addresses, nobody can tell which a client reads.
    let address = json::decode_string(json::sole_member(entry, list.address)?)?;
    let name = &aggregate.names[backend];
    let owner = match list.address {
        "name" => {
            let exposed = names::expose(name.as_str(), &address);
            aggregate.aliases(list).note(&exposed, &address);
            return Some(exposed);
        }
        "taskId" => return Some(address.into_owned()),
        "uri" => aggregate.owners.note(&address, backend),
        _ => aggregate.owners.note_template(&address, backend),
    };
    Some(if owner == backend { address.into_owned() } else { owners::readdress(name, &address) })
}

fn write(aggregate: &Aggregate, errand: &Errand, list: List, parts: &[Part]) -> Reply {
    let mut text = BytesMut::with_capacity(256 + parts.iter().map(|p| p.entries.len() + 64).sum::<usize>());
    text.extend_from_slice(b"{\"");
    text.extend_from_slice(list.entries.as_bytes());
    text.extend_from_slice(b"\":[");
    let mut first = true;
    for part in parts {
        for entry in json::elements(&part.entries).unwrap_or_default() {
            let Some(exposed) = expose(aggregate, list, part.backend, entry) else { continue };
            if !std::mem::take(&mut first) {
                text.extend_from_slice(b",");
            }
            write_entry(&mut text, entry, list.address, &exposed);
        }
    }
    text.extend_from_slice(b"]");
    let next: Vec<_> = parts.iter().filter_map(|p| Some((p.backend, p.next.as_ref()?))).collect();
    if !next.is_empty() {
        text.extend_from_slice(b",\"nextCursor\":\"");
        text.extend_from_slice(seal_cursor(aggregate, errand, list, &next).as_bytes());
        text.extend_from_slice(b"\"");
    }
    let hints: Option<Vec<_>> = parts.iter().map(|p| p.hints).collect();
    let shape = match hints.filter(|h| !h.is_empty()) {
        Some(hints) => {
            let ttl = hints.iter().map(|h| h.0).min().unwrap_or(0);
            let scope = if hints.iter().all(|h| h.1) { "public" } else { "private" };
            let mark = format!(",\"resultType\":\"complete\",\"ttlMs\":{ttl},\"cacheScope\":\"{scope}\"");
            text.extend_from_slice(mark.as_bytes());
            Shape::Marked
        }
        None => Shape::Plain,
    };
    text.extend_from_slice(b"}");
    Reply { message: Message::result(&Id::from_number(0), &text), shape }
}

/// Copies an entry with another address; everything else stays byte for byte.
fn write_entry(out: &mut BytesMut, entry: &[u8], address: &str, exposed: &str) {
    let Some(range) = json::member_range(entry, address) else { return };
    out.extend_from_slice(&entry[..range.start]);
    out.extend_from_slice(json::encode_string(exposed).as_bytes());
    out.extend_from_slice(&entry[range.end..]);
}

fn seal_cursor(aggregate: &Aggregate, errand: &Errand, list: List, next: &[(usize, &Bytes)]) -> String {
    let position = Position {
        endpoint: aggregate.endpoint.clone(),
        method: list.method.to_owned(),
        principal: errand.call.client.principal.as_str().to_owned(),
        next: next
            .iter()
            .map(|(backend, cursor)| {
                (aggregate.names[*backend].to_string(), String::from_utf8_lossy(cursor).into_owned())
            })
            .collect(),
    };
    let plain = serde_json::to_vec(&position).unwrap_or_default();
    aggregate.keys.seal(Purpose::Cursor, &plain)
}

fn open_cursor(
    aggregate: &Aggregate,
    errand: &Errand,
    list: List,
) -> Result<Vec<(usize, Option<Bytes>)>, Fault> {
    let invalid = || Fault::invalid_params("invalid cursor: list again from the start");
    let handle = errand.call.request.text(Field::Cursor).ok_or_else(invalid)?;
    let plain = aggregate.keys.open(Purpose::Cursor, &handle).ok_or_else(invalid)?;
    let position: Position = serde_json::from_slice(&plain).ok().ok_or_else(invalid)?;
    let ours = position.endpoint == aggregate.endpoint
        && position.method == list.method
        && position.principal == errand.call.client.principal.as_str();
    if !ours {
        return Err(invalid());
    }
    let index = |name: &str| aggregate.names.iter().position(|n| n.as_str() == name);
    Ok(position
        .next
        .into_iter()
        .filter_map(|(name, cursor)| Some((index(&name)?, Some(Bytes::from(cursor)))))
        .collect())
}

//! Lists without what a caller may not have, and calls of that refused: both by one question, `Trusted::verdict`.

use std::borrow::Cow;

use bytes::Bytes;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Edit, Message, RpcError, code, json, method};
use url::Url;

use super::Trusted;
use crate::accounts::told;
use crate::call::{Call, Event, Reply};
use crate::fault::Fault;
use crate::rights::{Item, Kind, Rights, Verdict};

/// Where a result tells a host which permission a call lacks.
const CHALLENGE: &str = "mcp/www_authenticate";
const SCHEMES: &str = "securitySchemes";
const URIS: &str = "resourceSubscriptions";

/// What of the answer to a call is to be looked at.
pub(super) enum Asked {
    /// Nothing.
    Call,
    /// The entries of a list.
    List(&'static List),
    /// A resource, which others may not have.
    Read,
}

impl Asked {
    /// By the method of the request.
    pub(super) fn of(method: &str) -> Self {
        match LISTS.iter().find(|list| list.method == method) {
            Some(list) => Self::List(list),
            None if method == method::RESOURCES_READ => Self::Read,
            None => Self::Call,
        }
    }
}

/// A list: the method that asks for it, the member of its result with the entries, their member that names them, and
/// what they are.
pub(super) struct List {
    method: &'static str,
    entries: &'static str,
    name: &'static str,
    kind: Kind,
}

const LISTS: [List; 4] = [
    List { method: method::TOOLS_LIST, entries: "tools", name: "name", kind: Kind::Tool { reads: false } },
    List { method: method::PROMPTS_LIST, entries: "prompts", name: "name", kind: Kind::Prompt },
    List { method: method::RESOURCES_LIST, entries: "resources", name: "uri", kind: Kind::Resource },
    List {
        method: method::RESOURCES_TEMPLATES_LIST,
        entries: "resourceTemplates",
        name: "uriTemplate",
        kind: Kind::Resource,
    },
];

/// Methods besides those that name something, of which is known what they do.
const KNOWN: [&str; 8] = [
    method::PING,
    method::SET_LEVEL,
    method::RESOURCES_UNSUBSCRIBE,
    method::TASKS_GET,
    method::TASKS_UPDATE,
    method::TASKS_CANCEL,
    method::TASKS_RESULT,
    method::TASKS_LIST,
];

/// What URIs have in no place, and templates do.
const TEMPLATE: [char; 2] = ['{', '}'];

/// What a URI may be taken for, besides how it is written: without dot segments and with its scheme and host in lower
/// case, and this with what is percent-encoded in plain.
fn readings(uri: &str) -> Vec<String> {
    let Ok(url) = Url::parse(uri) else { return vec![decoded(uri)] };
    let mut readings = vec![url.as_str().to_owned(), decoded(url.as_str())];
    if let Ok(again) = Url::parse(&readings[1]) {
        readings.push(again.into());
    }
    // To file systems, several slashes are one.
    if let Some((scheme, path)) = readings[1].split_once("///") {
        let path: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        readings.push(format!("{scheme}///{}", path.join("/")));
    }
    readings.retain(|reading| reading != uri);
    readings
}

fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Whether a tool says of itself that it only reads.
pub(super) fn reads(tool: &[u8]) -> bool {
    json::at(tool, &["annotations", "readOnlyHint"]) == Some(b"true")
}

impl Trusted {
    /// What `rights` say of something here: lists and calls ask nothing else.
    fn verdict(&self, rights: &dyn Rights, kind: Kind, name: &str) -> Verdict {
        let verdict = rights.on(&self.item(kind, name));
        if verdict != Verdict::Allowed || kind != Kind::Resource || name.contains(TEMPLATE) {
            return verdict;
        }
        // A server may read a URI otherwise than it is written: whatever it may be taken for has to be allowed.
        readings(name)
            .iter()
            .map(|reading| rights.on(&self.item(kind, reading)))
            .find(|verdict| *verdict != Verdict::Allowed)
            .unwrap_or(Verdict::Allowed)
    }

    fn item<'a>(&'a self, kind: Kind, name: &'a str) -> Item<'a> {
        let kind = match kind {
            Kind::Tool { .. } => Kind::Tool { reads: self.reads(name).unwrap_or(false) },
            kind => kind,
        };
        Item { backend: &self.name, kind, name }
    }

    /// Lets a call pass, as the backend is to get it, with what of its answer is to be looked at; else the answer.
    pub(super) fn check(&self, rights: &dyn Rights, mut call: Call) -> Result<(Call, Asked), Box<Event>> {
        let request = &call.request;
        let method = request.method();
        let asked = Asked::of(&method);
        // One that names two things, or one twice, names nothing.
        let reference = |key, other| {
            let reference = request.raw(Field::Ref).filter(|raw| json::member(raw, other).is_none())?;
            json::sole_member(reference, key).and_then(json::decode_string)
        };
        let named: Option<(Kind, Cow<'_, str>)> = match method.as_ref() {
            method::TOOLS_CALL => request.text(Field::Name).map(|name| (Kind::Tool { reads: false }, name)),
            method::PROMPTS_GET => request.text(Field::Name).map(|name| (Kind::Prompt, name)),
            method::RESOURCES_READ | method::RESOURCES_SUBSCRIBE => {
                request.text(Field::Uri).map(|uri| (Kind::Resource, uri))
            }
            method::COMPLETE => reference("name", "uri")
                .map(|name| (Kind::Prompt, name))
                .or_else(|| reference("uri", "name").map(|uri| (Kind::Resource, uri))),
            _ => None,
        };
        let reads = matches!(method.as_ref(), method::RESOURCES_READ | method::RESOURCES_SUBSCRIBE);
        if let Some((kind, name)) = named.as_ref().filter(|(_, name)| reads && name.contains(TEMPLATE)) {
            // No URI has these, and what a server makes of them nobody knows.
            return Err(Box::new(Event::Fail(unknown(*kind, name))));
        }
        let must_name = match method.as_ref() {
            method::TOOLS_CALL | method::PROMPTS_GET => Some("name"),
            method::RESOURCES_READ | method::RESOURCES_SUBSCRIBE => Some("uri"),
            method::COMPLETE => Some("ref"),
            _ => None,
        };
        if let Some(key) = must_name.filter(|_| named.is_none()) {
            // Some servers would make a name of what is none.
            let fault = Fault::invalid_params(format!("\"{key}\" must name something"));
            return Err(Box::new(Event::Fail(fault)));
        }
        let reaches = rights.reaches(&self.name, KNOWN.contains(&method.as_ref()));
        if named.is_none() && !reaches && !matches!(asked, Asked::List(_)) && method != method::LISTEN {
            return Err(Box::new(Event::Fail(Fault::method_not_found(&method))));
        }
        if let Some((kind, name)) = &named {
            match self.verdict(rights, *kind, name) {
                Verdict::Allowed => {}
                Verdict::Hidden => return Err(Box::new(Event::Fail(unknown(*kind, name)))),
                Verdict::Lacks(scope) => return Err(Box::new(lacks(rights, &call, scope))),
            }
        }
        let is_listen = method == method::LISTEN;
        drop((named, method));
        if is_listen {
            call.request = self.listen(rights, call.request);
        }
        Ok((call, asked))
    }

    /// A listen without the resources that the caller may not have.
    fn listen(&self, rights: &dyn Rights, request: Message) -> Message {
        let filter = request.raw(Field::Notifications).unwrap_or(b"{}");
        let Some(Ok(uris)) = json::member(filter, URIS).map(json::elements) else { return request };
        let may = |uri: &&[u8]| {
            let uri = json::decode_string(uri);
            uri.is_some_and(|uri| self.verdict(rights, Kind::Resource, &uri) == Verdict::Allowed)
        };
        let allowed: Vec<&[u8]> = uris.iter().copied().filter(may).collect();
        if allowed.len() == uris.len() {
            return request;
        }
        let filter = json::replace_member(filter, URIS, &json::array(allowed));
        Edit::new(&request).set(Field::Notifications, filter).into_message()
    }

    /// What the caller may see of an answer.
    pub(super) fn filter(&self, rights: &dyn Rights, asked: &Asked, event: Event) -> Event {
        let Event::Done(reply) = event else { return event };
        if reply.message.raw(Field::Result).is_none() {
            return Event::Done(reply);
        }
        let (reply, kind) = match asked {
            Asked::Call => return Event::Done(reply),
            Asked::Read => (reply, Kind::Resource),
            Asked::List(list) => (self.filtered(rights, list, reply), list.kind),
        };
        // Whoever keeps it for all would show it to callers who may not see it.
        let is_public =
            rights.differ(kind) && reply.message.text(Field::CacheScope).as_deref() == Some("public");
        if !is_public {
            return Event::Done(reply);
        }
        let message = Edit::new(&reply.message).set_text(Field::CacheScope, "private").into_message();
        Event::Done(Reply { message, shape: reply.shape })
    }

    fn filtered(&self, rights: &dyn Rights, list: &List, reply: Reply) -> Reply {
        let result = reply.message.raw(Field::Result).unwrap_or(b"{}");
        let Some(raw) = json::member(result, list.entries) else { return reply };
        let named = json::members(result).unwrap_or_default();
        if named.iter().filter(|(key, _)| key == list.entries).count() > 1 {
            // Nobody can tell which of two a client reads.
            let rest = json::filter_members(result, |key| key != list.entries);
            let result = json::replace_member(&rest, list.entries, b"[]");
            let message = Edit::new(&reply.message).set(Field::Result, result).into_message();
            return Reply { message, shape: reply.shape };
        }
        if list.method == method::TOOLS_LIST {
            self.learn(raw);
        }
        let entries = json::elements(raw);
        let mut is_same = entries.is_ok();
        let entries = entries.unwrap_or_default();
        let mut kept: Vec<Cow<'_, [u8]>> = Vec::with_capacity(entries.len());
        for entry in entries {
            let name = json::sole_member(entry, list.name).and_then(json::decode_string);
            let may =
                name.as_ref().is_some_and(|name| self.verdict(rights, list.kind, name) != Verdict::Hidden);
            let scheme =
                name.filter(|_| may).and_then(|name| rights.scope_shown(&self.item(list.kind, &name)));
            is_same &= may && scheme.is_none();
            match scheme {
                Some(scope) => kept.push(Cow::Owned(with_scheme(entry, scope))),
                None if may => kept.push(Cow::Borrowed(entry)),
                None => {}
            }
        }
        if is_same {
            return reply;
        }
        let entries = json::array(kept.iter().map(|entry| &entry[..]));
        let result = json::replace_member(result, list.entries, &entries);
        let message = Edit::new(&reply.message).set(Field::Result, result).into_message();
        Reply { message, shape: reply.shape }
    }
}

/// A tool that says which scope it needs, in both places where hosts look for that.
fn with_scheme(tool: &[u8], scope: &str) -> Vec<u8> {
    let schemes = format!(r#"[{{"type":"oauth2","scopes":["{scope}"]}}]"#);
    let meta = json::member(tool, "_meta").filter(|meta| meta.starts_with(b"{")).unwrap_or(b"{}");
    let meta = json::replace_member(meta, SCHEMES, schemes.as_bytes());
    let tool = json::replace_member(tool, SCHEMES, schemes.as_bytes());
    json::replace_member(&tool, "_meta", &meta).to_vec()
}

/// What is said of what there is not, and of what the caller may not have: the same.
fn unknown(kind: Kind, name: &str) -> Fault {
    match kind {
        // Without its name, which on a merged path is another.
        Kind::Tool { .. } => Fault::invalid_params("Unknown tool"),
        Kind::Prompt => Fault::invalid_params("Unknown prompt"),
        Kind::Resource => {
            let data = json::object([("uri", json::encode_string(name).as_bytes())]);
            Fault::Rpc(RpcError::new(code::RESOURCE_NOT_FOUND, "Resource not found").with_data(data))
        }
    }
}

/// Tells in an answer which scope is missing. Where it can, the face has told so before, in the way of HTTP.
fn lacks(rights: &dyn Rights, call: &Call, scope: &str) -> Event {
    let text = format!(
        "This needs the permission \"{scope}\", which this connection does not have. Connect again and allow it."
    );
    let event = told(call, &text);
    let (Event::Done(reply), Some(challenge)) = (&event, rights.challenge(scope)) else { return event };
    let Some(result) = reply.message.raw(Field::Result) else { return event };
    let challenges = json::array([json::encode_string(&challenge).as_bytes()]);
    let meta = json::object([(CHALLENGE, &challenges[..])]);
    let result: Bytes = json::replace_member(result, "_meta", &meta);
    let message = Edit::new(&reply.message).set(Field::Result, result).into_message();
    Event::Done(Reply { message, shape: reply.shape })
}

#[cfg(test)]
mod tests;

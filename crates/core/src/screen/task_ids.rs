//! Ids of tasks as clients know them: sealed for whoever has got them.
//!
//! A backend may take all callers for one, so that whoever knows the id of a task could read what came of it, or cancel
//! it. What a client carries is a handle, good for its own principal at this backend, and unknown to everybody else. The same id has the same handle at all instances, since clients compare them.
//! A handle also tells whose task it is where an endpoint has several backends. Of both eras' forms it knows where ids stand, and nothing else. Ids of tasks that the client runs are its own.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Edit, Message, json, method};

use crate::backend::BackendName;
use crate::call::{Call, Event, Reply, Round};
use crate::client::{Answers, Client};
use crate::fault::Fault;
use crate::seal::{KeyRing, Purpose};

/// What a message says in its `_meta` about the task that it belongs to.
const RELATED: &str = "io.modelcontextprotocol/related-task";
/// What is said of a task that the caller doesn't have.
pub(crate) const UNKNOWN: &str = "unknown task";
const ID: &str = "taskId";
const IDS: &str = "taskIds";

/// The handles of one principal at one backend.
pub(super) struct Handles {
    keys: Arc<KeyRing>,
    place: String,
}

/// Handles as the client has given them, by id: they come back to it as they were, also after the keys were rotated.
pub(super) type Given = HashMap<String, String>;

impl Handles {
    pub(super) fn of(client: &Client, backend: &BackendName, keys: &Arc<KeyRing>) -> Self {
        Self { keys: keys.clone(), place: format!("{backend}:{}", client.principal.as_str()) }
    }

    pub(super) fn open(&self, handle: &str) -> Option<String> {
        String::from_utf8(self.keys.open_for(Purpose::Task, &self.place, handle)?).ok()
    }

    /// The handle of an id, raw JSON; `None` if that is no text.
    fn sealed(&self, id: &[u8], given: &Given) -> Option<String> {
        let id = json::decode_string(id)?;
        let made = || self.keys.seal_same(Purpose::Task, &self.place, id.as_bytes());
        Some(json::encode_string(&given.get(id.as_ref()).cloned().unwrap_or_else(made)))
    }

    /// `object` with a handle in the place of the id that it has.
    fn sealed_in(&self, object: &[u8], given: &Given) -> Option<Bytes> {
        let handle = self.sealed(json::member(object, ID)?, given)?;
        Some(json::replace_member(object, ID, handle.as_bytes()))
    }

    /// `_meta` with a handle, or, where `is_opened`, with an id in the place of a handle.
    fn related(&self, meta: &[u8], given: &Given, is_opened: bool) -> Option<Bytes> {
        let about = json::member(meta, RELATED)?;
        let about = if is_opened {
            let id = self.open(&json::decode_string(json::member(about, ID)?)?)?;
            json::replace_member(about, ID, json::encode_string(&id).as_bytes())
        } else {
            self.sealed_in(about, given)?
        };
        Some(json::replace_member(meta, RELATED, &about))
    }

    /// A request as the backend is to get it.
    pub(super) fn request(
        &self,
        client: &Client,
        request: &Message,
    ) -> Result<(Option<Message>, Given), Fault> {
        let mut given = Given::new();
        let mut edit = Edit::new(request);
        match request.method().as_ref() {
            method::TASKS_LIST => {}
            method::LISTEN => {
                let raw = request.raw(Field::Notifications).unwrap_or(b"{}");
                if let Some(Ok(handles)) = json::member(raw, IDS).map(json::elements) {
                    // What is nobody's is honoured no more than what a backend doesn't know.
                    for handle in handles.into_iter().filter_map(json::decode_string) {
                        if let Some(id) = self.open(&handle) {
                            given.insert(id, handle.into_owned());
                        }
                    }
                    let ids: Vec<String> = given.keys().map(|id| json::encode_string(id)).collect();
                    let ids = json::array(ids.iter().map(String::as_bytes));
                    edit = edit.set(Field::Notifications, json::replace_member(raw, IDS, &ids));
                }
            }
            method if method.starts_with("tasks/") => {
                if client.answers == Answers::ByRetry {
                    client.need_tasks_extension()?;
                }
                let handle = request
                    .text(Field::TaskId)
                    .ok_or_else(|| Fault::invalid_params("\"taskId\" must be a string"))?;
                let id = self.open(&handle).ok_or_else(|| Fault::invalid_params(UNKNOWN))?;
                edit = edit.set_text(Field::TaskId, &id);
                given.insert(id, handle.into_owned());
            }
            _ => {}
        }
        if let Some(meta) = request.raw(Field::Meta).and_then(|meta| self.related(meta, &given, true)) {
            edit = edit.set(Field::Meta, meta);
        }
        let changed = (!edit.is_empty()).then(|| edit.into_message());
        Ok((changed, given))
    }

    /// An event as the client is to get it. `about` is the method of the request that it comes of, if it comes of one.
    pub(super) fn event(&self, event: Event, about: &str, given: &Given) -> Event {
        match event {
            Event::Notify(message) => Event::Notify(self.notification(message, given)),
            Event::Asks(round) => Event::Asks(Box::new(self.round(*round, given))),
            Event::Done(reply) => Event::Done(self.reply(reply, about, given)),
            event => event,
        }
    }

    /// A notification of the client as the backend is to get it.
    pub(super) fn told(&self, notification: Message) -> Message {
        let meta = notification.raw(Field::Meta).and_then(|meta| self.related(meta, &Given::new(), true));
        match meta {
            Some(meta) => Edit::new(&notification).set(Field::Meta, meta).into_message(),
            None => notification,
        }
    }

    fn notification(&self, message: Message, given: &Given) -> Message {
        let mut edit = Edit::new(&message);
        match message.method().as_ref() {
            method::TASKS_STATUS | method::TASKS_CHANGED => {
                if let Some(handle) = message.raw(Field::TaskId).and_then(|id| self.sealed(id, given)) {
                    edit = edit.set(Field::TaskId, handle);
                }
            }
            method::SUBSCRIPTIONS_ACKNOWLEDGED => {
                let raw = message.raw(Field::Notifications).unwrap_or(b"{}");
                if let Some(Ok(ids)) = json::member(raw, IDS).map(json::elements) {
                    let handles: Vec<_> = ids.iter().filter_map(|id| self.sealed(id, given)).collect();
                    let handles = json::array(handles.iter().map(String::as_bytes));
                    edit = edit.set(Field::Notifications, json::replace_member(raw, IDS, &handles));
                }
            }
            _ => {}
        }
        if let Some(meta) = message.raw(Field::Meta).and_then(|meta| self.related(meta, given, false)) {
            edit = edit.set(Field::Meta, meta);
        }
        if edit.is_empty() { message } else { edit.into_message() }
    }

    fn round(&self, mut round: Round, given: &Given) -> Round {
        for ask in &mut round.asks {
            // Of a task that the client runs, the id is the client's.
            if ask.request.method().starts_with("tasks/") {
                continue;
            }
            let meta = ask.request.raw(Field::Meta).and_then(|meta| self.related(meta, given, false));
            let Some(meta) = meta else { continue };
            ask.request = Edit::new(&ask.request).set(Field::Meta, meta).into_message();
            let handles = Self { keys: self.keys.clone(), place: self.place.clone() };
            ask.reply =
                ask.reply.take().map(|reply| reply.through(move |response| handles.response(response)));
        }
        round
    }

    /// A client's response to what the backend has asked.
    fn response(&self, response: Message) -> Message {
        let meta = response.raw(Field::ResultMeta).and_then(|meta| self.related(meta, &Given::new(), true));
        match meta {
            Some(meta) => Edit::new(&response).set(Field::ResultMeta, meta).into_message(),
            None => response,
        }
    }

    fn reply(&self, reply: Reply, about: &str, given: &Given) -> Reply {
        let message = &reply.message;
        let Some(result) = message.raw(Field::Result) else { return reply };
        let changed = match about {
            method::TASKS_LIST => self.all_sealed_in(result),
            // Its members are those of the answer that the task has come to.
            method::TASKS_RESULT => None,
            about if about.starts_with("tasks/") => self.sealed_in(result, given),
            _ if message.text(Field::ResultType).as_deref() == Some("task") => self.sealed_in(result, given),
            _ => json::member(result, "task")
                .and_then(|task| self.sealed_in(task, given))
                .map(|task| json::replace_member(result, "task", &task)),
        };
        let result = changed.as_deref().unwrap_or(result);
        let meta = json::member(result, "_meta").and_then(|meta| self.related(meta, given, false));
        let with_meta = meta.map(|meta| json::replace_member(result, "_meta", &meta));
        match with_meta.or(changed) {
            Some(result) => {
                let message = Edit::new(message).set(Field::Result, result).into_message();
                Reply { message, shape: reply.shape }
            }
            None => reply,
        }
    }

    fn all_sealed_in(&self, result: &[u8]) -> Option<Bytes> {
        let tasks = json::elements(json::member(result, "tasks")?).ok()?;
        let sealed: Vec<Bytes> =
            tasks.into_iter().filter_map(|task| self.sealed_in(task, &Given::new())).collect();
        Some(json::replace_member(result, "tasks", &json::array(sealed.iter().map(|task| &task[..]))))
    }
}

/// Whether a task may be spoken of in a call.
pub(super) fn may_be_about_tasks(call: &Call) -> bool {
    let request = &call.request;
    let method = request.method();
    method.starts_with("tasks/")
        || request.raw(Field::Task).is_some()
        || request.raw(Field::Meta).is_some_and(|meta| json::member(meta, RELATED).is_some())
        || call.client.knows_tasks_extension()
}

#[cfg(test)]
mod tests;

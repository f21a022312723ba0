//! What a client has set in a session, to be set again when the backend's side of it has to be opened anew.

use bytes::Bytes;
use drawbridge_core::Reply;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Edit, Id, Message, method};
use parking_lot::Mutex;

/// Subscriptions and the log level of a session.
#[derive(Debug, Default)]
pub(crate) struct Restore(Mutex<Vec<Message>>);

/// A larger request is not remembered; a level or a URI needs far less.
const MAX_MESSAGE_BYTES: usize = 16 * 1024;
/// A session with more subscriptions than this gets only the latest back.
const MAX_MESSAGES: usize = 256;

impl Restore {
    /// Notes a request that has succeeded, if it set something. Returns whether it did.
    pub(crate) fn note(&self, request: &Message, reply: &Reply) -> bool {
        let method = request.method();
        let relevant = matches!(
            method.as_ref(),
            method::SET_LEVEL | method::RESOURCES_SUBSCRIBE | method::RESOURCES_UNSUBSCRIBE
        );
        if !relevant || reply.is_error() || request.bytes().len() > MAX_MESSAGE_BYTES {
            return false;
        }
        self.set(request);
        true
    }

    /// Notes a request that sets something.
    pub(crate) fn set(&self, request: &Message) {
        // A copy: the request may be a slice of a whole batch.
        let Ok(request) = &Message::parse(Bytes::copy_from_slice(request.bytes())) else { return };
        let method = request.method();
        let mut messages = self.0.lock();
        let uri = request.text(Field::Uri);
        messages.retain(|m| match method.as_ref() {
            method::SET_LEVEL => m.method() != method::SET_LEVEL,
            _ => m.text(Field::Uri) != uri,
        });
        if method != method::RESOURCES_UNSUBSCRIBE {
            if messages.len() == MAX_MESSAGES {
                messages.remove(0);
            }
            messages.push(request.clone());
        }
    }

    /// The requests as texts, for another instance.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.0.lock().iter().map(|m| String::from_utf8_lossy(m.bytes()).into_owned()).collect()
    }

    /// Takes over what another instance noted.
    pub(crate) fn load(&self, texts: &[String]) {
        let parse = |text: &String| Message::parse(Bytes::copy_from_slice(text.as_bytes())).ok();
        *self.0.lock() = texts.iter().take(MAX_MESSAGES).filter_map(parse).collect();
    }

    /// The resources that the client subscribed to.
    pub(crate) fn subscriptions(&self) -> std::collections::BTreeSet<String> {
        let messages = self.0.lock();
        let subscribed = messages.iter().filter(|m| m.method() == method::RESOURCES_SUBSCRIBE);
        subscribed.filter_map(|m| m.text(Field::Uri).map(std::borrow::Cow::into_owned)).collect()
    }

    /// The requests to send again, each under a fresh id.
    pub(crate) fn messages(&self, mut id: impl FnMut() -> Id) -> Vec<Bytes> {
        self.0.lock().iter().map(|m| Edit::new(m).id(&id()).finish().into_bytes()).collect()
    }
}

#[cfg(test)]
mod tests {
    use drawbridge_core::call::Shape;

    use super::*;

    #[test]
    fn what_is_noted_keeps_nothing_of_the_body_it_came_in() {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"debug"}}"#;
        let body = Bytes::from(format!("[{text},\"{}\"]", "x".repeat(100_000)).into_bytes());
        let request = Message::parse(body.slice(1..=text.len())).unwrap();
        let message = Message::result(&Id::from_number(1), b"{}");
        let restore = Restore::default();
        restore.note(&request, &Reply { message, shape: Shape::Plain });
        drop(request);
        assert_eq!(restore.messages(|| Id::from_number(9)), [text.replace(":1,", ":9,")]);
        assert!(body.is_unique(), "a slice would keep all of it");
    }
}

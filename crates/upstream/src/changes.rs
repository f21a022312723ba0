//! Changes of a backend on their way to those who listen, whatever the two speak.
//!
//! A stateless client listens by a call that names what it wants; a client with a session takes changes unasked and
//! subscribes to resources by requests. A backend with sessions tells unasked and takes subscriptions by requests
//! ([`crate::shared_session`]); a stateless one is listened to ([`listen`]). Here is what the four have in common: a [`Filter`], and
//! [`Listeners`] that each have one.

pub(crate) mod listen;
pub(crate) mod once;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use drawbridge_core::Fault;
use drawbridge_core::backend::Unsolicited;
use drawbridge_core::call::Event;
use drawbridge_core::client::TASKS_EXTENSION;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Message, json, method};
use parking_lot::Mutex;

/// A client may listen to at most this many resources at once.
pub(crate) const MAX_URIS: usize = 1024;

/// Lists that may change: the member of a listen's filter, the member of a backend's capabilities, the notification.
const LISTS: [(&str, &str, &str); 3] = [
    ("toolsListChanged", "tools", method::TOOLS_LIST_CHANGED),
    ("promptsListChanged", "prompts", method::PROMPTS_LIST_CHANGED),
    ("resourcesListChanged", "resources", method::RESOURCES_LIST_CHANGED),
];

/// The members of a listen's filter that name single things.
const URIS: &str = "resourceSubscriptions";
const TASK_IDS: &str = "taskIds";

/// What somebody wants to hear of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    lists: [bool; LISTS.len()],
    pub(crate) uris: BTreeSet<String>,
    /// Tasks of the extension.
    pub(crate) task_ids: BTreeSet<String>,
}

impl Filter {
    /// Changes of all lists.
    pub(crate) fn all_lists() -> Self {
        Self { lists: [true; LISTS.len()], ..Self::default() }
    }

    /// Reads the `notifications` of a listen; what is unknown is not wanted.
    pub(crate) fn read(notifications: &[u8]) -> Self {
        Self::read_at_most(notifications, MAX_URIS)
    }

    /// Reads those of a listen that serves any number of clients.
    pub(crate) fn read_whole(notifications: &[u8]) -> Self {
        Self::read_at_most(notifications, usize::MAX)
    }

    /// What a client's listen wants.
    pub(crate) fn of(listen: &Message) -> Result<Self, Fault> {
        match listen.raw(Field::Notifications).filter(|raw| raw.starts_with(b"{")) {
            Some(raw) => Ok(Self::read(raw)),
            None => {
                Err(Fault::invalid_params("\"notifications\" must be an object that says what to listen to"))
            }
        }
    }

    /// Reads the `notifications` of an acknowledgement: what of this filter is honoured.
    pub(crate) fn honoured_by(&self, notifications: &[u8]) -> Self {
        self.in_common(&Self::read_whole(notifications))
    }

    fn read_at_most(notifications: &[u8], limit: usize) -> Self {
        let wants = |(flag, ..): &(&str, &str, &str)| json::member(notifications, flag) == Some(b"true");
        let texts = |key: &str| -> BTreeSet<String> {
            let texts = json::member(notifications, key).and_then(|raw| json::elements(raw).ok());
            let texts = texts.unwrap_or_default().into_iter().filter_map(json::decode_string);
            texts.take(limit).map(Cow::into_owned).collect()
        };
        Self { lists: LISTS.each_ref().map(wants), uris: texts(URIS), task_ids: texts(TASK_IDS) }
    }

    /// The `notifications` that say this.
    pub(crate) fn write(&self) -> Bytes {
        let array = |texts: &BTreeSet<String>| {
            let texts: Vec<String> = texts.iter().map(|text| json::encode_string(text)).collect();
            json::array(texts.iter().map(String::as_bytes))
        };
        let (uris, task_ids) = (array(&self.uris), array(&self.task_ids));
        let lists =
            LISTS.iter().zip(self.lists).filter(|(_, on)| *on).map(|((flag, ..), _)| (*flag, &b"true"[..]));
        let uris = (!self.uris.is_empty()).then_some((URIS, &uris[..]));
        let task_ids = (!self.task_ids.is_empty()).then_some((TASK_IDS, &task_ids[..]));
        json::object(lists.chain(uris).chain(task_ids))
    }

    /// What of this a backend with these `capabilities` tells of.
    pub(crate) fn offered_by(&self, capabilities: &[u8]) -> Self {
        let offers =
            |capability: &str, flag: &str| json::at(capabilities, &[capability, flag]) == Some(b"true");
        let mut lists = self.lists;
        for ((_, capability, _), on) in LISTS.iter().zip(&mut lists) {
            *on &= offers(capability, "listChanged");
        }
        let these = |texts: &BTreeSet<String>, offered| if offered { texts.clone() } else { BTreeSet::new() };
        let has_tasks = json::at(capabilities, &["extensions", TASKS_EXTENSION]).is_some();
        Self {
            lists,
            uris: these(&self.uris, offers("resources", "subscribe")),
            task_ids: these(&self.task_ids, has_tasks),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// How many single things it names.
    pub(crate) fn len(&self) -> usize {
        self.uris.len() + self.task_ids.len()
    }

    /// Adds what `other` wants.
    pub(crate) fn add(&mut self, other: &Self) {
        for (on, more) in self.lists.iter_mut().zip(other.lists) {
            *on |= more;
        }
        self.uris.extend(other.uris.iter().cloned());
        self.task_ids.extend(other.task_ids.iter().cloned());
    }

    /// What both have.
    pub(crate) fn in_common(&self, other: &Self) -> Self {
        let mut lists = self.lists;
        lists.iter_mut().zip(other.lists).for_each(|(on, theirs)| *on &= theirs);
        let both = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.intersection(b).cloned().collect();
        Self { lists, uris: both(&self.uris, &other.uris), task_ids: both(&self.task_ids, &other.task_ids) }
    }

    /// Takes out what `other` has.
    pub(crate) fn without(&self, other: &Self) -> Self {
        let mut lists = self.lists;
        lists.iter_mut().zip(other.lists).for_each(|(on, theirs)| *on &= !theirs);
        let less = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect();
        Self { lists, uris: less(&self.uris, &other.uris), task_ids: less(&self.task_ids, &other.task_ids) }
    }

    /// Whether `notification` is one of these. An update may be of a part of what was subscribed to.
    pub(crate) fn wants(&self, notification: &Message) -> bool {
        let method = notification.method();
        if method == method::RESOURCES_UPDATED {
            let uri = notification.text(Field::Uri).unwrap_or_default();
            return self.uris.iter().any(|own| uri.starts_with(own.as_str()));
        }
        if method == method::TASKS_CHANGED {
            return notification.text(Field::TaskId).is_some_and(|id| self.task_ids.contains(id.as_ref()));
        }
        LISTS.iter().zip(self.lists).any(|((.., name), on)| on && method == *name)
    }

    /// All that may have changed, as notifications: for when the way to a backend was lost. (How a task stands its client
    /// asks by itself.)
    pub(crate) fn everything(&self) -> Vec<Message> {
        let lists = LISTS.iter().zip(self.lists).filter(|(_, on)| *on);
        let lists = lists.map(|((.., name), _)| Message::notification(name, b"{}"));
        let updates = self.uris.iter().map(|uri| {
            let uri = json::encode_string(uri);
            Message::notification(method::RESOURCES_UPDATED, &json::object([("uri", uri.as_bytes())]))
        });
        lists.chain(updates).collect()
    }
}

/// Whether a notification is of something that clients listen to, whichever call it came with.
pub(crate) fn is_change(notification: &Message) -> bool {
    let method = notification.method();
    matches!(method.as_ref(), method::RESOURCES_UPDATED | method::TASKS_STATUS)
        || LISTS.iter().any(|(.., name)| method == *name)
}

struct Listener {
    number: u64,
    filter: Filter,
    to: Weak<dyn Unsolicited>,
}

/// Those who listen to one backend.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<(u64, Vec<Listener>)>);

impl Listeners {
    /// Enters a listener; the number names it.
    pub(crate) fn enter(&self, filter: Filter, to: Weak<dyn Unsolicited>) -> u64 {
        let mut all = self.0.lock();
        all.0 += 1;
        let number = all.0;
        all.1.push(Listener { number, filter, to });
        number
    }

    /// Gives a listener another filter.
    pub(crate) fn set(&self, number: u64, filter: Filter) {
        if let Some(listener) = self.0.lock().1.iter_mut().find(|l| l.number == number) {
            listener.filter = filter;
        }
    }

    /// Takes a listener out.
    pub(crate) fn leave(&self, number: u64) {
        self.0.lock().1.retain(|l| l.number != number);
    }

    /// Tells those who want to hear of it.
    pub(crate) fn tell(&self, notification: &Message) {
        let wanted: Vec<_> = {
            let all = self.0.lock();
            let wanted = all.1.iter().filter(|l| l.filter.wants(notification));
            wanted.filter_map(|l| l.to.upgrade()).collect()
        };
        wanted.iter().for_each(|to: &Arc<dyn Unsolicited>| to.deliver(Event::Notify(notification.clone())));
    }

    /// Whether anybody wants to hear of it.
    pub(crate) fn want(&self, notification: &Message) -> bool {
        self.0.lock().1.iter().any(|l| l.filter.wants(notification))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_reads_what_it_writes_and_leaves_out_what_nobody_knows() {
        let text = br#"{"toolsListChanged":true,"promptsListChanged":false,"madeUp":true,"resourceSubscriptions":["a://b","\u0061://b",7]}"#;
        let filter = Filter::read(text);
        assert_eq!(filter.write(), r#"{"toolsListChanged":true,"resourceSubscriptions":["a://b"]}"#);
        assert_eq!(Filter::read(&filter.write()), filter);
        assert_eq!(Filter::read(b"{}").write(), "{}");
        let offered = filter.offered_by(br#"{"tools":{"listChanged":true},"resources":{}}"#);
        assert_eq!(offered.write(), r#"{"toolsListChanged":true}"#);
        let more =
            br#"{"toolsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":["a://c"]}"#;
        assert_eq!(filter.honoured_by(more).write(), r#"{"toolsListChanged":true}"#);
        assert!(filter.without(&offered).lists == [false; 3] && !filter.without(&offered).is_empty());
    }

    #[test]
    fn an_update_of_a_part_is_for_those_who_want_the_whole() {
        let filter = Filter::read(br#"{"resourceSubscriptions":["file:///a"]}"#);
        let updated = |uri: &str| {
            Message::notification(method::RESOURCES_UPDATED, format!(r#"{{"uri":"{uri}"}}"#).as_bytes())
        };
        assert!(filter.wants(&updated("file:///a")) && filter.wants(&updated("file:///a/b")));
        assert!(!filter.wants(&updated("file:///b")));
        assert!(!filter.wants(&Message::notification(method::TOOLS_LIST_CHANGED, b"{}")));
        assert_eq!(filter.everything().len(), 1);
    }
}

//! Changes that clients may want to hear of, and the modern streams that listen for them.

use std::collections::HashMap;

use drawbridge_wire::{Message, method};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::outlet::Outlet;

const MAX_LISTENS: usize = 1024;
const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// Something changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Tools,
    Prompts,
    Resources,
    Updated(String),
}

impl Change {
    /// The notification that says so.
    pub(crate) fn notification(&self, meta: Option<Value>) -> Message {
        let (method, mut params) = match self {
            Self::Tools => (method::TOOLS_LIST_CHANGED, json!({})),
            Self::Prompts => (method::PROMPTS_LIST_CHANGED, json!({})),
            Self::Resources => (method::RESOURCES_LIST_CHANGED, json!({})),
            Self::Updated(uri) => (method::RESOURCES_UPDATED, json!({ "uri": uri })),
        };
        if let Some(meta) = meta {
            params["_meta"] = meta;
        }
        Message::notification(method, params.to_string().as_bytes())
    }
}

/// What a listen stream wants, as its client wrote it.
#[derive(Debug, Clone)]
pub(crate) struct Filter(Map<String, Value>);

impl Filter {
    const FLAGS: [&'static str; 3] = ["toolsListChanged", "promptsListChanged", "resourcesListChanged"];
    const URIS: &'static str = "resourceSubscriptions";

    /// The part of `wanted` that this server honours.
    pub(crate) fn of(wanted: &Value) -> Self {
        let mut honoured = Map::new();
        for flag in Self::FLAGS {
            if wanted[flag] == true {
                honoured.insert(flag.to_owned(), true.into());
            }
        }
        if let Some(uris) = wanted[Self::URIS].as_array() {
            let uris = uris.iter().filter(|uri| uri.is_string()).take(256).cloned();
            honoured.insert(Self::URIS.to_owned(), uris.collect());
        }
        Self(honoured)
    }

    fn wants(&self, change: &Change) -> bool {
        let flag = |name: &str| self.0.contains_key(name);
        match change {
            Change::Tools => flag(Self::FLAGS[0]),
            Change::Prompts => flag(Self::FLAGS[1]),
            Change::Resources => flag(Self::FLAGS[2]),
            Change::Updated(uri) => self
                .0
                .get(Self::URIS)
                .and_then(Value::as_array)
                .is_some_and(|uris| uris.iter().any(|wanted| wanted == uri.as_str())),
        }
    }
}

/// The `_meta` that names the subscription a message belongs to.
pub(crate) fn subscription_meta(id: &Value) -> Value {
    json!({ SUBSCRIPTION_ID: id })
}

/// The listen streams that are open.
#[derive(Debug, Default)]
pub(crate) struct Listens(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    last: u64,
    open: HashMap<u64, Listen>,
}

#[derive(Debug)]
struct Listen {
    id: Value,
    filter: Filter,
    out: Outlet,
}

impl Listens {
    /// Acknowledges the subscription `id` and keeps it until the guard is dropped; none if there is no
    /// room for it.
    pub(crate) fn open(&self, id: &Value, filter: Filter, out: &Outlet) -> Option<ListenGuard<'_>> {
        let mut table = self.0.lock();
        if table.open.len() >= MAX_LISTENS {
            return None;
        }
        let params = json!({ "notifications": filter.0, "_meta": subscription_meta(id) });
        let ack = Message::notification(method::SUBSCRIPTIONS_ACKNOWLEDGED, params.to_string().as_bytes());
        // Under the lock, so that no notification overtakes it.
        if !out.offer(ack) {
            return None;
        }
        table.last += 1;
        let key = table.last;
        table.open.insert(key, Listen { id: id.clone(), filter, out: out.clone() });
        Some(ListenGuard { listens: self, key })
    }

    pub(crate) fn announce(&self, change: &Change) {
        for listen in self.0.lock().open.values().filter(|listen| listen.filter.wants(change)) {
            listen.out.offer(change.notification(Some(subscription_meta(&listen.id))));
        }
    }
}

/// An open listen stream.
#[derive(Debug)]
pub(crate) struct ListenGuard<'a> {
    listens: &'a Listens,
    key: u64,
}

impl Drop for ListenGuard<'_> {
    fn drop(&mut self) {
        self.listens.0.lock().open.remove(&self.key);
    }
}

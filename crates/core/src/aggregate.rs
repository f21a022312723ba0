//! Several backends behind one endpoint: lists are merged, everything else is routed to its owner.
//!
//! Tools and prompts are called `{backend}__{name}` ([`names`]). Resources keep their URIs; who owns one is
//! learnt from the lists, and a URI that two backends have is re-addressed for the second. A backend that is
//! slow or dead costs only its own entries.

mod lists;
pub mod names;
mod owners;

use std::sync::Arc;
use std::time::Duration;

use drawbridge_wire::message::Field;
use drawbridge_wire::{Edit, Message, json, method};
use futures_util::future::join_all;
use futures_util::{FutureExt as _, StreamExt as _, stream};

use crate::backend::{Backend, BackendName};
use crate::call::{Call, Event, Events, once};
use crate::endpoint::{Conversing, Endpoint};
use crate::fault::{Deadline, Fault};
use crate::screen::task_ids;
use crate::seal::KeyRing;
use lists::List;
pub(crate) use lists::last_event;
use names::Aliases;
use owners::Owners;

/// How a method finds its backend.
enum Route {
    /// All backends are asked, their lists become one.
    Merge(List),
    /// The prefix of `params.name`.
    Name(List),
    /// The owner of `params.uri`.
    Uri,
    /// The backend that has the task `params.taskId`.
    Task,
    /// `params.ref`: a prompt's name or a template's URI.
    Reference,
    /// Every backend hears it; one success is a success.
    Broadcast,
    /// Every backend's stream, as one.
    Listen,
}

const ROUTES: &[(&str, Route)] = &[
    (method::TOOLS_LIST, Route::Merge(List::TOOLS)),
    (method::PROMPTS_LIST, Route::Merge(List::PROMPTS)),
    (method::RESOURCES_LIST, Route::Merge(List::RESOURCES)),
    (method::RESOURCES_TEMPLATES_LIST, Route::Merge(List::TEMPLATES)),
    (method::TOOLS_CALL, Route::Name(List::TOOLS)),
    (method::PROMPTS_GET, Route::Name(List::PROMPTS)),
    (method::RESOURCES_READ, Route::Uri),
    (method::RESOURCES_SUBSCRIBE, Route::Uri),
    (method::RESOURCES_UNSUBSCRIBE, Route::Uri),
    (method::TASKS_LIST, Route::Merge(List::TASKS)),
    (method::TASKS_GET, Route::Task),
    (method::TASKS_UPDATE, Route::Task),
    (method::TASKS_CANCEL, Route::Task),
    (method::TASKS_RESULT, Route::Task),
    (method::COMPLETE, Route::Reference),
    (method::SET_LEVEL, Route::Broadcast),
    (method::LISTEN, Route::Listen),
];

/// The routing state of an endpoint with several backends.
pub struct Aggregate {
    endpoint: String,
    names: Vec<BackendName>,
    keys: Arc<KeyRing>,
    tools: Aliases,
    prompts: Aliases,
    owners: Owners,
}

/// One call on its way through an aggregate: everything that the steps of it need.
#[derive(Clone)]
struct Errand {
    endpoint: Arc<Endpoint>,
    who: Arc<dyn Conversing>,
    call: Call,
}

impl Errand {
    fn aggregate(&self) -> Result<&Aggregate, Fault> {
        self.endpoint.aggregate().ok_or_else(|| Fault::method_not_found(&self.call.request.method()))
    }

    /// Sends the call, as `request`, to one backend.
    fn send(&self, backend: usize, request: Message) -> Events {
        self.who.conversation(backend).call(Call { request, ..self.call.clone() })
    }
}

impl Aggregate {
    pub(crate) fn new(endpoint: String, names: Vec<BackendName>, keys: Arc<KeyRing>) -> Self {
        Self {
            endpoint,
            names,
            keys,
            tools: Aliases::default(),
            prompts: Aliases::default(),
            owners: Owners::default(),
        }
    }

    fn aliases(&self, list: List) -> &Aliases {
        if list.method == method::PROMPTS_LIST { &self.prompts } else { &self.tools }
    }

    /// The backend of a name or URI, if that is known without asking.
    pub(crate) fn backend_of(&self, method: &str, name: &str) -> Option<usize> {
        let (_, route) = ROUTES.iter().find(|(known, _)| *known == method)?;
        match route {
            Route::Name(_) => {
                let (prefix, _) = names::split(name)?;
                self.names.iter().position(|n| n.as_str() == prefix)
            }
            Route::Uri => {
                let readdressed = owners::readdressed(&self.names, name).map(|(backend, _)| backend);
                readdressed.or_else(|| self.owners.find(name))
            }
            _ => None,
        }
    }

    /// What the backend of a tool calls it, if that is known without asking.
    pub(crate) fn own_name(&self, tool: &str) -> Option<String> {
        let (_, rest) = names::split(tool)?;
        if names::is_shortened(rest) { self.tools.find(tool) } else { Some(rest.to_owned()) }
    }

    pub(crate) fn call(&self, endpoint: &Arc<Endpoint>, who: &Arc<dyn Conversing>, call: Call) -> Events {
        let method = call.request.method().into_owned();
        let Some((_, route)) = ROUTES.iter().find(|(name, _)| *name == method) else {
            return once(Event::Fail(Fault::method_not_found(&method)));
        };
        let errand = Errand { endpoint: endpoint.clone(), who: who.clone(), call };
        match route {
            Route::Merge(list) => {
                later(async move { Ok(once(Event::Done(lists::merged(&errand, *list).await?))) })
            }
            Route::Name(list) => later(by_name(errand, *list)),
            Route::Uri => later(by_uri(errand)),
            Route::Task => later(async move { by_task(&errand) }),
            Route::Reference => later(by_reference(errand)),
            Route::Broadcast => later(broadcast(errand)),
            Route::Listen => listen_to_all(&errand),
        }
    }
}

/// Events that are known only after some work.
fn later(work: impl Future<Output = Result<Events, Fault>> + Send + 'static) -> Events {
    Box::pin(work.map(|events| events.unwrap_or_else(|fault| once(Event::Fail(fault)))).flatten_stream())
}

async fn by_name(errand: Errand, list: List) -> Result<Events, Fault> {
    let request = &errand.call.request;
    let exposed =
        request.text(Field::Name).ok_or_else(|| Fault::invalid_params("\"name\" must be a string"))?;
    let (backend, name) = resolve(&errand, list, &exposed).await?;
    let request = Edit::new(request).set_text(Field::Name, &name).into_message();
    Ok(errand.send(backend, request))
}

/// The backend and the name there for a name as the client knows it.
async fn resolve(errand: &Errand, list: List, exposed: &str) -> Result<(usize, String), Fault> {
    let aggregate = errand.aggregate()?;
    let unknown = || Fault::invalid_params(format!("Unknown {}", list.noun));
    let (prefix, rest) = names::split(exposed).ok_or_else(unknown)?;
    let backend = aggregate.names.iter().position(|n| n.as_str() == prefix).ok_or_else(unknown)?;
    if !names::is_shortened(rest) {
        return Ok((backend, rest.to_owned()));
    }
    let aliases = aggregate.aliases(list);
    if aliases.find(exposed).is_none() {
        // Not listed since this instance started: the backend's own list tells.
        lists::learn(errand, list, backend).await;
    }
    // A name may look shortened and be the backend's own.
    Ok((backend, aliases.find(exposed).unwrap_or_else(|| rest.to_owned())))
}

fn by_task(errand: &Errand) -> Result<Events, Fault> {
    let request = &errand.call.request;
    let id =
        request.text(Field::TaskId).ok_or_else(|| Fault::invalid_params("\"taskId\" must be a string"))?;
    let has_it = |backend: &Arc<dyn Backend>| backend.has_task(&errand.call.client, &id);
    let owner = errand.endpoint.backends().iter().position(has_it);
    let owner = owner.ok_or_else(|| Fault::invalid_params(task_ids::UNKNOWN))?;
    Ok(errand.send(owner, request.clone()))
}

async fn by_uri(errand: Errand) -> Result<Events, Fault> {
    let uri = errand
        .call
        .request
        .text(Field::Uri)
        .ok_or_else(|| Fault::invalid_params("\"uri\" must be a string"))?
        .into_owned();
    let aggregate = errand.aggregate()?;
    if let Some((backend, inner)) = owners::readdressed(&aggregate.names, &uri) {
        let request = Edit::new(&errand.call.request).set_text(Field::Uri, inner).into_message();
        return Ok(errand.send(backend, request));
    }
    let owner = match aggregate.owners.find(&uri) {
        Some(backend) => Some(backend),
        None => {
            lists::learn_all(&errand, &[List::RESOURCES, List::TEMPLATES]).await;
            aggregate.owners.find(&uri)
        }
    };
    match owner {
        Some(backend) => Ok(errand.send(backend, errand.call.request.clone())),
        // In no list and under no template: servers may still know it, so each is asked until one does.
        None => ask_in_turn(errand).await,
    }
}

async fn ask_in_turn(errand: Errand) -> Result<Events, Fault> {
    let mut last = None;
    for (index, backend) in errand.endpoint.backends().iter().enumerate() {
        let mut events = errand.send(index, errand.call.request.clone());
        let said = async {
            loop {
                match events.next().await {
                    Some(Event::Begun | Event::Paused(_)) => {}
                    event => return event,
                }
            }
        };
        let first = tokio::time::timeout(backend.list_timeout(), said).await;
        match first {
            Ok(Some(Event::Done(reply))) if reply.is_error() => last = Some(Event::Done(reply)),
            Ok(Some(Event::Fail(fault))) => last = last.or(Some(Event::Fail(fault))),
            Ok(Some(event)) => return Ok(Box::pin(stream::once(std::future::ready(event)).chain(events))),
            Ok(None) | Err(_) => {}
        }
    }
    Ok(once(last.unwrap_or_else(|| Event::Fail(Fault::invalid_params("unknown resource")))))
}

async fn by_reference(errand: Errand) -> Result<Events, Fault> {
    let request = &errand.call.request;
    let reference = request.slice(Field::Ref).ok_or_else(|| Fault::invalid_params("\"ref\" is missing"))?;
    let text = |key| json::member(&reference, key).and_then(json::decode_string);
    if let Some(name) = text("name") {
        let (backend, name) = resolve(&errand, List::PROMPTS, &name).await?;
        let reference = json::replace_member(&reference, "name", json::encode_string(&name).as_bytes());
        let request = Edit::new(request).set(Field::Ref, reference).into_message();
        return Ok(errand.send(backend, request));
    }
    let uri = text("uri").ok_or_else(|| Fault::invalid_params("\"ref\" has neither a name nor a uri"))?;
    let aggregate = errand.aggregate()?;
    if aggregate.owners.find(&uri).is_none() {
        lists::learn_all(&errand, &[List::TEMPLATES]).await;
    }
    let backend = aggregate
        .owners
        .find(&uri)
        .ok_or_else(|| Fault::invalid_params(format!("unknown resource template: {uri}")))?;
    Ok(errand.send(backend, request.clone()))
}

async fn broadcast(errand: Errand) -> Result<Events, Fault> {
    let asked = errand.endpoint.backends().iter().enumerate().map(|(index, backend)| {
        let events = errand.send(index, errand.call.request.clone());
        last_event(events, backend.name(), backend.list_timeout())
    });
    let mut answer = None;
    for event in join_all(asked).await {
        let good = matches!(&event, Event::Done(reply) if !reply.is_error());
        if good {
            return Ok(once(event));
        }
        answer = answer.or(Some(event));
    }
    let none = || Event::Fail(Fault::method_not_found(&errand.call.request.method()));
    Ok(once(answer.unwrap_or_else(none)))
}

/// The streams of all backends as one. Acknowledgements are merged into one that comes first: what any backend
/// honours is honoured.
fn listen_to_all(errand: &Errand) -> Events {
    let count = errand.endpoint.backends().len();
    let all = errand.endpoint.backends().iter().enumerate().map(|(index, backend)| {
        let events = errand.send(index, errand.call.request.clone());
        first_within(events, backend.name().to_string(), backend.list_timeout())
    });
    let merged = stream::select_all(all);
    let mut waiting = count;
    let mut honoured: Vec<(String, Vec<u8>)> = Vec::new();
    let mut early = Vec::new();
    let mut ended = 0;
    let mut is_told = false;
    Box::pin(merged.flat_map(move |event| {
        let mut out: Vec<Event> = Vec::new();
        match event {
            Event::Notify(message)
                if message.method() == method::SUBSCRIPTIONS_ACKNOWLEDGED && waiting > 0 =>
            {
                note_honoured(&mut honoured, &message);
                waiting -= 1;
            }
            Event::Done(_) | Event::Fail(_) => {
                ended += 1;
                waiting = waiting.saturating_sub(1);
                if ended == count {
                    early.push(event);
                }
            }
            Event::Begun | Event::Paused(_) => {}
            event if waiting > 0 => early.push(event),
            event => out.push(event),
        }
        if waiting == 0 && (!is_told || !early.is_empty()) {
            let notifications =
                json::object(honoured.iter().map(|(key, value)| (key.as_str(), value.as_slice())));
            if !std::mem::replace(&mut is_told, true) && ended < count {
                let params = json::object([("notifications", &notifications[..])]);
                out.push(Event::Notify(Message::notification(method::SUBSCRIPTIONS_ACKNOWLEDGED, &params)));
            }
            out.append(&mut early);
        }
        stream::iter(out)
    }))
}

/// The same events, or a fault if the first takes longer than `limit`.
fn first_within(mut events: Events, backend: String, limit: Duration) -> Events {
    let first = async move {
        match tokio::time::timeout(limit, events.next()).await {
            Ok(Some(event)) => Box::pin(stream::once(std::future::ready(event)).chain(events)),
            Ok(None) => once(Event::Fail(Fault::OutcomeUnknown { backend, detail: "no answer".to_owned() })),
            Err(_) => once(Event::Fail(Fault::Timeout { backend, deadline: Deadline::List })),
        }
    };
    Box::pin(first.flatten_stream())
}

fn note_honoured(honoured: &mut Vec<(String, Vec<u8>)>, ack: &Message) {
    let raw = ack.raw(Field::Notifications).unwrap_or(b"{}");
    for (key, value) in json::members(raw).unwrap_or_default() {
        match honoured.iter_mut().find(|(k, _)| *k == key) {
            None => honoured.push((key.into_owned(), value.to_vec())),
            // Lists of URIs are united, flags are equal anyway.
            Some((_, old)) => {
                if let (Ok(a), Ok(b)) = (json::elements(old), json::elements(value)) {
                    let mut united = a.clone();
                    united.extend(b.into_iter().filter(|e| !a.contains(e)));
                    *old = json::array(united).to_vec();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;

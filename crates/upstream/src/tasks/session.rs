//! Tasks of a session, told to stateless clients as those of the extension.
//!
//! A tool of 2025-11-25 says whether it runs as a task. Where it may and the client knows the extension, the call
//! becomes a task; where it must and the client doesn't, the task is waited for here. The result of a task, and what it
//! asks meanwhile, come in answer to `tasks/result`, which is sent once the client has to know of either.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use drawbridge_core::call::{Ask, Call, Emitter, Event, Events, Reply, Shape, forward, generate};
use drawbridge_core::client::TASKS_EXTENSION;
use drawbridge_core::{Client, Fault, Tasks, rounds};
use drawbridge_wire::message::Field;
use drawbridge_wire::{Edit, Id, Kind, Message, json, method};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use crate::changes::Listeners;
use crate::described::{LegacyConversation, Refused};

/// What a list of tools said is believed for this long.
const TOOLS_TTL: Duration = Duration::from_secs(300);
/// Pages of a list that are read at most.
const MAX_PAGES: usize = 50;
/// Tasks whose asks are waited for at once.
const MAX_FOLLOWED: usize = 1024;
/// What one task asks and has no answer to yet, at most.
const MAX_ASKS: usize = 64;
/// Tasks that are looked at at once, to tell those who listen; how long that may take.
const MAX_TELLERS: usize = 16;
const TELL_TIME: Duration = Duration::from_secs(10);
/// How long a client that looks at a task waits for what the task asks.
const ASK_TIME: Duration = Duration::from_secs(2);

/// Whether a tool runs as a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Support {
    Optional,
    Required,
}

type Tools = Arc<HashMap<String, Support>>;

/// A task whose result is being waited for.
struct Followed {
    /// What it asks, by key.
    asks: Mutex<Vec<(String, Ask)>>,
    /// Counts the changes of that.
    changes: watch::Sender<usize>,
}

/// The tasks of one session.
pub(crate) struct SessionTasks {
    session: Arc<dyn LegacyConversation>,
    tasks: Tasks,
    tools: Mutex<Option<(Tools, Instant)>>,
    asking: tokio::sync::Mutex<()>,
    followed: Mutex<HashMap<String, Arc<Followed>>>,
    /// Tasks of which is being told, so that what is told of one comes in order, and whether they have changed since.
    telling: Mutex<HashMap<String, bool>>,
    tellers: Semaphore,
}

impl SessionTasks {
    pub(crate) fn new(session: Arc<dyn LegacyConversation>, tasks: Tasks) -> Arc<Self> {
        Arc::new(Self {
            session,
            tasks,
            tools: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
            followed: Mutex::default(),
            telling: Mutex::default(),
            tellers: Semaphore::new(MAX_TELLERS),
        })
    }

    /// The list of tools has changed.
    pub(crate) fn forget_tools(&self) {
        *self.tools.lock() = None;
    }

    async fn offers_tasks(&self) -> Result<bool, Fault> {
        let description = self.session.clone().handshake().await?;
        Ok(json::at(&description.capabilities, &["extensions", TASKS_EXTENSION]).is_some())
    }

    /// Calls a tool, as a task if it has to be or the client likes it so.
    pub(crate) fn call_tool(self: Arc<Self>, mut call: Call, refused: Refused) -> Events {
        if call.request.raw(Field::Task).is_some() {
            // Stateless clients do not ask for tasks this way.
            call.request = Edit::new(&call.request).remove(Field::Task).into_message();
        }
        // Boxed, so that a call that waits keeps no room for what it didn't need.
        generate(|emit| async move {
            match Box::pin(self.is_task(&call, &refused)).await {
                Ok(false) => last(forward(&emit, self.session.clone().call_or_refuse(call, refused)).await),
                Ok(true) => Box::pin(self.run_task(&emit, call, refused)).await.unwrap_or_else(Event::Fail),
                Err(fault) => Event::Fail(fault),
            }
        })
    }

    /// Whether a call of a tool has to be a task, or may be one and the client likes it so.
    async fn is_task(&self, call: &Call, refused: &Refused) -> Result<bool, Fault> {
        let support = match self.offers_tasks().await {
            Ok(true) => self.support(call).await,
            offers => offers.map(|_| None),
        };
        if let Err(Fault::BadAnswer { .. }) = &support {
            // Nothing was asked of the tool yet.
            refused.set();
        }
        Ok(match support? {
            Some(Support::Required) => true,
            Some(Support::Optional) => call.client.knows_tasks_extension(),
            None => false,
        })
    }

    async fn run_task(&self, emit: &Emitter, call: Call, refused: Refused) -> Result<Event, Fault> {
        let request = Edit::new(&call.request).set(Field::Task, "{}").into_message();
        let create = Call { request, ..call.clone() };
        let created = forward(emit, self.session.clone().call_or_refuse(create, refused)).await;
        let Some(Event::Done(reply)) = &created else { return Ok(last(created)) };
        let result = reply.message.raw(Field::Result).unwrap_or_default();
        let task = json::member(result, "task").map(Bytes::copy_from_slice);
        let Some((task, id)) = task.and_then(|task| Some((task.clone(), id_of(&task)?))) else {
            return Ok(last(created));
        };
        if call.client.knows_tasks_extension() {
            return Ok(flat(&task, "task", &[]));
        }
        let mut cancel = Cancel { tasks: self, client: &call.client, id: &id, armed: true };
        let result = self.request(&call.client, method::TASKS_RESULT, &id);
        let event = last(forward(emit, self.session.clone().call(result)).await);
        cancel.armed = matches!(event, Event::Fail(_));
        Ok(event)
    }

    fn request(&self, client: &Arc<Client>, method: &str, id: &str) -> Call {
        let id = json::encode_string(id);
        let request =
            Message::request(&Id::from_number(0), method, &json::object([("taskId", id.as_bytes())]));
        Call::new(request, client.clone())
    }

    async fn ask(&self, call: Call) -> Result<Message, Fault> {
        let mut events = self.session.clone().call(call);
        while let Some(event) = events.next().await {
            match event {
                Event::Done(reply) => return Ok(reply.message),
                Event::Fail(fault) => return Err(fault),
                Event::Asks(round) => crate::legacy::refuse_round(*round),
                _ => {}
            }
        }
        Err(lost())
    }

    /// Whether the tool that `call` names runs as a task.
    async fn support(&self, call: &Call) -> Result<Option<Support>, Fault> {
        let name = call.request.text(Field::Name).unwrap_or_default();
        let fresh = || {
            let tools = self.tools.lock();
            tools.as_ref().filter(|(_, at)| at.elapsed() < TOOLS_TTL).map(|(tools, _)| tools.clone())
        };
        if let Some(tools) = fresh() {
            return Ok(tools.get(name.as_ref()).copied());
        }
        let _turn = self.asking.lock().await;
        if let Some(tools) = fresh() {
            return Ok(tools.get(name.as_ref()).copied());
        }
        let tools = Arc::new(self.list_tools(&call.client).await?);
        *self.tools.lock() = Some((tools.clone(), Instant::now()));
        Ok(tools.get(name.as_ref()).copied())
    }

    async fn list_tools(&self, client: &Arc<Client>) -> Result<HashMap<String, Support>, Fault> {
        let mut found = HashMap::new();
        let mut cursor: Option<Bytes> = None;
        for _ in 0..MAX_PAGES {
            let params = json::object(cursor.iter().map(|cursor| ("cursor", &cursor[..])));
            let request = Message::request(&Id::from_number(0), method::TOOLS_LIST, &params);
            let call = Call::new(request, client.clone());
            let page = self.ask(call).await?;
            let tools = page.raw(Field::Result).and_then(|result| json::member(result, "tools"));
            for tool in tools.and_then(|raw| json::elements(raw).ok()).unwrap_or_default() {
                let text = |path: &[&str]| json::at(tool, path).and_then(json::decode_string);
                let support = match text(&["execution", "taskSupport"]).as_deref() {
                    Some("required") => Support::Required,
                    Some("optional") => Support::Optional,
                    _ => continue,
                };
                if let Some(name) = text(&["name"]) {
                    found.insert(name.into_owned(), support);
                }
            }
            cursor = page.slice(Field::NextCursor).filter(|raw| raw.starts_with(b"\""));
            if cursor.is_none() {
                break;
            }
        }
        Ok(found)
    }

    /// Answers a request about a task.
    pub(crate) fn about_task(self: Arc<Self>, call: Call) -> Events {
        generate(|_| async move { self.answer(&call).await.unwrap_or_else(Event::Fail) })
    }

    async fn answer(self: &Arc<Self>, call: &Call) -> Result<Event, Fault> {
        let method = call.request.method();
        if !self.offers_tasks().await? {
            return Err(Fault::method_not_found(&method));
        }
        call.client.need_tasks_extension()?;
        let id = call.request.text(Field::TaskId);
        let id = id.ok_or_else(|| Fault::invalid_params("\"taskId\" must be a string"))?;
        match method.as_ref() {
            method::TASKS_GET => self.get(&call.client, &id).await,
            method::TASKS_UPDATE => self.update(call, &id).await,
            method::TASKS_CANCEL => {
                // A task that has ended can't be cancelled, which is no error in the extension.
                self.ask(self.request(&call.client, method::TASKS_CANCEL, &id)).await?;
                Ok(acknowledged())
            }
            _ => Err(Fault::method_not_found(&method)),
        }
    }

    /// Tells `listeners` how a task stands. Told is what is so when it is looked at, once for all that happened before.
    pub(crate) fn tell(self: &Arc<Self>, client: &Arc<Client>, id: &str, listeners: &Arc<Listeners>) {
        let text = json::encode_string(id);
        let bare = Message::notification(method::TASKS_CHANGED, &json::object([("taskId", text.as_bytes())]));
        if !listeners.want(&bare) {
            return;
        }
        match self.telling.lock().entry(id.to_owned()) {
            Entry::Occupied(mut has_changed) => {
                has_changed.insert(true);
                return;
            }
            Entry::Vacant(new) => new.insert(false),
        };
        let (me, client, id, listeners) = (self.clone(), client.clone(), id.to_owned(), listeners.clone());
        self.tasks.spawn("tell of task", async move {
            loop {
                // Who is not told looks by itself.
                let state = {
                    let _permit = me.tellers.acquire().await;
                    tokio::time::timeout(TELL_TIME, me.get(&client, &id)).await
                };
                if let Ok(Ok(Event::Done(reply))) = state
                    && let Some(task) = reply.message.raw(Field::Result)
                {
                    let task = json::filter_members(task, |key| key != "resultType");
                    listeners.tell(&Message::notification(method::TASKS_CHANGED, &task));
                }
                let mut telling = me.telling.lock();
                match telling.get_mut(&id) {
                    Some(has_changed) if *has_changed => *has_changed = false,
                    _ => {
                        telling.remove(&id);
                        return;
                    }
                }
            }
        });
    }

    async fn get(self: &Arc<Self>, client: &Arc<Client>, id: &str) -> Result<Event, Fault> {
        let state = self.ask(self.request(client, method::TASKS_GET, id)).await?;
        if state.kind() == Kind::Error {
            return Ok(Event::Done(Reply { message: state, shape: Shape::Plain }));
        }
        let task = state.slice(Field::Result).unwrap_or_default();
        let status = json::member(&task, "status").and_then(json::decode_string).unwrap_or_default();
        match status.as_ref() {
            "completed" | "failed" => {
                let answer = self.ask(self.request(client, method::TASKS_RESULT, id)).await?;
                // A tool that failed has a result which says so; only an error is a failed task here.
                let (status, key, field) = match answer.kind() {
                    Kind::Error => ("\"failed\"", "error", Field::Error),
                    _ => ("\"completed\"", "result", Field::Result),
                };
                let task = json::replace_member(&task, "status", status.as_bytes());
                Ok(flat(&task, "complete", &[(key, answer.raw(field).unwrap_or(b"{}"))]))
            }
            "input_required" => {
                let asks = self.asks(client, id).await;
                Ok(flat(&task, "complete", &[("inputRequests", &asks)]))
            }
            _ => Ok(flat(&task, "complete", &[])),
        }
    }

    /// What a task asks, by sending `tasks/result` and waiting a moment for it.
    async fn asks(self: &Arc<Self>, client: &Arc<Client>, id: &str) -> Bytes {
        let followed = self.follow(client, id);
        let mut changes = followed.changes.subscribe();
        let some = async {
            while followed.asks.lock().is_empty() {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(ASK_TIME, some).await;
        let asks = followed.asks.lock();
        let shown: Vec<(&str, Bytes)> =
            asks.iter().map(|(key, ask)| (key.as_str(), rounds::embedded(&ask.request))).collect();
        json::object(shown.iter().map(|(key, request)| (*key, &request[..])))
    }

    /// Waits for the result of a task in the background, for the sake of what it asks.
    fn follow(self: &Arc<Self>, client: &Arc<Client>, id: &str) -> Arc<Followed> {
        let mut all = self.followed.lock();
        if let Some(followed) = all.get(id) {
            return followed.clone();
        }
        let followed = Arc::new(Followed { asks: Mutex::default(), changes: watch::channel(0).0 });
        if all.len() >= MAX_FOLLOWED {
            return followed;
        }
        all.insert(id.to_owned(), followed.clone());
        drop(all);
        let (me, task, id, client) = (self.clone(), followed.clone(), id.to_owned(), client.clone());
        self.tasks.spawn("follow task", async move {
            let mut events = me.session.clone().call(me.request(&client, method::TASKS_RESULT, &id));
            let mut number = 0;
            while let Some(event) = events.next().await {
                match event {
                    Event::Asks(round) => {
                        for ask in round.asks {
                            let mut asks = task.asks.lock();
                            if asks.len() >= MAX_ASKS || !client.declares(&ask.request) {
                                drop(asks);
                                rounds::refuse(ask);
                                continue;
                            }
                            number += 1;
                            asks.push((format!("ask-{number}"), ask));
                        }
                    }
                    Event::Withdraw(key) => task.asks.lock().retain(|(_, ask)| ask.key != key),
                    event if event.is_terminal() => break,
                    _ => {}
                }
                task.changes.send_modify(|count| *count += 1);
            }
            me.followed.lock().remove(&id);
        });
        followed
    }

    async fn update(self: &Arc<Self>, call: &Call, id: &str) -> Result<Event, Fault> {
        let malformed = || {
            Fault::invalid_params(
                "inputResponses must be an object whose members are results of what was asked",
            )
        };
        let answers = call.request.raw(Field::InputResponses).ok_or_else(malformed)?;
        let answers = json::members(answers).ok().ok_or_else(malformed)?;
        let followed = self.followed.lock().get(id).cloned();
        let known = |key: &str, answer: &[u8]| {
            let asks = followed.as_ref().map(|followed| followed.asks.lock());
            let ask = asks.as_ref().and_then(|asks| asks.iter().find(|(own, _)| own == key));
            ask.map_or(answer.starts_with(b"{"), |(_, ask)| rounds::is_answer(&ask.request, answer))
        };
        if !answers.iter().all(|(key, answer)| known(key, answer)) {
            return Err(malformed());
        }
        let Some(followed) = followed else {
            // It waits for nothing that anybody could answer; whether it exists the backend knows.
            let state = self.ask(self.request(&call.client, method::TASKS_GET, id)).await?;
            return Ok(match state.kind() {
                Kind::Error => Event::Done(Reply { message: state, shape: Shape::Plain }),
                _ => acknowledged(),
            });
        };
        for (key, answer) in answers {
            let ask = {
                let mut asks = followed.asks.lock();
                asks.iter().position(|(own, _)| *own == key).map(|at| asks.remove(at).1)
            };
            if let Some(ask) = ask
                && let (Some(reply), Some(id)) = (ask.reply, ask.request.id())
            {
                // The task may have ended meanwhile.
                reply.send(Message::result(&id, answer));
            }
        }
        Ok(acknowledged())
    }
}

fn lost() -> Fault {
    Fault::OutcomeUnknown { backend: String::new(), detail: "no answer".to_owned() }
}

fn last(event: Option<Event>) -> Event {
    event.unwrap_or_else(|| Event::Fail(lost()))
}

fn id_of(task: &[u8]) -> Option<String> {
    json::member(task, "taskId").and_then(json::decode_string).map(std::borrow::Cow::into_owned)
}

/// An empty acknowledgement.
fn acknowledged() -> Event {
    let message = Message::result(&Id::from_number(0), br#"{"resultType":"complete"}"#);
    Event::Done(Reply { message, shape: Shape::Marked })
}

/// A task in the flat form of the extension.
fn flat(task: &[u8], kind: &str, more: &[(&str, &[u8])]) -> Event {
    let kind = json::encode_string(kind);
    let own = json::members(task).unwrap_or_default();
    let renamed = own.iter().map(|(key, value)| {
        let key = match key.as_ref() {
            "ttl" => "ttlMs",
            "pollInterval" => "pollIntervalMs",
            other => other,
        };
        (key, *value)
    });
    let members = [("resultType", kind.as_bytes())].into_iter().chain(renamed).chain(more.iter().copied());
    let message = Message::result(&Id::from_number(0), &json::object(members));
    Event::Done(Reply { message, shape: Shape::Marked })
}

/// Cancels a task whose client has gone.
struct Cancel<'a> {
    tasks: &'a SessionTasks,
    client: &'a Arc<Client>,
    id: &'a str,
    armed: bool,
}

impl Drop for Cancel<'_> {
    fn drop(&mut self) {
        if self.armed {
            let cancel = self.tasks.request(self.client, method::TASKS_CANCEL, self.id);
            let mut events = self.tasks.session.clone().call(cancel);
            self.tasks.tasks.spawn("cancel task", async move { while events.next().await.is_some() {} });
        }
    }
}

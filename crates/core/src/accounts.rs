//! Backends at which each user has an account of their own, which they connect in a browser.
//!
//! [`Personal`] stands before such a backend. Where the caller's account is connected it is not to be noticed. Where it
//! is not, calls are answered with the link under which it can be: the engine asks the client to have a URL opened, in
//! the way that this client answers; who can't be asked so is told in words. Lists have one tool, which gives the link.
//! When the account is connected, sessions and listeners hear that all lists have changed.
//!
//! A session may be told at another instance than the one that gave it the link, so all know the links of a session.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Edit, Id, Message, RpcError, code, json, method};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use smallvec::SmallVec;
use tokio::sync::broadcast;
use tokio_util::future::FutureExt as _;

use crate::backend::{Backend, BackendName, Conversation, Description, Scope, TakenUp, Unsolicited};
use crate::call::{
    Ask, AskKey, Call, Emitter, Event, Events, Reply, Resume, Round, Shape, forward, generate,
};
use crate::client::{Answers, Client, Principal};
use crate::endpoint::SERVER_INFO;
use crate::event_log::SessionKey;
use crate::fault::Fault;
use crate::fleet::Peers;
use crate::rights::Rights;
use crate::tasks::Tasks;

/// The tool that there is while an account is not connected.
pub const CONNECT: &str = "connect";
/// What a client is asked under.
const KEY: &str = "connect";
/// What the state of a call begins with that waits for an account; the number of its round follows.
const STATE: &str = "\"account:";
/// How often a call asks for the same.
const MAX_ROUNDS: u32 = 3;
/// A client that says its user is done may be a little ahead.
const WAIT: Duration = Duration::from_secs(20);
/// How long a listen waits that was refused though the account seemed connected.
const AGAIN: Duration = Duration::from_secs(1);
/// Links that a session is told of when they are done.
const MAX_LINKS: usize = 16;
/// How long they are remembered, which is longer than they are good.
const LINKS_TIME: Duration = Duration::from_secs(3600);
/// A value that was overtaken so often is given up.
const TRIES: usize = 8;

/// Where a user can connect an account.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// What it is known by when it is done.
    pub name: String,
    /// What is to be opened in a browser. It is the user's alone.
    pub url: String,
    /// What for, in words for the user.
    pub purpose: String,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Link {
    /// What asks a user to open it: the parameters of an elicitation.
    pub fn elicitation(&self) -> Bytes {
        json::object([
            ("mode", &b"\"url\""[..]),
            ("elicitationId", json::encode_string(&self.name).as_bytes()),
            ("url", json::encode_string(&self.url).as_bytes()),
            ("message", json::encode_string(&self.purpose).as_bytes()),
        ])
    }
}

/// Who knows whether users have connected their accounts at a backend.
#[async_trait]
pub trait Accounts: Send + Sync {
    /// Whether the user for whom `whom` acts has.
    ///
    /// # Errors
    ///
    /// If that can't be told now.
    async fn is_connected(&self, whom: &Principal) -> Result<bool, Fault>;

    /// Where that user can; `name` is what the link is known by when it is done. `None` if `whom` acts for no user.
    fn link(&self, whom: &Principal, name: &str) -> Option<String>;

    /// Whether users connect by nothing but logging in at the gateway again.
    fn is_by_login(&self) -> bool {
        false
    }

    /// Tells of each user (by id) for whom it is another than before.
    fn changes(&self) -> broadcast::Receiver<Arc<str>>;
}

/// A backend at which each user has an account.
pub struct Personal {
    inner: Arc<dyn Backend>,
    accounts: Arc<dyn Accounts>,
    guests: Guests,
    peers: Peers,
}

type Guests = Arc<Mutex<Vec<Weak<Guest>>>>;

impl Personal {
    /// The backend `inner`, of whose accounts `accounts` knows. What sessions are told is told by one of `tasks`, also
    /// where one of `peers` has given them a link.
    pub fn new(
        inner: Arc<dyn Backend>,
        accounts: Arc<dyn Accounts>,
        peers: &Peers,
        tasks: &Tasks,
    ) -> Arc<Self> {
        let guests = Guests::default();
        let (told, mut changes, drain) =
            (Arc::downgrade(&guests), accounts.changes(), tasks.drain_token().clone());
        let behind = inner.clone();
        tasks.spawn("tell of accounts", async move {
            let telling = async {
                loop {
                    let user = match changes.recv().await {
                        Ok(user) => Some(user),
                        Err(broadcast::error::RecvError::Lagged(_)) => None,
                        Err(broadcast::error::RecvError::Closed) => return,
                    };
                    let Some(guests) = told.upgrade() else { return };
                    // It may be another account.
                    behind.forget();
                    let all: Vec<Arc<Guest>> = {
                        let mut guests = guests.lock();
                        guests.retain(|guest| guest.strong_count() > 0);
                        guests.iter().filter_map(Weak::upgrade).collect()
                    };
                    for guest in all.iter().filter(|guest| guest.is_of(user.as_deref())) {
                        guest.changed().await;
                    }
                }
            };
            telling.with_cancellation_token_owned(drain).await;
        });
        Arc::new(Self { inner, accounts, guests, peers: peers.clone() })
    }
}

#[async_trait]
impl Backend for Personal {
    fn name(&self) -> &BackendName {
        self.inner.name()
    }

    fn speaks(&self) -> Option<&'static str> {
        self.inner.speaks()
    }

    async fn describe(&self, client: &Arc<Client>) -> Result<Arc<Description>, Fault> {
        if !self.accounts.is_connected(&client.principal).await? {
            return Ok(stranger());
        }
        match self.inner.describe(client).await {
            Err(Fault::NotConnected { .. } | Fault::NotAllowed { .. }) => Ok(stranger()),
            description => description,
        }
    }

    fn open(
        self: Arc<Self>,
        client: &Arc<Client>,
        scope: Scope,
        sink: Option<Weak<dyn Unsolicited>>,
    ) -> Arc<dyn Conversation> {
        let guest = Arc::new(Guest {
            name: self.inner.name().clone(),
            inner: self.inner.clone().open(client, scope, sink.clone()),
            accounts: self.accounts.clone(),
            client: client.clone(),
            links: Links::new(&self.peers, self.inner.name(), scope),
            is_listening: AtomicBool::new(false),
            sink,
        });
        if guest.sink.is_some() {
            let mut guests = self.guests.lock();
            if guests.len() == guests.capacity() {
                guests.retain(|guest| guest.strong_count() > 0);
            }
            guests.push(Arc::downgrade(&guest));
        }
        guest
    }

    fn has_task(&self, client: &Client, id: &str) -> bool {
        self.inner.has_task(client, id)
    }

    fn reads(&self, tool: &str) -> Option<bool> {
        self.inner.reads(tool)
    }

    fn list_timeout(&self) -> Duration {
        self.inner.list_timeout()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

/// What a backend is to somebody whose account is not connected. It may turn out to have all kinds of lists.
fn stranger() -> Arc<Description> {
    let changing = r#"{"listChanged":true}"#;
    let capabilities = format!(r#"{{"tools":{changing},"prompts":{changing},"resources":{changing}}}"#);
    Arc::new(Description {
        server_info: SERVER_INFO.into(),
        capabilities: capabilities.into(),
        instructions: None,
        meta: None,
        cache: None,
    })
}

/// A conversation of somebody whose account may not be connected.
struct Guest {
    name: BackendName,
    inner: Arc<dyn Conversation>,
    accounts: Arc<dyn Accounts>,
    client: Arc<Client>,
    sink: Option<Weak<dyn Unsolicited>>,
    links: Links,
    is_listening: AtomicBool,
}

/// The names of links that were given to the client of a session.
struct Links {
    /// Those that are not known to be done.
    open: Mutex<VecDeque<String>>,
    /// Those that the client was told of.
    told: Mutex<VecDeque<String>>,
    /// Where all instances know of them, if there are several.
    shared: Option<(Peers, SessionKey)>,
    field: String,
}

/// Where links of a session are: by themselves, since what else is known of it lasts for another time.
fn beside(key: SessionKey, field: &str) -> SessionKey {
    let mut own = [0; 16];
    let digest = Sha256::new().chain_update(key.0).chain_update(field).finalize();
    own.copy_from_slice(&digest[..16]);
    SessionKey(own)
}

fn remember(names: &mut VecDeque<String>, name: String) {
    if names.len() >= MAX_LINKS {
        names.pop_front();
    }
    names.push_back(name);
}

impl Links {
    fn new(peers: &Peers, backend: &BackendName, scope: Scope) -> Self {
        let field = format!("links:{backend}");
        let shared = match scope {
            Scope::Session(key) if peers.state().is_fleet => Some((peers.clone(), beside(key, &field))),
            _ => None,
        };
        let (open, told) = (Mutex::default(), Mutex::default());
        Self { open, told, shared, field }
    }

    /// A link was given.
    async fn give(&self, name: String) {
        remember(&mut self.open.lock(), name.clone());
        let Some((peers, key)) = &self.shared else { return };
        let sessions = &peers.state().sessions;
        for _ in 0..TRIES {
            // Where that can't be had, the client hears of it only at this instance.
            let Ok(old) = sessions.get(*key, &self.field).await else { return };
            let mut all: VecDeque<String> = old.as_ref().map(read).unwrap_or_default();
            remember(&mut all, name.clone());
            let new = Bytes::from(serde_json::to_vec(&all).unwrap_or_default());
            let put = match &old {
                Some(old) => sessions.replace(*key, &self.field, old, new, LINKS_TIME).await,
                None => {
                    let now = sessions.put_if_absent(*key, &self.field, new.clone(), LINKS_TIME).await;
                    now.map(|now| now == new)
                }
            };
            if put != Ok(false) {
                return;
            }
        }
    }

    /// They are done: those that the client was not told of here. It may hear of one at two instances.
    async fn take(&self) -> Vec<String> {
        let shared = match &self.shared {
            Some((peers, key)) => peers.state().sessions.get(*key, &self.field).await.ok().flatten(),
            None => None,
        };
        let mut done: Vec<String> = std::mem::take(&mut *self.open.lock()).into();
        let mut told = self.told.lock();
        for name in shared.as_ref().map(read).unwrap_or_default() {
            if !done.contains(&name) && !told.contains(&name) {
                done.push(name);
            }
        }
        done.iter().for_each(|name| remember(&mut told, name.clone()));
        done
    }
}

fn read(names: &Bytes) -> VecDeque<String> {
    serde_json::from_slice(names).unwrap_or_default()
}

/// Lists that may change, how a client says that it listens to them, and how it is told.
const LISTS: [(&str, &str); 3] = [
    ("toolsListChanged", method::TOOLS_LIST_CHANGED),
    ("promptsListChanged", method::PROMPTS_LIST_CHANGED),
    ("resourcesListChanged", method::RESOURCES_LIST_CHANGED),
];

impl Guest {
    fn is_of(&self, user: Option<&str>) -> bool {
        user.is_none_or(|user| self.client.principal.user() == Some(user))
    }

    /// It is another with the account than before.
    async fn changed(&self) {
        let Some(sink) = self.sink.as_ref().and_then(Weak::upgrade) else { return };
        if self.accounts.is_connected(&self.client.principal).await.unwrap_or(false) {
            for link in self.links.take().await {
                let params = json::object([("elicitationId", json::encode_string(&link).as_bytes())]);
                sink.deliver(Event::Notify(Message::notification(method::ELICITATION_COMPLETE, &params)));
            }
            if self.is_listening.load(Ordering::Acquire) {
                self.inner.clone().listen();
            }
        }
        for (_, changed) in LISTS {
            sink.deliver(Event::Notify(Message::notification(changed, b"{}")));
        }
    }

    async fn run(self: &Arc<Self>, emit: &Emitter, mut call: Call) -> Event {
        let round = take_round(&mut call);
        if let Some((_, said)) = &round {
            if !said.is_none_or(|said| said == Said::Accepted) {
                return told(&call, &format!("The user did not connect an account at {}.", self.name));
            }
            self.until_connected().await;
        }
        let round = round.map_or(0, |(round, _)| round);
        match self.accounts.is_connected(&call.client.principal).await {
            Ok(true) => {}
            Ok(false) => return self.instead(&call, round).await,
            Err(fault) => return Event::Fail(fault),
        }
        let asks_for_link = call.request.method() == method::TOOLS_CALL
            && call.request.text(Field::Name).as_deref() == Some(CONNECT);
        if asks_for_link && round > 0 {
            return told_well(&call, &self.is_done());
        }
        match forward(emit, self.inner.clone().call(call.clone())).await {
            // Nothing was done.
            Some(Event::Fail(Fault::NotConnected { .. })) => self.instead(&call, round).await,
            Some(Event::Fail(fault @ Fault::NotAllowed { .. })) => self.denied(&call, fault).await,
            // A host that has not listed again; the backend itself may have such a tool.
            Some(Event::Done(reply)) if asks_for_link && reply.is_error() => {
                told_well(&call, &self.is_done())
            }
            Some(event) => event,
            None => Event::Fail(Fault::OutcomeUnknown {
                backend: self.name.to_string(),
                detail: "no answer".to_owned(),
            }),
        }
    }

    /// The answer to a call of somebody who is not let in. That may change with another login.
    async fn denied(&self, call: &Call, fault: Fault) -> Event {
        match call.request.method().as_ref() {
            // For whoever asks, and not only for the program.
            method::TOOLS_CALL => told(call, &fault.to_string()),
            method::PROMPTS_GET | method::RESOURCES_READ => Event::Fail(fault),
            _ => self.instead(call, 0).await,
        }
    }

    fn is_done(&self) -> String {
        format!("The account at {} is connected. List the tools again to see what there is.", self.name)
    }

    /// Waits until the account is connected, for a while.
    async fn until_connected(&self) {
        let mut changes = self.accounts.changes();
        let connected = async {
            while !self.accounts.is_connected(&self.client.principal).await.unwrap_or(false) {
                if changes.recv().await == Err(broadcast::error::RecvError::Closed) {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(WAIT, connected).await;
    }

    /// The answer to a call without an account.
    async fn instead(&self, call: &Call, round: u32) -> Event {
        let empty = |entries: &str| done(&json::object([(entries, &b"[]"[..])]));
        match call.request.method().as_ref() {
            method::TOOLS_LIST => done(&json::object([("tools", &self.tools()[..])])),
            method::PROMPTS_LIST => empty("prompts"),
            method::RESOURCES_LIST => empty("resources"),
            method::RESOURCES_TEMPLATES_LIST => empty("resourceTemplates"),
            method::SET_LEVEL | method::PING => done(b"{}"),
            method::TOOLS_CALL | method::PROMPTS_GET | method::RESOURCES_READ => self.ask(call, round).await,
            _ => Event::Fail(Fault::NotConnected { backend: self.name.to_string() }),
        }
    }

    fn tools(&self) -> Bytes {
        let name = &self.name;
        let what = if self.accounts.is_by_login() { "sign in again for" } else { "connect an account at" };
        let text = format!(
            "Gives a link under which the user can {what} {name}. Until that is done, {name} has no other tools."
        );
        let tool = json::object([
            ("name", json::encode_string(CONNECT).as_bytes()),
            ("description", json::encode_string(&text).as_bytes()),
            ("inputSchema", &br#"{"type":"object","properties":{},"additionalProperties":false}"#[..]),
            ("annotations", &br#"{"readOnlyHint":true,"destructiveHint":false,"openWorldHint":false}"#[..]),
        ]);
        json::array([&tool[..]])
    }

    /// Asks for an account.
    async fn ask(&self, call: &Call, round: u32) -> Event {
        let (name, link_name) = (&self.name, format!("{:032x}", rand::random::<u128>()));
        let Some(url) = self.accounts.link(&call.client.principal, &link_name) else {
            let text = format!(
                "{name} needs an account of a user, and the caller acts for none. Call it with a user's login or token, or \
                 use an endpoint without it."
            );
            return told(call, &text);
        };
        let (lacks, purpose) = match self.accounts.is_by_login() {
            true => ("needs the user to sign in again", format!("Sign in again to go on with {name}")),
            false => (
                "needs an account that is not connected yet",
                format!("Connect an account at {name} to go on"),
            ),
        };
        let link = Link { name: link_name, url, purpose };
        let params = link.elicitation();
        let request = Message::request(&Id::from_text(KEY), method::ELICITATION_CREATE, &params);
        let can_be_asked = call.client.declares(&request) && call.client.version.has_url_elicitation();
        if !can_be_asked || round >= MAX_ROUNDS {
            let text = format!(
                "{name} {lacks}. Ask the user to open this link in a browser, and then try again: {}",
                link.url
            );
            return told(call, &text);
        }
        match call.client.answers {
            Answers::ByRetry => {
                let asks = SmallVec::from_iter([Ask { key: AskKey::next(), request, reply: None }]);
                let state = Bytes::from(format!("{STATE}{}\"", round + 1));
                Event::Asks(Box::new(Round { asks, resume: Resume::State(Some(state)), source: None }))
            }
            Answers::Live => {
                self.links.give(link.name.clone()).await;
                Event::Fail(Fault::ConnectFirst { backend: name.to_string(), link })
            }
        }
    }

    /// A listen that lasts whether an account is connected or not.
    async fn listen_on(&self, emit: &Emitter, call: Call) -> Event {
        let mut changes = self.accounts.changes();
        let wanted = call.request.slice(Field::Notifications).unwrap_or_default();
        let wanted: Vec<_> =
            LISTS.iter().filter(|(key, _)| json::member(&wanted, key) == Some(b"true")).collect();
        let mut is_acknowledged = false;
        loop {
            let is_connected = match self.accounts.is_connected(&call.client.principal).await {
                Ok(is_connected) => is_connected,
                Err(fault) => return Event::Fail(fault),
            };
            let mut events = if is_connected {
                self.inner.clone().call(call.clone())
            } else {
                acknowledge(emit, &wanted, &mut is_acknowledged).await;
                nothing()
            };
            loop {
                tokio::select! {
                    event = events.next() => match event {
                        Some(Event::Notify(ack)) if ack.method() == method::SUBSCRIPTIONS_ACKNOWLEDGED => {
                            if !std::mem::replace(&mut is_acknowledged, true) {
                                emit.emit(Event::Notify(ack)).await;
                            }
                        }
                        Some(Event::Fail(Fault::NotConnected { .. })) => {
                            tokio::time::sleep(AGAIN).await;
                            break;
                        }
                        Some(Event::Fail(Fault::NotAllowed { .. })) => {
                            acknowledge(emit, &wanted, &mut is_acknowledged).await;
                            events = nothing();
                        }
                        // It tells of nothing, but the account may change.
                        Some(Event::Done(reply)) if reply.is_error() => {
                            acknowledge(emit, &wanted, &mut is_acknowledged).await;
                            events = nothing();
                        }
                        Some(event) if event.is_terminal() => return event,
                        Some(event) => emit.emit(event).await,
                        None => return Event::Fail(Fault::Draining),
                    },
                    user = changes.recv() => match user {
                        Ok(user) if !self.is_of(Some(&user)) => {}
                        Err(broadcast::error::RecvError::Closed) => return Event::Fail(Fault::Draining),
                        Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {
                            for (_, changed) in &wanted {
                                emit.emit(Event::Notify(Message::notification(changed, b"{}"))).await;
                            }
                            break;
                        }
                    },
                }
            }
        }
    }
}

/// A listen that brings nothing.
fn nothing() -> Events {
    Box::pin(futures_util::stream::pending())
}

/// Says that all that is wanted is honoured, once.
async fn acknowledge(emit: &Emitter, wanted: &[&(&str, &str)], is_acknowledged: &mut bool) {
    if !std::mem::replace(is_acknowledged, true) {
        let honoured = json::object(wanted.iter().map(|(key, _)| (*key, &b"true"[..])));
        let params = json::object([("notifications", &honoured[..])]);
        let ack = Message::notification(method::SUBSCRIPTIONS_ACKNOWLEDGED, &params);
        emit.emit(Event::Notify(ack)).await;
    }
}

/// What a client said of a link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    Accepted,
    Refused,
}

/// Takes out of a call what it has of a round here: the number, and what the client said.
fn take_round(call: &mut Call) -> Option<(u32, Option<Said>)> {
    let state = call.request.text(Field::RequestState)?;
    let round: u32 = state.strip_prefix(STATE.trim_start_matches('"'))?.parse().ok()?;
    let answer = call.request.raw(Field::InputResponses).and_then(|answers| json::member(answers, KEY));
    let action = answer.and_then(|answer| json::member(answer, "action")).and_then(json::decode_string);
    let said = action.map(|action| if action == "accept" { Said::Accepted } else { Said::Refused });
    let edit = Edit::new(&call.request).remove(Field::RequestState).remove(Field::InputResponses);
    call.request = edit.into_message();
    Some((round, said))
}

fn done(result: &[u8]) -> Event {
    Event::Done(Reply { message: Message::result(&Id::from_number(0), result), shape: Shape::Plain })
}

fn content(text: &str) -> Bytes {
    let content = json::object([("type", &b"\"text\""[..]), ("text", json::encode_string(text).as_bytes())]);
    json::array([&content[..]])
}

/// Tells in words why there is no answer: the model if a tool was called, else the program.
pub(crate) fn told(call: &Call, text: &str) -> Event {
    if call.request.method() == method::TOOLS_CALL {
        return done(&json::object([("content", &content(text)[..]), ("isError", &b"true"[..])]));
    }
    let error =
        RpcError::new(code::INTERNAL_ERROR, text).with_data(r#"{"code":"not_connected","retry":"useless"}"#);
    // An answer and no fault: what it says may be a link, which is not for the log.
    let message = error.to_message(call.request.id().as_ref());
    Event::Done(Reply { message, shape: Shape::Plain })
}

/// Tells in words that all is well.
fn told_well(call: &Call, text: &str) -> Event {
    if call.request.method() == method::TOOLS_CALL {
        return done(&json::object([("content", &content(text)[..])]));
    }
    told(call, text)
}

#[async_trait]
impl Conversation for Guest {
    fn call(self: Arc<Self>, call: Call) -> Events {
        if call.request.method() == method::LISTEN {
            return generate(|emit| async move { self.listen_on(&emit, call).await });
        }
        generate(|emit| async move { self.run(&emit, call).await })
    }

    async fn notify(&self, notification: Message) {
        self.inner.notify(notification).await;
    }

    fn listen(self: Arc<Self>) {
        self.is_listening.store(true, Ordering::Release);
        self.inner.clone().listen();
    }

    fn stop_listening(&self) {
        self.is_listening.store(false, Ordering::Release);
        self.inner.stop_listening();
    }

    async fn take_up(self: Arc<Self>, id: &Id, rights: Option<Arc<dyn Rights>>) -> Option<TakenUp> {
        self.inner.clone().take_up(id, rights).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }

    async fn leave(&self) {
        self.inner.leave().await;
    }
}

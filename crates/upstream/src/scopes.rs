//! With whom the session of a client at a backend is shared.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use drawbridge_core::backend::{Scope, Unsolicited};
use drawbridge_core::call::{Call, Emitter, Event, Events, forward, generate};
use drawbridge_core::{Backend, Client, Conversation, Fault, Principal, Tasks};
use drawbridge_wire::{Message, method};

use crate::described::{LegacyConversation, Refused, Replaceable, SharedSessions};
use crate::fleet::Home;
use crate::fleet::board::Board;
use crate::modern;
use crate::options::{Options, SessionScope};
use crate::shared_session::SharedSession;
use crate::standing::{Standing, StandingConversation};

/// Makes a session that was not opened yet, for the client that is to have it; other instances find it at its home.
pub(crate) type Make = Arc<dyn Fn(&Arc<Client>, Option<Home>) -> Arc<dyn LegacyConversation> + Send + Sync>;

/// Whose a session is that all share.
pub(crate) fn everybody() -> Principal {
    Principal::named("everybody")
}

/// The sessions of a backend that are not one client's own.
pub(crate) struct Scopes {
    scope: SessionScope,
    options: Options,
    shared: SharedSessions,
    board: Arc<Board>,
    tasks: Tasks,
}

impl Scopes {
    pub(crate) fn new(options: &Options, board: Arc<Board>, tasks: Tasks) -> Self {
        Self {
            scope: options.session_scope,
            options: options.clone(),
            shared: SharedSessions::default(),
            board,
            tasks,
        }
    }

    /// The conversation of `client`, where it is to have no session of its own; `make` makes sessions.
    pub(crate) fn find(
        &self,
        backend: &Arc<dyn Backend>,
        client: &Arc<Client>,
        scope: Scope,
        sink: Option<&Weak<dyn Unsolicited>>,
        make: &Make,
    ) -> Option<Arc<dyn Replaceable>> {
        match (self.scope, scope) {
            (SessionScope::None, _) => {
                let (make, client, tasks) = (make.clone(), client.clone(), self.tasks.clone());
                Some(Arc::new(PerCall { make, client, tasks, options: self.options.clone() }))
            }
            (SessionScope::ClientSession, Scope::Session(_)) => None,
            (_, Scope::Profile) => Some(self.shared(client, make)),
            (_, Scope::Session(key)) => {
                let session = self.shared(client, make);
                let (hubs, tasks) = (session.hubs(&self.options.name), self.tasks.clone());
                let shared = Home::own(&self.options, key).map(|home| (home, self.board.clone()));
                let standing = Standing::new(hubs, client.clone(), sink.cloned(), tasks, shared);
                Some(Arc::new(StandingConversation {
                    backend: backend.clone(),
                    everybody: session,
                    standing,
                }))
            }
        }
    }

    fn shared(&self, client: &Arc<Client>, make: &Make) -> Arc<SharedSession> {
        let made = |client: &Arc<Client>| make(client, Home::shared(&self.options, client));
        self.shared.find(&self.shared_as(client), &self.tasks, made)
    }

    /// The client as which a session is shared.
    fn shared_as(&self, client: &Arc<Client>) -> Arc<Client> {
        if self.scope != SessionScope::Shared {
            return client.clone();
        }
        Arc::new(Client { principal: everybody(), ..(**client).clone() })
    }

    /// Tells `memory` of changes, whether or not somebody listens.
    pub(crate) fn remind(&self, memory: Weak<dyn Unsolicited>) {
        // There is one memory around a backend.
        let _ = self.shared.memory.set(memory);
    }

    /// Lets go of a session that is of no use any more.
    pub(crate) fn forget(&self, client: &Arc<Client>) {
        self.shared.forget(&self.shared_as(client));
    }

    /// Whether clients with sessions have one of their own at the backend.
    pub(crate) fn are_own(&self) -> bool {
        self.scope == SessionScope::ClientSession
    }

    pub(crate) async fn close(&self) {
        self.shared.close().await;
    }
}

/// A session for each call.
struct PerCall {
    make: Make,
    client: Arc<Client>,
    tasks: Tasks,
    options: Options,
}

impl PerCall {
    async fn run(&self, emit: &Emitter, call: Call, refused: Refused) -> Event {
        match call.request.method().as_ref() {
            // There is no session in which anything could be told later.
            method::LISTEN => {
                emit.emit(modern::acknowledged(b"{}")).await;
                return std::future::pending().await;
            }
            unkept @ (method::SET_LEVEL | method::RESOURCES_SUBSCRIBE | method::RESOURCES_UNSUBSCRIBE) => {
                return Event::Fail(Fault::method_not_found(unkept));
            }
            _ => {}
        }
        let session = Ending { session: (self.make)(&self.client, None), tasks: self.tasks.clone() };
        let last = forward(emit, session.session.clone().call_or_refuse(call, refused)).await;
        last.unwrap_or_else(|| Event::Fail(self.options.outcome_unknown("no answer")))
    }
}

/// Ends a session when its call has ended, or nobody waits for it.
struct Ending {
    session: Arc<dyn LegacyConversation>,
    tasks: Tasks,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let session = self.session.clone();
        self.tasks.spawn("end session", async move { session.close().await });
    }
}

#[async_trait]
impl Conversation for PerCall {
    fn call(self: Arc<Self>, call: Call) -> Events {
        self.call_or_refuse(call, Refused::default())
    }

    async fn notify(&self, _: Message) {}

    fn listen(self: Arc<Self>) {}

    fn stop_listening(&self) {}

    async fn close(&self) {}
}

impl Replaceable for PerCall {
    fn call_or_refuse(self: Arc<Self>, call: Call, refused: Refused) -> Events {
        generate(|emit| async move { self.run(&emit, call, refused).await })
    }
}

//! Backends behind a URL.
//!
//! [`HttpBackend`] finds out once per validity what the backend speaks ([`era`]) and opens conversations to
//! match: [`stateless`] for the modern dialect, [`session`] for the legacy one over Streamable HTTP.

mod aside;
mod era;
mod session;
mod shared;
mod sse;
mod stateless;

use std::sync::{Arc, Weak};
use std::time::Duration;

use ::http::HeaderMap;
use async_trait::async_trait;
use drawbridge_core::backend::{Scope, TakenUp, Unsolicited};
use drawbridge_core::call::{Call, Emitter, Event, Events, forward, generate};
use drawbridge_core::credentials::Credentials;
use drawbridge_core::rights::Rights;
use drawbridge_core::{Answers, Backend, BackendName, Client, Conversation, Description, Fault, Tasks};
use drawbridge_wire::{Id, Message, method};
use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::changes::listen::{self, Hubs};
use crate::changes::{Filter, once};
use crate::described::{Described, LegacyConversation, Refused, Replaceable};
use crate::fleet::Home;
use crate::fleet::board::Board;
use crate::fleet::owned::{Keeper, Opens, Owned};
use crate::modern;
use crate::options::{Options, TransportChoice};
use crate::outbound::Outbound;
use crate::pipe::{Dialect, Pipe};
use crate::scopes::{Make, Scopes};
use crate::standing::Standing;
use era::Era;
pub(crate) use era::prober;
use session::HttpSession;
use shared::Shared;
pub use shared::{BadUrl, Target};

/// How long whoever could not listen waits until it tries again, first and at last.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);
const LISTEN_AGAIN_AT_LAST: Duration = Duration::from_secs(30);

/// What is wrong with a backend that does not speak as it says.
const UNSPOKEN: &str = "it refuses requests in the protocol it announced";

/// What the gateway proves itself to a backend with.
#[derive(Clone, Default)]
pub struct Proof {
    /// Headers that are always the same.
    pub headers: HeaderMap,
    /// Gives those that are not; they win.
    pub credentials: Option<Arc<dyn Credentials>>,
}

impl From<HeaderMap> for Proof {
    fn from(headers: HeaderMap) -> Self {
        Self { headers, credentials: None }
    }
}

/// A backend behind a URL.
pub struct HttpBackend {
    shared: Arc<Shared>,
    transport: TransportChoice,
    verdict: era::Verdict,
    described: Described,
    /// Sessions that clients share.
    scopes: Scopes,
    keeper: Arc<Keeper>,
    /// What sessions have set, where it is stateless.
    board: Arc<Board>,
    /// Those who listen to it, where it is stateless.
    hubs: Arc<Hubs>,
}

impl HttpBackend {
    /// A backend at `target`, which gets `proof` with each request.
    pub fn new(
        target: Target,
        proof: impl Into<Proof>,
        transport: TransportChoice,
        outbound: Outbound,
        options: Options,
        tasks: Tasks,
    ) -> Arc<Self> {
        let verdict = era::Verdict::new(&options, transport);
        let described = Described::new(options.era_ttl);
        let sessions = Mutex::default();
        let Proof { headers, credentials } = proof.into();
        let shared = Shared { target, headers, credentials, outbound, options, tasks, sessions };
        let shared = Arc::new(shared);
        let caller = stateless::caller(&shared);
        let once = once::caller(&caller, &shared.options, &shared.tasks);
        let hubs = Arc::new(Hubs::new(&shared.options.name, caller, shared.tasks.clone()).listening_by(once));
        let board = Board::new(&shared.options, &shared.tasks);
        let scopes = Scopes::new(&shared.options, board.clone(), shared.tasks.clone());
        let keeper = Keeper::new(&shared.options, &shared.tasks);
        session::attend(&shared);
        Arc::new(Self { described, shared, transport, verdict, scopes, keeper, board, hubs })
    }

    /// What to speak to the backend for `client`: its own dialect where the backend speaks both, since then nothing
    /// has to be translated.
    async fn era(&self, client: &Client) -> Result<Era, Fault> {
        Ok(match self.verdict.find(&self.shared, self.transport, &client.principal).await? {
            Era::Both if client.answers == Answers::Live => Era::Legacy,
            Era::Both => Era::Modern,
            era => era,
        })
    }

    /// A conversation in the legacy dialect, over whichever transport the backend has.
    fn legacy(
        &self,
        era: &Era,
        client: &Arc<Client>,
        sink: Option<Weak<dyn Unsolicited>>,
    ) -> Arc<dyn LegacyConversation> {
        match era {
            Era::Sse => {
                let carrier = Arc::new(sse::SseCarrier(self.shared.clone(), client.principal.clone()));
                let (options, tasks) = (self.shared.options.clone(), self.shared.tasks.clone());
                Pipe::new(carrier, Dialect::Legacy, options, client.clone(), tasks, sink)
            }
            _ => HttpSession::new(self.shared.clone(), client.clone(), sink),
        }
    }

    async fn ask_description(&self, client: &Arc<Client>) -> Result<Arc<Description>, Fault> {
        let era = self.era(client).await?;
        match self.describe_as(era, client).await {
            // It may have been replaced by one that speaks otherwise.
            Err(Fault::BadAnswer { .. }) if self.verdict.doubt() => {
                let era = self.era(client).await?;
                self.describe_as(era, client).await
            }
            answer => answer,
        }
    }

    async fn describe_as(&self, era: Era, client: &Arc<Client>) -> Result<Arc<Description>, Fault> {
        if era != Era::Modern {
            return self.handshake(&era, client).await;
        }
        let silent = || self.shared.options.bad_answer("it does not answer server/discover");
        stateless::discover(&self.shared, client).await?.map(Arc::new).ok_or_else(silent)
    }

    /// Asks by opening a session, which the next client of the same kind gets.
    async fn handshake(&self, era: &Era, client: &Arc<Client>) -> Result<Arc<Description>, Fault> {
        let session = self.legacy(era, client, None);
        let description = session.clone().handshake().await?;
        self.described.keep_spare(client, session, &self.shared.tasks);
        Ok(description)
    }
}

#[async_trait]
impl Backend for HttpBackend {
    fn speaks(&self) -> Option<&'static str> {
        self.verdict.known()
    }

    fn name(&self) -> &BackendName {
        &self.shared.options.name
    }

    async fn describe(&self, client: &Arc<Client>) -> Result<Arc<Description>, Fault> {
        self.described.get(client, || self.ask_description(client)).await
    }

    fn open(
        self: Arc<Self>,
        client: &Arc<Client>,
        scope: Scope,
        sink: Option<Weak<dyn Unsolicited>>,
    ) -> Arc<dyn Conversation> {
        let tasks = self.shared.tasks.clone();
        let home = match scope {
            Scope::Session(key) => Home::own(&self.shared.options, key),
            Scope::Profile => None,
        };
        let shared = home.map(|home| (home, self.board.clone()));
        let standing = Standing::new(self.hubs.clone(), client.clone(), sink.clone(), tasks, shared);
        // The era may have to be asked for, which opening must not wait for.
        Arc::new(Resolving {
            backend: self,
            client: client.clone(),
            scope,
            sink,
            session: Mutex::new(None),
            opening: tokio::sync::Mutex::default(),
            standing,
            listening: Mutex::default(),
        })
    }

    fn list_timeout(&self) -> Duration {
        self.shared.options.list_timeout
    }

    fn remind(&self, memory: Weak<dyn Unsolicited>) {
        self.scopes.remind(memory);
    }

    async fn close(&self) {
        self.scopes.close().await;
        self.keeper.close().await;
        self.described.close().await;
    }
}

/// A conversation that finds out with each call what the backend speaks; nearly always that is known.
struct Resolving {
    backend: Arc<HttpBackend>,
    client: Arc<Client>,
    scope: Scope,
    sink: Option<Weak<dyn Unsolicited>>,
    session: Mutex<Option<Arc<dyn Replaceable>>>,
    opening: tokio::sync::Mutex<()>,
    /// What the client has set, for when the backend keeps nothing.
    standing: Arc<Standing>,
    /// There while the client listens.
    listening: Mutex<Option<DropGuard>>,
}

impl Resolving {
    /// The session to use with a legacy backend, after its handshake if it is this client's own.
    async fn session(&self, era: &Era) -> Result<Arc<dyn Replaceable>, Fault> {
        let known = || self.session.lock().clone();
        if let Some(session) = known() {
            return Ok(session);
        }
        let _turn = self.opening.lock().await;
        if let Some(session) = known() {
            return Ok(session);
        }
        let backend = &self.backend;
        let (maker, spoken) = (backend.clone(), *era);
        let make: Make = Arc::new(move |client, home| {
            let (opener, like) = (maker.clone(), client.clone());
            let opens: Opens = Arc::new(move || {
                let spare = opener.described.take_spare(&like);
                spare.unwrap_or_else(|| opener.legacy(&spoken, &like, None))
            });
            match home {
                Some(home) if spoken == Era::Sse => Owned::new(&maker.keeper, home, opens),
                Some(home) => {
                    let session = opens();
                    session.clone().settle(home);
                    session
                }
                None => opens(),
            }
        });
        let any: Arc<dyn Backend> = backend.clone();
        let shared = backend.scopes.find(&any, &self.client, self.scope, self.sink.as_ref(), &make);
        let session: Arc<dyn Replaceable> = match shared {
            Some(shared) => shared,
            None => {
                let home = match self.scope {
                    Scope::Session(key) => Home::own(&backend.shared.options, key),
                    Scope::Profile => None,
                };
                let own = make(&self.client, home);
                if let Some(sink) = &self.sink {
                    own.attach(sink.clone());
                }
                own.clone().handshake().await?;
                own
            }
        };
        *self.session.lock() = Some(session.clone());
        Ok(session)
    }

    /// Listens in the way that the backend has for it.
    async fn begin_to_listen(self: &Arc<Self>) -> Result<(), Fault> {
        loop {
            let era = self.backend.era(&self.client).await?;
            if era == Era::Modern {
                self.standing.clone().listen(self.backend.clone());
                return Ok(());
            }
            match self.session(&era).await {
                Ok(session) => {
                    session.listen();
                    return Ok(());
                }
                // It has no sessions (any more).
                Err(Fault::BadAnswer { .. }) if self.backend.verdict.doubt() => {}
                Err(fault) => return Err(fault),
            }
        }
    }

    /// The session that other instances have in common, if any, which may be gone by now.
    async fn left_by_others(&self) -> Option<Arc<dyn Replaceable>> {
        let backend = &self.backend;
        let Scope::Session(key) = self.scope else { return None };
        let home = Home::own(&backend.shared.options, key).filter(|_| backend.scopes.are_own())?;
        match backend.era(&self.client).await.ok()? {
            Era::Modern => None,
            Era::Sse => {
                let (opener, client) = (backend.clone(), self.client.clone());
                let opens: Opens = Arc::new(move || opener.legacy(&Era::Sse, &client, None));
                Some(Owned::new(&backend.keeper, home, opens))
            }
            era => {
                let session = backend.legacy(&era, &self.client, None);
                session.clone().settle(home);
                Some(session)
            }
        }
    }

    /// Runs a call over a session. `None` if the backend has no sessions any more, and so did not run it.
    async fn over(&self, emit: &Emitter, session: Arc<dyn Replaceable>, call: &Call) -> Option<Event> {
        let refused = Refused::default();
        let last = forward(emit, session.clone().call_or_refuse(call.clone(), refused.clone())).await;
        if refused.is_set() && Box::pin(self.has_become_modern()).await {
            self.let_go(&session);
            return None;
        }
        let no_answer = || Event::Fail(self.backend.shared.options.outcome_unknown("no answer"));
        Some(last.unwrap_or_else(no_answer))
    }

    /// Asks again what the backend speaks, unless that is known.
    async fn has_become_modern(&self) -> bool {
        let is_modern = async || self.backend.era(&self.client).await.is_ok_and(|era| era == Era::Modern);
        is_modern().await || (self.backend.verdict.doubt() && is_modern().await)
    }

    /// Lets go of a session that the backend will not know again.
    fn let_go(&self, session: &Arc<dyn Replaceable>) {
        let mut current = self.session.lock();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, session)) {
            *current = None;
        }
        drop(current);
        if matches!(self.scope, Scope::Session(_)) && self.backend.scopes.are_own() {
            let session = session.clone();
            self.backend.shared.tasks.spawn("end session", async move { session.close().await });
        } else {
            self.backend.scopes.forget(&self.client);
        }
    }

    async fn run(&self, emit: &Emitter, mut call: Call) -> Result<Event, Fault> {
        let mut again = true;
        loop {
            let era = self.backend.era(&self.client).await?;
            if era != Era::Modern {
                let session = match Box::pin(self.session(&era)).await {
                    // It has no sessions (any more); nothing was asked of it yet.
                    Err(Fault::BadAnswer { .. }) if again && self.backend.verdict.doubt() => {
                        again = false;
                        continue;
                    }
                    session => session?,
                };
                // It may wait long for its client.
                call.request = call.request.detached();
                match self.over(emit, session, &call).await {
                    Some(last) => return Ok(last),
                    None => continue,
                }
            }
            if call.request.method() == method::LISTEN {
                let wanted = Filter::of(&call.request)?;
                let last = Box::pin(self.backend.hubs.listen(emit, &call.client, wanted)).await;
                if !listen::is_not_stateless(&last) {
                    return Ok(last);
                }
                if !std::mem::take(&mut again) {
                    return Err(self.backend.shared.options.bad_answer(UNSPOKEN));
                }
                self.backend.verdict.forget();
                continue;
            }
            match Box::pin(self.statelessly(emit, &call)).await {
                Ok(event) => return Ok(event),
                Err(stateless::Stop::Fault(fault)) => return Err(fault),
                Err(stateless::Stop::NotModern) if std::mem::take(&mut again) => {
                    self.backend.verdict.forget();
                }
                Err(stateless::Stop::NotModern) => {
                    let options = &self.backend.shared.options;
                    return Err(options.bad_answer(UNSPOKEN));
                }
            }
        }
    }

    async fn statelessly(&self, emit: &Emitter, call: &Call) -> Result<Event, stateless::Stop> {
        if let Some(event) = self.standing.answer(&*self.backend, call).await {
            return Ok(event);
        }
        let shared = &self.backend.shared;
        let call = self.standing.said_with(call.clone());
        let event = stateless::run(shared, emit, &call).await?;
        let event = modern::permitted(&call, event, &shared.options);
        Ok(self.standing.awaited(emit, &call, event).await)
    }
}

#[async_trait]
impl Conversation for Resolving {
    fn call(self: Arc<Self>, call: Call) -> Events {
        let session = self.session.lock().clone();
        generate(|emit| async move {
            if let Some(session) = session
                && let Some(last) = Box::pin(self.over(&emit, session, &call)).await
            {
                return last;
            }
            // Boxed, so that neither way keeps room for the other.
            Box::pin(self.run(&emit, call)).await.unwrap_or_else(Event::Fail)
        })
    }

    async fn notify(&self, notification: Message) {
        let session = self.session.lock().clone();
        if let Some(session) = session {
            session.notify(notification).await;
        }
    }

    async fn take_up(self: Arc<Self>, id: &Id, rights: Option<Arc<dyn Rights>>) -> Option<TakenUp> {
        match self.backend.era(&self.client).await.ok()? {
            Era::Modern => None,
            legacy => self.session(&legacy).await.ok()?.take_up(id, rights).await,
        }
    }

    fn listen(self: Arc<Self>) {
        let stop = CancellationToken::new();
        *self.listening.lock() = Some(stop.clone().drop_guard());
        let tasks = &self.backend.shared.tasks;
        let (drain, weak) = (tasks.drain_token().clone(), Arc::downgrade(&self));
        tasks.spawn_within("listen to backend", async move {
            let begin = async {
                let mut pause = LISTEN_AGAIN;
                while let Some(resolving) = weak.upgrade()
                    && let Err(fault) = resolving.begin_to_listen().await
                {
                    let name = &resolving.backend.shared.options.name;
                    match &fault {
                        // Whoever knows when there is listens anew then.
                        Fault::NotConnected { .. } => {
                            tracing::debug!(backend.name = %name, error.code = fault.code(), "not listening: {fault}");
                        }
                        _ => {
                            tracing::warn!(backend.name = %name, error.code = fault.code(), "not listening: {fault}");
                        }
                    }
                    drop(resolving);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LISTEN_AGAIN_AT_LAST);
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = drain.cancelled() => {}
                () = begin => {}
            }
        });
    }

    fn stop_listening(&self) {
        *self.listening.lock() = None;
        self.standing.stop_listening();
        if let Some(session) = &*self.session.lock() {
            session.stop_listening();
        }
    }

    async fn close(&self) {
        *self.listening.lock() = None;
        self.standing.close();
        let known = self.session.lock().take();
        let session = match known {
            None => self.left_by_others().await,
            known => known,
        };
        if matches!(self.scope, Scope::Session(_))
            && let Some(session) = session
        {
            session.close().await;
        }
    }

    async fn leave(&self) {
        *self.listening.lock() = None;
        self.standing.close();
        let session = self.session.lock().take();
        if matches!(self.scope, Scope::Session(_))
            && let Some(session) = session
        {
            session.leave().await;
        }
    }
}

//! Backends that are programs: started when needed, within limits, and stopped when idle.
//!
//! A stateless program serves everybody from one process. One with sessions gets a process per client session,
//! since its session is its process. One of both kinds is stateless to all but clients with sessions that can be asked
//! something: many such programs ask in sessions only.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_core::backend::{Scope, Unsolicited};
use drawbridge_core::call::{Call, Emitter, Event, Events, forward, generate};
use drawbridge_core::fault::{Bounded, Deadline};
use drawbridge_core::metrics::{Gauge, Held};
use drawbridge_core::{Answers, Backend, BackendName, Client, Conversation, Description, Fault, Tasks};
use drawbridge_wire::{Id, Message, method};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::changes::Filter;
use crate::changes::listen::{Caller, Hubs};
use crate::described::{Described, LegacyConversation};
use crate::fleet::Home;
use crate::fleet::board::Board;
use crate::fleet::owned::{Keeper, Opens, Owned};
use crate::http::prober;
use crate::modern;
use crate::options::{EraChoice, Options, SessionScope};
use crate::pipe::{self, Carrier, Channel, Dialect, Pipe, Received, Receiver, Sender};
use crate::process::{Backoff, Control, GuardCommand, Line, Lines, Process, Spec, Writer};
use crate::scopes::{Make, Scopes};
use crate::standing::{Standing, StandingConversation};

/// Limits of a program's processes.
#[derive(Debug, Clone)]
pub struct ProcessOptions {
    /// Processes of this backend at once.
    pub max_processes: usize,
    /// A process without calls is stopped after this long.
    pub idle_stop: Duration,
    /// Calls that may wait for a process at once.
    pub max_queue: usize,
    /// How long they wait.
    pub queue_timeout: Duration,
}

/// How many processes there may be in all.
#[derive(Debug, Clone)]
pub struct ProcessCap {
    permits: Arc<Semaphore>,
    limit: Arc<AtomicUsize>,
    /// Whose processes count.
    launchers: Arc<Mutex<Vec<Weak<Launcher>>>>,
}

/// A process that was started to be asked serves nobody for this long before it is ended.
const SPARE_TIME: Duration = Duration::from_secs(60);
/// How often a call that waits for a process looks for one that has become idle.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long it waits for the end of one that it has found, before it looks for another.
const END_TIME: Duration = Duration::from_secs(1);

impl ProcessCap {
    /// At most `limit` processes.
    pub fn new(limit: usize) -> Self {
        let (permits, limit) = (Arc::new(Semaphore::new(limit)), Arc::new(AtomicUsize::new(limit)));
        Self { permits, limit, launchers: Arc::default() }
    }

    fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Allows `limit` processes from now on. If more run, no other is started until enough of them have ended.
    pub fn resize(&self, limit: usize, tasks: &Tasks) {
        let before = self.limit.swap(limit, Ordering::Relaxed);
        let more = limit.saturating_sub(before);
        self.permits.add_permits(more);
        let fewer = before.saturating_sub(limit);
        let in_use = u32::try_from(fewer - self.permits.forget_permits(fewer)).unwrap_or(u32::MAX);
        if in_use > 0 {
            let taken = self.permits.clone().acquire_many_owned(in_use);
            tasks.spawn("allow fewer processes", async move {
                if let Ok(permits) = taken.await {
                    permits.forget();
                }
            });
        }
    }

    /// A permit for one more process. Whoever has to wait for it ends idle ones to make room.
    async fn take(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = self.permits.clone().try_acquire_owned() {
            return Some(permit);
        }
        // Kept over the rounds, and with it the place in the queue.
        let mut permit = std::pin::pin!(self.permits.clone().acquire_owned());
        loop {
            let pause = if self.reclaim() { END_TIME } else { LOOK_EVERY };
            if let Ok(permit) = tokio::time::timeout(pause, permit.as_mut()).await {
                return permit.ok();
            }
        }
    }

    /// Stops the process that was idle for longest, to make room. Returns whether there was one.
    fn reclaim(&self) -> bool {
        let launchers: Vec<_> = self.launchers.lock().iter().filter_map(Weak::upgrade).collect();
        let pipes: Vec<_> = launchers.iter().flat_map(|launcher| launcher.all_pipes()).collect();
        let idle = pipes.iter().filter_map(|pipe| Some((pipe.idle_since()?, pipe)));
        let oldest = idle.min_by_key(|(since, _)| *since);
        if let Some((_, pipe)) = oldest {
            pipe.hang_up();
        }
        oldest.is_some()
    }
}

/// A call waits this long for a program that has failed to be tried again; longer, and it is told at once what was
/// wrong, so that a program which can't start does not slow down those beside it.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Starts processes and remembers how that went.
struct Launcher {
    spec: Spec,
    guard: GuardCommand,
    options: Options,
    limits: ProcessOptions,
    cap: ProcessCap,
    own: ProcessCap,
    waiting: AtomicUsize,
    tasks: Tasks,
    /// A process that was started to ask what it speaks, and what it answered in; it may have settled on that.
    spare: Mutex<Option<(Dialect, Channel)>>,
    trouble: Mutex<Trouble>,
    pipes: Mutex<VecDeque<Weak<Pipe>>>,
}

/// After a process has ended by itself, the next start waits.
#[derive(Default)]
struct Trouble {
    backoff: Backoff,
    not_before: Option<Instant>,
    last: String,
}

impl Launcher {
    fn new_pipe(
        self: &Arc<Self>,
        dialect: Dialect,
        client: Arc<Client>,
        sink: Option<Weak<dyn Unsolicited>>,
    ) -> Arc<Pipe> {
        let pipe = Pipe::new(self.clone(), dialect, self.options.clone(), client, self.tasks.clone(), sink);
        let mut pipes = self.pipes.lock();
        pipes.retain(|pipe| pipe.strong_count() > 0);
        pipes.push_back(Arc::downgrade(&pipe));
        pipe
    }

    /// A process that was started to be asked, and is not needed here: another instance has the one that serves.
    fn end_spare_later(self: &Arc<Self>) {
        let launcher = self.clone();
        let drain = self.tasks.drain_token().clone();
        self.tasks.spawn("end spare process", async move {
            if tokio::time::timeout(SPARE_TIME, drain.cancelled()).await.is_err() {
                let spare = launcher.spare.lock().take();
                if let Some((_, channel)) = spare {
                    channel.receiver.close(&*launcher).await;
                }
            }
        });
    }

    fn all_pipes(&self) -> Vec<Arc<Pipe>> {
        self.pipes.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// A place for one more process, after waiting for it if need be.
    async fn place(&self) -> Result<(OwnedSemaphorePermit, OwnedSemaphorePermit), Fault> {
        let both = async {
            let own = self.own.take().await;
            let all = self.cap.take().await;
            own.zip(all)
        };
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.limits.max_queue.max(1) {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(Fault::Busy { what: Bounded::Queue, limit: self.limits.max_queue });
        }
        let placed = tokio::time::timeout(self.limits.queue_timeout, both).await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        match placed {
            Ok(Some(permits)) => Ok(permits),
            Ok(None) => Err(Fault::Draining),
            Err(_) => {
                tracing::warn!(
                    backend.name = %self.options.name, backend.max_processes = self.own.limit(), limits.max_processes = self.cap.limit(),
                    "no process became free in time"
                );
                Err(self.options.late(Deadline::Queue))
            }
        }
    }

    /// Waits as long as the last failures ask for.
    async fn pause(&self) -> Result<(), Fault> {
        let (wait, last) = {
            let trouble = self.trouble.lock();
            let wait = trouble.not_before.map(|at| at.saturating_duration_since(Instant::now()));
            (wait.unwrap_or_default(), trouble.last.clone())
        };
        if wait > self.limits.queue_timeout.min(MAX_PAUSE) {
            return Err(self.not_started(format!("{last}; next try in {} s", wait.as_secs())));
        }
        tokio::time::sleep(wait).await;
        Ok(())
    }

    fn not_started(&self, detail: String) -> Fault {
        Fault::NotStarted { backend: self.options.name.to_string(), detail }
    }

    fn ended(&self, uptime: Duration, status: &str) {
        let mut trouble = self.trouble.lock();
        let wait = trouble.backoff.after_run(uptime);
        trouble.not_before = Some(Instant::now() + wait);
        trouble.last = format!("its process {status}");
    }
}

#[async_trait]
impl Carrier for Launcher {
    async fn connect(&self, dialect: Dialect) -> Result<Channel, Fault> {
        let spare = self.spare.lock().take_if(|(spoken, _)| *spoken == dialect);
        if let Some((_, channel)) = spare {
            return Ok(channel);
        }
        self.pause().await?;
        let permits = self.place().await?;
        let process = Process::spawn(&self.spec, &self.guard, self.tasks.tracker())
            .map_err(|e| self.not_started(e.to_string()))?;
        tracing::info!(backend.name = %self.options.name, process.pid = process.control.pid(), "process started");
        let counters = self.options.metrics.as_program();
        counters.starts.inc();
        let sender = Arc::new(ToProcess { writer: process.writer, options: self.options.clone() });
        let receiver = Box::new(FromProcess {
            lines: process.lines,
            control: process.control,
            started: Instant::now(),
            options: self.options.clone(),
            ended: None,
            _permits: permits,
            _counted: Gauge::hold(&counters.running),
        });
        Ok(Channel { sender, receiver })
    }

    fn idle_stop(&self) -> Option<Duration> {
        Some(self.limits.idle_stop).filter(|limit| !limit.is_zero())
    }

    fn ended(&self, uptime: Duration, status: &str) {
        Self::ended(self, uptime, status);
    }
}

struct ToProcess {
    writer: Writer,
    options: Options,
}

#[async_trait]
impl Sender for ToProcess {
    async fn send(&self, message: Bytes) -> Result<(), Fault> {
        self.writer.send(message).await.map_err(|e| self.options.unreachable(e.to_string()))
    }
}

struct FromProcess {
    lines: Lines,
    control: Control,
    started: Instant,
    options: Options,
    ended: Option<String>,
    _permits: (OwnedSemaphorePermit, OwnedSemaphorePermit),
    _counted: Held,
}

#[async_trait]
impl Receiver for FromProcess {
    async fn receive(&mut self) -> Received {
        match self.lines.next().await {
            Some(Line::Text(text)) => Received::Message(text),
            Some(Line::TooLong { head, .. }) => Received::TooLarge(head),
            None => {
                let exit = self.control.exited().await;
                let status = exit.to_string();
                tracing::warn!(
                    backend.name = %self.options.name, process.stderr = ?exit.unlogged_stderr(),
                    "the process ended by itself: {status}"
                );
                self.ended = Some(status.clone());
                Received::Closed(format!("its process {status}"))
            }
        }
    }

    async fn close(self: Box<Self>, carrier: &dyn Carrier) {
        match &self.ended {
            Some(status) => carrier.ended(self.started.elapsed(), status),
            None => {
                // Nobody reads any more, and the process must not wait for that.
                drop(self.lines);
                self.control.stop().await;
            }
        }
    }
}

/// A backend that is a program.
pub struct StdioBackend {
    launcher: Arc<Launcher>,
    dialect: Mutex<Option<Dialect>>,
    /// A program that answers statelessly has refused a handshake; it is not tried again.
    refuses_sessions: AtomicBool,
    probing: tokio::sync::Mutex<()>,
    described: Described,
    scopes: Scopes,
    keeper: Arc<Keeper>,
    /// What sessions have set, where it is stateless.
    board: Arc<Board>,
    /// The process that serves everybody, of a stateless program.
    everybody: Mutex<Option<Arc<dyn LegacyConversation>>>,
    /// Those who listen to it, where it is stateless.
    hubs: Arc<Hubs>,
}

/// How long a fresh process may take to say what it speaks; one that is silent gets a handshake.
const PROBE_TIME: Duration = Duration::from_secs(10);

impl StdioBackend {
    /// A backend that runs `spec` under `guard`.
    pub fn new(
        spec: Spec,
        guard: GuardCommand,
        limits: ProcessOptions,
        cap: ProcessCap,
        options: Options,
        tasks: Tasks,
    ) -> Arc<Self> {
        let pinned = match options.era {
            EraChoice::Auto => None,
            EraChoice::Legacy => Some(Dialect::Legacy),
            EraChoice::Modern => Some(Dialect::Modern),
        };
        let described = Described::new(options.era_ttl);
        // Shown from the start on, as none.
        options.metrics.as_program();
        let own = ProcessCap::new(limits.max_processes);
        let launcher = Arc::new(Launcher {
            spec,
            guard,
            options,
            limits,
            cap,
            own,
            waiting: AtomicUsize::new(0),
            tasks,
            spare: Mutex::new(None),
            trouble: Mutex::default(),
            pipes: Mutex::default(),
        });
        for cap in [&launcher.own, &launcher.cap] {
            cap.launchers.lock().push(Arc::downgrade(&launcher));
        }
        let board = Board::new(&launcher.options, &launcher.tasks);
        let scopes = Scopes::new(&launcher.options, board.clone(), launcher.tasks.clone());
        let keeper = Keeper::new(&launcher.options, &launcher.tasks);
        Arc::new_cyclic(|me: &Weak<Self>| {
            let (me, tasks, name) = (me.clone(), launcher.tasks.clone(), launcher.options.name.clone());
            let caller: Caller = Arc::new(move |call| match me.upgrade() {
                Some(backend) => backend.everybody().call(call),
                None => drawbridge_core::call::once(Event::Fail(Fault::Draining)),
            });
            Self {
                launcher,
                dialect: Mutex::new(pinned),
                refuses_sessions: AtomicBool::new(pinned.is_some()),
                probing: tokio::sync::Mutex::default(),
                described,
                scopes,
                keeper,
                board,
                everybody: Mutex::new(None),
                hubs: Arc::new(Hubs::new(&name, caller, tasks)),
            }
        })
    }

    /// What the program speaks, by starting and asking it once. The process goes on to serve.
    async fn dialect(&self) -> Result<Dialect, Fault> {
        let known = || *self.dialect.lock();
        if let Some(dialect) = known() {
            return Ok(dialect);
        }
        let _turn = self.probing.lock().await;
        if let Some(dialect) = known() {
            return Ok(dialect);
        }
        let mut channel = self.launcher.connect(Dialect::Modern).await?;
        let answer = probe(&mut channel).await;
        let dialect = match &answer {
            Probed::Answer(message) if modern::speaks(message) => Dialect::Modern,
            _ => Dialect::Legacy,
        };
        tracing::info!(backend.name = %self.launcher.options.name, dialect = ?dialect, "backend probed");
        match answer {
            // Some programs end at any request before the handshake; that says nothing against them.
            Probed::Closed => drop(channel),
            _ => {
                *self.launcher.spare.lock() = Some((dialect, channel));
                self.launcher.end_spare_later();
            }
        }
        *self.dialect.lock() = Some(dialect);
        Ok(dialect)
    }

    /// Whether to try a session with a program that answers statelessly.
    fn may_have_sessions(&self, client: &Client) -> bool {
        let useful = client.answers == Answers::Live && client.can_be_asked();
        useful && !self.refuses_sessions.load(Ordering::Relaxed)
    }

    /// A session of its own for `client`, unless the program turns out to have none.
    async fn own_session(&self, client: &Arc<Client>) -> Option<Arc<dyn LegacyConversation>> {
        let session = self.launcher.new_pipe(Dialect::Legacy, client.clone(), None);
        match session.clone().handshake().await {
            Ok(_) => Some(session),
            Err(fault) => {
                session.close().await;
                // Whether it refuses, ends or is silent: asked again it would cost another process, and a back-off that
                // all others have to wait for. Only a want of room says nothing about the program.
                let no_room = matches!(
                    fault,
                    Fault::Busy { .. } | Fault::Draining | Fault::Timeout { deadline: Deadline::Queue, .. }
                );
                if !no_room {
                    tracing::info!(backend.name = %self.launcher.options.name, "the program has no sessions: {fault}");
                    self.refuses_sessions.store(true, Ordering::Relaxed);
                }
                None
            }
        }
    }

    /// One process for all clients of all instances, since what it tells and the states that it gives are its own; with
    /// `session_scope: shared` each instance has one.
    fn everybody(&self) -> Arc<dyn LegacyConversation> {
        let mut slot = self.everybody.lock();
        let made = || {
            let launcher = self.launcher.clone();
            let opens: Opens =
                Arc::new(move || launcher.new_pipe(Dialect::Modern, Arc::new(prober()), None) as Arc<_>);
            let options = &self.launcher.options;
            let home = Home::shared(options, &prober());
            match home.filter(|_| options.session_scope != SessionScope::Shared) {
                Some(home) => Owned::new(&self.keeper, home, opens),
                None => opens(),
            }
        };
        slot.get_or_insert_with(made).clone()
    }

    async fn ask_description(&self, client: &Arc<Client>) -> Result<Arc<Description>, Fault> {
        let options = &self.launcher.options;
        let dialect = self.dialect().await?;
        if dialect == Dialect::Modern
            && self.may_have_sessions(client)
            && let Some(session) = self.own_session(client).await
        {
            let description = session.clone().handshake().await?;
            self.described.keep_spare(client, session, &self.launcher.tasks);
            return Ok(description);
        }
        match dialect {
            Dialect::Modern => {
                let request = modern::discover(&Id::from_number(1), client);
                let answer = pipe::ask(self.everybody(), options, client, request).await?;
                let found = modern::description(&answer, client).map(Arc::new);
                found.ok_or_else(|| options.bad_answer("it does not answer server/discover"))
            }
            Dialect::Legacy => {
                let session = self.launcher.new_pipe(Dialect::Legacy, client.clone(), None);
                match session.clone().handshake().await {
                    Ok(description) => {
                        self.described.keep_spare(client, session, &self.launcher.tasks);
                        Ok(description)
                    }
                    Err(fault) => {
                        session.close().await;
                        // It may have been replaced by one that speaks otherwise.
                        if options.era == EraChoice::Auto {
                            *self.dialect.lock() = None;
                        }
                        Err(fault)
                    }
                }
            }
        }
    }

    async fn conversation(
        self: &Arc<Self>,
        client: &Arc<Client>,
        scope: Scope,
        sink: Option<Weak<dyn Unsolicited>>,
    ) -> Result<Arc<dyn Conversation>, Fault> {
        let dialect = self.dialect().await?;
        let own = matches!(scope, Scope::Session(_)) && self.scopes.are_own();
        if dialect == Dialect::Modern && own && self.may_have_sessions(client) {
            let home = home_of(&self.launcher.options, scope);
            let is_elsewhere = match &home {
                Some(home) => home.is_elsewhere("pipe").await,
                None => false,
            };
            let session: Option<Arc<dyn LegacyConversation>> = match self.described.take_spare(client) {
                Some(spare) => Some(spare),
                // Another instance has found out that there is one.
                None if is_elsewhere => Some(self.launcher.new_pipe(Dialect::Legacy, client.clone(), None)),
                None => self.own_session(client).await,
            };
            let session = session.map(|session| self.at_home(home, session));
            if let Some(session) = session {
                if let Some(sink) = sink {
                    session.attach(sink);
                }
                return Ok(session);
            }
        }
        if dialect == Dialect::Modern {
            let everybody = self.everybody();
            let (hubs, tasks) = (self.hubs.clone(), self.launcher.tasks.clone());
            if scope == Scope::Profile {
                return Ok(Arc::new(Stateless { everybody, hubs }));
            }
            let home = home_of(&self.launcher.options, scope);
            let shared = home.map(|home| (home, self.board.clone()));
            let standing = Standing::new(hubs, client.clone(), sink, tasks, shared);
            return Ok(Arc::new(StandingConversation { backend: self.clone(), everybody, standing }));
        }
        let backend = self.clone();
        let make: Make = Arc::new(move |client, home| {
            let (opener, like) = (backend.clone(), client.clone());
            let opens: Opens = Arc::new(move || {
                let spare = opener.described.take_spare(&like);
                spare.unwrap_or_else(|| opener.launcher.new_pipe(Dialect::Legacy, like.clone(), None))
            });
            // A process that everybody shares is started by each instance for itself.
            let home = home.filter(|_| backend.launcher.options.session_scope != SessionScope::Shared);
            match home {
                Some(home) => Owned::new(&backend.keeper, home, opens),
                None => opens(),
            }
        });
        let any: Arc<dyn Backend> = self.clone();
        if let Some(shared) = self.scopes.find(&any, client, scope, sink.as_ref(), &make) {
            return Ok(shared);
        }
        let own = make(client, home_of(&self.launcher.options, scope));
        if let Some(sink) = sink {
            own.attach(sink);
        }
        Ok(own)
    }

    /// A session that this instance made, as one that all have.
    fn at_home(
        &self,
        home: Option<Home>,
        session: Arc<dyn LegacyConversation>,
    ) -> Arc<dyn LegacyConversation> {
        match home {
            Some(home) => Owned::new(&self.keeper, home, Arc::new(move || session.clone())),
            None => session,
        }
    }
}

fn home_of(options: &Options, scope: Scope) -> Option<Home> {
    match scope {
        Scope::Session(key) => Home::own(options, key),
        Scope::Profile => None,
    }
}

enum Probed {
    Answer(Box<Message>),
    Silent,
    Closed,
}

async fn probe(channel: &mut Channel) -> Probed {
    let request = modern::discover(&Id::from_number(0), &prober());
    if channel.sender.send(request.bytes().clone()).await.is_err() {
        return Probed::Closed;
    }
    let answer = async {
        loop {
            match channel.receiver.receive().await {
                Received::Message(text) => match Message::parse(text) {
                    Ok(message) if message.raw(drawbridge_wire::message::Field::Method).is_none() => {
                        return Probed::Answer(Box::new(message));
                    }
                    _ => {}
                },
                Received::TooLarge(_) => {}
                Received::Closed(_) => return Probed::Closed,
            }
        }
    };
    tokio::time::timeout(PROBE_TIME, answer).await.unwrap_or(Probed::Silent)
}

#[async_trait]
impl Backend for StdioBackend {
    fn name(&self) -> &BackendName {
        &self.launcher.options.name
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
        Arc::new(Resolving { backend: self, client: client.clone(), scope, sink, inner: Mutex::new(None) })
    }

    fn list_timeout(&self) -> Duration {
        self.launcher.options.list_timeout
    }

    fn speaks(&self) -> Option<&'static str> {
        let dialect = (*self.dialect.lock())?;
        Some(match dialect {
            Dialect::Modern => "modern",
            Dialect::Legacy => "legacy",
        })
    }

    fn remind(&self, memory: Weak<dyn Unsolicited>) {
        self.scopes.remind(memory);
    }

    async fn close(&self) {
        self.scopes.close().await;
        self.keeper.close().await;
        self.described.close().await;
        for pipe in self.launcher.all_pipes() {
            pipe.close().await;
        }
        let spare = self.launcher.spare.lock().take();
        if let Some((_, channel)) = spare {
            channel.receiver.close(&*self.launcher).await;
        }
    }
}

/// The conversation of stateless clients with a stateless program.
struct Stateless {
    everybody: Arc<dyn LegacyConversation>,
    hubs: Arc<Hubs>,
}

#[async_trait]
impl Conversation for Stateless {
    fn call(self: Arc<Self>, call: Call) -> Events {
        if call.request.method() == method::LISTEN {
            return generate(|emit| async move {
                match Filter::of(&call.request) {
                    Ok(wanted) => self.hubs.listen(&emit, &call.client, wanted).await,
                    Err(fault) => Event::Fail(fault),
                }
            });
        }
        self.everybody.clone().call(call)
    }

    async fn notify(&self, notification: Message) {
        self.everybody.notify(notification).await;
    }

    fn listen(self: Arc<Self>) {}

    fn stop_listening(&self) {}

    /// The process is everybody's.
    async fn close(&self) {}
}

/// A conversation whose dialect is found out with its first call.
struct Resolving {
    backend: Arc<StdioBackend>,
    client: Arc<Client>,
    scope: Scope,
    sink: Option<Weak<dyn Unsolicited>>,
    inner: Mutex<Option<Arc<dyn Conversation>>>,
}

impl Resolving {
    fn known(&self) -> Option<Arc<dyn Conversation>> {
        self.inner.lock().clone()
    }

    async fn resolve(&self) -> Result<Arc<dyn Conversation>, Fault> {
        if let Some(known) = self.known() {
            return Ok(known);
        }
        let found = self.backend.conversation(&self.client, self.scope, self.sink.clone()).await?;
        let mut inner = self.inner.lock();
        // Two first calls at once must end up in one conversation; the other was never opened.
        Ok(inner.get_or_insert(found).clone())
    }

    /// The conversation of this session that another instance has.
    async fn left_by_others(&self) -> Option<Arc<dyn Conversation>> {
        let backend = &self.backend;
        let home = home_of(&backend.launcher.options, self.scope).filter(|_| backend.scopes.are_own())?;
        if !home.is_elsewhere("pipe").await {
            return None;
        }
        let (opener, like) = (backend.clone(), self.client.clone());
        let opens: Opens = Arc::new(move || opener.launcher.new_pipe(Dialect::Legacy, like.clone(), None));
        Some(Owned::new(&backend.keeper, home, opens))
    }

    async fn run(&self, emit: &Emitter, call: Call) -> Result<Event, Fault> {
        let conversation = self.resolve().await?;
        let unknown = || self.backend.launcher.options.outcome_unknown("no answer");
        forward(emit, conversation.call(call)).await.ok_or_else(unknown)
    }
}

#[async_trait]
impl Conversation for Resolving {
    fn call(self: Arc<Self>, mut call: Call) -> Events {
        if *self.backend.dialect.lock() == Some(Dialect::Legacy) {
            // It may wait long for its client.
            call.request = call.request.detached();
        }
        match self.known() {
            Some(conversation) => conversation.call(call),
            None => generate(|emit| async move { self.run(&emit, call).await.unwrap_or_else(Event::Fail) }),
        }
    }

    async fn notify(&self, notification: Message) {
        if let Some(conversation) = self.known() {
            conversation.notify(notification).await;
        }
    }

    fn listen(self: Arc<Self>) {
        let resolving = self.clone();
        self.backend.launcher.tasks.spawn_within("listen to backend", async move {
            match resolving.resolve().await {
                Ok(conversation) => conversation.listen(),
                Err(fault) => {
                    let name = resolving.backend.name();
                    tracing::warn!(backend.name = %name, error.code = fault.code(), "not listening: {fault}");
                }
            }
        });
    }

    fn stop_listening(&self) {
        if let Some(conversation) = self.known() {
            conversation.stop_listening();
        }
    }

    async fn close(&self) {
        // A conversation that others share is not this one's to end.
        let known = match self.known() {
            None => self.left_by_others().await,
            known => known,
        };
        if let Some(conversation) = known.filter(|_| matches!(self.scope, Scope::Session(_))) {
            conversation.close().await;
        }
    }

    async fn leave(&self) {
        if let Some(conversation) = self.known().filter(|_| matches!(self.scope, Scope::Session(_))) {
            conversation.leave().await;
        }
    }
}

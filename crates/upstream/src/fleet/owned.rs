//! Conversations that only one instance can have: a process and an HTTP+SSE connection end with it.
//!
//! The instance that needs one first owns it, under a lease. Others reach it there: their calls run at the owner, and
//! what comes unasked is passed on. If the owner is gone, whoever needs the conversation next opens it anew; a call that
//! was sent is sent again only if it could be taken back, unread.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_core::backend::Unsolicited;
use drawbridge_core::call::{Call, Emitter, Event, Events, forward, generate};
use drawbridge_core::event_log::SessionKey;
use drawbridge_core::fleet::relay::{self, CallFrame, Lost, frame, unframe};
use drawbridge_core::fleet::{Channel, Held, Ownership, Peers, Service};
use drawbridge_core::state::{InstanceId, NotSent};
use drawbridge_core::{Conversation, Description, Fault, Tasks};
use drawbridge_wire::Message;
use futures_util::future::ready;
use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio_util::future::FutureExt as _;
use tokio_util::sync::CancellationToken;

use super::{Ears, Home, Said};
use crate::changes::Filter;
use crate::described::{LegacyConversation, Refused, Replaceable};
use crate::legacy;
use crate::options::{Options, SessionScope};

/// What is asked of an owner.
#[derive(Serialize, Deserialize)]
struct Asked {
    /// The session.
    key: String,
    op: Op,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Op {
    Handshake,
    Call(Box<CallFrame>),
    Hear,
    Notify,
    Close,
}

/// The answer to all but calls and hearing.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Told {
    Done,
    Said(Said),
    Failed(Fault),
    Elsewhere,
}

/// How long an owner may take to answer what needs no backend.
const WORD_TIME: Duration = Duration::from_secs(5);
/// How often a call looks for the owner anew before it gives up: an owner that is gone is known to be after some
/// seconds.
const TRIES: usize = 25;
const PAUSE: Duration = Duration::from_millis(200);

/// A conversation of this instance, kept for all that use it.
struct Kept {
    conversation: Arc<dyn LegacyConversation>,
    held: Arc<Held>,
    ears: Arc<Ears>,
    /// What comes unasked and is for a client of this instance.
    sink: Mutex<Option<Weak<dyn Unsolicited>>>,
    /// That client's standalone stream is here.
    listening: AtomicBool,
    is_own: bool,
    is_everybodys: bool,
    used: Mutex<Instant>,
    /// Cloned by each call while it runs.
    calls: Arc<()>,
}

impl Unsolicited for Kept {
    fn deliver(&self, event: Event) {
        // An ask belongs where the client listens; if that is here, it is not passed on.
        let here = matches!(event, Event::Asks(_)) && self.listening.load(Ordering::Acquire);
        let event = if here { Some(event) } else { self.ears.tell(event, self.is_own) };
        let sink = self.sink.lock().as_ref().and_then(Weak::upgrade);
        match (sink, event) {
            (Some(sink), Some(event)) => sink.deliver(event),
            (None, Some(Event::Asks(round))) => legacy::refuse_round(*round),
            _ => {}
        }
    }

    fn is_shared(&self) -> bool {
        self.is_everybodys
    }
}

impl Kept {
    fn touch(&self) {
        *self.used.lock() = Instant::now();
    }

    fn is_busy(&self) -> bool {
        Arc::strong_count(&self.calls) > 1 || !self.ears.is_empty() || self.listening.load(Ordering::Acquire)
    }

    /// Listens to the backend as long as anybody does.
    fn adjust(&self) {
        if self.listening.load(Ordering::Acquire) || self.ears.has_listener() {
            self.conversation.clone().listen();
        } else {
            self.conversation.stop_listening();
        }
    }

    fn call(self: &Arc<Self>, call: Call, refused: Refused) -> Events {
        self.touch();
        let running = (self.clone(), self.calls.clone());
        let events = self.conversation.clone().call_or_refuse(call, refused);
        Box::pin(events.inspect(move |_| {
            let _ = &running;
        }))
    }
}

/// What this instance owns of one backend.
pub(crate) struct Keeper {
    options: Options,
    tasks: Tasks,
    kept: Mutex<HashMap<SessionKey, Arc<Kept>>>,
    /// What other instances may have now, but for the calls that run in it.
    given_up: Mutex<Vec<Arc<Kept>>>,
}

impl Keeper {
    pub(crate) fn new(options: &Options, tasks: &Tasks) -> Arc<Self> {
        let (options, tasks) = (options.clone(), tasks.clone());
        let keeper = Arc::new(Self { options, tasks, kept: Mutex::default(), given_up: Mutex::default() });
        let peers = &keeper.options.peers;
        if peers.state().is_fleet {
            peers.serve(keeper.service(), Arc::new(Desk(Arc::downgrade(&keeper))));
            let (weak, idle) = (Arc::downgrade(&keeper), keeper.options.session_idle);
            let drain = keeper.tasks.drain_token().clone();
            keeper.tasks.spawn("end unused conversations", async move {
                loop {
                    tokio::select! {
                        () = tokio::time::sleep((idle / 4).max(Duration::from_secs(1))) => {}
                        () = drain.cancelled() => break,
                    }
                    let Some(keeper) = weak.upgrade() else { return };
                    keeper.end_unused().await;
                }
                if let Some(keeper) = weak.upgrade() {
                    keeper.give_up();
                }
            });
        }
        keeper
    }

    /// Lets go of what nobody has used for long.
    async fn end_unused(&self) {
        let idle = self.options.session_idle;
        let unused = |kept: &Kept| !kept.is_busy() && kept.used.lock().elapsed() >= idle;
        let old: Vec<_> = self.kept.lock().extract_if(|_, kept| unused(kept)).map(|(_, kept)| kept).collect();
        for kept in old {
            kept.conversation.close().await;
        }
    }

    fn service(&self) -> String {
        format!("pipe:{}", self.options.name)
    }

    fn find(&self, key: SessionKey) -> Option<Arc<Kept>> {
        self.kept.lock().get(&key).filter(|kept| !kept.held.lost().is_cancelled()).cloned()
    }

    /// Keeps a new conversation.
    fn keep(
        self: &Arc<Self>,
        home: &Home,
        held: Arc<Held>,
        conversation: Arc<dyn LegacyConversation>,
    ) -> Arc<Kept> {
        let kept = Arc::new(Kept {
            conversation,
            held,
            ears: Arc::default(),
            sink: Mutex::default(),
            listening: AtomicBool::new(false),
            is_own: home.is_own(),
            is_everybodys: !home.is_own() && self.options.session_scope == SessionScope::Shared,
            used: Mutex::new(Instant::now()),
            calls: Arc::default(),
        });
        let sink: Weak<dyn Unsolicited> = Arc::downgrade(&(kept.clone() as Arc<dyn Unsolicited>));
        kept.conversation.attach(sink);
        self.kept.lock().insert(home.key(), kept.clone());
        if self.tasks.drain_token().is_cancelled() {
            self.give_up();
        }
        let (keeper, key, weak) = (Arc::downgrade(self), home.key(), Arc::downgrade(&kept));
        let lost = kept.held.lost().clone();
        let ended = kept.held.ended();
        let drain = self.tasks.drain_token().clone();
        self.tasks.spawn("watch lease", async move {
            tokio::select! {
                biased;
                () = drain.cancelled() => return,
                () = ended.cancelled() => return,
                () = lost.cancelled() => {}
            }
            // Another instance has its own by now.
            if let (Some(keeper), Some(kept)) = (keeper.upgrade(), weak.upgrade()) {
                keeper.forget(key, &kept);
                kept.conversation.close().await;
            }
        });
        kept
    }

    /// Gives up everything to other instances, but for the calls that run: a process that is used without a pause would
    /// otherwise never be done.
    fn give_up(&self) {
        let all: Vec<_> = self.kept.lock().drain().map(|(_, kept)| kept).collect();
        for kept in &all {
            kept.held.give_back();
            kept.ears.end_all();
        }
        self.given_up.lock().extend(all);
    }

    fn forget(&self, key: SessionKey, kept: &Arc<Kept>) {
        let mut all = self.kept.lock();
        if all.get(&key).is_some_and(|current| Arc::ptr_eq(current, kept)) {
            all.remove(&key);
        }
    }

    pub(crate) async fn close(&self) {
        self.give_up();
        let all = std::mem::take(&mut *self.given_up.lock());
        for kept in all {
            kept.conversation.close().await;
        }
    }
}

/// Where other instances bring what is for this one's conversations.
struct Desk(Weak<Keeper>);

#[async_trait]
impl Service for Desk {
    async fn accept(&self, opening: Bytes, channel: Channel) {
        let Some(keeper) = self.0.upgrade() else { return };
        let Some((asked, tail)) = unframe::<Asked>(&opening) else { return };
        keeper.options.peers.confirm().await;
        let kept = SessionKey::parse(&asked.key).and_then(|key| Some((key, keeper.find(key)?)));
        let Some((key, kept)) = kept else {
            match asked.op {
                Op::Call(_) | Op::Hear => relay::elsewhere(&channel).await,
                Op::Handshake | Op::Notify | Op::Close => say(&channel, &Told::Elsewhere).await,
            }
            return;
        };
        kept.touch();
        match asked.op {
            Op::Call(call) => {
                let Some(call) = call.read(tail) else { return };
                relay::serve(channel, kept.call(call, Refused::default())).await;
            }
            Op::Hear => {
                let (ear, events) = kept.ears.enter(true);
                kept.adjust();
                // The first word says that nothing is missed from now on.
                let begun = stream::once(ready(Event::Begun));
                relay::tell(channel, Box::pin(begun.chain(events))).await;
                drop(ear);
                kept.adjust();
                kept.touch();
            }
            Op::Handshake => {
                let told = match kept.conversation.clone().handshake().await {
                    Ok(description) => Told::Said((&*description).into()),
                    Err(fault) => Told::Failed(fault),
                };
                say(&channel, &told).await;
            }
            Op::Notify => {
                if let Ok(message) = Message::parse(tail) {
                    kept.conversation.notify(message).await;
                }
                say(&channel, &Told::Done).await;
            }
            Op::Close => {
                keeper.forget(key, &kept);
                kept.conversation.close().await;
                say(&channel, &Told::Done).await;
            }
        }
    }
}

async fn say(channel: &Channel, told: &Told) {
    // Whoever asked may have given up.
    let _ = channel.send(frame(told, b"")).await;
}

/// Makes the conversation, where this instance owns it.
pub(crate) type Opens = Arc<dyn Fn() -> Arc<dyn LegacyConversation> + Send + Sync>;

/// A conversation that is this instance's or another's.
pub(crate) struct Owned {
    keeper: Arc<Keeper>,
    home: Home,
    opens: Opens,
    sink: Mutex<Option<Weak<dyn Unsolicited>>>,
    listening: AtomicBool,
    /// Rung when the client listens, or does so no more.
    changed: Notify,
    /// A task sees to it that the client hears.
    hearing: AtomicBool,
    /// It does: nothing that comes from now on is missed.
    is_heard: watch::Sender<bool>,
    closed: CancellationToken,
}

enum Place {
    /// Here; the flag says that another instance had it, which is gone.
    Here(Arc<Kept>, bool),
    There(InstanceId),
}

fn nowhere() -> Fault {
    Fault::StateUnavailable { detail: "no instance has the session's connection to the backend".to_owned() }
}

impl Owned {
    pub(crate) fn new(keeper: &Arc<Keeper>, home: Home, opens: Opens) -> Arc<Self> {
        Arc::new(Self {
            keeper: keeper.clone(),
            home,
            opens,
            sink: Mutex::default(),
            listening: AtomicBool::new(false),
            changed: Notify::new(),
            hearing: AtomicBool::new(false),
            is_heard: watch::Sender::new(false),
            closed: CancellationToken::new(),
        })
    }

    fn peers(&self) -> &Peers {
        self.home.peers()
    }

    /// Whose the conversation is; this instance's if it was nobody's.
    async fn place(&self) -> Result<Place, Fault> {
        let known = || self.keeper.find(self.home.key()).map(|kept| self.take_part(kept));
        if known().is_some() {
            self.peers().confirm().await;
            if let Some(kept) = known() {
                return Ok(Place::Here(kept, false));
            }
        }
        Ok(match self.peers().own(&self.home.lease("pipe")).await? {
            Ownership::Theirs(owner) => Place::There(owner),
            Ownership::Mine { held, taken_over } => {
                let kept = known();
                let kept = kept
                    .unwrap_or_else(|| self.take_part(self.keeper.keep(&self.home, held, (self.opens)())));
                Place::Here(kept, taken_over)
            }
        })
    }

    /// What comes unasked and is for no other instance is for this client.
    fn take_part(&self, kept: Arc<Kept>) -> Arc<Kept> {
        kept.sink.lock().clone_from(&self.sink.lock());
        kept.touch();
        kept
    }

    fn opening(&self, op: Op, tail: &[u8]) -> Bytes {
        frame(&Asked { key: self.home.key().to_string(), op }, tail)
    }

    /// Asks the owner for a word.
    async fn ask(&self, owner: &InstanceId, op: Op, tail: &[u8], limit: Duration) -> Result<Told, NotSent> {
        let opening = self.opening(op, tail);
        let answer = self.peers().request(owner, &self.keeper.service(), opening, limit).await?;
        Ok(unframe(&answer).map_or(Told::Elsewhere, |(told, _)| told))
    }

    async fn run(&self, emit: &Emitter, call: Call, refused: Refused) -> Result<Event, Fault> {
        let unknown = |why: &str| self.keeper.options.outcome_unknown(why);
        for _ in 0..TRIES {
            let owner = match self.place().await? {
                Place::Here(kept, taken_over) => {
                    if taken_over {
                        self.tell_everything(kept.conversation.clone().handshake().await);
                    }
                    let last = forward(emit, kept.call(call, refused)).await;
                    return last.ok_or_else(|| unknown("no answer"));
                }
                Place::There(owner) => owner,
            };
            match self.run_at(emit, &owner, &call).await {
                Some(last) => return last,
                // It is about to give the lease back, or to be known to be gone.
                None => tokio::time::sleep(PAUSE).await,
            }
        }
        Err(nowhere())
    }

    /// Runs a call at its owner. `None` if that is not the owner, or gone, and has not got the call.
    async fn run_at(&self, emit: &Emitter, owner: &InstanceId, call: &Call) -> Option<Result<Event, Fault>> {
        let opening = self.opening(Op::Call(Box::new(call.into())), call.request.bytes());
        let (channel, offered) = match self.peers().offer(owner, &self.keeper.service(), opening).await {
            Ok(opened) => opened,
            Err(NotSent::Gone(_)) => return None,
            // It may be there all the same: only the answer may have been lost.
            Err(NotSent::Unavailable(e)) => {
                tracing::debug!("a call may have come to instance {owner}: {e}");
                let why = "whether it came to the instance that has the backend is not known";
                return Some(Err(self.keeper.options.outcome_unknown(why)));
            }
        };
        let why = format!("the gateway's instance {owner} that had it is gone");
        let gone = self.keeper.options.outcome_unknown(why);
        let lost = Arc::new(OnceLock::new());
        let seen = lost.clone();
        let events = relay::receive(channel, move |how| {
            // It is set only here.
            let _ = seen.set(how);
            Event::Fail(gone)
        });
        let last = forward(emit, events).await;
        let has_not_got_it = match lost.get() {
            Some(Lost::Elsewhere) => true,
            Some(Lost::Gone) => offered.withdraw().await,
            None => false,
        };
        if has_not_got_it {
            return None;
        }
        Some(last.ok_or_else(|| self.keeper.options.outcome_unknown("no answer")))
    }

    /// Tells the client that all may have changed: who told it of changes is gone.
    fn tell_everything(&self, described: Result<Arc<Description>, Fault>) {
        let sink = self.sink.lock().as_ref().and_then(Weak::upgrade);
        if let (Some(sink), Ok(description)) = (sink, described) {
            let filter = Filter::all_lists().offered_by(&description.capabilities);
            filter.everything().into_iter().for_each(|message| sink.deliver(Event::Notify(message)));
        }
    }

    /// Sees to it that the client hears what comes unasked for as long as it listens, wherever that comes.
    fn start_hearing(self: &Arc<Self>) {
        if self.hearing.swap(true, Ordering::AcqRel) {
            return;
        }
        let owned = self.clone();
        let drain = self.keeper.tasks.drain_token().clone();
        self.keeper.tasks.spawn("hear conversation", async move {
            let hear = async {
                let mut missed = false;
                while owned.listening.load(Ordering::Acquire) {
                    missed = owned.hear_once(missed).await;
                    owned.is_heard.send_replace(false);
                }
            };
            tokio::select! {
                biased;
                () = drain.cancelled() => return,
                () = owned.closed.cancelled() => return,
                () = hear => {}
            }
            owned.hearing.store(false, Ordering::Release);
            // It may listen again meanwhile.
            if owned.listening.load(Ordering::Acquire) {
                owned.start_hearing();
            }
        });
    }

    /// Hears until the client does not listen any more, or the owner is another. Returns whether anything may have been
    /// missed.
    async fn hear_once(self: &Arc<Self>, mut missed: bool) -> bool {
        let changed = self.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        match self.place().await {
            Ok(Place::Here(kept, taken_over)) => {
                kept.listening.store(self.listening.load(Ordering::Acquire), Ordering::Release);
                kept.adjust();
                self.is_heard.send_replace(true);
                if missed || taken_over {
                    self.tell_everything(kept.conversation.clone().handshake().await);
                }
                tokio::select! {
                    () = kept.held.lost().cancelled() => {}
                    () = changed => {}
                }
                kept.listening.store(self.listening.load(Ordering::Acquire), Ordering::Release);
                kept.adjust();
                kept.held.lost().is_cancelled()
            }
            Ok(Place::There(owner)) => {
                let opening = self.opening(Op::Hear, b"");
                let opened = self.peers().open(&owner, &self.keeper.service(), opening).await;
                if let Ok(channel) = opened {
                    tokio::select! {
                        () = self.pass_on(channel, &mut missed) => {}
                        () = changed => return missed,
                    }
                }
                tokio::time::sleep(PAUSE).await;
                true
            }
            Err(fault) => {
                let name = &self.keeper.options.name;
                tracing::warn!(backend.name = %name, error.code = fault.code(), "not listening: {fault}");
                tokio::time::sleep(PAUSE * 5).await;
                true
            }
        }
    }

    /// Gives the client what comes unasked at the owner. If something was `missed` before, it is told of everything.
    async fn pass_on(self: &Arc<Self>, channel: Channel, missed: &mut bool) {
        let mut events = relay::receive(channel, |_| Event::Fail(Fault::Draining));
        while let Some(event) = events.next().await {
            if matches!(event, Event::Begun) {
                self.is_heard.send_replace(true);
                if *missed {
                    self.tell_everything(self.clone().handshake().await);
                    // Only now: this may be given up while it waits.
                    *missed = false;
                }
                continue;
            }
            let sink = self.sink.lock().as_ref().and_then(Weak::upgrade);
            match sink {
                Some(sink) if !event.is_terminal() => sink.deliver(event),
                _ => return,
            }
        }
    }
}

#[async_trait]
impl LegacyConversation for Owned {
    async fn handshake(self: Arc<Self>) -> Result<Arc<Description>, Fault> {
        let begun = Instant::now();
        for _ in 0..TRIES {
            let owner = match self.place().await? {
                Place::Here(kept, _) => return kept.conversation.clone().handshake().await,
                Place::There(owner) => owner,
            };
            let limit = self.keeper.options.start_timeout + WORD_TIME;
            match self.ask(&owner, Op::Handshake, b"", limit).await {
                Ok(Told::Said(said)) => return Ok(Arc::new(said.into())),
                Ok(Told::Failed(fault)) => return Err(fault),
                Ok(Told::Done | Told::Elsewhere) | Err(NotSent::Gone(_)) => {}
                Err(NotSent::Unavailable(e)) if begun.elapsed() >= limit => return Err(e.into()),
                // It went meanwhile; a handshake may be asked for twice.
                Err(NotSent::Unavailable(_)) => {}
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(nowhere())
    }

    fn attach(&self, sink: Weak<dyn Unsolicited>) {
        *self.sink.lock() = Some(sink);
    }

    async fn hear(self: Arc<Self>) -> Result<Arc<Description>, Fault> {
        self.clone().listen();
        let mut heard = self.is_heard.subscribe();
        // Whoever can't hear in time is told of everything once it can.
        let heard = heard.wait_for(|is_heard| *is_heard).with_cancellation_token(&self.closed);
        let _ = tokio::time::timeout(WORD_TIME, heard).await;
        self.handshake().await
    }
}

impl Replaceable for Owned {
    fn call_or_refuse(self: Arc<Self>, call: Call, refused: Refused) -> Events {
        generate(|emit| async move { self.run(&emit, call, refused).await.unwrap_or_else(Event::Fail) })
    }
}

#[async_trait]
impl Conversation for Owned {
    fn call(self: Arc<Self>, call: Call) -> Events {
        self.call_or_refuse(call, Refused::default())
    }

    async fn notify(&self, notification: Message) {
        let told = match self.place().await {
            Ok(Place::Here(kept, _)) => return kept.conversation.notify(notification).await,
            Ok(Place::There(owner)) => {
                let told = self.ask(&owner, Op::Notify, notification.bytes(), WORD_TIME).await;
                told.map(drop).map_err(|e| e.to_string())
            }
            Err(fault) => Err(fault.to_string()),
        };
        if let Err(why) = told {
            tracing::warn!(backend.name = %self.keeper.options.name, "a notification was not delivered: {why}");
        }
    }

    fn listen(self: Arc<Self>) {
        if !self.listening.swap(true, Ordering::AcqRel) {
            self.changed.notify_waiters();
        }
        self.start_hearing();
    }

    fn stop_listening(&self) {
        self.listening.store(false, Ordering::Release);
        self.changed.notify_waiters();
    }

    async fn close(&self) {
        self.closed.cancel();
        let key = self.home.key();
        if let Some(kept) = self.keeper.find(key) {
            self.keeper.forget(key, &kept);
            kept.conversation.close().await;
            return;
        }
        // Whoever has it ends it.
        let holder = self.peers().state().leases.holder(&self.home.lease("pipe")).await;
        if let Ok(Some(lease)) = holder
            && lease.owner != *self.peers().instance()
        {
            // If that one is gone, so is what it had.
            let _ = self.ask(&lease.owner, Op::Close, b"", WORD_TIME).await;
        }
    }

    async fn leave(&self) {
        // Who owns it keeps it until nobody has used it for long.
        self.closed.cancel();
    }
}

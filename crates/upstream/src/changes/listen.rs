//! Listening to a stateless backend: one stream of the backend for all clients of one kind, which names what any of them
//! wants.
//!
//! What is wanted and no stream tells of is asked for by a stream of its own, so that nobody waits for others, or is refused
//! what others can't have; what was asked for together and refused is asked for one by one. A moment later one stream takes
//! the place of all ([`handover`]).

mod handover;
mod seats;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use drawbridge_core::backend::Unsolicited;
use drawbridge_core::call::{Call, Emitter, Event, Events, Reply};
use drawbridge_core::fault::Deadline;
use drawbridge_core::{BackendName, Client, Fault, ProfileKey, Retry, Tasks};
use drawbridge_wire::message::Field;
use drawbridge_wire::{Id, Message, code, json, method};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::future::FutureExt as _;

use self::handover::Leaving;
use self::seats::{Needs, Seats, Told};
use super::{Filter, MAX_URIS};
use crate::inbox::Inbox;
use crate::modern;

/// Starts a call of the backend.
pub(crate) type Caller = Arc<dyn Fn(Call) -> Events + Send + Sync>;

/// How long a backend has to acknowledge a stream.
const ACKNOWLEDGE_TIME: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Until something else is wanted.
const FOR_GOOD: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long after a stream was opened all are made one, and after how long that is tried again where it was refused.
const MERGE_AFTER: Duration = Duration::from_secs(1);
const MERGE_PAUSE: Duration = Duration::from_secs(60);
/// One stream names no more single things than this; where there are more, there are several streams.
const MAX_MERGED: usize = 4 * MAX_URIS;
/// Streams that are asked for at once.
const MAX_OPENING: usize = 16;

/// Those who listen to one stateless backend, by client profile.
pub(crate) struct Hubs {
    backend: BackendName,
    caller: Caller,
    listens: Caller,
    tasks: Tasks,
    hubs: Mutex<HashMap<ProfileKey, Weak<Hub>>>,
}

impl Hubs {
    /// Those who listen to the backend that `caller` calls.
    pub(crate) fn new(backend: &BackendName, caller: Caller, tasks: Tasks) -> Self {
        let listens = caller.clone();
        Self { backend: backend.clone(), listens, caller, tasks, hubs: Mutex::default() }
    }

    /// The same, with another way to open streams.
    pub(crate) fn listening_by(self, listens: Caller) -> Self {
        Self { listens, ..self }
    }

    /// Starts calls of the backend that are not those of one client.
    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// A place of a session among the listeners like `client`, for what `to` takes.
    pub(crate) fn subscription(&self, client: &Arc<Client>, to: Weak<dyn Unsolicited>) -> Subscription {
        self.place(client, to, true)
    }

    fn place(&self, client: &Arc<Client>, to: Weak<dyn Unsolicited>, lasts: bool) -> Subscription {
        let mut hubs = self.hubs.lock();
        hubs.retain(|_, hub| hub.strong_count() > 0);
        let key = client.profile();
        let hub = hubs.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            let hub = Hub::start(self, client.clone());
            hubs.insert(key, Arc::downgrade(&hub));
            hub
        });
        drop(hubs);
        let (number, told) = hub.seats.enter(to, lasts);
        Subscription { hub, number, told, filter: Mutex::default() }
    }

    /// Runs a listen of a stateless client for what it wants, until the backend ends it in good order, or does not tell of
    /// that (any more). A stream that is lost is opened again: then all of it may have changed.
    pub(crate) async fn listen(&self, emit: &Emitter, client: &Arc<Client>, wanted: Filter) -> Event {
        let inbox = Arc::<Inbox>::default();
        let to: Weak<dyn Unsolicited> = Arc::downgrade(&(inbox.clone() as Arc<dyn Unsolicited>));
        let subscription = self.place(client, to, false);
        subscription.change(|filter| *filter = wanted);
        let mut told = subscription.told.clone();
        let honoured = match subscription.outcome().await {
            Told::Honoured(honoured) => honoured,
            end => return end.into(),
        };
        inbox.stands_for(honoured.clone());
        emit.emit(modern::acknowledged(&honoured.write())).await;
        let ended = told.wait_for(Told::is_end).map(|told| told.map(|told| told.clone()));
        let end = inbox.beside(emit, ended).await;
        // The sender is in the hub.
        end.map_or(Event::Fail(Fault::Draining), Event::from)
    }
}

/// Why a stream was not opened.
#[derive(Debug, Clone)]
enum Refusal {
    /// The backend answered otherwise than by acknowledging.
    Answer(Arc<Reply>),
    Fault(Fault),
}

impl Refusal {
    /// Whether it would be the same a moment later.
    fn is_final(&self) -> bool {
        match self {
            Self::Answer(reply) => matches!(
                reply.message.error_code(),
                code::METHOD_NOT_FOUND | code::INVALID_PARAMS | code::MISSING_CLIENT_CAPABILITY
            ),
            Self::Fault(fault) => fault.retry() == Retry::Useless,
        }
    }

    /// Whether a listen that was open ends by it. One at a backend that is not stateless (any more) goes on elsewhere.
    fn ends_listens(&self) -> bool {
        let is_foreign = |reply: &Reply| reply.message.error_code() == code::UNSUPPORTED_PROTOCOL_VERSION;
        self.is_final() || matches!(self, Self::Answer(reply) if is_foreign(reply))
    }
}

impl From<Refusal> for Event {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Answer(reply) => Self::Done(Reply::clone(&reply)),
            Refusal::Fault(fault) => Self::Fail(fault),
        }
    }
}

/// The answer of a backend that is not stateless (any more).
pub(crate) fn not_stateless() -> Event {
    Event::Done(modern::not_spoken())
}

/// Whether a listen has ended because the backend is not stateless (any more).
pub(crate) fn is_not_stateless(event: &Event) -> bool {
    matches!(event, Event::Done(reply) if reply.message.error_code() == code::UNSUPPORTED_PROTOCOL_VERSION)
}

/// The listeners of one profile and the streams that serve them.
struct Hub {
    seats: Arc<Seats>,
    /// Rung when something else is wanted.
    wanted: watch::Sender<()>,
}

impl Hub {
    fn start(of: &Hubs, client: Arc<Client>) -> Arc<Self> {
        let seats = Arc::<Seats>::default();
        let (wanted, changes) = watch::channel(());
        let follow = Follow {
            backend: of.backend.clone(),
            caller: of.listens.clone(),
            client,
            seats: Closes(seats.clone()),
            changes,
            streams: Vec::new(),
            leaving: Vec::new(),
            opening: FuturesUnordered::new(),
            coming: Vec::new(),
            last: 0,
            is_merging: false,
            merge_at: None,
            merge_not_before: Instant::now(),
            merge_pause: MERGE_PAUSE,
            pause: FIRST_PAUSE,
        };
        let draining = of.tasks.drain_token().clone();
        let following = follow.run().with_cancellation_token_owned(draining);
        of.tasks.spawn("listen to stateless backend", following.map(drop));
        Arc::new(Self { seats, wanted })
    }
}

/// One client's part in a hub. Dropping it ends it.
pub(crate) struct Subscription {
    hub: Arc<Hub>,
    number: u64,
    told: watch::Receiver<Told>,
    filter: Mutex<Filter>,
}

impl Subscription {
    /// Changes what the client wants to hear of.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Filter)) {
        let filter = {
            let mut filter = self.filter.lock();
            change(&mut filter);
            filter.clone()
        };
        self.hub.seats.set(self.number, filter);
        self.hub.wanted.send_replace(());
    }

    async fn outcome(&self) -> Told {
        let mut told = self.told.clone();
        let outcome = told.wait_for(|told| !matches!(told, Told::Waiting)).await;
        outcome.map_or(Told::Refused(Refusal::Fault(Fault::Draining)), |told| told.clone())
    }

    /// Resolves once the backend has said what of the last change it tells of, or takes too long for that: whether it
    /// tells of `uri`, if that is asked.
    pub(crate) async fn heard(&self, uri: Option<&str>) -> bool {
        match tokio::time::timeout(ACKNOWLEDGE_TIME, self.outcome()).await {
            Ok(Told::Honoured(honoured)) => uri.is_none_or(|uri| honoured.uris.contains(uri)),
            _ => false,
        }
    }

    /// Adds a resource; resolves once the backend has said whether it tells of it.
    pub(crate) async fn subscribe(&self, uri: &str) -> Result<bool, Fault> {
        if self.filter.lock().uris.len() >= MAX_URIS {
            return Err(Fault::invalid_params(format!("at most {MAX_URIS} resources can be subscribed to")));
        }
        self.change(|filter| {
            filter.uris.insert(uri.to_owned());
        });
        // Dropped when the client goes before it has an answer, too.
        let mut undo = Undo { subscription: self, uri: Some(uri) };
        let honoured = self.heard(Some(uri)).await;
        if honoured {
            undo.uri = None;
        }
        Ok(honoured)
    }
}

/// Takes a resource out again, if there is one.
struct Undo<'a> {
    subscription: &'a Subscription,
    uri: Option<&'a str>,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(uri) = self.uri {
            self.subscription.change(|filter| {
                filter.uris.remove(uri);
            });
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.seats.leave(self.number);
        self.hub.wanted.send_replace(());
    }
}

/// An acknowledged stream.
struct Open {
    events: Events,
    asked: Filter,
    honoured: Filter,
    since: Instant,
}

/// For whom a stream is asked for.
enum For {
    /// Those who have none for something that they want; it has this number among those that are coming.
    Seats(u64),
    /// All: in the place of those that are open.
    All,
}

/// A stream that was asked for.
struct Coming {
    number: u64,
    seats: Vec<u64>,
    asked: Filter,
}

struct Opened {
    by: For,
    asked: Filter,
    outcome: Result<Open, Refusal>,
}

type Opening = Pin<Box<dyn Future<Output = Opened> + Send>>;

/// Whoever waits hears of it when nobody follows any more.
struct Closes(Arc<Seats>);

impl std::ops::Deref for Closes {
    type Target = Seats;

    fn deref(&self) -> &Seats {
        &self.0
    }
}

impl Drop for Closes {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Keeps streams open that name what is wanted.
struct Follow {
    backend: BackendName,
    caller: Caller,
    client: Arc<Client>,
    seats: Closes,
    changes: watch::Receiver<()>,
    streams: Vec<Open>,
    leaving: Vec<Leaving>,
    opening: FuturesUnordered<Opening>,
    /// What streams for some are asked for, until they are there.
    coming: Vec<Coming>,
    last: u64,
    /// One for all is asked for, will be, and not before.
    is_merging: bool,
    merge_at: Option<Instant>,
    merge_not_before: Instant,
    merge_pause: Duration,
    /// How long until a stream that was lost is opened again.
    pause: Duration,
}

impl Follow {
    async fn run(mut self) {
        let (mut is_new, mut wake) = (true, None);
        loop {
            if std::mem::take(&mut is_new) {
                wake = self.look();
            }
            let gone = self.leaving.iter().map(Leaving::until).min();
            let due = wake.into_iter().chain(gone).min();
            let until = due.unwrap_or_else(|| Instant::now() + MAX_PAUSE);
            tokio::select! {
                changed = self.changes.changed() => match changed {
                    Ok(()) => is_new = true,
                    Err(_) => return,
                },
                () = tokio::time::sleep_until(until), if due.is_some() => {
                    self.let_go();
                    is_new = wake.is_some_and(|wake| wake <= until);
                }
                (at, event) = next_of(&mut self.streams) => is_new = self.heard(at, event),
                (at, event) = next_of_leaving(&mut self.leaving) => self.heard_late(at, event),
                Some(opened) = self.opening.next(), if !self.opening.is_empty() => {
                    self.opened(opened);
                    is_new = true;
                }
            }
        }
    }

    /// Looks at what is wanted, and does what has to be done for it. Returns when to look again, unless something happens.
    fn look(&mut self) -> Option<Instant> {
        let covered = union(self.streams.iter().map(|open| &open.asked));
        let honoured = union(self.streams.iter().map(|open| &open.honoured));
        let coming = union(self.coming.iter().map(|coming| &coming.asked));
        let Needs { wanted, ask, retry } = self.seats.look(&covered, &honoured, &coming);
        for (seats, asked) in ask {
            // The others are looked at when one of these is there.
            if self.coming.len() < MAX_OPENING {
                self.last += 1;
                self.opening.push(self.open(For::Seats(self.last), asked.clone()));
                self.coming.push(Coming { number: self.last, seats, asked });
            }
        }
        if wanted.is_empty() {
            self.streams.clear();
            self.leaving.clear();
        }
        let served = wanted.in_common(&covered);
        let is_one = self.streams.len() <= 1 && covered.without(&wanted).is_empty();
        let fits = self.streams.len() <= 1 || served.len() <= MAX_MERGED;
        if is_one || !fits || served.is_empty() || !self.coming.is_empty() || self.is_merging {
            self.merge_at = None;
            return retry;
        }
        let at = *self.merge_at.get_or_insert_with(|| Instant::now() + MERGE_AFTER);
        let at = at.max(self.merge_not_before);
        if at > Instant::now() {
            return retry.into_iter().chain([at]).min();
        }
        self.is_merging = true;
        self.opening.push(self.open(For::All, served));
        retry
    }

    /// A stream was acknowledged or refused.
    fn opened(&mut self, Opened { by, asked, outcome }: Opened) {
        match (by, outcome) {
            (For::Seats(number), Ok(open)) => {
                self.coming.retain(|coming| coming.number != number);
                self.streams.push(open);
                self.pause = FIRST_PAUSE.max(self.pause / 2);
            }
            (For::All, Ok(open)) => {
                self.is_merging = false;
                let wanted = self.seats.wanted();
                let takes = |old: &Open| old.asked.in_common(&wanted).without(&open.asked).is_empty();
                let (old, stay): (Vec<Open>, _) = self.streams.drain(..).partition(takes);
                let told_of = union(old.iter().map(|old| &old.honoured)).in_common(&asked);
                self.streams = stay;
                if !told_of.without(&open.honoured).is_empty() {
                    // It would tell of less than all those that it is to replace.
                    self.streams.extend(old);
                    return self.merge_later();
                }
                self.merge_pause = MERGE_PAUSE;
                self.streams.push(open);
                self.leaving.extend(old.into_iter().map(Leaving::new));
            }
            (For::All, Err(refusal)) => {
                self.is_merging = false;
                tracing::debug!(listen.refusal = ?refusal, "several streams stay");
                self.merge_later();
            }
            (For::Seats(number), Err(refusal)) => {
                let gone = self.coming.extract_if(.., |coming| coming.number == number).next();
                let mut seats = gone.map(|coming| coming.seats).unwrap_or_default();
                let count = seats.len();
                tracing::debug!(listen.refusal = ?refusal, listen.seats = count, "not listening");
                // Who wants something else meanwhile waits for that.
                seats.retain(|seat| !self.coming.iter().any(|coming| coming.seats.contains(seat)));
                self.seats.refuse(&seats, count == 1, &refusal);
            }
        }
    }

    fn merge_later(&mut self) {
        self.merge_not_before = Instant::now() + self.merge_pause;
        self.merge_pause = (self.merge_pause * 2).min(MERGE_PAUSE * 60);
    }

    /// Something came on a stream. Returns whether it was its end.
    fn heard(&mut self, at: usize, event: Option<Event>) -> bool {
        let end = match event {
            Some(Event::Notify(message)) => {
                // All that leave have to know of it.
                let mut is_told = false;
                self.leaving.iter_mut().for_each(|old| is_told |= old.has_told(&message));
                if !is_told {
                    self.seats.tell(&message);
                }
                return false;
            }
            Some(event) if !event.is_terminal() => return false,
            end => end,
        };
        let lost = self.streams.swap_remove(at);
        let in_order = match end {
            Some(Event::Done(reply)) if !reply.is_error() => Some(Arc::new(reply)),
            _ => None,
        };
        if lost.since.elapsed() > MAX_PAUSE {
            self.pause = FIRST_PAUSE;
        }
        self.seats.lose(&lost, Instant::now() + self.pause, in_order.as_ref());
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        true
    }

    /// Something came on a stream that another has taken the place of.
    fn heard_late(&mut self, at: usize, event: Option<Event>) {
        let leaving = &mut self.leaving[at];
        match event {
            Some(Event::Notify(message)) => {
                if leaving.tells(&message) {
                    self.seats.tell(&message);
                }
            }
            Some(event) if !event.is_terminal() => {}
            _ => self.has_gone(at),
        }
    }

    /// Lets go of the streams that have said what they had.
    fn let_go(&mut self) {
        let now = Instant::now();
        while let Some(at) = self.leaving.iter().position(|leaving| leaving.until() <= now) {
            self.has_gone(at);
        }
    }

    fn has_gone(&mut self, at: usize) {
        let leaving = self.leaving.swap_remove(at);
        if let Some(missed) = leaving.missed() {
            missed.everything().iter().for_each(|notification| self.seats.tell(notification));
        }
    }

    /// Opens a stream and waits for its acknowledgement.
    fn open(&self, by: For, asked: Filter) -> Opening {
        let notifications = asked.write();
        let params = json::object([("notifications", &notifications[..])]);
        let request = Message::request(&Id::from_number(1), method::LISTEN, &params);
        let mut events = (self.caller)(Call::new(request, self.client.clone()));
        let (backend, seats) = (self.backend.to_string(), self.seats.0.clone());
        Box::pin(async move {
            let acknowledged = async {
                while let Some(event) = events.next().await {
                    match event {
                        Event::Notify(message) if message.method() == method::SUBSCRIPTIONS_ACKNOWLEDGED => {
                            let said = message.raw(Field::Notifications).unwrap_or(b"{}");
                            return Ok(asked.honoured_by(said));
                        }
                        // It should not say that yet; nothing is lost for it.
                        Event::Notify(message) => seats.tell(&message),
                        Event::Fail(fault) => return Err(Refusal::Fault(fault)),
                        Event::Done(reply) => return Err(Refusal::Answer(Arc::new(reply))),
                        event if event.is_terminal() => break,
                        _ => {}
                    }
                }
                Err(Refusal::Fault(Fault::method_not_found(method::LISTEN)))
            };
            let late = || Refusal::Fault(Fault::Timeout { backend, deadline: Deadline::FirstByte });
            let acknowledged = tokio::time::timeout(ACKNOWLEDGE_TIME, acknowledged).await;
            let outcome = match acknowledged.unwrap_or_else(|_| Err(late())) {
                Ok(honoured) => Ok(Open { events, asked: asked.clone(), honoured, since: Instant::now() }),
                Err(refusal) => Err(refusal),
            };
            Opened { by, asked, outcome }
        })
    }
}

fn union<'a>(filters: impl Iterator<Item = &'a Filter>) -> Filter {
    let mut union = Filter::default();
    filters.for_each(|filter| union.add(filter));
    union
}

/// The next event of any of these, and which it is of. Pending for ever if there are none.
async fn next_of(streams: &mut [Open]) -> (usize, Option<Event>) {
    next_event(streams, |open| &mut open.events).await
}

async fn next_of_leaving(leaving: &mut [Leaving]) -> (usize, Option<Event>) {
    next_event(leaving, |leaving| &mut leaving.open.events).await
}

async fn next_event<T>(all: &mut [T], events: impl Fn(&mut T) -> &mut Events) -> (usize, Option<Event>) {
    std::future::poll_fn(|cx| {
        let ready = all.iter_mut().enumerate().find_map(|(at, one)| match events(one).poll_next_unpin(cx) {
            Poll::Ready(event) => Some((at, event)),
            Poll::Pending => None,
        });
        ready.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

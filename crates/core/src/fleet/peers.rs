//! Channels between instances.
//!
//! A frame is a message in an inbox: version, kind, who opened the channel, its number there, the place of the frame
//! in its direction, and a body. Frames of one channel and direction arrive in order; one that is missing, a peer that
//! is gone, or a bus that has lost its state end the channel, and whoever reads it learns that nothing more comes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::{BufMut as _, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, mpsc};

use super::holding::{Holdings, RENEW_EVERY};
use crate::state::{InstanceId, MemoryState, NotSent, Receipt, SharedState, Unavailable};
use crate::tasks::Tasks;

/// How long an instance is believed to live after it last said so.
pub const LIFE: Duration = Duration::from_millis(2500);
/// How often it says so.
const ANNOUNCE_EVERY: Duration = Duration::from_millis(600);
/// How often peers with channels are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// A bus that is away for longer than this has lost what was on its way.
const AWAY: Duration = Duration::from_secs(5);
/// How long it is believed to be away that was found to be so: until it is looked at again.
const AWAY_KNOWN: Duration = Duration::from_secs(3);
/// How long an instance that was waited for in vain is not waited for again, and of how many that is known.
const GONE_KNOWN: Duration = Duration::from_secs(60);
const MAX_GONE: usize = 256;
/// How long an instance tries to say that a channel has ended, to a peer that lives.
const SAY_TIME: Duration = Duration::from_secs(60);
/// How long whoever owns something waits to hear that it still does.
const CONFIRM_TIME: Duration = Duration::from_secs(2);
/// Frames that may be on their way in one direction of a channel.
const WINDOW: u32 = 256;
/// After so many frames the sender hears how many were taken.
const CREDIT_STEP: u32 = 64;
/// Bytes on their way to the bus at once: what an instance says of itself must not wait behind the results of its calls.
const MAX_SENDING: u32 = 4 << 20;
/// What comes of other releases of the gateway is left alone.
const VERSION: u8 = 1;

/// Something that an instance does for its peers.
#[async_trait]
pub trait Service: Send + Sync {
    /// Serves one channel: `opening` is what its opener said first.
    async fn accept(&self, opening: Bytes, channel: Channel);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Open,
    Data,
    Credit,
    Close,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Open, Self::Data, Self::Credit, Self::Close];
}

/// Names one end of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    opener: InstanceId,
    number: u64,
    /// Whether this is the end of the opener.
    opened_here: bool,
}

struct Frame {
    kind: Kind,
    /// The end that it is for.
    key: Key,
    seq: u32,
    body: Bytes,
}

impl Frame {
    fn write(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(32 + self.body.len());
        out.put_u8(VERSION);
        out.put_u8(self.kind as u8);
        out.put_u8(u8::from(self.key.opened_here));
        out.put_slice(self.key.opener.as_str().as_bytes());
        out.put_u64(self.key.number);
        out.put_u32(self.seq);
        out.put_slice(&self.body);
        out.freeze()
    }

    fn read(bytes: &Bytes) -> Option<Self> {
        let (&[version, kind, opened_here], rest) = bytes.split_first_chunk::<3>()?;
        let (opener, rest) = rest.split_first_chunk::<16>()?;
        let (number, rest) = rest.split_first_chunk::<8>()?;
        let (seq, body) = rest.split_first_chunk::<4>()?;
        if version != VERSION || opened_here > 1 {
            return None;
        }
        Some(Self {
            kind: *Kind::ALL.get(usize::from(kind))?,
            key: Key {
                opener: InstanceId::parse(std::str::from_utf8(opener).ok()?)?,
                number: u64::from_be_bytes(*number),
                opened_here: opened_here == 1,
            },
            seq: u32::from_be_bytes(*seq),
            body: bytes.slice_ref(body),
        })
    }
}

/// An end of a channel, as the table of an instance knows it.
struct End {
    peer: InstanceId,
    inbound: mpsc::Sender<Bytes>,
    /// The place of the next frame that comes.
    next: AtomicU32,
    /// How many frames the other end has taken, as far as it has said.
    taken: AtomicU32,
    credit: Arc<Semaphore>,
}

struct Inner {
    state: SharedState,
    tasks: Tasks,
    services: Mutex<HashMap<String, Arc<dyn Service>>>,
    holdings: Holdings,
    /// Cloned by each call that runs here for another instance.
    calls: Arc<()>,
    ends: Mutex<HashMap<Key, End>>,
    numbers: AtomicU64,
    /// When this instance was last known to live, by itself and others.
    alive_at: Mutex<Option<Instant>>,
    /// Bytes that may still be handed to the bus.
    sending: Semaphore,
    /// Instances that were waited for in vain, and when.
    gone: Mutex<HashMap<InstanceId, Instant>>,
    /// When it last could not say so.
    away_at: Mutex<Option<Instant>>,
    /// Rung when this instance is known to live.
    alive: Notify,
}

/// The other instances. Cheap to clone.
#[derive(Clone)]
pub struct Peers(Arc<Inner>);

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers").field("instance", self.instance()).finish_non_exhaustive()
    }
}

impl Peers {
    /// The peers of the instance that `state` is of. Call [`Peers::run`] once its services are there.
    pub fn new(state: SharedState, tasks: Tasks) -> Self {
        Self(Arc::new(Inner {
            state,
            tasks,
            services: Mutex::default(),
            holdings: Holdings::default(),
            calls: Arc::default(),
            ends: Mutex::default(),
            numbers: AtomicU64::new(1),
            alive_at: Mutex::new(None),
            sending: Semaphore::new(MAX_SENDING as usize),
            gone: Mutex::default(),
            away_at: Mutex::new(None),
            alive: Notify::new(),
        }))
    }

    /// The peers of an instance that has none.
    pub fn alone() -> Self {
        let state = MemoryState::new(0, Duration::ZERO);
        Self::new(state.instance(false), Tasks::default())
    }

    /// This instance.
    pub fn instance(&self) -> &InstanceId {
        &self.0.state.instance
    }

    /// The state that all share.
    pub fn state(&self) -> &SharedState {
        &self.0.state
    }

    /// Offers a service to the peers.
    pub fn serve(&self, name: impl Into<String>, service: Arc<dyn Service>) {
        self.0.services.lock().insert(name.into(), service);
    }

    /// Runs `work` for as long as this instance speaks to others, which is longer than it serves clients and backends.
    pub fn spawn(&self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        self.0.tasks.spawn(name, work);
    }

    pub(crate) fn tasks(&self) -> &Tasks {
        &self.0.tasks
    }

    pub(super) fn holdings(&self) -> &Holdings {
        &self.0.holdings
    }

    /// Whether the others know that this instance lives, as far as it can tell by its own clock, and what it owns is
    /// still its own.
    pub fn is_known_alive(&self) -> bool {
        !self.0.state.is_fleet || self.0.alive_at.lock().is_some_and(|at| at.elapsed() < LIFE)
    }

    /// Whether the others have ever known of this instance.
    pub fn has_announced(&self) -> bool {
        !self.0.state.is_fleet || self.0.alive_at.lock().is_some()
    }

    /// Waits until that is so, but not for long: where the bus is away, nobody can take anything over. Where it was
    /// found away just now, there is nothing to wait for; an instance that was paused has not looked yet.
    pub async fn confirm(&self) {
        let found_away = self.0.away_at.lock().is_some_and(|at| at.elapsed() < AWAY_KNOWN);
        if found_away {
            return;
        }
        let confirmed = async {
            loop {
                let rung = self.0.alive.notified();
                if self.is_known_alive() {
                    return;
                }
                rung.await;
            }
        };
        let _ = tokio::time::timeout(CONFIRM_TIME, confirmed).await;
    }

    /// How many channels are open.
    pub fn channels(&self) -> usize {
        self.0.ends.lock().len()
    }

    /// Says that this instance lives, takes what its peers send, and watches those it has channels with; in the
    /// background, until the gateway ends.
    pub fn run(&self) {
        if !self.0.state.is_fleet {
            return;
        }
        let peers = self.clone();
        self.0.tasks.spawn("announce", async move { peers.announce().await });
        let peers = self.clone();
        self.0.tasks.spawn("inbox", async move {
            while let Some(bytes) = peers.0.state.bus.receive().await {
                peers.take(&bytes);
            }
        });
        let peers = self.clone();
        self.0.tasks.spawn("watch peers", async move {
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                peers.look().await;
            }
        });
    }

    /// Waits until no call runs here for another instance, for `limit` at most. Returns whether none does.
    pub async fn finish(&self, limit: Duration) -> bool {
        let none = async {
            while Arc::strong_count(&self.0.calls) > 1 {
                tokio::time::sleep(LOOK_EVERY / 3).await;
            }
        };
        tokio::time::timeout(limit, none).await.is_ok()
    }

    /// Says that this instance is going. What it still serves ends by itself.
    pub async fn leave(&self) {
        if self.0.state.is_fleet
            && let Err(e) = self.0.state.bus.leave().await
        {
            tracing::debug!("the other instances find out by themselves that this one is gone: {e}");
        }
    }

    async fn announce(&self) {
        let inner = &self.0;
        let mut known_before = false;
        let mut away_since: Option<Instant> = None;
        let mut renewed = Instant::now();
        loop {
            // By the clock before the announcement: what is believed must not last longer than what others believe.
            let asked = Instant::now();
            match inner.state.bus.announce(LIFE).await {
                Ok(known) => {
                    if known_before && !known {
                        self.lapsed("this instance was forgotten, or taken for dead").await;
                    } else if renewed.elapsed() >= RENEW_EVERY {
                        inner.holdings.renew().await;
                        renewed = Instant::now();
                    }
                    (known_before, away_since) = (true, None);
                    *inner.alive_at.lock() = Some(asked);
                    *inner.away_at.lock() = None;
                    inner.alive.notify_waiters();
                }
                Err(e) => {
                    *inner.away_at.lock() = Some(Instant::now());
                    let since = *away_since.get_or_insert(asked);
                    if since.elapsed() >= AWAY && !inner.ends.lock().is_empty() {
                        self.close_all(&e.to_string());
                    }
                }
            }
            tokio::time::sleep(ANNOUNCE_EVERY).await;
        }
    }

    async fn lapsed(&self, why: &str) {
        tracing::warn!("{why}: it looks at what it owned before it goes on");
        self.close_all(why);
        self.0.holdings.renew().await;
    }

    fn close_all(&self, why: &str) {
        let ends = std::mem::take(&mut *self.0.ends.lock());
        if !ends.is_empty() {
            tracing::warn!(channels = ends.len(), "channels to other instances ended: {why}");
        }
    }

    /// Ends the channels with peers that are gone.
    async fn look(&self) {
        let mut peers: Vec<InstanceId> = self.0.ends.lock().values().map(|end| end.peer.clone()).collect();
        peers.sort_unstable();
        peers.dedup();
        for peer in peers.into_iter().filter(|peer| peer != self.instance()) {
            if let Ok(false) = self.0.state.bus.is_alive(&peer).await {
                let mut ends = self.0.ends.lock();
                let before = ends.len();
                ends.retain(|_, end| end.peer != peer);
                let count = before - ends.len();
                drop(ends);
                tracing::warn!(instance.id = %peer, channels = count, "an instance is gone, and its channels with it");
            }
        }
    }

    fn take(&self, bytes: &Bytes) {
        // Of another release.
        let Some(frame) = Frame::read(bytes) else { return };
        match frame.kind {
            Kind::Open => self.accept(frame),
            Kind::Data => {
                let mut ends = self.0.ends.lock();
                let Some(end) = ends.get(&frame.key) else { return };
                let next = end.next.load(Ordering::Relaxed);
                // Sent again by one who did not hear that it was.
                if frame.seq < next {
                    return;
                }
                end.next.store(next + 1, Ordering::Relaxed);
                // There is room for the window; a peer that sends more has other rules.
                if frame.seq > next || end.inbound.try_send(frame.body).is_err() {
                    ends.remove(&frame.key);
                }
            }
            Kind::Credit => {
                if let Some(end) = self.0.ends.lock().get(&frame.key) {
                    // An older word may come later, and a peer that has taken more than was sent has other rules.
                    let more = frame.seq.wrapping_sub(end.taken.load(Ordering::Relaxed));
                    let most = (WINDOW as usize).saturating_sub(end.credit.available_permits());
                    if more as usize <= most {
                        end.taken.store(frame.seq, Ordering::Relaxed);
                        end.credit.add_permits(more as usize);
                    }
                }
            }
            Kind::Close => {
                self.0.ends.lock().remove(&frame.key);
            }
        }
    }

    fn accept(&self, frame: Frame) {
        let opened = frame.body.split_first().and_then(|(len, rest)| {
            let (name, _) = rest.split_at_checked(usize::from(*len))?;
            let service = self.0.services.lock().get(std::str::from_utf8(name).ok()?).cloned()?;
            Some((service, frame.body.slice(1 + usize::from(*len)..)))
        });
        let channel = self.enter(frame.key.clone(), frame.key.opener.clone());
        // Without such a service the channel ends at once.
        let Some((service, opening)) = opened else { return };
        self.0.tasks.spawn("serve peer", async move { service.accept(opening, channel).await });
    }

    fn enter(&self, key: Key, peer: InstanceId) -> Channel {
        let (inbound, received) = mpsc::channel(WINDOW as usize);
        let credit = Arc::new(Semaphore::new(WINDOW as usize));
        let zero = || AtomicU32::new(0);
        let end = End { peer: peer.clone(), inbound, next: zero(), taken: zero(), credit: credit.clone() };
        self.0.ends.lock().insert(key.clone(), end);
        let there = Key { opened_here: !key.opened_here, ..key.clone() };
        let route = Route { peers: self.clone(), key: there, peer };
        Channel { way: Way { route, key, sent: zero(), credit }, received, taken: 0 }
    }

    /// Opens a channel to a peer's service.
    ///
    /// # Errors
    ///
    /// If the peer is gone, which then has done nothing, or the bus can't be reached.
    pub async fn open(&self, to: &InstanceId, service: &str, opening: Bytes) -> Result<Channel, NotSent> {
        let (channel, body) = self.begin(to, service, &opening);
        channel.way.route.send(Kind::Open, 0, body).await?;
        Ok(channel)
    }

    /// The same where it matters afterwards whether a peer that is gone by then has got it.
    ///
    /// # Errors
    ///
    /// See [`Peers::open`].
    pub async fn offer(
        &self,
        to: &InstanceId,
        service: &str,
        opening: Bytes,
    ) -> Result<(Channel, Offered), NotSent> {
        let (channel, body) = self.begin(to, service, &opening);
        let receipt = channel.way.route.offer(Kind::Open, 0, body).await?;
        Ok((channel, Offered { peers: self.clone(), to: to.clone(), receipt }))
    }

    fn begin(&self, to: &InstanceId, service: &str, opening: &[u8]) -> (Channel, Bytes) {
        let number = self.0.numbers.fetch_add(1, Ordering::Relaxed);
        let key = Key { opener: self.instance().clone(), number, opened_here: true };
        let mut body = BytesMut::with_capacity(1 + service.len() + opening.len());
        body.put_u8(u8::try_from(service.len()).unwrap_or_default());
        body.put_slice(service.as_bytes());
        body.put_slice(opening);
        (self.enter(key, to.clone()), body.freeze())
    }

    /// The same where a peer that lives must not be taken for gone: the bus may have lost its presence, which then is back
    /// with its next announcement. Nobody waits for long for one that another has just waited for.
    ///
    /// # Errors
    ///
    /// See [`Peers::open`].
    pub async fn reach(&self, to: &InstanceId, service: &str, opening: Bytes) -> Result<Channel, NotSent> {
        match self.open(to, service, opening.clone()).await {
            Err(NotSent::Gone(_)) if !self.is_known_gone(to) => {
                tokio::time::sleep(ANNOUNCE_EVERY * 3 / 2).await;
                let reached = self.open(to, service, opening).await;
                if let Err(NotSent::Gone(_)) = &reached {
                    self.note_gone(to);
                }
                reached
            }
            reached => reached,
        }
    }

    fn is_known_gone(&self, peer: &InstanceId) -> bool {
        self.0.gone.lock().get(peer).is_some_and(|at| at.elapsed() < GONE_KNOWN)
    }

    fn note_gone(&self, peer: &InstanceId) {
        let mut gone = self.0.gone.lock();
        gone.retain(|_, at| at.elapsed() < GONE_KNOWN);
        if gone.len() < MAX_GONE {
            gone.insert(peer.clone(), Instant::now());
        }
    }

    /// Asks a peer something that it answers with one frame, within `limit`.
    ///
    /// # Errors
    ///
    /// If the peer is gone, which then has done nothing; or does not answer, whatever it has done.
    pub async fn request(
        &self,
        to: &InstanceId,
        service: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<Bytes, NotSent> {
        let unanswered = || NotSent::Unavailable(Unavailable(format!("instance {to} does not answer")));
        let asked = async {
            let mut channel = self.reach(to, service, body).await?;
            channel.receive().await.ok_or_else(unanswered)
        };
        tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| Err(unanswered()))
    }
}

/// What was said to a peer, perhaps too late.
pub struct Offered {
    peers: Peers,
    to: InstanceId,
    receipt: Receipt,
}

impl Offered {
    /// Takes it back. True only if the peer is gone, and has certainly not got it.
    pub async fn withdraw(&self) -> bool {
        let withdrawn = self.peers.state().bus.withdraw(&self.to, &self.receipt).await;
        withdrawn.unwrap_or(false)
    }
}

/// The way to the other end.
#[derive(Clone)]
struct Route {
    peers: Peers,
    /// The end there.
    key: Key,
    peer: InstanceId,
}

impl Route {
    async fn send(&self, kind: Kind, seq: u32, body: Bytes) -> Result<(), NotSent> {
        let frame = self.frame(kind, seq, body);
        let _sending = self.share(&frame).await;
        self.peers.state().bus.send(&self.peer, frame).await
    }

    async fn offer(&self, kind: Kind, seq: u32, body: Bytes) -> Result<Receipt, NotSent> {
        let frame = self.frame(kind, seq, body);
        let _sending = self.share(&frame).await;
        self.peers.state().bus.offer(&self.peer, frame).await
    }

    fn frame(&self, kind: Kind, seq: u32, body: Bytes) -> Bytes {
        Frame { kind, key: self.key.clone(), seq, body }.write()
    }

    /// Waits until so much may be handed to the bus.
    async fn share(&self, frame: &Bytes) -> Option<SemaphorePermit<'_>> {
        let share = u32::try_from(frame.len()).unwrap_or(u32::MAX).min(MAX_SENDING);
        self.peers.0.sending.acquire_many(share).await.ok()
    }

    /// Sends it again while the bus can't be reached, until `patience` is over. The other end knows a frame that comes
    /// twice.
    async fn send_within(
        &self,
        patience: Duration,
        kind: Kind,
        seq: u32,
        body: Bytes,
    ) -> Result<(), NotSent> {
        let mut backoff = Duration::from_millis(50);
        let begun = Instant::now();
        loop {
            match self.send(kind, seq, body.clone()).await {
                Err(NotSent::Unavailable(_)) if begun.elapsed() < patience => {}
                sent => return sent,
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(Duration::from_secs(1));
        }
    }

    /// The same in the background: a word that is never said would leave the other end waiting.
    fn say(&self, kind: Kind, seq: u32) {
        let route = self.clone();
        self.peers.0.tasks.spawn("tell peer", async move {
            // Who is gone needs no word.
            let _ = route.send_within(SAY_TIME, kind, seq, Bytes::new()).await;
        });
    }
}

/// This end, and the way to the other one.
struct Way {
    route: Route,
    /// This end.
    key: Key,
    sent: AtomicU32,
    credit: Arc<Semaphore>,
}

/// One end of a channel. Dropping it ends the channel.
pub struct Channel {
    way: Way,
    received: mpsc::Receiver<Bytes>,
    taken: u32,
}

impl Channel {
    /// A call of the other end runs here, as long as this is kept.
    pub(super) fn call(&self) -> Arc<()> {
        self.way.route.peers.0.calls.clone()
    }

    /// Sends a frame; waits while too many are on their way. To be called by one task at a time.
    ///
    /// # Errors
    ///
    /// If the channel has ended or the bus can't be reached.
    pub async fn send(&self, body: Bytes) -> Result<(), NotSent> {
        let gone = || NotSent::Gone(self.way.route.peer.clone());
        let permit = tokio::select! {
            permit = self.way.credit.acquire() => permit,
            () = self.ended() => return Err(gone()),
        };
        permit.map_err(|_| gone())?.forget();
        let seq = self.way.sent.fetch_add(1, Ordering::Relaxed);
        self.way.route.send_within(AWAY, Kind::Data, seq, body).await
    }

    /// Resolves when nothing can come any more.
    async fn ended(&self) {
        while self.way.route.peers.0.ends.lock().contains_key(&self.way.key) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The next frame; `None` when the channel has ended.
    pub async fn receive(&mut self) -> Option<Bytes> {
        let body = self.received.recv().await?;
        self.taken = self.taken.wrapping_add(1);
        if self.taken.is_multiple_of(CREDIT_STEP) {
            // Not awaited: whoever stops waiting for a frame must not lose the one that was taken.
            self.way.route.say(Kind::Credit, self.taken);
        }
        Some(body)
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        let known = self.route.peers.0.ends.lock().remove(&self.key).is_some();
        // An end that the other one has closed needs no word.
        if known {
            self.route.say(Kind::Close, 0);
        }
    }
}

#[cfg(test)]
mod tests;

//! Topics: one connection for all of this instance's subscriptions.
//!
//! The table says what is wanted; the task compares it with what the connection has, and subscribes or unsubscribes.
//! So a connection that is made again is only one that has nothing yet.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use drawbridge_core::state::{Heard, Subscription, Unavailable};
use futures_util::Stream;
use parking_lot::Mutex;
use redis::{Pipeline, PushInfo, PushKind, RedisResult, Value};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::hub::Hub;
use crate::keys::slot;
use crate::link::{Link, Pushes, Role, describe};
use crate::node::{PING_INTERVAL, answers};

/// Messages that one subscriber may be behind.
const CAPACITY: usize = 1024;
/// So many topics are subscribed to at a time.
const AT_ONCE: usize = 100;
/// How the connection is called.
const NAME: &str = "topics";

/// Who listens to what.
pub(crate) struct Topics {
    table: Mutex<Table>,
    /// Rung when the table has changed.
    changed: Notify,
    /// Why there is no connection, if it was tried.
    down: watch::Sender<Option<Arc<str>>>,
}

#[derive(Default)]
struct Table {
    /// By channel.
    topics: HashMap<String, Topic>,
    next: u64,
    closed: bool,
}

#[derive(Default)]
struct Topic {
    subscribers: HashMap<u64, Subscriber>,
    waiting: Vec<oneshot::Sender<Result<(), Unavailable>>>,
    /// The connection is subscribed.
    confirmed: bool,
    /// A connection was subscribed before, so that something may have been missed.
    confirmed_before: bool,
}

struct Subscriber {
    queue: mpsc::Sender<Heard>,
    /// The queue ran over. Nothing is put in until the subscriber has emptied it and was told.
    missed: Arc<AtomicBool>,
}

impl Subscriber {
    fn tell(&self, heard: Heard) {
        if !self.missed.load(Ordering::Acquire) && self.queue.try_send(heard).is_err() {
            self.missed.store(true, Ordering::Release);
        }
    }
}

struct Listening {
    queue: mpsc::Receiver<Heard>,
    missed: Arc<AtomicBool>,
    topics: Arc<Topics>,
    channel: String,
    id: u64,
}

impl Stream for Listening {
    type Item = Heard;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Heard>> {
        let next = self.queue.poll_recv(cx);
        if next.is_pending() && self.missed.swap(false, Ordering::AcqRel) {
            return Poll::Ready(Some(Heard::Missed));
        }
        next
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let is_last = {
            let mut table = self.topics.table.lock();
            table.topics.get_mut(&self.channel).is_some_and(|topic| {
                topic.subscribers.remove(&self.id);
                topic.subscribers.is_empty()
            })
        };
        if is_last {
            self.topics.changed.notify_one();
        }
    }
}

impl Topics {
    /// Begins to connect.
    pub(crate) fn start(hub: &Arc<Hub>) -> Arc<Self> {
        let topics =
            Arc::new(Self { table: Mutex::default(), changed: Notify::new(), down: watch::channel(None).0 });
        hub.health.expect(NAME);
        let guard = Closing(topics.clone());
        let followed = follow(hub.clone(), topics.clone());
        hub.spawn("redis topics", async move {
            // However this ends, the subscriptions end.
            let _guard = guard;
            followed.await;
        });
        topics
    }

    /// Subscribes; resolves when the connection is subscribed. To be called with a deadline.
    pub(crate) async fn subscribe(self: &Arc<Self>, channel: String) -> Result<Subscription, Unavailable> {
        let (queue, receiver) = mpsc::channel(CAPACITY);
        let missed = Arc::new(AtomicBool::new(false));
        let (id, waiting) = {
            let mut table = self.table.lock();
            if table.closed {
                return Err(Unavailable("the bus is closed".to_owned()));
            }
            table.next += 1;
            let id = table.next;
            let topic = table.topics.entry(channel.clone()).or_default();
            topic.subscribers.insert(id, Subscriber { queue, missed: missed.clone() });
            let waiting = (!topic.confirmed).then(|| {
                let (done, waiting) = oneshot::channel();
                topic.waiting.retain(|other| !other.is_closed());
                topic.waiting.push(done);
                waiting
            });
            (id, waiting)
        };
        // From here on, dropping it takes it out of the table.
        let listening = Listening { queue: receiver, missed, topics: self.clone(), channel, id };
        if let Some(waiting) = waiting {
            self.changed.notify_one();
            let mut down = self.down.subscribe();
            tokio::select! {
                done = waiting => done.unwrap_or_else(|_| Err(Unavailable("the bus is closed".to_owned())))?,
                reason = down.wait_for(Option::is_some) => {
                    let reason = reason.ok().and_then(|reason| reason.as_deref().map(str::to_owned));
                    return Err(Unavailable(reason.unwrap_or_default()));
                }
            }
        }
        Ok(Box::pin(listening))
    }

    /// What the connection has to subscribe to and to unsubscribe from, some at a time.
    fn difference(&self, on_link: &HashSet<String>) -> (Vec<String>, Vec<String>) {
        let mut table = self.table.lock();
        // Nobody is left: whoever comes from now on waits for a new subscription.
        table.topics.retain(|_, topic| !topic.subscribers.is_empty());
        let wanted = table.topics.keys().filter(|channel| !on_link.contains(*channel));
        let add = wanted.take(AT_ONCE).cloned().collect();
        let left = on_link.iter().filter(|channel| !table.topics.contains_key(*channel));
        (add, left.take(AT_ONCE).cloned().collect())
    }

    fn confirm(&self, channel: &str) {
        let mut table = self.table.lock();
        let Some(topic) = table.topics.get_mut(channel) else { return };
        topic.confirmed = true;
        if std::mem::replace(&mut topic.confirmed_before, true) {
            topic.subscribers.values().for_each(|subscriber| subscriber.tell(Heard::Missed));
        }
        for waiting in topic.waiting.drain(..) {
            // Whoever waited may have given up.
            let _ = waiting.send(Ok(()));
        }
    }

    /// Redis refuses a topic. Returns whether somebody had it before, who must not go without unnoticed.
    fn refuse(&self, channel: &str, reason: &str) -> bool {
        let mut table = self.table.lock();
        let Some(topic) = table.topics.get_mut(channel) else { return false };
        for waiting in topic.waiting.drain(..) {
            let _ = waiting.send(Err(Unavailable(reason.to_owned())));
        }
        topic.confirmed_before
    }

    fn lost(&self) {
        self.table.lock().topics.values_mut().for_each(|topic| topic.confirmed = false);
    }

    /// What the server says unasked. `over` ends the connection.
    fn hear(&self, hub: &Hub, push: PushInfo, over: &CancellationToken) {
        let mut data = push.data.into_iter();
        let Some(Value::BulkString(channel)) = data.next() else { return };
        let Ok(channel) = String::from_utf8(channel) else { return };
        match push.kind {
            PushKind::Message | PushKind::SMessage => {
                let Some(Value::BulkString(message)) = data.next() else { return };
                hub.observer.bus_message("in");
                let message = Bytes::from(message);
                let table = self.table.lock();
                let Some(topic) = table.topics.get(&channel) else { return };
                topic.subscribers.values().for_each(|one| one.tell(Heard::Message(message.clone())));
            }
            // Unless nobody wants it: its slot goes to another node, and the connection with it.
            PushKind::SUnsubscribe if self.is_confirmed(&channel) => over.cancel(),
            _ => {}
        }
    }

    fn is_confirmed(&self, channel: &str) -> bool {
        self.table.lock().topics.get(channel).is_some_and(|topic| topic.confirmed)
    }
}

/// Ends all subscriptions when it is dropped.
struct Closing(Arc<Topics>);

impl Drop for Closing {
    fn drop(&mut self) {
        let mut table = self.0.table.lock();
        table.closed = true;
        table.topics.clear();
    }
}

async fn follow(hub: Arc<Hub>, topics: Arc<Topics>) {
    let mut backoff = Backoff::default();
    let mut was_up = false;
    loop {
        // The connection is closed by what is heard over it, so this is made before there is one.
        let over = CancellationToken::new();
        let pushes: Pushes = {
            let (hub, topics, over) = (Arc::downgrade(&hub), topics.clone(), over.clone());
            Arc::new(move |push| {
                if let Some(hub) = hub.upgrade() {
                    topics.hear(&hub, push, &over);
                }
            })
        };
        let target = hub.target(slot(hub.keys.topic("").as_bytes())).await;
        let link = match target {
            Ok(target) => {
                let link = hub.dial(&target, Role::Topics, Some(pushes)).await;
                link.inspect_err(|_| hub.suspect(&target)).map_err(|error| error.to_string())
            }
            Err(reason) => Err(reason.to_string()),
        };
        let reason = match link {
            Ok(link) => {
                let begun = Instant::now();
                topics.down.send_replace(None);
                let reason = tokio::select! {
                    reason = serve(&hub, &topics, &link, &mut was_up) => reason,
                    () = over.cancelled() => "the topics go to another node".to_owned(),
                };
                link.close();
                topics.lost();
                hub.health.down(NAME, &reason);
                backoff.after(begun).await;
                continue;
            }
            Err(reason) => reason,
        };
        hub.health.down(NAME, &reason);
        topics.down.send_replace(Some(Arc::from(reason)));
        backoff.wait().await;
    }
}

/// Keeps the connection subscribed to what is wanted. Returns why it is over.
async fn serve(hub: &Hub, topics: &Topics, link: &Link, was_up: &mut bool) -> String {
    let (subscribe, unsubscribe) =
        if hub.is_cluster() { ("SSUBSCRIBE", "SUNSUBSCRIBE") } else { ("SUBSCRIBE", "UNSUBSCRIBE") };
    let mut on_link = HashSet::new();
    let mut is_up = false;
    loop {
        let (add, remove) = topics.difference(&on_link);
        if add.is_empty() && remove.is_empty() {
            if !std::mem::replace(&mut is_up, true) {
                hub.connected(NAME, std::mem::replace(was_up, true));
            }
            tokio::select! {
                () = link.over() => return "the connection was lost".to_owned(),
                () = topics.changed.notified() => {}
                () = tokio::time::sleep(PING_INTERVAL) => {
                    if !answers(link, hub.timeout).await {
                        return "the connection does not answer".to_owned();
                    }
                }
            }
            continue;
        }
        if let Err(error) = ask(hub, link, unsubscribe, &remove).await {
            return error;
        }
        remove.iter().for_each(|channel| {
            on_link.remove(channel);
        });
        let answers = match ask(hub, link, subscribe, &add).await {
            Ok(answers) => answers,
            Err(error) => return error,
        };
        for (channel, answer) in add.into_iter().zip(answers) {
            match answer.extract_error() {
                Ok(_) => {
                    topics.confirm(&channel);
                    on_link.insert(channel);
                }
                Err(error) => {
                    let reason = describe(&error);
                    if topics.refuse(&channel, &reason) {
                        return reason;
                    }
                    hub.health.failed(&reason);
                }
            }
        }
    }
}

/// One command per channel, since each is answered by itself.
async fn ask(hub: &Hub, link: &Link, name: &str, channels: &[String]) -> Result<Vec<Value>, String> {
    if channels.is_empty() {
        return Ok(Vec::new());
    }
    let mut commands = Pipeline::with_capacity(channels.len());
    channels.iter().for_each(|channel| {
        commands.cmd(name).arg(channel);
    });
    let answers: RedisResult<Vec<Value>> =
        match tokio::time::timeout(hub.timeout, link.send_all(&commands)).await {
            Ok(answers) => answers,
            Err(_) => return Err(format!("no answer within {:?}", hub.timeout)),
        };
    answers.map_err(|error| describe(&error))
}

//! Messages between instances.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast};

use super::{InstanceId, Unavailable};

/// Why a message did not reach an instance.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// It does not live any more.
    #[error("instance {0} is gone")]
    Gone(InstanceId),
    /// Nobody knows.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// Names a message that was offered, for who offered it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt(pub String);

/// What a subscription brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// A message.
    Message(Bytes),
    /// Messages may have been lost here.
    Missed,
}

/// Messages of one topic from the moment of subscribing on. Dropping it unsubscribes.
pub type Subscription = Pin<Box<dyn Stream<Item = Heard> + Send>>;

/// Carries messages between the instances of one gateway.
///
/// An instance that [announces](Bus::announce) itself has an inbox. Messages from one sender to one inbox keep their
/// order, and none is lost while both live and the bus can be reached: one for which there is no room is refused. What
/// was sent to an instance before it was taken for dead does not come any more when it announces itself again. Topics are
/// heard by who is subscribed at that moment.
#[async_trait]
pub trait Bus: Send + Sync {
    /// Says that this instance lives, for `ttl`. Returns whether it was known to live until now: if not, others may
    /// have taken over what it had.
    async fn announce(&self, ttl: Duration) -> Result<bool, Unavailable>;

    /// Says that this instance is going. Nothing can be sent to it any more.
    async fn leave(&self) -> Result<(), Unavailable>;

    /// Whether an instance lives.
    async fn is_alive(&self, instance: &InstanceId) -> Result<bool, Unavailable>;

    /// All instances that live.
    async fn instances(&self) -> Result<Vec<InstanceId>, Unavailable>;

    /// Puts a message into the inbox of an instance.
    async fn send(&self, to: &InstanceId, message: Bytes) -> Result<(), NotSent>;

    /// The same of a message that can be [withdrawn](Bus::withdraw). It takes a little longer to come.
    async fn offer(&self, to: &InstanceId, message: Bytes) -> Result<Receipt, NotSent>;

    /// Takes back what was offered to an instance that is gone by now. True only if that has not received it and never
    /// will; false also where nobody can tell, as a while after it is gone.
    async fn withdraw(&self, to: &InstanceId, offered: &Receipt) -> Result<bool, Unavailable>;

    /// The next message of this instance's own inbox; `None` when the bus is closed. To be called by one task only.
    async fn receive(&self) -> Option<Bytes>;

    /// Tells all that are subscribed to a topic, this instance included.
    async fn publish(&self, topic: &str, message: Bytes) -> Result<(), Unavailable>;

    /// Subscribes to a topic. Resolves when nothing that is published from now on is missed.
    async fn subscribe(&self, topic: &str) -> Result<Subscription, Unavailable>;
}

/// Messages of a topic that a slow subscriber may be behind.
const TOPIC_CAPACITY: usize = 1024;
/// Messages that an inbox holds.
const INBOX_CAPACITY: usize = 8192;

/// The bus of a gateway whose instances are all in one process: nearly always one, in tests several.
#[derive(Clone, Default)]
pub struct MemoryBus(Arc<Mutex<Wires>>);

#[derive(Default)]
struct Wires {
    inboxes: HashMap<InstanceId, Inbox>,
    topics: HashMap<String, broadcast::Sender<Bytes>>,
}

#[derive(Default)]
struct Inbox {
    is_alive: bool,
    /// What was not received yet, by number.
    messages: VecDeque<(u64, Bytes)>,
    sent: u64,
    arrived: Arc<Notify>,
}

/// One instance's end of a [`MemoryBus`].
pub struct MemoryBusEnd {
    bus: MemoryBus,
    instance: InstanceId,
}

impl MemoryBus {
    /// The end of one instance.
    pub fn end(&self, instance: InstanceId) -> MemoryBusEnd {
        self.0.lock().inboxes.insert(instance.clone(), Inbox::default());
        MemoryBusEnd { bus: self.clone(), instance }
    }
}

impl Drop for MemoryBusEnd {
    fn drop(&mut self) {
        self.bus.0.lock().inboxes.remove(&self.instance);
    }
}

struct TopicStream {
    messages: tokio_stream::wrappers::BroadcastStream<Bytes>,
    bus: MemoryBus,
    topic: String,
}

impl Stream for TopicStream {
    type Item = Heard;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Heard>> {
        let next = std::task::ready!(Pin::new(&mut self.messages).poll_next(cx));
        Poll::Ready(next.map(|next| next.map_or(Heard::Missed, Heard::Message)))
    }
}

impl Drop for TopicStream {
    fn drop(&mut self) {
        let mut wires = self.bus.0.lock();
        // This one still counts.
        if wires.topics.get(&self.topic).is_some_and(|sender| sender.receiver_count() <= 1) {
            wires.topics.remove(&self.topic);
        }
    }
}

#[async_trait]
impl Bus for MemoryBusEnd {
    async fn announce(&self, _ttl: Duration) -> Result<bool, Unavailable> {
        let mut wires = self.bus.0.lock();
        let inbox = wires.inboxes.entry(self.instance.clone()).or_default();
        Ok(std::mem::replace(&mut inbox.is_alive, true))
    }

    async fn leave(&self) -> Result<(), Unavailable> {
        if let Some(inbox) = self.bus.0.lock().inboxes.get_mut(&self.instance) {
            inbox.is_alive = false;
        }
        Ok(())
    }

    async fn is_alive(&self, instance: &InstanceId) -> Result<bool, Unavailable> {
        Ok(self.bus.0.lock().inboxes.get(instance).is_some_and(|inbox| inbox.is_alive))
    }

    async fn instances(&self) -> Result<Vec<InstanceId>, Unavailable> {
        let wires = self.bus.0.lock();
        Ok(wires.inboxes.iter().filter(|(_, inbox)| inbox.is_alive).map(|(id, _)| id.clone()).collect())
    }

    async fn send(&self, to: &InstanceId, message: Bytes) -> Result<(), NotSent> {
        self.offer(to, message).await.map(drop)
    }

    async fn offer(&self, to: &InstanceId, message: Bytes) -> Result<Receipt, NotSent> {
        let mut wires = self.bus.0.lock();
        let inbox = wires.inboxes.get_mut(to).filter(|inbox| inbox.is_alive);
        let inbox = inbox.ok_or_else(|| NotSent::Gone(to.clone()))?;
        if inbox.messages.len() >= INBOX_CAPACITY {
            return Err(Unavailable(format!("the inbox of instance {to} is full")).into());
        }
        inbox.sent += 1;
        inbox.messages.push_back((inbox.sent, message));
        inbox.arrived.notify_one();
        Ok(Receipt(inbox.sent.to_string()))
    }

    async fn withdraw(&self, to: &InstanceId, Receipt(offered): &Receipt) -> Result<bool, Unavailable> {
        let mut wires = self.bus.0.lock();
        let Some(inbox) = wires.inboxes.get_mut(to).filter(|inbox| !inbox.is_alive) else { return Ok(false) };
        let before = inbox.messages.len();
        inbox.messages.retain(|(number, _)| number.to_string() != *offered);
        Ok(inbox.messages.len() < before)
    }

    async fn receive(&self) -> Option<Bytes> {
        loop {
            let arrived = {
                let mut wires = self.bus.0.lock();
                let inbox = wires.inboxes.get_mut(&self.instance)?;
                if let Some((_, message)) = inbox.messages.pop_front() {
                    return Some(message);
                }
                inbox.arrived.clone()
            };
            arrived.notified().await;
        }
    }

    async fn publish(&self, topic: &str, message: Bytes) -> Result<(), Unavailable> {
        let sender = self.bus.0.lock().topics.get(topic).cloned();
        if let Some(sender) = sender {
            // Nobody may be left.
            let _ = sender.send(message);
        }
        Ok(())
    }

    async fn subscribe(&self, topic: &str) -> Result<Subscription, Unavailable> {
        let mut wires = self.bus.0.lock();
        let sender =
            wires.topics.entry(topic.to_owned()).or_insert_with(|| broadcast::channel(TOPIC_CAPACITY).0);
        let messages = tokio_stream::wrappers::BroadcastStream::new(sender.subscribe());
        Ok(Box::pin(TopicStream { messages, bus: self.bus.clone(), topic: topic.to_owned() }))
    }
}

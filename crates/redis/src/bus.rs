//! The bus: presence and inboxes of instances, and topics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_core::state::{Bus, InstanceId, NotSent, Receipt, Subscription, Unavailable};
use tokio::sync::{Mutex, Notify, mpsc};

use crate::hub::Hub;
use crate::request::{Request, millis, read};
use crate::scripts;
use crate::topics::Topics;

const PORT: &str = "bus";
/// Messages that an inbox in Redis holds; who sends more is told.
const INBOX_CAPACITY: usize = 8192;
/// How much longer than the presence an inbox lasts: for that long it can be told what a dead instance had not read.
const INBOX_SLACK: Duration = Duration::from_secs(10);
/// What a message of an inbox is called that its sender may take back.
pub(crate) const OFFER: &str = "o";
/// What any other is called.
const MESSAGE: &str = "m";

/// A message of the inbox.
pub(crate) struct Received {
    /// When it was sent, in ms by the server's clock.
    pub(crate) at: u64,
    /// The message.
    pub(crate) message: Bytes,
}

/// One instance's end of the bus.
pub(crate) struct RedisBus {
    hub: Arc<Hub>,
    instance: InstanceId,
    topics: Arc<Topics>,
    inbox: Mutex<mpsc::Receiver<Received>>,
    /// Rung when there is room in the inbox's queue.
    room: Arc<Notify>,
    /// Since when this instance is known to live, in µs by the server's clock; 0 before its first announcement. What was
    /// sent before has lost its sender.
    since: AtomicU64,
}

impl RedisBus {
    pub(crate) fn new(
        hub: Arc<Hub>,
        instance: InstanceId,
        topics: Arc<Topics>,
        inbox: mpsc::Receiver<Received>,
        room: Arc<Notify>,
    ) -> Self {
        Self { hub, instance, topics, inbox: Mutex::new(inbox), room, since: AtomicU64::new(0) }
    }

    async fn put(&self, to: &InstanceId, name: &str, message: &[u8]) -> Result<Receipt, NotSent> {
        let (presence, inbox) = (self.hub.keys.presence(to), self.hub.keys.inbox(to));
        let request = Request::script(&scripts::SEND, &[&presence, &inbox]);
        let request = request.arg(INBOX_CAPACITY).arg(millis(INBOX_SLACK)).arg(name).arg(message);
        let put: String = read(self.hub.call(PORT, request).await?)?;
        match put.as_str() {
            "gone" => Err(NotSent::Gone(to.clone())),
            "full" => Err(Unavailable(format!("the inbox of instance {to} is full")).into()),
            _ => {
                self.hub.observer.bus_message("out");
                Ok(Receipt(put))
            }
        }
    }
}

#[async_trait]
impl Bus for RedisBus {
    async fn announce(&self, ttl: Duration) -> Result<bool, Unavailable> {
        let keys = &self.hub.keys;
        let (presence, inbox) = (keys.presence(&self.instance), keys.inbox(&self.instance));
        let request = Request::script(&scripts::ANNOUNCE, &[&presence, &inbox]);
        let request = request.arg(millis(ttl)).arg(millis(ttl + INBOX_SLACK));
        // An announcement whose answer was lost is noticed by the next one: the time differs.
        let since: u64 = read(self.hub.call(PORT, request.again()).await?)?;
        let was_known = self.since.swap(since, Ordering::AcqRel) == since;
        let request = Request::script(&scripts::ENTER_INSTANCE, &[&keys.instances()]);
        let entered = self.hub.call(PORT, request.arg(self.instance.as_str()).arg(millis(ttl)).again()).await;
        // What the first answer says is said once; and who is not in the list can be sent to all the same.
        if let Err(error) = entered {
            tracing::warn!(%error, "this instance is missing in the list of instances");
        }
        Ok(was_known)
    }

    async fn leave(&self) -> Result<(), Unavailable> {
        let keys = &self.hub.keys;
        let presence = Request::command("DEL", &keys.presence(&self.instance)).again();
        let gone = self.hub.call(PORT, presence).await;
        let listed = Request::command("ZREM", &keys.instances()).arg(self.instance.as_str()).again();
        self.hub.call(PORT, listed).await?;
        gone.map(drop)
    }

    async fn is_alive(&self, instance: &InstanceId) -> Result<bool, Unavailable> {
        let request = Request::command("EXISTS", &self.hub.keys.presence(instance)).again();
        read(self.hub.call(PORT, request).await?)
    }

    async fn instances(&self) -> Result<Vec<InstanceId>, Unavailable> {
        let request = Request::script(&scripts::LIVE_INSTANCES, &[&self.hub.keys.instances()]).again();
        let names: Vec<String> = read(self.hub.call(PORT, request).await?)?;
        Ok(names.iter().filter_map(|name| InstanceId::parse(name)).collect())
    }

    async fn send(&self, to: &InstanceId, message: Bytes) -> Result<(), NotSent> {
        self.put(to, MESSAGE, &message).await.map(drop)
    }

    async fn offer(&self, to: &InstanceId, message: Bytes) -> Result<Receipt, NotSent> {
        self.put(to, OFFER, &message).await
    }

    async fn withdraw(&self, to: &InstanceId, Receipt(id): &Receipt) -> Result<bool, Unavailable> {
        let (presence, inbox) = (self.hub.keys.presence(to), self.hub.keys.inbox(to));
        // If it was withdrawn and the answer was lost, the second one says that it was not there.
        let request = Request::script(&scripts::WITHDRAW, &[&presence, &inbox]).arg(id).again();
        read(self.hub.call(PORT, request).await?)
    }

    async fn receive(&self) -> Option<Bytes> {
        let mut inbox = self.inbox.lock().await;
        loop {
            let Received { at, message } = inbox.recv().await?;
            self.room.notify_one();
            if at >= self.since.load(Ordering::Acquire) / 1000 {
                self.hub.observer.bus_message("in");
                return Some(message);
            }
        }
    }

    async fn publish(&self, topic: &str, message: Bytes) -> Result<(), Unavailable> {
        let command = if self.hub.is_cluster() { "SPUBLISH" } else { "PUBLISH" };
        let request = Request::command(command, &self.hub.keys.topic(topic)).arg(&message[..]);
        self.hub.call(PORT, request).await?;
        self.hub.observer.bus_message("out");
        Ok(())
    }

    async fn subscribe(&self, topic: &str) -> Result<Subscription, Unavailable> {
        let subscribing = self.topics.subscribe(self.hub.keys.topic(topic));
        match tokio::time::timeout(self.hub.timeout, subscribing).await {
            Ok(subscription) => subscription,
            Err(_) => Err(Unavailable(format!("Redis gave no answer within {:?}", self.hub.timeout))),
        }
    }
}

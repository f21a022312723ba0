//! The inbox of this instance. What was read is deleted, so that the next read begins at the front again, wherever the
//! clock of the server is.
//!
//! What was offered is deleted before it is passed on, and only while this instance is known to live: whoever offered it
//! takes it back once that is over, if it is still there. So one of the two has it, never both.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};

use super::read;
use super::{COUNT, Conversation, Entry, Stopped};
use crate::bus::{OFFER, Received};
use crate::request::Request;
use crate::scripts;

/// Messages between this and whoever receives.
const CAPACITY: usize = 4 * COUNT;
/// Offers that are known to have been taken: a Redis that comes back with an older state has them again.
const MAX_TAKEN: usize = 4096;

/// Reads the inbox.
pub(crate) struct Inbox {
    key: String,
    presence: String,
    queue: mpsc::Sender<Received>,
    room: Arc<Notify>,
    /// Read, and perhaps not deleted yet.
    seen: HashSet<String>,
    /// Read, and not passed on yet.
    waiting: Vec<Waiting>,
    taken: Taken,
}

struct Waiting {
    /// Its id, if it was offered.
    offer: Option<String>,
    received: Received,
}

/// The latest offers that were taken.
#[derive(Default)]
struct Taken {
    ids: HashSet<String>,
    order: VecDeque<String>,
}

impl Taken {
    /// Notes an offer. False if it was taken before.
    fn add(&mut self, id: String) -> bool {
        if !self.ids.insert(id.clone()) {
            return false;
        }
        self.order.push_back(id);
        if self.order.len() > MAX_TAKEN
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        true
    }
}

impl Inbox {
    pub(crate) fn new(key: String, presence: String) -> (Self, mpsc::Receiver<Received>, Arc<Notify>) {
        let (queue, receiver) = mpsc::channel(CAPACITY);
        let room = Arc::new(Notify::new());
        let (seen, waiting, taken) = (HashSet::new(), Vec::new(), Taken::default());
        (Self { key, presence, queue, room: room.clone(), seen, waiting, taken }, receiver, room)
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn has_room(&self) -> bool {
        self.queue.capacity() >= COUNT
    }

    pub(super) fn room(&self) -> &Notify {
        &self.room
    }

    pub(super) async fn begin(&mut self, conversation: &Conversation<'_>) -> Result<(), Stopped> {
        self.pass_on(conversation).await
    }

    pub(super) async fn take(
        &mut self,
        conversation: &Conversation<'_>,
        entries: Vec<Entry>,
    ) -> Result<(), Stopped> {
        for (id, mut fields) in entries {
            if !self.seen.insert(id.clone()) {
                continue;
            }
            let at = id.split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or(u64::MAX);
            let Some((name, message)) = fields.pop() else { continue };
            let received = Received { at, message: Bytes::from(message) };
            let offer = (name == OFFER.as_bytes()).then_some(id);
            self.waiting.push(Waiting { offer, received });
        }
        self.pass_on(conversation).await
    }

    async fn pass_on(&mut self, conversation: &Conversation<'_>) -> Result<(), Stopped> {
        if self.seen.is_empty() {
            return Ok(());
        }
        let seen: Vec<&str> = self.seen.iter().map(String::as_str).collect();
        if self.waiting.iter().all(|waiting| waiting.offer.is_none()) {
            self.waiting.drain(..).for_each(|waiting| queue(&self.queue, waiting.received));
            conversation.ask(&Request::command("XDEL", &self.key).arg(seen)).await?;
            self.seen.clear();
            return Ok(());
        }
        // If the answer is lost, this is asked again over the next connection.
        let request = Request::script(&scripts::TAKE_OFFERS, &[&self.presence, &self.key]).arg(seen);
        let since: Option<u64> = read(conversation.ask(&request).await?)?;
        self.seen.clear();
        for Waiting { offer, received } in self.waiting.drain(..) {
            let is_ours = match offer {
                Some(id) => since.is_some_and(|since| received.at >= since / 1000) && self.taken.add(id),
                None => true,
            };
            if is_ours {
                queue(&self.queue, received);
            }
        }
        Ok(())
    }
}

fn queue(queue: &mpsc::Sender<Received>, received: Received) {
    // There is room: that was a condition of the read.
    let _ = queue.try_send(received);
}

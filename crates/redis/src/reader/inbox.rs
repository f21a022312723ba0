//! The inbox of this instance. What was read is deleted, so that the next read begins at the front again, wherever the
//! clock of the server is.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};

use super::{COUNT, Conversation, Entry, Stopped};
use crate::bus::Received;
use crate::request::Request;

/// Messages between this and whoever receives.
const CAPACITY: usize = 4 * COUNT;

/// Reads the inbox.
pub(crate) struct Inbox {
    key: String,
    queue: mpsc::Sender<Received>,
    room: Arc<Notify>,
    /// Taken, and perhaps not deleted yet.
    taken: HashSet<String>,
}

impl Inbox {
    pub(crate) fn new(key: String) -> (Self, mpsc::Receiver<Received>, Arc<Notify>) {
        let (queue, receiver) = mpsc::channel(CAPACITY);
        let room = Arc::new(Notify::new());
        (Self { key, queue, room: room.clone(), taken: HashSet::new() }, receiver, room)
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
        self.delete_taken(conversation).await
    }

    pub(super) async fn take(
        &mut self,
        conversation: &Conversation<'_>,
        entries: Vec<Entry>,
    ) -> Result<(), Stopped> {
        for (id, mut fields) in entries {
            if !self.taken.insert(id.clone()) {
                continue;
            }
            let at = id.split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or(u64::MAX);
            let Some((_, message)) = fields.pop() else { continue };
            // There is room: that was a condition of the read.
            let _ = self.queue.try_send(Received { at, message: Bytes::from(message) });
        }
        self.delete_taken(conversation).await
    }

    async fn delete_taken(&mut self, conversation: &Conversation<'_>) -> Result<(), Stopped> {
        if self.taken.is_empty() {
            return Ok(());
        }
        let taken: Vec<&str> = self.taken.iter().map(String::as_str).collect();
        conversation.ask(&Request::command("XDEL", &self.key).arg(taken)).await?;
        self.taken.clear();
        Ok(())
    }
}

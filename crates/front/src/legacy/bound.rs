//! A session and the endpoint that it is at. When the configuration changes the endpoint, the session moves on to
//! the new one, and calls that run go on with the old one.

use std::sync::{Arc, Weak};

use drawbridge_core::backend::{Scope, Unsolicited};
use drawbridge_core::event_log::SessionKey;
use drawbridge_core::{Client, Conversation, Conversing, Endpoint, Tasks};
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::session::Session;

type Conversations = SmallVec<[(usize, Arc<dyn Conversation>); 1]>;

/// What a session has at one endpoint. Whoever makes a call keeps it until the end of the call.
pub(super) struct Bound {
    pub(super) endpoint: Arc<Endpoint>,
    client: Arc<Client>,
    key: SessionKey,
    session: Weak<Session>,
    conversations: Mutex<Conversations>,
    left: Mutex<Option<Left>>,
}

/// The session has gone elsewhere.
struct Left {
    /// The conversations that it has taken along.
    taken: SmallVec<[usize; 1]>,
    tasks: Tasks,
}

impl Bound {
    pub(super) fn new(
        endpoint: Arc<Endpoint>,
        client: Arc<Client>,
        key: SessionKey,
        session: Weak<Session>,
    ) -> Self {
        Self { endpoint, client, key, session, conversations: Mutex::default(), left: Mutex::new(None) }
    }

    /// All conversations that were begun.
    pub(super) fn conversations(&self) -> Vec<Arc<dyn Conversation>> {
        self.conversations.lock().iter().map(|(_, conversation)| conversation.clone()).collect()
    }

    /// The same, which are begun anew when they are needed again.
    pub(super) fn take(&self) -> Vec<Arc<dyn Conversation>> {
        let taken = std::mem::take(&mut *self.conversations.lock());
        taken.into_iter().map(|(_, conversation)| conversation).collect()
    }

    /// Hears from now on what the backends send outside of calls.
    pub(super) fn listen(&self) {
        (0..self.endpoint.backends().len()).for_each(|index| self.conversation(index).listen());
    }

    /// What the session has at `endpoint`, to which it goes: conversations with backends that are there too go on. The
    /// others end when the calls that run have ended.
    pub(super) fn moved_to(&self, endpoint: &Arc<Endpoint>, tasks: &Tasks) -> Self {
        let next = Self::new(endpoint.clone(), self.client.clone(), self.key, self.session.clone());
        let mut left = Left { taken: SmallVec::new(), tasks: tasks.clone() };
        let mut taken = Conversations::new();
        for (index, conversation) in &*self.conversations.lock() {
            let backend = &self.endpoint.backends()[*index];
            let place = endpoint.backends().iter().position(|other| Arc::ptr_eq(other, backend));
            match place {
                Some(place) => {
                    left.taken.push(*index);
                    taken.push((place, conversation.clone()));
                }
                None => conversation.stop_listening(),
            }
        }
        *next.conversations.lock() = taken;
        *self.left.lock() = Some(left);
        next
    }

    /// The session is over; its conversations end when the calls that run have ended.
    pub(super) fn leave(&self, tasks: &Tasks) {
        *self.left.lock() = Some(Left { taken: SmallVec::new(), tasks: tasks.clone() });
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let Some(Left { taken, tasks }) = self.left.get_mut().take() else { return };
        let conversations = std::mem::take(self.conversations.get_mut());
        let ended: Vec<_> = conversations.into_iter().filter(|(index, _)| !taken.contains(index)).collect();
        if !ended.is_empty() {
            tasks.spawn("end conversations", async move {
                for (_, conversation) in ended {
                    conversation.close().await;
                }
            });
        }
    }
}

impl Conversing for Bound {
    fn client(&self) -> &Arc<Client> {
        &self.client
    }

    fn conversation(&self, index: usize) -> Arc<dyn Conversation> {
        let mut conversations = self.conversations.lock();
        if let Some((_, conversation)) = conversations.iter().find(|(i, _)| *i == index) {
            return conversation.clone();
        }
        let sink: Weak<dyn Unsolicited> = self.session.clone();
        let backend = self.endpoint.backends()[index].clone();
        let conversation = backend.open(&self.client, Scope::Session(self.key), Some(sink));
        conversations.push((index, conversation.clone()));
        conversation
    }
}

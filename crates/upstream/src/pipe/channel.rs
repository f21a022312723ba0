//! The port to whatever carries the messages.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_core::Fault;

use super::Dialect;

/// Makes channels to one backend.
#[async_trait]
pub(crate) trait Carrier: Send + Sync {
    /// Opens a channel on which `dialect` will be spoken. May wait for its turn.
    async fn connect(&self, dialect: Dialect) -> Result<Channel, Fault>;

    /// A channel without calls is closed after this long; `None`: never.
    fn idle_stop(&self) -> Option<Duration>;

    /// Hears that a channel has ended by itself, after how long and how.
    fn ended(&self, _uptime: Duration, _status: &str) {}
}

/// An open channel.
pub(crate) struct Channel {
    pub(crate) sender: Arc<dyn Sender>,
    pub(crate) receiver: Box<dyn Receiver>,
}

/// The way to the backend.
#[async_trait]
pub(crate) trait Sender: Send + Sync {
    /// Sends one message. An error means that the backend did not get it.
    async fn send(&self, message: Bytes) -> Result<(), Fault>;
}

/// The way from the backend.
#[async_trait]
pub(crate) trait Receiver: Send {
    /// The next message.
    async fn receive(&mut self) -> Received;

    /// Closes the channel in good order. If it has ended by itself, the carrier hears of it.
    async fn close(self: Box<Self>, carrier: &dyn Carrier);
}

/// What comes from a backend.
pub(crate) enum Received {
    /// A text that should be a message.
    Message(Bytes),
    /// A message over the limit; its beginning may tell whose it is.
    TooLarge(Bytes),
    /// Nothing more will come; why.
    Closed(String),
}

//! The connection for commands to one node, which comes back by itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::sync::watch;
use tokio_util::future::FutureExt as _;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::hub::{Hub, Target};
use crate::link::{Link, Role};

/// A connection that nothing is heard of for this long is asked whether it still stands.
pub(crate) const PING_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone)]
enum State {
    /// It is being made, for the first time or after a loss: worth waiting for.
    Trying,
    /// It stands.
    Up(Link),
    /// It could not be made, and is tried again after a while.
    Down(Arc<str>),
}

/// The connection for commands to one node.
pub(crate) struct Node {
    state: watch::Receiver<State>,
    stop: CancellationToken,
}

impl Node {
    /// Starts to connect. Ends with the hub, or when it is stopped.
    pub(crate) fn start(hub: &Arc<Hub>, target: Target) -> Self {
        let (sender, state) = watch::channel(State::Trying);
        let stop = hub.closing.child_token();
        let supervised = supervise(hub.clone(), target, sender);
        let ended = stop.clone();
        hub.spawn("redis commands", supervised.with_cancellation_token_owned(ended).map(drop));
        Self { state, stop }
    }

    /// The connection; an error if it is known that there is none.
    pub(crate) async fn link(&self) -> Result<Link, Arc<str>> {
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| match state {
            State::Trying => false,
            State::Up(link) => !link.is_over(),
            State::Down(_) => true,
        });
        let gone = || Arc::from("the connection to this node has ended");
        match &*settled.await.map_err(|_| gone())? {
            State::Up(link) => Ok(link.clone()),
            State::Down(reason) => Err(reason.clone()),
            State::Trying => Err(gone()),
        }
    }

    /// The connection, if it stands now.
    pub(crate) fn standing(&self) -> Option<Link> {
        match &*self.state.borrow() {
            State::Up(link) if !link.is_over() => Some(link.clone()),
            _ => None,
        }
    }

    /// Closes the connection for good.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
        if let Some(link) = self.standing() {
            link.close();
        }
    }
}

async fn supervise(hub: Arc<Hub>, target: Target, state: watch::Sender<State>) {
    let name = target.name();
    let mut backoff = Backoff::default();
    let mut was_up = false;
    loop {
        match hub.dial(&target, Role::Commands, None).await {
            Ok(link) => {
                let begun = Instant::now();
                hub.connected(&name, std::mem::replace(&mut was_up, true));
                state.send_replace(State::Up(link.clone()));
                keep(&link, hub.timeout).await;
                link.close();
                state.send_replace(State::Trying);
                hub.health.down(&name, "the connection was lost");
                backoff.after(begun).await;
            }
            Err(error) => {
                let reason = error.to_string();
                hub.health.down(&name, &reason);
                state.send_replace(State::Down(Arc::from(reason)));
                hub.suspect(&target);
                backoff.wait().await;
            }
        }
    }
}

/// Returns when a connection is lost, or when nothing is heard over it.
async fn keep(link: &Link, timeout: Duration) {
    loop {
        tokio::select! {
            () = link.over() => return,
            () = tokio::time::sleep(PING_INTERVAL) => {}
        }
        if !answers(link, timeout).await {
            return;
        }
    }
}

/// Whether a connection answers within the deadline.
pub(crate) async fn answers(link: &Link, timeout: Duration) -> bool {
    let ping = redis::cmd("PING");
    // A server that says that it is busy is there.
    matches!(tokio::time::timeout(timeout, link.send(&ping)).await, Ok(answer) if !link.is_over() && is_alive(&answer))
}

fn is_alive(answer: &redis::RedisResult<redis::Value>) -> bool {
    answer.as_ref().err().is_none_or(|error| !error.is_io_error() && !error.is_unrecoverable_error())
}

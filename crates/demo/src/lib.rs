//! The demo backend: a small MCP server that shows every feature of both eras of the protocol, for a first
//! try of the gateway without any other program, and for tests.
//!
//! [`Demo`] holds the state. Over HTTP ([`Demo::router`], [`Demo::serve`]) one URL, `/mcp`, speaks the legacy
//! versions (`initialize`, sessions) and the modern one (stateless requests); `/sse` and `/messages` are the
//! transport of 2024-11-05. Over pipes ([`Demo::stdio`]) it speaks both eras as well.
//!
//! Every request, whatever its era and transport, becomes a `Call`: who asks, with which parameters, and where
//! messages before the result go. What the methods do (`features`) knows nothing of HTTP. Start reading at
//! `methods`; the rules of each era are in `session` (legacy) and `modern`.
//!
//! Must not know: the gateway. It is a backend like any other, and uses only our wire formats.

mod announce;
mod call;
mod features;
mod http;
mod level;
mod link;
mod methods;
mod modern;
mod outlet;
mod running;
mod seal;
mod session;
mod stdio;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::serve::ListenerExt as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::announce::{Change, Listens};
use crate::seal::Sealer;
use crate::session::Sessions;

/// How long connections may take to end after a shutdown was asked for.
const DRAIN: Duration = Duration::from_secs(5);

/// The demo server. Clones share one state.
#[derive(Clone)]
pub struct Demo(Arc<State>);

struct State {
    tasks: TaskTracker,
    /// Ends streams that would not end by themselves.
    stop: CancellationToken,
    /// Ends requests that run.
    abort: CancellationToken,
    counter: AtomicU64,
    sessions: Sessions,
    links: http::sse::Links,
    listens: Listens,
    sealer: Sealer,
}

impl Demo {
    /// A server that spawns its work on `tasks`.
    pub fn new(tasks: TaskTracker) -> Self {
        Self(Arc::new(State {
            tasks,
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
            counter: AtomicU64::new(0),
            sessions: Sessions::default(),
            links: http::sse::Links::default(),
            listens: Listens::default(),
            sealer: Sealer::new(),
        }))
    }

    /// The endpoint `/mcp` for both eras, and `/sse` with `/messages` for clients of 2024-11-05. Requests
    /// that carry an `Origin` other than a loopback one are refused.
    pub fn router(&self) -> axum::Router {
        http::router(self.clone())
    }

    /// Serves [`Demo::router`] on `listener` until `shutdown` is ready, then ends streams and lets running
    /// requests finish for a few seconds.
    pub async fn serve(
        &self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let demo = self.clone();
        // Events are small and shall not wait for each other.
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        let server = axum::serve(listener, self.router()).with_graceful_shutdown(async move {
            tokio::select! {
                () = shutdown => demo.shut_down(),
                () = demo.0.stop.cancelled() => {}
            }
        });
        tokio::select! {
            ended = server => ended,
            () = self.drained() => Ok(()),
        }
    }

    /// Speaks both eras over a pair of pipes, one message per line, until `input` ends or the server is
    /// shut down.
    pub async fn stdio(
        &self,
        input: impl AsyncRead + Unpin,
        output: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        stdio::run(self, input, output).await
    }

    /// Ends every stream and refuses to hold new ones. For good: a server does not start again.
    pub fn shut_down(&self) {
        self.0.stop.cancel();
    }

    async fn drained(&self) {
        self.0.stop.cancelled().await;
        tokio::time::sleep(DRAIN).await;
        self.0.abort.cancel();
        tracing::info!("connections did not end in time after the shutdown");
    }

    /// Tells every session and every listen stream that wants to know.
    fn announce(&self, change: &Change) {
        for session in self.0.sessions.all() {
            session.announce(change);
        }
        self.0.listens.announce(change);
    }

    fn count(&self) -> u64 {
        self.0.counter.load(Ordering::Relaxed)
    }

    fn count_up(&self) -> u64 {
        self.0.counter.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// A name that nobody can guess.
fn random_name() -> String {
    rand::random::<[u8; 16]>().iter().map(|byte| format!("{byte:02x}")).collect()
}

//! Streams on which clients hear of changes; a stream that ends is opened again at any instance.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use drawbridge_testkit::client::{Modern, Reply};
use http::Method;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::calls::Run;
use super::clients::answer;
use super::world::{Sent, World};

/// How a client listens.
pub(super) enum Listens {
    /// On the standalone stream of its session, whose headers these are.
    Session(Vec<(String, String)>),
    /// With `subscriptions/listen`.
    Stateless,
}

/// A client's stream.
pub(super) struct Listener {
    state: Arc<State>,
    stop: CancellationToken,
    task: JoinHandle<Option<()>>,
}

#[derive(Default)]
struct State {
    is_open: AtomicBool,
    heard: AtomicUsize,
}

impl Listener {
    pub(super) fn start(
        name: &str,
        path: &'static str,
        listens: Listens,
        world: &Arc<World>,
        run: &Arc<Run>,
        seed: u64,
    ) -> Self {
        let (state, stop) = (Arc::new(State::default()), CancellationToken::new());
        let listening =
            listen(name.to_owned(), path, listens, world.clone(), run.clone(), state.clone(), seed);
        let stopped = stop.clone();
        let task = TaskTracker::new().spawn(stopped.run_until_cancelled_owned(listening));
        Self { state, stop, task }
    }

    /// Whether its stream stands.
    pub(super) fn is_open(&self) -> bool {
        self.state.is_open.load(Ordering::Relaxed)
    }

    /// How many changes it heard of.
    pub(super) fn heard(&self) -> usize {
        self.state.heard.load(Ordering::Relaxed)
    }

    pub(super) async fn stop(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }
}

async fn listen(
    name: String,
    path: &'static str,
    listens: Listens,
    world: Arc<World>,
    run: Arc<Run>,
    state: Arc<State>,
    seed: u64,
) {
    let mut rng = StdRng::seed_from_u64(seed);
    let body = match &listens {
        Listens::Session(_) => Value::Null,
        Listens::Stateless => {
            let modern = Modern::new(&drawbridge_testkit::client::Client::new(""), path, json!({}));
            let wanted = json!({ "notifications": { "toolsListChanged": true } });
            let mut body = modern.body("subscriptions/listen", wanted);
            body["id"] = json!(format!("{name}-listen"));
            body
        }
    };
    let (method, headers, text) = match listens {
        Listens::Session(headers) => (Method::GET, headers, String::new()),
        Listens::Stateless => (Method::POST, Modern::headers(&body), body.to_string()),
    };
    let own = headers.clone();
    let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
    loop {
        if let Sent::Answered(_, reply) =
            world.send(&mut rng, method.clone(), path, &headers, text.clone()).await
            && reply.is_stream()
        {
            state.is_open.store(true, Ordering::Relaxed);
            let mut reply = *reply;
            while let Some((ask, call)) = next_ask(&mut reply, &name, &run, &state).await {
                answer(&world, &mut rng, path, &own, &ask, &call).await;
            }
            state.is_open.store(false, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Reads until there is something to answer: an ask about a call, with its id and the name of the call. None at the end.
async fn next_ask(reply: &mut Reply, name: &str, run: &Run, state: &State) -> Option<(Value, String)> {
    // A stream may be silent for as long as it likes.
    while let Ok(Some(event)) = reply.event_within(Duration::MAX).await {
        if event.data.is_empty() {
            continue;
        }
        let message: Value = serde_json::from_slice(&event.data).unwrap();
        let call = message["params"]["message"].as_str().filter(|call| call.starts_with(&format!("{name}-")));
        match (message["method"].as_str(), call) {
            (Some("notifications/tools/list_changed"), _) => {
                state.heard.fetch_add(1, Ordering::Relaxed);
            }
            (Some("elicitation/create"), Some(call)) => {
                return Some((message["id"].clone(), call.to_owned()));
            }
            (Some(other), _) if other.starts_with("notifications/") => {}
            _ if message["id"] == format!("{name}-listen") && message["result"].is_object() => {}
            _ => run.wrong(&format!("{name} hears on its own stream: {message}")),
        }
    }
    None
}

//! Random lives of calls, beside small models of what has to become of them: of clients that answer by retry
//! ([`retry`]) and of clients that answer live ([`live`]), in front of a backend that asks live or by state. Here is
//! what the two share: a backend that does what the test says, and a record of all that was asked.

mod live;
mod retry;

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Id, Message, ProtocolVersion, method};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use parking_lot::Mutex;
use proptest::strategy::Strategy;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::{RoundOptions, Rounds};
use crate::backend::{Backend, BackendName, Conversation, Description, Scope, Unsolicited};
use crate::call::{Ask, AskKey, Call, Event, Events, Reply, Resume, Round, Shape};
use crate::client::{Answers, Client, Principal};
use crate::endpoint::{Conversing, Endpoint};
use crate::fault::Fault;
use crate::seal::{KeyRing, SealKey};
use crate::tasks::Tasks;

const ANSWER_TIME: Duration = Duration::from_secs(10);
/// All waits take this long, so that no deadline falls together with the end of one.
const WAIT: Duration = Duration::from_secs(4);
const MAX_ROUNDS: usize = 3;
const MAX_PARKED: usize = 2;
const MAX_CALLS: usize = 4;
const KINDS: [&str; 3] = [method::ELICITATION_CREATE, method::SAMPLING_CREATE_MESSAGE, method::ROOTS_LIST];

/// One call that the backend got.
struct Attempt {
    request: Message,
    steps: Option<mpsc::Sender<Event>>,
    alive: Weak<()>,
}

/// A backend that does what the test says.
struct Puppet(BackendName, Mutex<Vec<Attempt>>);

#[async_trait]
impl Backend for Puppet {
    fn name(&self) -> &BackendName {
        &self.0
    }
    async fn describe(&self, _: &Arc<Client>) -> Result<Arc<Description>, Fault> {
        Err(Fault::Draining)
    }
    fn open(
        self: Arc<Self>,
        _: &Arc<Client>,
        _: Scope,
        _: Option<Weak<dyn Unsolicited>>,
    ) -> Arc<dyn Conversation> {
        self
    }
    fn list_timeout(&self) -> Duration {
        WAIT
    }
    async fn close(&self) {}
}

#[async_trait]
impl Conversation for Puppet {
    fn call(self: Arc<Self>, call: Call) -> Events {
        let (steps, events) = mpsc::channel(256);
        let here = Arc::new(());
        let alive = Arc::downgrade(&here);
        self.1.lock().push(Attempt { request: call.request, steps: Some(steps), alive });
        Box::pin(stream::unfold((events, here), |(mut events, here)| async move {
            Some((events.recv().await?, (events, here)))
        }))
    }
    async fn notify(&self, _: Message) {}
    fn listen(self: Arc<Self>) {}
    fn stop_listening(&self) {}
    async fn close(&self) {}
}

struct Caller(Arc<Client>, Arc<Puppet>);

impl Conversing for Caller {
    fn client(&self) -> &Arc<Client> {
        &self.0
    }
    fn conversation(&self, _: usize) -> Arc<dyn Conversation> {
        self.1.clone()
    }
}

/// What has to become of an ask.
#[derive(Debug, PartialEq)]
enum Fate {
    Open,
    /// The backend gets this result, or an error with this code.
    Told(Value),
    /// There is no answer.
    Dropped,
}

struct Asked {
    kind: usize,
    key: AskKey,
    fate: Fate,
    reply: Option<oneshot::Receiver<Message>>,
}

/// The parts of a gateway that bring calls together, and what was asked so far.
struct World {
    puppet: Arc<Puppet>,
    endpoints: [Arc<Endpoint>; 2],
    rounds: Arc<Rounds>,
    tasks: Tasks,
    asks: Vec<Asked>,
    /// Names everything that must not be mixed up.
    count: u64,
}

impl World {
    fn new() -> Self {
        let keys = Arc::new(KeyRing::new(&[SealKey { id: "t".into(), secret: [3; 32] }]).unwrap());
        let puppet = Arc::new(Puppet(BackendName::parse("puppet").unwrap(), Mutex::default()));
        let options =
            RoundOptions { answer_timeout: ANSWER_TIME, max_rounds: MAX_ROUNDS, max_parked: MAX_PARKED };
        let tasks = Tasks::default();
        let rounds = Rounds::new(keys.clone(), options, crate::fleet::Peers::alone(), tasks.clone());
        let endpoints = [None, BackendName::parse("other")].map(|name| {
            let backends: Vec<Arc<dyn Backend>> = vec![puppet.clone()];
            Arc::new(Endpoint::new(name, backends, keys.clone(), rounds.clone()))
        });
        Self { puppet, endpoints, rounds, tasks, asks: Vec::new(), count: 0 }
    }

    fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn call(&self, at: usize, principal: &str, declares: bool, answers: Answers, params: &Value) -> Events {
        let capabilities = if declares { r#"{"elicitation":{},"sampling":{},"roots":{}}"# } else { "{}" };
        let client = Arc::new(Client {
            principal: Principal::named(principal),
            version: ProtocolVersion::V2025_11_25,
            capabilities: capabilities.into(),
            info: None,
            answers,
        });
        let who: Arc<dyn Conversing> = Arc::new(Caller(client.clone(), self.puppet.clone()));
        let request =
            Message::request(&Id::from_number(1), method::TOOLS_CALL, params.to_string().as_bytes());
        self.endpoints[at].call(&who, Call::new(request, client))
    }

    /// A new ask of the backend; its id is its number.
    fn ask(&mut self, kind: usize) -> (usize, Ask) {
        let (reply, answer) = oneshot::channel();
        let (number, key) = (self.asks.len(), AskKey::next());
        let request = Message::request(&Id::from_number(number as u64), KINDS[kind], b"{}");
        self.asks.push(Asked { kind, key, fate: Fate::Open, reply: Some(answer) });
        (number, Ask { key, request, reply: Some(reply.into()) })
    }

    /// What the backend of the attempt `at` does next; a terminal event is its last.
    fn send(&self, at: usize, event: Option<Event>) {
        let mut attempts = self.puppet.1.lock();
        let ends = event.as_ref().is_none_or(Event::is_terminal);
        if let (Some(steps), Some(event)) = (&attempts[at].steps, event) {
            // Nobody may be reading any more.
            let _ = steps.try_send(event);
        }
        if ends {
            attempts[at].steps = None;
        }
    }

    fn attempts(&self) -> usize {
        self.puppet.1.lock().len()
    }

    fn request(&self, at: usize) -> Value {
        serde_json::from_slice(self.puppet.1.lock()[at].request.bytes()).unwrap()
    }

    fn is_alive(&self, at: usize) -> bool {
        self.puppet.1.lock()[at].alive.strong_count() > 0
    }

    /// The answer for an ask whose client does not come back.
    fn give_up(&mut self, ask: usize) {
        let told = [json!({ "action": "cancel" }), json!(-1), json!(-32603)];
        self.asks[ask].fate = Fate::Told(told[self.asks[ask].kind].clone());
    }

    /// Each ask has the one answer that is meant for it, or waits still.
    fn check_asks(&mut self) {
        for (number, ask) in self.asks.iter_mut().enumerate() {
            let Some(reply) = &mut ask.reply else { continue };
            let found = match reply.try_recv() {
                Ok(message) => {
                    let message: Value = serde_json::from_slice(message.bytes()).unwrap();
                    assert_eq!(message["id"], number, "{message}");
                    let error = message["error"]["code"].clone();
                    Fate::Told(if error.is_null() { message["result"].clone() } else { error })
                }
                Err(oneshot::error::TryRecvError::Empty) => Fate::Open,
                Err(oneshot::error::TryRecvError::Closed) => Fate::Dropped,
            };
            assert_eq!(found, ask.fate, "ask {number}");
            if found != Fate::Open {
                ask.reply = None;
            }
        }
    }
}

/// A round of live asks.
fn round_of(asks: impl IntoIterator<Item = Ask>) -> Round {
    Round { asks: asks.into_iter().collect(), resume: Resume::Live, source: None }
}

fn done(number: u64) -> Event {
    let message = Message::result(&Id::from_number(0), json!({ "n": number }).to_string().as_bytes());
    Event::Done(Reply { message, shape: Shape::Plain })
}

fn progress(token: u64, number: u64) -> Event {
    let params = json!({ "progressToken": token, "progress": number }).to_string();
    Event::Notify(Message::notification(method::PROGRESS, params.as_bytes()))
}

/// A round that ends the attempt: it asks under the keys `k0`, `k1`...
fn by_state(kinds: &[usize], state: Option<&Value>) -> Event {
    let ask = |(n, kind): (usize, &usize)| {
        let request = Message::request(&Id::from_text(&format!("k{n}")), KINDS[*kind], b"{}");
        Ask { key: AskKey::next(), request, reply: None }
    };
    let state = state.map(|state| state.to_string().into());
    let asks = kinds.iter().enumerate().map(ask).collect();
    Event::Asks(Box::new(Round { asks, resume: Resume::State(state), source: None }))
}

/// An event as the model says it.
fn shown(event: &Event) -> String {
    match event {
        Event::Notify(message) => {
            let message: Value = serde_json::from_slice(message.bytes()).unwrap();
            format!("progress {} {}", message["params"]["progress"], message["params"]["progressToken"])
        }
        Event::Asks(round) => {
            let ids = round.asks.iter().filter_map(|ask| ask.request.id());
            asked(
                &ids.map(|id| id.literal().escape_ascii().to_string().replace(r#"\""#, ""))
                    .collect::<Vec<_>>(),
            )
        }
        Event::Done(reply) => {
            format!("done {}", String::from_utf8_lossy(reply.message.raw(Field::Result).unwrap()))
        }
        Event::Fail(fault) => format!("fail {} {}", fault.code(), fault.to_rpc_error().code),
        Event::Begun | Event::Paused(_) | Event::Withdraw(_) => format!("{event:?}"),
    }
}

fn asked(keys: &[String]) -> String {
    format!("asked {}", keys.join(" "))
}

const REFUSED: &str = "fail rpc -32602";

/// All that is there to read; nothing follows a terminal event.
async fn read(stream: &mut Option<Events>) -> Vec<Event> {
    let mut found: Vec<Event> = Vec::new();
    for _ in 0..4 {
        tokio::task::yield_now().await;
        while let Some(Some(next)) = stream.as_mut().map(|events| events.next().now_or_never()) {
            let ended = found.last().is_some_and(Event::is_terminal);
            assert_eq!(next.is_none(), ended, "{next:?} after {found:?}");
            match next {
                Some(event) => found.push(event),
                None => *stream = None,
            }
        }
    }
    found
}

/// Runs `cases` of `strategy` through `test`, the same ones each time, with a clock that stands still.
fn each<S: Strategy, F: Future<Output = ()>>(cases: u32, strategy: &S, test: impl Fn(S::Value) -> F) {
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let outcome = runner.run(strategy, |value| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(test(value));
        Ok(())
    });
    outcome.unwrap_or_else(|e| panic!("{e}"));
}

//! Calls that wait for their clients: a backend asked live, the client answers by retry.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Edit, Message, json, method};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::state::{self, Continues};
use super::{Pending, RoundOptions, give_up, is_answer, lost, may_ask, refuse};
use crate::call::{Call, Emitter, Event, Events, Resume, Round, generate, once};
use crate::endpoint::{Conversing, Endpoint};
use crate::fault::{Fault, Unparked};
use crate::fleet::Peers;
use crate::fleet::relay::{self, CallFrame, frame};
use crate::seal::KeyRing;
use crate::tasks::Tasks;

/// What a backend asks within this time of its first ask goes to the client in the same round, however busy it is.
pub(super) const GATHER: Duration = Duration::from_millis(5);
/// At most this much is asked in one round; a client would have to keep all of it.
const MAX_ASKS: usize = 64;
/// A state of the backend's own costs nothing while it is out; how long it is good for is for the backend to say.
const INNER_VALID: Duration = Duration::from_secs(24 * 3600);
/// A call whose client never came back may end by itself for this long, after its asks were answered for it.
pub(super) const FAREWELL: Duration = Duration::from_secs(5);

/// The service by which an instance goes on with a call that is parked there.
pub const RETRY: &str = "retry";

#[derive(Serialize, Deserialize)]
struct RetryFrame {
    endpoint: String,
    call: CallFrame,
    /// What its caller may.
    #[serde(default)]
    rights: Option<String>,
}

/// The endpoint and the call that the opening of a [`RETRY`] channel names, and what its caller may.
pub fn retry_of(opening: &Bytes) -> Option<(String, Call, Option<String>)> {
    let (header, request) = relay::unframe::<RetryFrame>(opening)?;
    Some((header.endpoint, header.call.read(request)?, header.rights))
}

/// The answers of a retry, by key.
type Answers<'a> = HashMap<Cow<'a, str>, &'a [u8], ahash::RandomState>;

fn malformed() -> Fault {
    Fault::invalid_params("inputResponses must be an object whose members are objects")
}

fn answers_of(call: &Call) -> Result<Answers<'_>, Fault> {
    let members = call.request.raw(Field::InputResponses).map(json::members).transpose();
    let mut answers = Answers::default();
    for (key, value) in members.map_err(|_| malformed())?.unwrap_or_default() {
        // Nobody can tell which of two is meant.
        if answers.insert(key, value).is_some() {
            return Err(malformed());
        }
    }
    Ok(answers)
}

/// A call that waits for its client. Its backend waits too.
struct Parked {
    events: Events,
    pending: Vec<Pending>,
    /// How many asks the client was given keys for.
    keys: usize,
    rounds: usize,
    until: Instant,
}

/// The calls that wait, of all endpoints.
pub struct Rounds {
    keys: Arc<KeyRing>,
    /// Calls may wait at other instances too.
    peers: Peers,
    options: Mutex<RoundOptions>,
    tasks: Tasks,
    parked: Mutex<HashMap<u128, Parked, ahash::RandomState>>,
    /// No call may wait here any more.
    closed: AtomicBool,
}

impl std::fmt::Debug for Rounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rounds").field("parked", &self.count()).finish_non_exhaustive()
    }
}

/// How often calls that wait are looked at while the gateway drains.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A call of a client that answers by retry, between its rounds.
struct Running {
    rounds: Arc<Rounds>,
    endpoint: Arc<Endpoint>,
    call: Call,
    events: Events,
    pending: Vec<Pending>,
    keys: usize,
    /// How often it has asked.
    count: usize,
    /// The call was parked before, so its notifications name the progress token of an earlier request.
    resumed: bool,
}

impl Rounds {
    /// Bounds, the keys that seal states, and the other instances. Work that outlives its client runs among `tasks`.
    pub fn new(keys: Arc<KeyRing>, options: RoundOptions, peers: Peers, tasks: Tasks) -> Arc<Self> {
        Arc::new(Self {
            keys,
            peers,
            options: Mutex::new(options),
            tasks,
            parked: Mutex::default(),
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn options(&self) -> RoundOptions {
        *self.options.lock()
    }

    /// Other bounds from now on. Calls that wait already keep theirs.
    pub fn set_options(&self, options: RoundOptions) {
        *self.options.lock() = options;
    }

    /// How many calls wait.
    pub fn count(&self) -> usize {
        self.parked.lock().len()
    }

    /// Starts, or goes on with, a call of a client that answers by retry.
    pub(crate) fn by_retry(
        self: &Arc<Self>,
        endpoint: &Arc<Endpoint>,
        who: &Arc<dyn Conversing>,
        mut call: Call,
    ) -> Events {
        if !may_ask(&call) {
            return endpoint.route(who, call);
        }
        if !matches!(call.request.raw(Field::RequestState), None | Some(b"null")) {
            match state::open(&self.keys, &endpoint.label(), &call) {
                Err(fault) => return once(Event::Fail(fault)),
                Ok(Continues::Inner(inner)) => {
                    call.request = Edit::new(&call.request).set(Field::RequestState, inner).into_message();
                }
                Ok(Continues::Parked(instance, _)) if instance != *self.peers.instance() => {
                    let rights = call.rights.as_ref().and_then(|rights| rights.carried());
                    let header = RetryFrame { endpoint: endpoint.label(), call: (&call).into(), rights };
                    let body = frame(&header, call.request.bytes());
                    return relay::open(self.peers.clone(), instance, RETRY, body, state::expired());
                }
                Ok(Continues::Parked(_, id)) => {
                    let resumed = answers_of(&call).and_then(|answers| {
                        let parked = self.claim(id, &answers)?;
                        Ok(self.clone().resume(endpoint.clone(), call.clone(), parked, &answers))
                    });
                    return resumed.unwrap_or_else(|fault| once(Event::Fail(fault)));
                }
            }
        }
        let events = endpoint.route(who, call.clone());
        let running = Running {
            rounds: self.clone(),
            endpoint: endpoint.clone(),
            call,
            events,
            pending: Vec::new(),
            keys: 0,
            count: 0,
            resumed: false,
        };
        generate(|emit| async move { running.run(&emit).await })
    }

    /// Takes a parked call, if the answers that come with `call` are such. Whoever comes second finds nothing.
    fn claim(&self, id: u128, answers: &Answers<'_>) -> Result<Parked, Fault> {
        let mut parked = self.parked.lock();
        // One that comes too late is left where it is: its asks have still to be answered.
        let waiting = parked.get(&id).filter(|parked| Instant::now() < parked.until);
        let known = &waiting.ok_or_else(state::expired)?.pending;
        let is_malformed = |pending: &&Pending| {
            let answer = answers.get(pending.key.as_str());
            answer.is_some_and(|answer| !is_answer(&pending.ask.request, answer))
        };
        if let Some(pending) = known.iter().find(is_malformed) {
            let (key, asked) = (&pending.key, pending.ask.request.method());
            return Err(Fault::invalid_params(format!("inputResponses.{key} is no result of {asked}")));
        }
        parked.remove(&id).ok_or_else(state::expired)
    }

    /// Goes on with a parked call: its asks get the answers of the retry.
    fn resume(
        self: Arc<Self>,
        endpoint: Arc<Endpoint>,
        call: Call,
        parked: Parked,
        answers: &Answers<'_>,
    ) -> Events {
        let mut open = Vec::new();
        for pending in parked.pending {
            match answers.get(pending.key.as_str()) {
                Some(result) => pending.answer(result),
                // The client may have said that it answers this, and now says that it does not.
                None if !call.client.declares(&pending.ask.request) => refuse(pending.ask),
                None => open.push(pending),
            }
        }
        let running = Running {
            rounds: self,
            endpoint,
            call,
            events: parked.events,
            pending: open,
            keys: parked.keys,
            count: parked.rounds,
            resumed: true,
        };
        generate(|emit| async move {
            // What is missing is asked for again at once: the backend waits for it.
            if running.pending.is_empty() { running.run(&emit).await } else { running.park() }
        })
    }

    /// Ends what no client came back for. To be called now and then.
    pub fn sweep(&self) {
        let now = Instant::now();
        let late: Vec<Parked> =
            self.parked.lock().extract_if(|_, parked| parked.until <= now).map(|(_, p)| p).collect();
        if !late.is_empty() {
            tracing::info!(calls = late.len(), "calls ended whose clients gave no answer in time");
        }
        late.into_iter().for_each(|parked| self.end(parked, "the client gave no answer in time"));
    }

    /// Whether a call may wait here. While the gateway drains it may if its client can come back to another instance.
    fn takes_calls(&self) -> bool {
        !self.closed.load(Ordering::Acquire) && (self.peers.state().is_fleet || !self.tasks.is_draining())
    }

    /// Waits until the clients of all calls have come back, to other instances, for `limit` at most. Where there is only
    /// one instance none can.
    pub async fn finish(&self, limit: Duration) {
        if !self.peers.state().is_fleet {
            return;
        }
        let none = async {
            while self.count() > 0 {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        // What is left is ended in order.
        let _ = tokio::time::timeout(limit, none).await;
    }

    /// Ends all that wait. Resolves once they have come to an end, for which the ways to their backends must be open.
    pub async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let all = std::mem::take(&mut *self.parked.lock());
        if !all.is_empty() {
            tracing::warn!(calls = all.len(), "calls that waited for an answer of their clients are ended");
        }
        join_all(all.into_values().map(|parked| parked.end("the gateway is shutting down"))).await;
    }

    fn end(&self, parked: Parked, why: &'static str) {
        self.tasks.spawn("end parked call", parked.end(why));
    }
}

impl Parked {
    /// Answers the asks of a call for its client, lets it come to its own end for a while, and cancels it.
    fn end(self, why: &'static str) -> impl Future<Output = ()> + Send + use<> {
        self.pending.into_iter().for_each(|pending| give_up(pending.ask, why));
        let mut events = self.events;
        let ended = async move {
            while let Some(event) = events.next().await {
                if let Event::Asks(round) = event {
                    round.asks.into_iter().for_each(|ask| give_up(ask, why));
                }
            }
        };
        async move {
            let _ = tokio::time::timeout(FAREWELL, ended).await;
        }
    }
}

impl Running {
    /// Runs the call to its end, or to the moment when only the client can bring it on.
    async fn run(mut self, emit: &Emitter) -> Event {
        let mut gathered = Instant::now();
        loop {
            let next = if self.pending.is_empty() {
                let next = self.events.next().await;
                gathered = Instant::now() + GATHER;
                next
            } else if Instant::now() >= gathered {
                return self.park();
            } else {
                match tokio::time::timeout_at(gathered, self.events.next()).await {
                    Ok(event) => event,
                    Err(_all_here) => return self.park(),
                }
            };
            match next {
                Some(Event::Asks(round)) => match round.resume {
                    Resume::Live => self.take(*round),
                    Resume::State(_) => return Event::Asks(Box::new(self.sealed(*round))),
                },
                Some(Event::Withdraw(key)) => self.pending.retain(|pending| !pending.withdrawn_by(key)),
                Some(event) if event.is_terminal() => return event,
                Some(event) => {
                    if let Some(event) = self.renamed(event) {
                        emit.emit(event).await;
                    }
                }
                None => return Event::Fail(lost(&self.endpoint)),
            }
        }
    }

    /// Takes live asks; what the client can't answer is refused at once.
    fn take(&mut self, round: Round) {
        for ask in round.asks {
            if !self.call.client.declares(&ask.request) {
                refuse(ask);
                continue;
            }
            if self.count >= self.rounds.options().max_rounds {
                give_up(ask, "the call asks too often (limits.max_rounds)");
                continue;
            }
            if self.pending.len() >= MAX_ASKS {
                give_up(ask, "the call asks for too much at once");
                continue;
            }
            self.keys += 1;
            self.pending.push(Pending { key: format!("ask-{}", self.keys), ask });
        }
    }

    /// A state of the backend's own, sealed inside one of ours.
    fn sealed(&self, round: Round) -> Round {
        let Resume::State(Some(inner)) = &round.resume else { return round };
        let continues = Continues::Inner(inner.clone());
        let state = self.seal(&continues, INNER_VALID);
        // The message in which it came has the other state.
        let source = round
            .source
            .map(|source| Edit::new(&source).set(Field::ResultState, state.clone()).into_message());
        Round { resume: Resume::State(Some(state)), source, ..round }
    }

    fn seal(&self, continues: &Continues, valid: Duration) -> Bytes {
        state::seal(&self.rounds.keys, &self.endpoint.label(), &self.call, continues, valid)
    }

    /// Leaves the call waiting, and tells the client what for.
    fn park(self) -> Event {
        let rounds = self.rounds.clone();
        let id: u128 = rand::random();
        let asks = self.pending.iter().map(Pending::shown).collect();
        let state = self
            .seal(&Continues::Parked(rounds.peers.instance().clone(), id), rounds.options().answer_timeout);
        let parked = Parked {
            events: self.events,
            pending: self.pending,
            keys: self.keys,
            rounds: self.count + 1,
            until: Instant::now() + rounds.options().answer_timeout,
        };
        let limit = rounds.options().max_parked;
        if rounds.count() >= limit {
            // Those whose time is over need not wait for their turn to be ended.
            rounds.sweep();
        }
        let mut all = rounds.parked.lock();
        if all.len() >= limit || !rounds.takes_calls() {
            drop(all);
            rounds.end(parked, "the client can't be asked now");
            return Event::Fail(Fault::NotParked {
                why: if rounds.takes_calls() { Unparked::Busy(limit) } else { Unparked::Draining },
            });
        }
        all.insert(id, parked);
        Event::Asks(Box::new(Round { asks, resume: Resume::State(Some(state)), source: None }))
    }

    /// An event for the request that the call goes on with now: progress has the token of that one, if it wants any.
    fn renamed(&self, event: Event) -> Option<Event> {
        match event {
            Event::Notify(message) if self.resumed && message.method() == method::PROGRESS => {
                let token = self.call.request.slice(Field::MetaProgressToken)?;
                Some(Event::Notify(progress(&message, token)))
            }
            event => Some(event),
        }
    }
}

fn progress(message: &Message, token: Bytes) -> Message {
    Edit::new(message).set(Field::ProgressToken, token).into_message()
}

//! Clients that answer by retry in front of a backend that asks live, or by state.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::parked::{FAREWELL, GATHER};
use super::{
    ANSWER_TIME, Fate, KINDS, MAX_CALLS, MAX_PARKED, MAX_ROUNDS, REFUSED, WAIT, World, asked, by_state, done,
    each, progress, read, round_of, shown,
};
use crate::call::{Ask, Event, Events, Resume};
use crate::client::Answers;
use crate::fault::Fault;

#[derive(Debug, Clone)]
enum Step {
    Ask(Vec<usize>),
    Progress,
    Withdraw(Index),
    Done,
    Fail,
    Lost,
    Round(usize, bool),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Given {
    All,
    First,
    Nothing,
    Unknown,
    Malformed,
    NoObject,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Whose {
    Own,
    OtherPrincipal,
    OtherEndpoint,
    OtherArguments,
    Used,
}

#[derive(Debug, Clone)]
enum Op {
    Call {
        declares: bool,
    },
    /// The backend does all this at once; the client may leave right after.
    Backend {
        call: Index,
        steps: Vec<Step>,
        leave: bool,
    },
    Retry {
        call: Index,
        given: Given,
        whose: Whose,
        declares: bool,
        token: bool,
    },
    Leave {
        call: Index,
    },
    Wait,
    Sweep,
    Close,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => prop::collection::vec(0..KINDS.len(), 1..4).prop_map(Step::Ask),
        3 => Just(Step::Progress),
        2 => any::<Index>().prop_map(Step::Withdraw),
        1 => Just(Step::Done),
        1 => prop_oneof![Just(Step::Fail), Just(Step::Lost)],
        1 => (0..3usize, any::<bool>()).prop_map(|(asks, state)| Step::Round(asks, state)),
    ];
    prop::collection::vec(step, 1..5)
}

fn op() -> impl Strategy<Value = Op> {
    use {Given::*, Whose::*};
    let given = prop_oneof![6 => Just(All), 2 => Just(First), 1 => prop::sample::select(vec![Nothing, Unknown, Malformed, NoObject])];
    let whose = prop_oneof![6 => Just(Own), 1 => prop::sample::select(vec![OtherPrincipal, OtherEndpoint, OtherArguments, Used])];
    let retry = (any::<Index>(), given, whose, prop::bool::weighted(0.9), any::<bool>());
    prop_oneof![
        3 => prop::bool::weighted(0.9).prop_map(|declares| Op::Call { declares }),
        6 => (any::<Index>(), steps(), prop::bool::weighted(0.1))
            .prop_map(|(call, steps, leave)| Op::Backend { call, steps, leave }),
        6 => retry.prop_map(|(call, given, whose, declares, token)| Op::Retry { call, given, whose, declares, token }),
        1 => any::<Index>().prop_map(|call| Op::Leave { call }),
        1 => Just(Op::Wait),
        1 => Just(Op::Sweep),
    ]
}

/// A step that was taken, as the model remembers it until the engine reads it.
enum Taken {
    Ask(usize),
    Progress(u64),
    Withdraw(usize),
    /// The end, as it is shown; and whether a call that is sent again goes on from it, with which state.
    End(String, Option<Option<Value>>),
}

#[derive(Debug, Clone, PartialEq)]
enum Phase {
    Running,
    Parked(Instant),
    /// The backend wants to be called again, with this state of its own.
    Between(Option<Value>),
    /// Nobody comes back; the backend may end by itself until then.
    Farewell(Instant),
    Ended,
}

/// One call as the model sees it.
struct Life {
    params: Value,
    declares: bool,
    resumed: bool,
    attempt: usize,
    token: Option<u64>,
    /// The token that the backend knows.
    first_token: u64,
    phase: Phase,
    queue: VecDeque<Taken>,
    /// Its asks, for the backend to take back.
    asks: Vec<usize>,
    pending: Vec<(usize, String)>,
    keys: usize,
    rounds: usize,
    stream: Option<Events>,
    state: Option<Value>,
    used: Option<Value>,
    expected: Vec<String>,
    seen: Vec<String>,
}

struct Model {
    world: World,
    lives: Vec<Life>,
    attempts: usize,
    draining: bool,
}

impl Model {
    fn parked(&self) -> usize {
        self.lives.iter().filter(|life| matches!(life.phase, Phase::Parked(_))).count()
    }

    /// What the engine makes of all that the backend has sent.
    fn run(&mut self, n: usize, may_park: bool) {
        let (world, life) = (&mut self.world, &mut self.lives[n]);
        while matches!(life.phase, Phase::Running | Phase::Farewell(_)) {
            let farewell = life.phase != Phase::Running;
            match life.queue.pop_front() {
                None => break,
                Some(Taken::Ask(ask)) if !farewell && !life.declares => {
                    world.asks[ask].fate = Fate::Told(json!(-32601));
                }
                Some(Taken::Ask(ask)) if farewell || life.rounds >= MAX_ROUNDS => world.give_up(ask),
                Some(Taken::Ask(ask)) => {
                    life.keys += 1;
                    life.pending.push((ask, format!("ask-{}", life.keys)));
                }
                Some(Taken::Progress(number)) => {
                    let token = if life.resumed { life.token } else { Some(life.first_token) };
                    let shown = token.filter(|_| !farewell).map(|token| format!("progress {number} {token}"));
                    life.expected.extend(shown);
                }
                Some(Taken::Withdraw(ask)) => {
                    let taken = life.pending.extract_if(.., |(own, _)| *own == ask);
                    taken.for_each(|(ask, _)| world.asks[ask].fate = Fate::Dropped);
                }
                Some(Taken::End(shown, next)) => {
                    life.pending.drain(..).for_each(|(ask, _)| world.asks[ask].fate = Fate::Dropped);
                    life.expected.extend((!farewell).then_some(shown));
                    life.phase = next.filter(|_| !farewell).map_or(Phase::Ended, Phase::Between);
                }
            }
        }
        if may_park && life.phase == Phase::Running && !life.pending.is_empty() {
            self.park(n);
        }
    }

    fn park(&mut self, n: usize) {
        let (full, draining) = (self.parked() >= MAX_PARKED, self.draining);
        let life = &mut self.lives[n];
        life.rounds += 1;
        if full || draining {
            life.expected.push(format!("fail {} -32603", if draining { "draining" } else { "busy" }));
            return self.end(n);
        }
        let keys: Vec<_> = life.pending.iter().map(|(_, key)| key.clone()).collect();
        life.expected.push(asked(&keys));
        life.phase = Phase::Parked(Instant::now() + ANSWER_TIME);
    }

    /// The client does not come back.
    fn end(&mut self, n: usize) {
        let life = &mut self.lives[n];
        life.pending.drain(..).for_each(|(ask, _)| self.world.give_up(ask));
        life.phase = Phase::Farewell(Instant::now() + FAREWELL);
        life.used = life.state.clone();
        self.run(n, false);
    }

    async fn hear(&mut self, n: usize) {
        let life = &mut self.lives[n];
        for event in read(&mut life.stream).await {
            life.seen.push(shown(&event));
            if let Event::Asks(round) = event
                && let Resume::State(state) = round.resume
            {
                life.state = state.map(|state| serde_json::from_slice(&state).unwrap());
            }
        }
    }

    /// Lets everything happen that can.
    async fn settle(&mut self, n: usize) {
        self.hear(n).await;
        tokio::time::advance(GATHER * 2).await;
        self.hear(n).await;
        self.run(n, true);
    }

    fn leave(&mut self, n: usize) {
        let life = &mut self.lives[n];
        life.stream = None;
        if life.phase == Phase::Running {
            life.pending.drain(..).for_each(|(ask, _)| self.world.asks[ask].fate = Fate::Dropped);
            life.phase = Phase::Ended;
        }
    }

    fn backend(&mut self, n: usize, step: &Step) {
        let life = &mut self.lives[n];
        let at = life.attempt;
        let open = self.world.puppet.1.lock()[at].steps.is_some();
        if !open || matches!(life.phase, Phase::Ended | Phase::Between(_)) {
            return;
        }
        let number = self.world.next();
        let (event, taken) = match step {
            Step::Ask(kinds) => {
                let mut asks = Vec::new();
                for kind in kinds {
                    let (number, ask) = self.world.ask(*kind);
                    asks.push(ask);
                    life.asks.push(number);
                    life.queue.push_back(Taken::Ask(number));
                }
                return self.world.send(at, Some(Event::Asks(Box::new(round_of(asks)))));
            }
            Step::Progress => (Some(progress(life.first_token, number)), Taken::Progress(number)),
            Step::Withdraw(_) if life.asks.is_empty() => return,
            Step::Withdraw(index) => {
                let ask = *index.get(&life.asks);
                (Some(Event::Withdraw(self.world.asks[ask].key)), Taken::Withdraw(ask))
            }
            Step::Done => (Some(done(number)), Taken::End(shown(&done(number)), None)),
            Step::Fail => {
                (Some(Event::Fail(Fault::Draining)), Taken::End("fail draining -32603".to_owned(), None))
            }
            Step::Lost => (None, Taken::End("fail outcome_unknown -32603".to_owned(), None)),
            Step::Round(asks, state) => {
                let state = state.then(|| json!(format!("own {number} \u{e9}/")));
                let event = by_state(&vec![0; *asks], state.as_ref());
                let text = shown(&event);
                (Some(event), Taken::End(text, Some(state)))
            }
        };
        life.queue.push_back(taken);
        self.world.send(at, event);
    }

    fn start(&mut self, declares: bool) {
        let (number, token) = (self.world.next(), self.world.next());
        let params =
            json!({ "name": "t", "arguments": { "n": number }, "_meta": { "progressToken": token } });
        let stream = Some(self.world.call(0, "ann", declares, Answers::ByRetry, &params));
        self.lives.push(Life {
            params,
            declares,
            resumed: false,
            attempt: self.attempts,
            token: Some(token),
            first_token: token,
            phase: Phase::Running,
            queue: VecDeque::new(),
            asks: Vec::new(),
            pending: Vec::new(),
            keys: 0,
            rounds: 0,
            stream,
            state: None,
            used: None,
            expected: Vec::new(),
            seen: Vec::new(),
        });
        self.attempts += 1;
    }

    async fn retry(&mut self, n: usize, given: Given, whose: Whose, declares: bool, token: bool) {
        let (number, token) = (self.world.next(), token.then(|| self.world.next()));
        let life = &mut self.lives[n];
        let state = match &life.phase {
            Phase::Between(None) if whose == Whose::Own => None,
            Phase::Parked(_) | Phase::Between(Some(_)) if whose != Whose::Used => life.state.clone(),
            _ if life.used.is_some() => life.used.clone(),
            _ => return,
        };
        let wellformed = !matches!(given, Given::Malformed | Given::NoObject);
        let good = whose == Whose::Own
            && match life.phase {
                Phase::Parked(until) => wellformed && Instant::now() < until,
                Phase::Between(_) => true,
                _ => false,
            };
        let mut params = life.params.clone();
        params["_meta"] = token.map_or(json!({}), |token| json!({ "progressToken": token }));
        // A result of whatever was asked.
        let answer = |at: usize| json!({ "action": "accept", "role": "user", "content": {}, "roots": [], "v": [number, at] });
        let count = match given {
            Given::Nothing | Given::Unknown => 0,
            Given::First => 1,
            _ => life.pending.len(),
        };
        let mut answers = json!({ "made-up": {} });
        for (at, (_, key)) in life.pending.iter().enumerate().take(count) {
            answers[key] = if wellformed { answer(at) } else { json!("text") };
        }
        match given {
            Given::Nothing => {}
            Given::NoObject => params["inputResponses"] = json!(7),
            _ => params["inputResponses"] = answers,
        }
        if let Some(state) = &state {
            params["requestState"] = state.clone();
        }
        if whose == Whose::OtherArguments {
            params["arguments"] = json!({ "n": [life.params["arguments"]["n"]] });
        }
        let principal = if whose == Whose::OtherPrincipal { "bob" } else { "ann" };
        let at = usize::from(whose == Whose::OtherEndpoint);
        let mut stream = Some(self.world.call(at, principal, declares, Answers::ByRetry, &params));
        if !good {
            let found = read(&mut stream).await;
            assert_eq!(found.iter().map(shown).collect::<Vec<_>>(), [REFUSED]);
            return;
        }
        (life.stream, life.declares, life.token) = (stream, declares, token);
        if let Phase::Between(state) = std::mem::replace(&mut life.phase, Phase::Running) {
            let request = self.world.request(self.attempts);
            assert_eq!(request["params"].get("requestState"), state.as_ref());
            (life.attempt, life.keys, life.rounds, life.resumed) = (self.attempts, 0, 0, false);
            life.state = None;
            // What this attempt is told by is the token of this request.
            life.first_token = token.unwrap_or_default();
            life.queue.clear();
            self.attempts += 1;
            return self.settle(n).await;
        }
        (life.resumed, life.used) = (true, state);
        for (at, (ask, key)) in std::mem::take(&mut life.pending).into_iter().enumerate() {
            if at < count {
                self.world.asks[ask].fate = Fate::Told(answer(at));
            } else if declares {
                life.pending.push((ask, key));
            } else {
                self.world.asks[ask].fate = Fate::Told(json!(-32601));
            }
        }
        if !life.pending.is_empty() {
            // The backend waits, so the client is asked again at once.
            self.park(n);
        }
        self.settle(n).await;
    }

    async fn apply(&mut self, op: Op) {
        let of = |call: &Index, lives: &[Life]| (!lives.is_empty()).then(|| call.index(lives.len()));
        match op {
            Op::Call { declares } if self.lives.len() < MAX_CALLS => self.start(declares),
            Op::Call { .. } => {}
            Op::Backend { call, steps, leave } => {
                let Some(n) = of(&call, &self.lives) else { return };
                steps.iter().for_each(|step| self.backend(n, step));
                if leave && self.lives[n].phase == Phase::Running {
                    self.hear(n).await;
                    self.run(n, false);
                    self.leave(n);
                }
                self.settle(n).await;
            }
            Op::Retry { call, given, whose, declares, token } => {
                let Some(n) = of(&call, &self.lives) else { return };
                self.retry(n, given, whose, declares, token).await;
            }
            Op::Leave { call } => {
                let Some(n) = of(&call, &self.lives) else { return };
                self.leave(n);
            }
            Op::Wait => tokio::time::advance(WAIT).await,
            Op::Sweep | Op::Close => {
                let close = matches!(op, Op::Close);
                if close {
                    self.draining = true;
                    self.world.tasks.begin_drain();
                    let rounds = self.world.rounds.clone();
                    self.world.tasks.spawn("close", async move { rounds.close().await });
                    read(&mut None).await;
                } else {
                    self.world.rounds.sweep();
                }
                for n in 0..self.lives.len() {
                    if matches!(self.lives[n].phase, Phase::Parked(until) if close || until <= Instant::now())
                    {
                        self.end(n);
                    }
                }
            }
        }
    }

    async fn check(&mut self) {
        read(&mut None).await;
        for life in &mut self.lives {
            if matches!(life.phase, Phase::Farewell(until) if until <= Instant::now()) {
                life.phase = Phase::Ended;
            }
            assert_eq!(life.seen, life.expected);
        }
        self.world.check_asks();
        assert_eq!(self.world.attempts(), self.attempts, "calls that the backend got");
        assert_eq!(self.world.rounds.count(), self.parked());
        for at in 0..self.attempts {
            let life = self.lives.iter().find(|life| life.attempt == at);
            let waits = life.is_some_and(|life| !matches!(life.phase, Phase::Ended | Phase::Between(_)));
            assert_eq!(self.world.is_alive(at), waits, "attempt {at}");
        }
    }

    async fn live(ops: Vec<Op>, close: Option<Index>) {
        let mut model = Self { world: World::new(), lives: Vec::new(), attempts: 0, draining: false };
        let close = close.map(|at| at.index(ops.len()));
        for (at, op) in ops.into_iter().enumerate() {
            if close == Some(at) {
                model.apply(Op::Close).await;
                model.check().await;
            }
            model.apply(op).await;
            model.check().await;
        }
        (0..model.lives.len()).for_each(|n| model.leave(n));
        for op in [Op::Wait, Op::Wait, Op::Wait, Op::Sweep, Op::Wait, Op::Wait] {
            model.apply(op).await;
            model.check().await;
        }
        assert_eq!(model.rounds_left(), 0);
    }

    /// What still waits for anything.
    fn rounds_left(&self) -> usize {
        let open = self.world.asks.iter().filter(|ask| ask.fate == Fate::Open).count();
        open + self
            .lives
            .iter()
            .filter(|life| !matches!(life.phase, Phase::Ended | Phase::Between(_)))
            .count()
    }
}

#[test]
fn calls_of_clients_that_answer_by_retry_live_as_the_model_says() {
    let strategy = (prop::collection::vec(op(), 1..40), prop::option::weighted(0.2, any::<Index>()));
    each(4000, &strategy, |(ops, close)| Model::live(ops, close));
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_never_pauses_does_not_keep_its_client_from_being_asked() {
    let mut world = World::new();
    let mut stream = Some(world.call(0, "ann", true, Answers::ByRetry, &json!({ "name": "t" })));
    let (_, ask) = world.ask(0);
    world.send(0, Some(Event::Asks(Box::new(round_of([ask])))));
    for number in 0..100 {
        world.send(0, Some(progress(1, number)));
        if read(&mut stream).await.iter().any(Event::is_terminal) {
            return;
        }
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    panic!("nobody was asked");
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_asks_ten_thousand_times_at_once_gets_answers_and_its_client_a_few_asks() {
    let mut world = World::new();
    let mut stream = Some(world.call(0, "ann", true, Answers::ByRetry, &json!({ "name": "t" })));
    let asks: Vec<Ask> = (0..10_000).map(|_| world.ask(0).1).collect();
    world.send(0, Some(Event::Asks(Box::new(round_of(asks)))));
    read(&mut stream).await;
    tokio::time::advance(GATHER * 2).await;
    let shown = read(&mut stream).await;
    assert!(matches!(&shown[..], [Event::Asks(round)] if round.asks.len() == 64), "{}", shown.len());
    (64..10_000).for_each(|ask| world.give_up(ask));
    world.check_asks();
}

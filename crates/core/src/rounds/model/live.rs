//! Clients that answer live in front of a backend that asks by state, or live itself.

use drawbridge_wire::{Id, Message, RpcError};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::FIRST_PAUSE;
use super::{
    ANSWER_TIME, Fate, KINDS, MAX_CALLS, MAX_ROUNDS, WAIT, World, by_state, done, each, progress, read,
    round_of, shown,
};
use crate::call::{Answering, AskKey, Event, Events, Resume};
use crate::client::Answers;

#[derive(Debug, Clone)]
enum Step {
    /// A round that ends the attempt: how much is asked, and whether there is a state.
    Round(usize, bool),
    Ask(usize),
    Withdraw(Index),
    Progress,
    Done,
    Lost,
}

#[derive(Debug, Clone, Copy)]
enum Answer {
    Result,
    Error,
    Nothing,
}

#[derive(Debug, Clone)]
enum Op {
    Call,
    Backend(Index, Vec<Step>),
    /// The client answers one of its asks; or has answered it already, which changes nothing.
    Answer(Index, Index, Answer),
    Leave(Index),
    Wait,
}

fn op() -> impl Strategy<Value = Op> {
    let step = prop_oneof![
        6 => (0..4usize, any::<bool>()).prop_map(|(asks, state)| Step::Round(asks, state)),
        2 => (0..KINDS.len()).prop_map(Step::Ask),
        1 => any::<Index>().prop_map(Step::Withdraw),
        2 => Just(Step::Progress),
        1 => prop_oneof![Just(Step::Done), Just(Step::Lost)],
    ];
    let answer = prop_oneof![8 => Just(Answer::Result), 1 => Just(Answer::Error), 1 => Just(Answer::Nothing)];
    prop_oneof![
        2 => Just(Op::Call),
        6 => (any::<Index>(), prop::collection::vec(step, 1..4)).prop_map(|(n, steps)| Op::Backend(n, steps)),
        9 => (any::<Index>(), any::<Index>(), answer).prop_map(|(n, ask, answer)| Op::Answer(n, ask, answer)),
        1 => any::<Index>().prop_map(Op::Leave),
        2 => Just(Op::Wait),
    ]
}

/// An ask of a round, as the client has it.
struct Open {
    kind: usize,
    /// What it comes to: a result for the backend, or the end of the call.
    answer: Option<Result<Value, &'static str>>,
}

/// An ask that the client can answer.
struct Held {
    key: AskKey,
    /// The number of an ask of the backend's own; others have a place in their round.
    own: Option<usize>,
    place: usize,
    reply: Answering,
}

enum Phase {
    Running,
    Asking {
        asks: Vec<Open>,
        until: Instant,
        state: Option<Value>,
    },
    /// The backend wants to be called again, with this state.
    Pausing {
        until: Instant,
        state: Option<Value>,
    },
    Ended,
}

struct Life {
    attempt: usize,
    phase: Phase,
    rounds: usize,
    pauses: u32,
    stream: Option<Events>,
    /// What the client has to answer, and has not answered yet.
    held: Vec<Held>,
    /// Asks of the backend's own.
    live: Vec<usize>,
    expected: Vec<String>,
    seen: Vec<String>,
    number: u64,
}

struct Model {
    world: World,
    lives: Vec<Life>,
    attempts: usize,
}

impl Model {
    /// The call is over: nobody answers what was asked.
    fn end(&mut self, n: usize) {
        self.lives[n].phase = Phase::Ended;
        for ask in std::mem::take(&mut self.lives[n].live) {
            if self.world.asks[ask].fate == Fate::Open {
                self.world.asks[ask].fate = Fate::Dropped;
            }
        }
    }

    fn start(&mut self) {
        let number = self.world.next();
        let params = json!({ "name": "t", "arguments": { "n": number } });
        let stream = Some(self.world.call(0, "ann", true, Answers::Live, &params));
        self.lives.push(Life {
            attempt: self.attempts,
            phase: Phase::Running,
            rounds: 0,
            pauses: 0,
            stream,
            held: Vec::new(),
            live: Vec::new(),
            expected: Vec::new(),
            seen: Vec::new(),
            number,
        });
        self.attempts += 1;
    }

    async fn hear(&mut self, n: usize) {
        let life = &mut self.lives[n];
        for event in read(&mut life.stream).await {
            life.seen.push(match &event {
                Event::Withdraw(_) => "withdraw".to_owned(),
                event => shown(event),
            });
            match event {
                Event::Asks(round) => {
                    assert_eq!(round.resume, Resume::Live, "a client that answers live is asked live");
                    for (place, ask) in round.asks.into_iter().enumerate() {
                        let own = life.live.iter().copied().find(|own| self.world.asks[*own].key == ask.key);
                        life.held.push(Held { key: ask.key, own, place, reply: ask.reply.unwrap() });
                    }
                }
                Event::Withdraw(key) => life.held.retain(|held| held.key != key),
                _ => {}
            }
        }
        if life.stream.is_none() {
            life.held.clear();
        }
    }

    /// The call is sent again, with `answers` and `state`.
    fn again(&mut self, n: usize, answers: Option<Value>, state: Option<Value>) {
        let life = &mut self.lives[n];
        life.rounds += 1;
        life.attempt = self.attempts;
        life.phase = Phase::Running;
        self.attempts += 1;
        let request = self.world.request(life.attempt);
        let params = &request["params"];
        assert_eq!(params["arguments"]["n"], life.number);
        assert_eq!(params.get("inputResponses"), answers.as_ref());
        assert_eq!(params.get("requestState"), state.as_ref());
    }

    fn last(&mut self, n: usize, shown: &str) {
        self.lives[n].expected.push(shown.to_owned());
        self.end(n);
    }

    /// What follows from answers and from time.
    fn go_on(&mut self, n: usize) {
        let now = Instant::now();
        match std::mem::replace(&mut self.lives[n].phase, Phase::Running) {
            Phase::Pausing { until, state } if until <= now => self.again(n, None, state),
            Phase::Asking { asks, until, state } => {
                // They are looked at one after the other.
                let stop = asks.iter().position(|ask| !matches!(ask.answer, Some(Ok(_))));
                let Some(at) = stop else {
                    let answers = asks.iter().enumerate().map(|(at, ask)| {
                        let Some(Ok(answer)) = &ask.answer else { unreachable!() };
                        (format!("k{at}"), answer.clone())
                    });
                    return self.again(n, Some(answers.collect()), state);
                };
                let left = asks.len() - at;
                match asks[at].answer {
                    Some(Err(shown)) => {
                        (1..left).for_each(|_| self.lives[n].expected.push("withdraw".to_owned()));
                        self.last(n, shown);
                    }
                    _ if until <= now => {
                        (0..left).for_each(|_| self.lives[n].expected.push("withdraw".to_owned()));
                        self.last(n, "fail no_answer -32603");
                    }
                    _ => self.lives[n].phase = Phase::Asking { asks, until, state },
                }
            }
            other => self.lives[n].phase = other,
        }
    }

    fn backend(&mut self, n: usize, step: &Step) {
        if !matches!(self.lives[n].phase, Phase::Running) {
            return;
        }
        let number = self.world.next();
        let life = &mut self.lives[n];
        let at = life.attempt;
        let event = match step {
            Step::Progress => {
                life.expected.push(shown(&progress(7, number)));
                Some(progress(7, number))
            }
            Step::Ask(kind) => {
                let (ask_number, ask) = self.world.ask(*kind);
                life.live.push(ask_number);
                let event = Event::Asks(Box::new(round_of([ask])));
                life.expected.push(shown(&event));
                Some(event)
            }
            Step::Withdraw(index) => {
                if life.live.is_empty() {
                    return;
                }
                let ask = &mut self.world.asks[*index.get(&life.live)];
                if ask.fate == Fate::Open {
                    ask.fate = Fate::Dropped;
                }
                life.expected.push("withdraw".to_owned());
                Some(Event::Withdraw(ask.key))
            }
            Step::Done => {
                self.last(n, &shown(&done(number)));
                Some(done(number))
            }
            Step::Lost => {
                self.last(n, "fail outcome_unknown -32603");
                None
            }
            Step::Round(asks, state) => {
                let state = state.then(|| json!({ "own": [number, "\u{e9}/"] }));
                let kinds: Vec<usize> = (0..*asks).map(|ask| (ask + 1) % 2).collect();
                let event = by_state(&kinds, state.as_ref());
                let now = Instant::now();
                if life.rounds == MAX_ROUNDS {
                    self.last(n, "fail backend_bad_answer -32603");
                    return self.world.send(at, Some(event));
                }
                life.phase = if kinds.is_empty() {
                    life.pauses += 1;
                    let until = now + FIRST_PAUSE * 2u32.pow(life.pauses - 1);
                    Phase::Pausing { until, state }
                } else {
                    life.expected.push(shown(&event));
                    let asks = kinds.into_iter().map(|kind| Open { kind, answer: None }).collect();
                    Phase::Asking { asks, until: now + ANSWER_TIME, state }
                };
                Some(event)
            }
        };
        self.world.send(at, event);
    }

    fn answer(&mut self, n: usize, which: &Index, how: Answer) {
        let number = self.world.next();
        let life = &mut self.lives[n];
        if life.held.is_empty() {
            return;
        }
        let held = life.held.remove(which.index(life.held.len()));
        let id = Id::from_number(held.own.unwrap_or_default() as u64);
        let result = json!({ "v": number });
        let message = match how {
            Answer::Result => Some(Message::result(&id, result.to_string().as_bytes())),
            Answer::Error => Some(RpcError::new(-7, "no").to_message(Some(&id))),
            Answer::Nothing => None,
        };
        if let Some(own) = held.own {
            self.world.asks[own].fate = match how {
                Answer::Result => Fate::Told(result),
                Answer::Error => Fate::Told(json!(-7)),
                Answer::Nothing => Fate::Dropped,
            };
        } else if let Phase::Asking { asks, .. } = &mut life.phase {
            let ask = &mut asks[held.place];
            ask.answer = Some(match how {
                Answer::Result => Ok(result),
                // A form that fails counts as one that was closed.
                _ if ask.kind == 0 => Ok(json!({ "action": "cancel" })),
                Answer::Error => Err("fail client_refused -32603"),
                Answer::Nothing => Err("fail no_answer -32603"),
            });
        }
        // Sent last: to drop it is an answer too.
        if let Some(message) = message {
            held.reply.send(message);
        }
    }

    async fn settle(&mut self, n: usize) {
        self.hear(n).await;
        self.go_on(n);
        // What follows may be there at once.
        self.hear(n).await;
    }

    async fn apply(&mut self, op: Op) {
        let count = self.lives.len();
        match op {
            Op::Call if count < MAX_CALLS => self.start(),
            Op::Wait => {
                tokio::time::advance(WAIT).await;
                for n in 0..count {
                    self.settle(n).await;
                }
            }
            Op::Backend(n, steps) if count > 0 => {
                let n = n.index(count);
                steps.iter().for_each(|step| self.backend(n, step));
                self.settle(n).await;
            }
            Op::Answer(n, ask, how) if count > 0 => {
                let n = n.index(count);
                self.answer(n, &ask, how);
                self.settle(n).await;
            }
            Op::Leave(n) if count > 0 => {
                let n = n.index(count);
                self.lives[n].stream = None;
                self.lives[n].held.clear();
                self.end(n);
            }
            _ => {}
        }
    }

    fn check(&mut self) {
        self.world.check_asks();
        assert_eq!(self.world.attempts(), self.attempts, "calls that the backend got");
        assert_eq!(self.world.rounds.count(), 0);
        for life in &self.lives {
            assert_eq!(life.seen, life.expected);
        }
        for at in 0..self.attempts {
            let life = self.lives.iter().find(|life| life.attempt == at);
            let runs = life.is_some_and(|life| matches!(life.phase, Phase::Running));
            assert_eq!(self.world.is_alive(at), runs, "attempt {at}");
        }
    }

    async fn live(ops: Vec<Op>) {
        let mut model = Self { world: World::new(), lives: Vec::new(), attempts: 0 };
        for op in ops {
            model.apply(op).await;
            model.check();
        }
        for op in [Op::Wait, Op::Wait, Op::Wait] {
            model.apply(op).await;
            model.check();
        }
        for n in 0..model.lives.len() {
            assert!(!matches!(model.lives[n].phase, Phase::Asking { .. } | Phase::Pausing { .. }));
            model.backend(n, &Step::Done);
            model.settle(n).await;
            model.check();
            assert!(model.lives[n].stream.is_none());
        }
        assert!(model.world.asks.iter().all(|ask| ask.fate != Fate::Open));
    }
}

#[test]
fn calls_of_clients_that_answer_live_live_as_the_model_says() {
    each(4000, &prop::collection::vec(op(), 1..60), Model::live);
}

//! What became of each call, and what must not become of one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How a call ended, as its client saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// With the right answer.
    Answered,
    /// With an error that says that it was not run.
    Refused(String),
    /// With an error that says that nobody knows, or that it failed.
    Unknown(String),
    /// The client lost the connection, and the protocol gives it no way back to the answer.
    Lost,
    /// The client wanted it no more.
    Cancelled,
}

/// One call.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) name: String,
    /// The backend that runs it.
    pub(super) backend: &'static str,
    pub(super) ms: u64,
    pub(super) asks: bool,
    history: Mutex<Vec<String>>,
    run: Arc<Run>,
}

/// What all have in common.
#[derive(Debug)]
pub(super) struct Run {
    begun: Instant,
    ended: Mutex<Vec<(Arc<Call>, Outcome)>>,
    wrong: Mutex<Vec<String>>,
    events: Mutex<Vec<String>>,
}

impl Run {
    pub(super) fn new() -> Arc<Self> {
        let (ended, wrong, events) = (Mutex::default(), Mutex::default(), Mutex::default());
        Arc::new(Self { begun: Instant::now(), ended, wrong, events })
    }

    fn at(&self) -> String {
        format!("{:7.3}", self.begun.elapsed().as_secs_f64())
    }

    /// Something happened to the fleet.
    pub(super) fn event(&self, what: &str) {
        self.events.lock().unwrap().push(format!("{} {what}", self.at()));
    }

    /// Something happened that must not.
    pub(super) fn wrong(&self, what: &str) {
        self.wrong.lock().unwrap().push(format!("{} {what}", self.at()));
    }

    pub(super) fn call(
        self: &Arc<Self>,
        name: String,
        backend: &'static str,
        ms: u64,
        asks: bool,
    ) -> Arc<Call> {
        Arc::new(Call { name, backend, ms, asks, history: Mutex::default(), run: self.clone() })
    }

    /// What is wrong, once all has ended, with the story around each; and how the calls ended, in numbers.
    pub(super) fn judge(&self, runs: &BTreeMap<String, u32>) -> (String, Vec<String>) {
        let mut numbers: BTreeMap<String, BTreeMap<&str, usize>> = BTreeMap::new();
        let mut wrong = std::mem::take(&mut *self.wrong.lock().unwrap());
        for (call, outcome) in self.ended.lock().unwrap().iter() {
            let ran = |round: u32| runs.get(&format!("{}/{round}", call.name)).copied().unwrap_or_default();
            let rounds = [ran(1), ran(2)];
            let least = match outcome {
                Outcome::Answered if call.asks && call.backend == "modern" => [1, 1],
                Outcome::Answered => [1, 0],
                _ => [0, 0],
            };
            let most = if let Outcome::Refused(_) = outcome { 0 } else { 1 };
            if rounds.iter().zip(least).any(|(ran, least)| *ran > most || *ran < least) {
                wrong.push(format!("{} ran {rounds:?} times\n{}", call.name, call.story(outcome)));
            }
            let how = match outcome {
                Outcome::Refused(code) | Outcome::Unknown(code) => code.as_str(),
                Outcome::Answered => "answered",
                Outcome::Lost => "connection lost",
                Outcome::Cancelled => "cancelled",
            };
            *numbers.entry(how.to_owned()).or_default().entry(call.backend).or_default() += 1;
        }
        let mut text = String::new();
        for (how, backends) in numbers {
            text += &format!("{how:40} {:6}  {backends:?}\n", backends.values().sum::<usize>());
        }
        (text, wrong)
    }

    /// What happened to the fleet.
    pub(super) fn events(&self) -> String {
        self.events.lock().unwrap().join("\n")
    }

    /// What happened to each call that ended so.
    pub(super) fn stories(&self, which: impl Fn(&Outcome) -> bool) -> String {
        let ended = self.ended.lock().unwrap();
        let ended = ended.iter().filter(|(_, outcome)| which(outcome));
        ended.map(|(call, outcome)| format!("{}\n{}\n", call.name, call.story(outcome))).collect()
    }

    /// How many calls ended with their answer.
    pub(super) fn answered(&self) -> usize {
        self.ended.lock().unwrap().iter().filter(|(_, outcome)| *outcome == Outcome::Answered).count()
    }
}

impl Call {
    /// Something happened to it.
    pub(super) fn note(&self, what: &str) {
        self.history.lock().unwrap().push(format!("    {} {what}", self.run.at()));
    }

    /// Something happened to it that must not.
    pub(super) fn wrong(&self, what: &str) {
        self.run.wrong(&format!("{}: {what}\n{}", self.name, self.story("")));
    }

    fn story(&self, outcome: impl std::fmt::Debug) -> String {
        let Self { backend, ms, asks, .. } = self;
        let history = self.history.lock().unwrap().join("\n");
        format!("    {outcome:?} backend {backend}, {ms} ms, asks {asks}\n{history}")
    }

    /// What its tool answers.
    fn answer(&self) -> String {
        if self.asks { format!("{0} yes-{0}", self.name) } else { self.name.clone() }
    }

    /// It ended.
    pub(super) fn ended(self: &Arc<Self>, outcome: Outcome) {
        self.note(&format!("{outcome:?}"));
        self.run.ended.lock().unwrap().push((self.clone(), outcome));
    }

    /// How it ended with this answer.
    pub(super) fn judge(&self, answer: &Value) -> Outcome {
        if answer["result"].is_object() {
            let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
            if text == self.answer() {
                return Outcome::Answered;
            }
            if self.asks && text == format!("{} unanswered", self.name) {
                return Outcome::Unknown("unanswered".to_owned());
            }
            self.wrong(&format!("another answer: {answer}"));
            return Outcome::Unknown("another answer".to_owned());
        }
        let data = &answer["error"]["data"];
        self.note(&answer["error"].to_string());
        match (data["code"].as_str(), data["retry"].as_str()) {
            (Some(code), Some("safe")) => Outcome::Refused(format!("{code}, safe")),
            (Some(code), Some(retry)) => Outcome::Unknown(format!("{code}, {retry}")),
            _ => {
                self.wrong(&format!("an error without a type: {answer}"));
                Outcome::Unknown("untyped".to_owned())
            }
        }
    }
}

/// How long anything may take until it is held to hang.
pub(super) const HANGS: Duration = Duration::from_secs(60);

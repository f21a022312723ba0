//! The backends of a chaos run. Each has one tool, `work`, which notes that it runs, takes its time, may ask the client,
//! and answers with the name of the call; so that a call that ran twice, or got another's answer, shows.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drawbridge_testkit::backend::{Backend, Reply, Request, Stream, text_result};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{Notify, oneshot};
use tokio_util::task::TaskTracker;

/// How long a backend waits for an answer of its client.
const ANSWER: Duration = Duration::from_secs(20);
const CHANGED: &str = "notifications/tools/list_changed";

/// How often each round of each call ran, as `call/round`.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<BTreeMap<String, u32>>);

impl Ledger {
    fn note(&self, call: &str, round: u32) {
        *self.0.lock().unwrap().entry(format!("{call}/{round}")).or_default() += 1;
    }
}

/// What the parts of a backend share.
#[derive(Debug, Default)]
struct State {
    ledger: Arc<Ledger>,
    /// Sessions, with the streams that each has opened: what is told unasked goes to one of them.
    sessions: Mutex<HashMap<String, Vec<Stream>>>,
    /// Streams of the modern era that listen, with the id of their request.
    listens: Mutex<Vec<(Value, Stream)>>,
    /// Who waits for the answer to an ask.
    waiting: Mutex<HashMap<String, oneshot::Sender<Value>>>,
    /// What calls of streamable HTTP with sessions have said, by name: their streams can be resumed.
    logs: Mutex<HashMap<String, Arc<Log>>>,
    running: AtomicUsize,
    last_session: AtomicUsize,
    tasks: TaskTracker,
}

/// The messages of a call, the last of which is its answer.
#[derive(Debug, Default)]
struct Log {
    messages: Mutex<Vec<Value>>,
    changed: Notify,
}

/// Where the messages of a call go.
enum Out {
    Stream(Stream),
    Log(Arc<Log>),
}

impl Out {
    async fn event(&self, message: &Value) {
        match self {
            Self::Stream(stream) => drop(stream.event(message).await),
            Self::Log(log) => {
                log.messages.lock().unwrap().push(message.clone());
                log.changed.notify_waiters();
            }
        }
    }
}

/// Counts a call while it is there, also when it is given up.
struct Running<'a>(&'a AtomicUsize);

impl<'a> Running<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All backends.
pub(super) struct Backends {
    ledger: Arc<Ledger>,
    states: Vec<Arc<State>>,
    /// Where their ports are, by name.
    pub(super) http: Vec<(&'static str, Backend)>,
    dir: TempDir,
}

impl Backends {
    pub(super) async fn start() -> Self {
        let ledger = Arc::new(Ledger::default());
        let state = || Arc::new(State { ledger: ledger.clone(), ..State::default() });
        let states = vec![state(), state(), state()];
        let [http, modern, sse] = [0, 1, 2].map(|n: usize| states[n].clone());
        let http = Backend::start(move |r| std::future::ready(legacy(&http, &r))).await;
        let modern = Backend::start(move |r| stateless(modern.clone(), r)).await;
        let sse = Backend::start(move |r| http_sse(sse.clone(), r)).await;
        let http = vec![("http", http), ("modern", modern), ("old", sse)];
        Self { ledger, states, http, dir: TempDir::new().unwrap() }
    }

    /// Where processes note what they run; it is in their command lines too.
    pub(super) fn ledger_file(&self) -> PathBuf {
        self.dir.path().join("ledger")
    }

    /// The settings of the stdio backend.
    pub(super) fn process_settings(&self) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("it/chaos/process.py");
        format!(
            "{{ command: python3, args: [{}, {}], era: legacy, max_processes: 64, idle_stop: 5s, start_timeout: 10s, timeout: 30s }}",
            script.display(),
            self.ledger_file().display()
        )
    }

    /// How often each round of each call ran.
    pub(super) fn runs(&self) -> BTreeMap<String, u32> {
        let mut runs = self.ledger.0.lock().unwrap().clone();
        for line in std::fs::read_to_string(self.ledger_file()).unwrap_or_default().lines() {
            *runs.entry(line.to_owned()).or_default() += 1;
        }
        runs
    }

    /// How many calls run now, in those that are no processes.
    pub(super) fn running(&self) -> usize {
        self.states.iter().map(|state| state.running.load(Ordering::Relaxed)).sum()
    }

    /// Tells everybody who listens over streamable HTTP that the tools have changed.
    pub(super) async fn change(&self) {
        let message = json!({ "jsonrpc": "2.0", "method": CHANGED });
        let sessions: Vec<Vec<Stream>> = self.states[0].sessions.lock().unwrap().values().cloned().collect();
        for streams in sessions {
            for stream in streams {
                if stream.event(&message).await {
                    break;
                }
            }
        }
        let listens = self.states[1].listens.lock().unwrap().clone();
        for (id, stream) in listens {
            let meta = json!({ "io.modelcontextprotocol/subscriptionId": id });
            let message = json!({ "jsonrpc": "2.0", "method": CHANGED, "params": { "_meta": meta } });
            stream.event(&message).await;
        }
    }
}

/// The arguments of a call.
struct Work {
    call: String,
    ms: u64,
    asks: bool,
    token: Value,
}

impl Work {
    fn of(request: &Request) -> Self {
        let given = &request.body["params"]["arguments"];
        Self {
            call: given["call"].as_str().unwrap_or_default().to_owned(),
            ms: given["ms"].as_u64().unwrap_or_default(),
            asks: given["ask"] == true,
            token: request.body["params"]["_meta"]["progressToken"].clone(),
        }
    }

    fn ask(&self) -> Value {
        let schema = json!({ "type": "object", "properties": { "call": { "type": "string" } } });
        json!({ "message": self.call, "requestedSchema": schema })
    }

    fn result(&self, answer: Option<&Value>) -> Value {
        match answer {
            None => text_result(&self.call),
            Some(answer) => {
                let said = answer["content"]["call"].as_str().unwrap_or("unanswered");
                text_result(&format!("{} {said}", self.call))
            }
        }
    }
}

impl State {
    /// Runs a call of the legacy era, whose messages go to `out`.
    async fn run(&self, id: Value, work: Work, out: Out) {
        let _running = Running::new(&self.running);
        self.ledger.note(&work.call, 1);
        if !work.token.is_null() {
            let params = json!({ "progressToken": work.token, "progress": 1 });
            out.event(&json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }))
                .await;
        }
        tokio::time::sleep(Duration::from_millis(work.ms)).await;
        let mut answer = None;
        if work.asks {
            let (sender, receiver) = oneshot::channel();
            let ask = format!("ask-{}", work.call);
            self.waiting.lock().unwrap().insert(ask.clone(), sender);
            let asks =
                json!({ "jsonrpc": "2.0", "id": ask, "method": "elicitation/create", "params": work.ask() });
            out.event(&asks).await;
            let heard = tokio::time::timeout(ANSWER, receiver).await;
            self.waiting.lock().unwrap().remove(&ask);
            answer = Some(heard.ok().and_then(Result::ok).unwrap_or_default());
        }
        let result = work.result(answer.as_ref());
        out.event(&json!({ "jsonrpc": "2.0", "id": id, "result": result })).await;
    }

    /// Runs a call elsewhere.
    fn spawn(self: &Arc<Self>, request: &Request, out: Out) {
        let (state, id, work) = (self.clone(), request.id(), Work::of(request));
        self.tasks.spawn(async move { state.run(id, work, out).await });
    }

    /// A stream of what a call says, from a place in it on.
    fn pump(&self, call: String, log: Arc<Log>, mut at: usize) -> Reply {
        let (reply, stream) = Reply::stream();
        self.tasks.spawn(async move {
            let mut open = stream.raw(format!("id: {call}:{at}\ndata:\n\n")).await;
            while open {
                let changed = log.changed.notified();
                let next = log.messages.lock().unwrap().get(at).cloned();
                match next {
                    Some(message) => {
                        at += 1;
                        open = stream.event_with_id(&format!("{call}:{at}"), &message).await
                            && message["result"].is_null();
                    }
                    None => tokio::select! {
                        () = changed => {}
                        () = stream.gone() => return,
                    },
                }
            }
        });
        reply
    }

    fn answered(&self, message: &Value) {
        let waits = message["id"].as_str().and_then(|id| self.waiting.lock().unwrap().remove(id));
        if let Some(sender) = waits {
            let _ = sender.send(message["result"].clone());
        }
    }

    fn new_session(&self) -> String {
        let id = format!("s{}", self.last_session.fetch_add(1, Ordering::Relaxed));
        self.sessions.lock().unwrap().insert(id.clone(), Vec::new());
        id
    }
}

fn hello(request: &Request) -> Value {
    let version = &request.body["params"]["protocolVersion"];
    let capabilities = json!({ "tools": { "listChanged": true } });
    json!({ "protocolVersion": version, "capabilities": capabilities, "serverInfo": { "name": "chaos", "version": "1" } })
}

fn tools() -> Value {
    json!({ "tools": [{ "name": "work", "inputSchema": { "type": "object" } }] })
}

/// Streamable HTTP with sessions.
fn legacy(state: &Arc<State>, request: &Request) -> Reply {
    let session = request.header("mcp-session-id").to_owned();
    if request.rpc() == "initialize" {
        return Reply::result(request, hello(request)).header("mcp-session-id", &state.new_session());
    }
    if !state.sessions.lock().unwrap().contains_key(&session) {
        return Reply::error(request, 404, -32001, "Session not found");
    }
    match request.rpc() {
        "GET" if !request.header("last-event-id").is_empty() => {
            let (call, after) = request.header("last-event-id").split_once(':').unwrap();
            let log = state.logs.lock().unwrap().get(call).cloned();
            match log {
                Some(log) => state.pump(call.to_owned(), log, after.parse().unwrap()),
                None => Reply::status(404),
            }
        }
        "GET" => {
            let (reply, stream) = Reply::stream();
            state.sessions.lock().unwrap().entry(session).or_default().push(stream);
            reply
        }
        "DELETE" => {
            state.sessions.lock().unwrap().remove(&session);
            Reply::status(204)
        }
        "tools/list" => Reply::result(request, tools()),
        "tools/call" => {
            let work = Work::of(request);
            if work.ms == 0 && !work.asks {
                state.ledger.note(&work.call, 1);
                return Reply::result(request, work.result(None));
            }
            let log = Arc::<Log>::default();
            let (name, finished) = (work.call.clone(), log.clone());
            state.logs.lock().unwrap().insert(name.clone(), log.clone());
            state.spawn(request, Out::Log(finished));
            state.pump(name, log, 0)
        }
        "answer" => {
            state.answered(&request.body);
            Reply::status(202)
        }
        _ if request.id().is_null() => Reply::status(202),
        _ => Reply::result(request, json!({})),
    }
}

/// HTTP+SSE: one stream, on which all is answered.
async fn http_sse(state: Arc<State>, request: Request) -> Reply {
    if request.method == http::Method::GET {
        let id = state.new_session();
        let (reply, stream) = Reply::stream();
        stream.raw(format!("event: endpoint\ndata: /mcp?session={id}\n\n")).await;
        state.sessions.lock().unwrap().insert(id.clone(), vec![stream.clone()]);
        let ended = state.clone();
        state.tasks.spawn(async move {
            stream.gone().await;
            ended.sessions.lock().unwrap().remove(&id);
        });
        return reply;
    }
    let session = request.path.rsplit('=').next().unwrap_or_default();
    let Some(out) = state.sessions.lock().unwrap().get(session).and_then(|s| s.first().cloned()) else {
        return Reply::status(404);
    };
    let result = match request.rpc() {
        "initialize" => hello(&request),
        "tools/list" => tools(),
        "tools/call" => {
            state.spawn(&request, Out::Stream(out));
            return Reply::status(202);
        }
        "answer" => {
            state.answered(&request.body);
            return Reply::status(202);
        }
        _ if request.id().is_null() => return Reply::status(202),
        _ => json!({}),
    };
    out.event(&json!({ "jsonrpc": "2.0", "id": request.id(), "result": result })).await;
    Reply::status(202)
}

/// Streamable HTTP without sessions.
async fn stateless(state: Arc<State>, request: Request) -> Reply {
    let mut result = match request.rpc() {
        "server/discover" => json!({
            "supportedVersions": ["2026-07-28"], "ttlMs": 60000, "cacheScope": "public",
            "capabilities": { "tools": { "listChanged": true } },
        }),
        "tools/list" => tools(),
        "tools/call" => {
            let (work, params) = (Work::of(&request), &request.body["params"]);
            let answer = &params["inputResponses"]["ask"];
            state.ledger.note(&work.call, if answer.is_null() { 1 } else { 2 });
            let running = Running::new(&state.running);
            tokio::time::sleep(Duration::from_millis(work.ms)).await;
            drop(running);
            if work.asks && answer.is_null() {
                let ask = json!({ "method": "elicitation/create", "params": work.ask() });
                json!({ "resultType": "input_required", "requestState": work.call, "inputRequests": { "ask": ask } })
            } else {
                work.result(work.asks.then_some(answer))
            }
        }
        "subscriptions/listen" => {
            let (reply, stream) = Reply::stream();
            let meta = json!({ "io.modelcontextprotocol/subscriptionId": request.id() });
            let params = json!({ "_meta": meta, "notifications": request.body["params"]["notifications"] });
            let method = "notifications/subscriptions/acknowledged";
            stream.event(&json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
            state.listens.lock().unwrap().push((request.id(), stream));
            return reply;
        }
        "GET" | "DELETE" => return Reply::status(405),
        _ if request.id().is_null() => return Reply::status(202),
        rpc => return Reply::error(&request, 404, -32601, &format!("Method not found: {rpc}")),
    };
    if result["resultType"].is_null() {
        result["resultType"] = json!("complete");
    }
    Reply::result(&request, result)
}

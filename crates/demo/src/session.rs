//! Sessions of the legacy era: what `initialize` agreed on, and what hangs on it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use drawbridge_wire::message::Field;
use drawbridge_wire::{Id, Kind, Message, ProtocolVersion, RpcError, code, method};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::announce::Change;
use crate::call::{Call, Caller, Halt, Outcome};
use crate::level::Level;
use crate::outlet::{Log, Outlet};
use crate::running::Running;
use crate::{Demo, features, random_name};

/// Sessions that are kept; the one that was not used for the longest time goes first.
const MAX_SESSIONS: usize = 1000;
/// Streams of a session that can be read again after they have ended.
const MAX_STREAMS: usize = 16;
/// URIs that a session may subscribe to.
const MAX_SUBSCRIPTIONS: usize = 256;
/// How long a client has to answer a question.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) version: ProtocolVersion,
    pub(crate) capabilities: Value,
    pub(crate) client_info: Value,
    pub(crate) running: Running,
    /// Takes what belongs to no request.
    push: Outlet,
    level: Mutex<Level>,
    subscriptions: Mutex<BTreeSet<String>>,
    streams: Mutex<VecDeque<Arc<Log>>>,
    asked: Mutex<HashMap<Id, oneshot::Sender<Message>>>,
    /// Numbers streams and questions.
    last: AtomicU64,
    used: AtomicU64,
}

impl Session {
    /// Opens a session as `request`, an `initialize`, asks for; `push` takes what belongs to no request.
    /// Gives the answer too.
    pub(crate) fn open(demo: &Demo, request: &Message, push: Outlet) -> (Arc<Self>, Message) {
        let read = |field| {
            request.raw(field).and_then(|raw| serde_json::from_slice(raw).ok()).unwrap_or(Value::Null)
        };
        let requested = request.text(Field::ProtocolVersion).unwrap_or_default();
        let session = Arc::new(Self {
            id: random_name(),
            version: ProtocolVersion::negotiate(&requested),
            capabilities: read(Field::Capabilities),
            client_info: read(Field::ClientInfo),
            running: Running::default(),
            push,
            level: Mutex::new(Level::INFO),
            subscriptions: Mutex::default(),
            streams: Mutex::default(),
            asked: Mutex::default(),
            last: AtomicU64::new(0),
            used: AtomicU64::new(0),
        });
        demo.0.sessions.add(Arc::clone(&session));
        let result = json!({
            "protocolVersion": session.version.as_str(),
            "capabilities": features::capabilities(),
            "serverInfo": features::server_info(),
            "instructions": features::INSTRUCTIONS,
        });
        let id = request.id().unwrap_or_else(|| Id::from_number(0));
        (session, Message::result(&id, result.to_string().as_bytes()))
    }

    /// Starts to serve a request; its messages and the answer go to `out`.
    pub(crate) async fn start(self: &Arc<Self>, demo: &Demo, request: &Message, out: Outlet) {
        let Some(id) = request.id() else { return };
        match self.running.start(&id) {
            Ok(guard) => {
                let caller = Caller::Legacy(Arc::clone(self));
                Call::new(demo, caller, request, id, out).cancelled_by(guard).spawn();
            }
            Err(error) => {
                out.send(error.to_message(Some(&id))).await;
                out.finish();
            }
        }
    }

    /// Takes a message that is no request.
    pub(crate) fn accept(&self, message: Message) {
        match message.kind() {
            Kind::Notification if message.method() == method::CANCELLED => {
                if let Some(literal) = message.slice(Field::RequestId) {
                    self.running.cancel(literal);
                }
            }
            Kind::Result | Kind::Error => {
                let asked = message.id().and_then(|id| self.asked.lock().remove(&id.canonical()));
                if let Some(asked) = asked {
                    drop(asked.send(message));
                }
            }
            Kind::Request | Kind::Notification => {}
        }
    }

    /// Sends a request to the client on the stream `out` and gives the result.
    pub(crate) async fn ask(&self, out: &Outlet, what: &str, params: &Value) -> Outcome {
        let id = Id::from_text(&format!("ask-{}", self.number()));
        let (sender, receiver) = oneshot::channel();
        self.asked.lock().insert(id.clone(), sender);
        let asked = Asked { session: self, id };
        out.send(Message::request(&asked.id, what, params.to_string().as_bytes())).await;
        let Ok(Ok(answer)) = tokio::time::timeout(ANSWER_WITHIN, receiver).await else {
            return Err(Halt::Failed(format!("the client did not answer {what} in time")));
        };
        let field = |field| answer.raw(field).and_then(|raw| serde_json::from_slice(raw).ok());
        if answer.kind() == Kind::Error {
            let why = answer.text(Field::ErrorMessage).unwrap_or_default().into_owned();
            return Err(Halt::Failed(format!("the client refused {what}: {why}")));
        }
        Ok(field(Field::Result).unwrap_or(Value::Null))
    }

    pub(crate) fn level(&self) -> Level {
        *self.level.lock()
    }

    pub(crate) fn set_level(&self, params: &Value) -> Outcome {
        *self.level.lock() = Level::parse(&params["level"])?;
        Ok(json!({}))
    }

    pub(crate) fn subscribe(&self, params: &Value) -> Outcome {
        let uri = features::resources::known_uri(self.version, params)?;
        let mut subscriptions = self.subscriptions.lock();
        if subscriptions.len() >= MAX_SUBSCRIPTIONS {
            return Err(RpcError::new(code::INTERNAL_ERROR, "too many subscriptions").into());
        }
        subscriptions.insert(uri);
        Ok(json!({}))
    }

    pub(crate) fn unsubscribe(&self, params: &Value) -> Outcome {
        self.subscriptions.lock().remove(params["uri"].as_str().unwrap_or_default());
        Ok(json!({}))
    }

    /// Tells the client of a change, if it wants to know.
    pub(crate) fn announce(&self, change: &Change) {
        let wanted = match change {
            Change::Updated(uri) => self.subscriptions.lock().contains(uri),
            _ => true,
        };
        if wanted && !self.push.offer(change.notification(None)) {
            tracing::debug!("the client does not read; a notification is lost");
        }
    }

    /// A stream for the answers to `open` requests.
    pub(crate) fn stream(&self, open: usize) -> Arc<Log> {
        let log = Log::new(format!("s{}", self.number()), open);
        let mut streams = self.streams.lock();
        if streams.len() == MAX_STREAMS
            && let Some(index) = streams.iter().position(|stream| stream.is_over()).or(Some(0))
        {
            streams.remove(index);
        }
        streams.push_back(Arc::clone(&log));
        log
    }

    /// Forgets a stream that nobody will resume.
    pub(crate) fn forget(&self, log: &Arc<Log>) {
        self.streams.lock().retain(|stream| !Arc::ptr_eq(stream, log));
    }

    /// The stream called `name`.
    pub(crate) fn find_stream(&self, name: &str) -> Option<Arc<Log>> {
        let push = self.push_log().filter(|log| log.name == name);
        push.or_else(|| self.streams.lock().iter().find(|stream| stream.name == name).cloned())
    }

    /// The stream for what belongs to no request, if clients read it by themselves.
    pub(crate) fn push_log(&self) -> Option<Arc<Log>> {
        match &self.push {
            Outlet::Log(log) => Some(Arc::clone(log)),
            Outlet::Pipe(_) => None,
        }
    }

    /// Ends everything that hangs on the session.
    pub(crate) fn close(&self) {
        self.running.cancel_all();
        if let Some(log) = self.push_log() {
            log.end();
        }
        self.streams.lock().drain(..).for_each(|stream| stream.end());
    }

    fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// A question that is open: forgotten when nobody waits for the answer.
struct Asked<'a> {
    session: &'a Session,
    id: Id,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.session.asked.lock().remove(&self.id);
    }
}

/// All sessions by id.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    table: Mutex<HashMap<String, Arc<Session>>>,
    uses: AtomicU64,
}

impl Sessions {
    fn add(&self, session: Arc<Session>) {
        self.note_use(&session);
        let mut table = self.table.lock();
        if table.len() >= MAX_SESSIONS {
            let oldest = table.values().min_by_key(|s| s.used.load(Ordering::Relaxed)).cloned();
            if let Some(oldest) = oldest {
                table.remove(&oldest.id);
                oldest.close();
            }
        }
        table.insert(session.id.clone(), session);
    }

    fn note_use(&self, session: &Session) {
        session.used.store(self.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(crate) fn find(&self, id: &str) -> Option<Arc<Session>> {
        let session = self.table.lock().get(id).cloned()?;
        self.note_use(&session);
        Some(session)
    }

    /// Ends the session `id`; says whether there was one.
    pub(crate) fn remove(&self, id: &str) -> bool {
        let session = self.table.lock().remove(id);
        session.inspect(|session| session.close()).is_some()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.table.lock().values().cloned().collect()
    }
}

//! A connection on which all messages of a peer travel: pipes, or the two halves of the 2024-11-05 transport.

use bytes::Bytes;
use drawbridge_wire::message::{Field, Incoming};
use drawbridge_wire::{Id, Kind, Message, RpcError, code, method};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::mpsc;

use crate::Demo;
use crate::call::{Call, Caller};
use crate::modern::{self, Envelope};
use crate::outlet::Outlet;
use crate::running::Running;
use crate::session::Session;

/// Messages of a batch that are read.
pub(crate) const MAX_BATCH: usize = 100;

/// One connection.
pub(crate) struct Link {
    demo: Demo,
    out: Outlet,
    session: Mutex<Option<Arc<Session>>>,
    /// Modern requests.
    running: Running,
    speaks_modern: bool,
}

impl Link {
    /// A connection whose messages to the peer go to `out`.
    pub(crate) fn new(demo: &Demo, out: mpsc::Sender<Message>, speaks_modern: bool) -> Self {
        Self {
            demo: demo.clone(),
            out: Outlet::Pipe(out),
            session: Mutex::default(),
            running: Running::default(),
            speaks_modern,
        }
    }

    /// Takes what the peer sent: a message or a batch.
    pub(crate) async fn receive(&self, text: Bytes) {
        let messages = match Incoming::parse(text, MAX_BATCH) {
            Ok(Incoming::One(message)) => vec![Ok(message)],
            Ok(Incoming::Batch(messages)) => messages,
            Err(invalid) => vec![Err(invalid)],
        };
        for message in messages {
            match message {
                Ok(message) => self.take(message).await,
                Err(invalid) => {
                    self.out.send(invalid.to_rpc_error().to_message(invalid.id.as_ref())).await;
                }
            }
        }
    }

    async fn take(&self, message: Message) {
        let session = self.session.lock().clone();
        match (message.kind(), session) {
            (Kind::Request, session) => self.serve(&message, session).await,
            (_, session) => {
                if message.kind() == Kind::Notification
                    && message.method() == method::CANCELLED
                    && let Some(literal) = message.slice(Field::RequestId)
                {
                    self.running.cancel(literal);
                }
                if let Some(session) = session {
                    session.accept(message);
                }
            }
        }
    }

    async fn serve(&self, request: &Message, session: Option<Arc<Session>>) {
        let Some(id) = request.id() else { return };
        let claim = request.text(Field::MetaProtocolVersion).is_some_and(|version| modern::claims(&version));
        let probe = session.is_none() && request.method() == method::DISCOVER;
        let answer = if self.speaks_modern && (claim || probe) {
            self.start_modern(request, &id)
        } else if request.method() == method::INITIALIZE {
            self.initialize(request, session)
        } else if let Some(session) = session {
            session.start(&self.demo, request, self.out.clone()).await;
            return;
        } else if request.method() == method::PING {
            Ok(Some(Message::result(&id, b"{}")))
        } else {
            Err(RpcError::new(code::INVALID_REQUEST, "the first request is initialize"))
        };
        match answer {
            Ok(Some(answer)) => self.out.send(answer).await,
            Ok(None) => {}
            Err(error) => self.out.send(error.to_message(Some(&id))).await,
        }
    }

    fn start_modern(&self, request: &Message, id: &Id) -> Result<Option<Message>, RpcError> {
        let caller = Caller::Modern(Arc::new(Envelope::read(request)?));
        let guard = self.running.start(id)?;
        Call::new(&self.demo, caller, request, id.clone(), self.out.clone()).cancelled_by(guard).spawn();
        Ok(None)
    }

    fn initialize(
        &self,
        request: &Message,
        session: Option<Arc<Session>>,
    ) -> Result<Option<Message>, RpcError> {
        if session.is_some() {
            return Err(RpcError::new(code::INVALID_REQUEST, "the session is initialized already"));
        }
        let (session, answer) = Session::open(&self.demo, request, self.out.clone());
        *self.session.lock() = Some(session);
        Ok(Some(answer))
    }

    /// Whether no request is being served.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.session.lock().as_ref().is_none_or(|s| s.running.is_empty())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.running.cancel_all();
        if let Some(session) = self.session.lock().take() {
            self.demo.0.sessions.remove(&session.id);
        }
    }
}

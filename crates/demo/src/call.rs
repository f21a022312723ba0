//! One request that is being served, the same for both eras and all transports.

use std::sync::Arc;

use drawbridge_wire::message::Field;
use drawbridge_wire::{Id, Message, ProtocolVersion, RpcError, code, method};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::Demo;
use crate::level::Level;
use crate::methods;
use crate::modern::Envelope;
use crate::outlet::Outlet;
use crate::running::Guard;
use crate::session::Session;

/// Why a method has no result.
#[derive(Debug)]
pub(crate) enum Halt {
    /// A JSON-RPC error.
    Error(RpcError),
    /// The tool failed: the model shall read why.
    Failed(String),
    /// The modern client has to answer something first; this is the result that asks.
    Input(Value),
}

impl From<RpcError> for Halt {
    fn from(error: RpcError) -> Self {
        Self::Error(error)
    }
}

impl Halt {
    pub(crate) fn params(text: impl Into<String>) -> Self {
        Self::Error(RpcError::new(code::INVALID_PARAMS, text))
    }
}

pub(crate) type Outcome = Result<Value, Halt>;

/// Who asks, and under the rules of which era.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    Legacy(Arc<Session>),
    Modern(Arc<Envelope>),
}

/// A request.
pub(crate) struct Call {
    pub(crate) demo: Demo,
    pub(crate) caller: Caller,
    pub(crate) id: Id,
    pub(crate) method: String,
    pub(crate) params: Value,
    pub(crate) out: Outlet,
    /// Cancelled when nobody wants the answer any more.
    pub(crate) cancelled: CancellationToken,
    /// Ends the entry under which the peer can cancel it.
    pub(crate) guard: Option<Guard>,
}

impl Call {
    /// Reads the parameters of `request`.
    pub(crate) fn new(demo: &Demo, caller: Caller, request: &Message, id: Id, out: Outlet) -> Self {
        let params = request.raw(Field::Params).and_then(|raw| serde_json::from_slice(raw).ok());
        Self {
            demo: demo.clone(),
            caller,
            id,
            method: request.method().into_owned(),
            params: params.unwrap_or(Value::Null),
            out,
            cancelled: CancellationToken::new(),
            guard: None,
        }
    }

    /// Lets the peer cancel it through `guard`.
    pub(crate) fn cancelled_by(mut self, guard: Guard) -> Self {
        self.cancelled = guard.token.clone();
        self.guard = Some(guard);
        self
    }

    /// Serves it on a task of its own: the answer goes to its outlet.
    pub(crate) fn spawn(self) {
        let tasks = self.demo.0.tasks.clone();
        tasks.spawn(async move {
            if let Some(answer) = self.answer().await {
                self.out.send(answer).await;
            }
            self.out.finish();
        });
    }

    /// The answer; none if it was cancelled.
    async fn answer(&self) -> Option<Message> {
        let outcome = tokio::select! {
            biased;
            () = self.cancelled.cancelled() => return None,
            () = self.demo.0.abort.cancelled() => return None,
            outcome = methods::dispatch(self) => outcome,
        };
        Some(match outcome {
            Ok(result) => Message::result(&self.id, result.to_string().as_bytes()),
            Err(Halt::Input(result)) => Message::result(&self.id, result.to_string().as_bytes()),
            Err(Halt::Error(error)) => error.to_message(Some(&self.id)),
            Err(Halt::Failed(text)) => RpcError::new(code::INTERNAL_ERROR, text).to_message(Some(&self.id)),
        })
    }

    pub(crate) fn version(&self) -> ProtocolVersion {
        match &self.caller {
            Caller::Legacy(session) => session.version,
            Caller::Modern(_) => ProtocolVersion::V2026_07_28,
        }
    }

    pub(crate) fn is_modern(&self) -> bool {
        matches!(self.caller, Caller::Modern(_))
    }

    fn capabilities(&self) -> &Value {
        match &self.caller {
            Caller::Legacy(session) => &session.capabilities,
            Caller::Modern(envelope) => &envelope.capabilities,
        }
    }

    /// Refuses to go on without a capability of the client. `elicitation` means forms.
    fn require(&self, capability: &str) -> Result<(), Halt> {
        let declared = &self.capabilities()[capability];
        let only_urls = declared.get("url").is_some() && declared.get("form").is_none();
        if declared.is_object() && !(capability == "elicitation" && only_urls) {
            return Ok(());
        }
        let text = format!("this needs the client capability {capability}, which was not declared");
        if !self.is_modern() {
            return Err(Halt::Failed(text));
        }
        let needed = if capability == "elicitation" { json!({ "form": {} }) } else { json!({}) };
        let data = json!({ "requiredCapabilities": { capability: needed } }).to_string();
        Err(RpcError::new(code::MISSING_CLIENT_CAPABILITY, text).with_data(data).into())
    }

    /// Asks the client and gives its answer. A legacy client is asked on the stream of this call; a modern
    /// one gets a result that asks, and sends this call again with the answer under `key`.
    pub(crate) async fn ask(&self, key: &str, what: &str, params: Value) -> Outcome {
        self.require(what.split('/').next().unwrap_or_default())?;
        match &self.caller {
            Caller::Legacy(session) => session.ask(&self.out, what, &params).await,
            Caller::Modern(_) => self.answer_of_this_round(key, what, params),
        }
    }

    fn answer_of_this_round(&self, key: &str, what: &str, params: Value) -> Outcome {
        let purpose = format!("{} {} {what} {params}", self.method, self.params["name"]);
        let valid = match &self.params["requestState"] {
            Value::Null => false,
            Value::String(state) if self.demo.0.sealer.opens(state, &purpose) => true,
            _ => return Err(Halt::params("the requestState is not one of ours, or has expired")),
        };
        let answers = &self.params["inputResponses"];
        if !answers.is_null() && !answers.is_object() {
            return Err(Halt::params("inputResponses is an object"));
        }
        match &answers[key] {
            Value::Object(answer) if valid => Ok(Value::Object(answer.clone())),
            Value::Object(_) | Value::Null => Err(Halt::Input(json!({
                "resultType": "input_required",
                "inputRequests": { key: { "method": what, "params": params } },
                "requestState": self.demo.0.sealer.seal(&purpose),
            }))),
            _ => Err(Halt::params(format!("inputResponses.{key} is an object"))),
        }
    }

    /// Tells how far it is, if the client wants to know.
    pub(crate) async fn progress(&self, progress: u64, total: u64, message: &str) {
        let token = &self.params["_meta"]["progressToken"];
        if token.is_string() || token.is_number() {
            let params = json!({
                "progressToken": token, "progress": progress, "total": total, "message": message,
            });
            let params = params.to_string();
            self.out.send(Message::notification(method::PROGRESS, params.as_bytes())).await;
        }
    }

    /// Sends a log message, if the client wants that level; says whether it does.
    pub(crate) async fn log(&self, level: Level, data: Value) -> bool {
        let wanted = match &self.caller {
            Caller::Legacy(session) => Some(session.level()),
            Caller::Modern(envelope) => envelope.log_level,
        };
        let wanted = wanted.is_some_and(|least| level >= least);
        if wanted {
            let params = json!({ "level": level.as_str(), "logger": "demo", "data": data }).to_string();
            self.out.send(Message::notification(method::LOG_MESSAGE, params.as_bytes())).await;
        }
        wanted
    }
}

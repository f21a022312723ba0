//! The rules of the modern era (MCP 2026-07-28) that hold on every transport: each request says by itself
//! which version it speaks and what its client can do, and results say what they are.

use drawbridge_wire::message::Field;
use drawbridge_wire::{Message, ProtocolVersion, RpcError, code, method};
use serde_json::{Value, json};

use crate::announce::{Filter, subscription_meta};
use crate::call::{Call, Outcome};
use crate::features;
use crate::level::Level;

/// How long lists stay fresh, unless a notification says otherwise.
const LIST_TTL_MS: u64 = 60_000;
const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// What a request says about itself.
#[derive(Debug)]
pub(crate) struct Envelope {
    pub(crate) capabilities: Value,
    pub(crate) client_info: Value,
    pub(crate) log_level: Option<Level>,
}

impl Envelope {
    /// Reads `params._meta`.
    pub(crate) fn read(request: &Message) -> Result<Self, RpcError> {
        let version = request.text(Field::MetaProtocolVersion).ok_or_else(|| missing("protocolVersion"))?;
        let capabilities = json_of(request, Field::MetaClientCapabilities)
            .filter(Value::is_object)
            .ok_or_else(|| missing("clientCapabilities"))?;
        check_version(&version)?;
        let log_level =
            json_of(request, Field::MetaLogLevel).map(|level| Level::parse(&level)).transpose()?;
        let client_info = json_of(request, Field::MetaClientInfo).unwrap_or(Value::Null);
        Ok(Self { capabilities, client_info, log_level })
    }
}

fn json_of(request: &Message, field: Field) -> Option<Value> {
    serde_json::from_slice(request.raw(field)?).ok()
}

fn missing(key: &str) -> RpcError {
    let text = format!("params._meta lacks io.modelcontextprotocol/{key}");
    RpcError::new(code::INVALID_PARAMS, text)
}

/// Refuses a version that is not of this era.
pub(crate) fn check_version(requested: &str) -> Result<(), RpcError> {
    if ProtocolVersion::parse(requested).is_some_and(|version| !version.has_initialize()) {
        return Ok(());
    }
    let data = json!({ "supported": versions(), "requested": requested }).to_string();
    let text = "this protocol version is not supported";
    Err(RpcError::new(code::UNSUPPORTED_PROTOCOL_VERSION, text).with_data(data))
}

/// Whether a version makes a request one of this era: unknown versions do, so that they get its error.
pub(crate) fn claims(version: &str) -> bool {
    ProtocolVersion::parse(version).is_none_or(|version| !version.has_initialize())
}

/// All versions, newest first.
fn versions() -> Vec<&'static str> {
    ProtocolVersion::ALL.iter().rev().map(|version| version.as_str()).collect()
}

/// The answer to `server/discover`.
pub(crate) fn discover() -> Value {
    json!({
        "supportedVersions": versions(),
        "capabilities": features::capabilities(),
        "instructions": features::INSTRUCTIONS,
    })
}

/// Holds a stream open on which changes are told; ends when the server shuts down.
pub(crate) async fn listen(call: &Call) -> Outcome {
    if !call.params["notifications"].is_object() {
        return Err(RpcError::new(code::INVALID_PARAMS, "params.notifications is missing").into());
    }
    let id = serde_json::from_slice(call.id.literal()).unwrap_or(Value::Null);
    let filter = Filter::of(&call.params["notifications"]);
    let _open = call
        .demo
        .0
        .listens
        .open(&id, filter, &call.out)
        .ok_or_else(|| RpcError::new(code::INTERNAL_ERROR, "too many streams are listening"))?;
    call.demo.0.stop.cancelled().await;
    Ok(json!({ "_meta": subscription_meta(&id) }))
}

/// Adds what every result of this era has.
pub(crate) fn complete(call: &Call, mut result: Value) -> Value {
    if let Some(members) = result.as_object_mut() {
        members.entry("resultType").or_insert("complete".into());
        if let Some(ttl) = freshness(call) {
            members.insert("ttlMs".to_owned(), ttl.into());
            members.insert("cacheScope".to_owned(), "public".into());
        }
    }
    with_server_info(result)
}

/// Adds who answers.
pub(crate) fn with_server_info(mut result: Value) -> Value {
    result["_meta"][SERVER_INFO] = features::server_info();
    result
}

fn freshness(call: &Call) -> Option<u64> {
    match call.method.as_str() {
        method::DISCOVER
        | method::TOOLS_LIST
        | method::PROMPTS_LIST
        | method::RESOURCES_LIST
        | method::RESOURCES_TEMPLATES_LIST => Some(LIST_TTL_MS),
        method::RESOURCES_READ => {
            let fixed = call.params["uri"] != features::resources::COUNTER;
            Some(if fixed { LIST_TTL_MS } else { 0 })
        }
        _ => None,
    }
}

//! Which method is served by what, in which era.

use drawbridge_wire::{ProtocolVersion, RpcError, code, method};
use serde_json::{Value, json};

use crate::call::{Call, Caller, Halt, Outcome};
use crate::features::{complete, prompts, resources, tools};
use crate::modern;

/// Serves a request and shapes the result for its era.
pub(crate) async fn dispatch(call: &Call) -> Outcome {
    match &call.caller {
        Caller::Modern(_) => match modern_only(call).await {
            Ok(result) => Ok(modern::complete(call, result)),
            Err(Halt::Input(result)) => Err(Halt::Input(modern::with_server_info(result))),
            Err(halt) => Err(halt),
        },
        Caller::Legacy(session) => {
            let result = match call.method.as_str() {
                method::PING => Ok(json!({})),
                method::SET_LEVEL => session.set_level(&call.params),
                method::RESOURCES_SUBSCRIBE => session.subscribe(&call.params),
                method::RESOURCES_UNSUBSCRIBE => session.unsubscribe(&call.params),
                _ => both(call).await,
            };
            result.map(|result| older(call.version(), result))
        }
    }
}

async fn modern_only(call: &Call) -> Outcome {
    match call.method.as_str() {
        method::DISCOVER => Ok(modern::discover()),
        method::LISTEN => modern::listen(call).await,
        _ => both(call).await,
    }
}

async fn both(call: &Call) -> Outcome {
    match call.method.as_str() {
        method::TOOLS_LIST => tools::list(call),
        method::TOOLS_CALL => tools::call(call).await,
        method::RESOURCES_LIST => resources::list(call),
        method::RESOURCES_TEMPLATES_LIST => resources::templates(call),
        method::RESOURCES_READ => resources::read(call),
        method::PROMPTS_LIST => prompts::list(call),
        method::PROMPTS_GET => prompts::get(call),
        method::COMPLETE => complete::complete(call),
        other => {
            let text = format!("there is no method {other} in this version of the protocol");
            Err(RpcError::new(code::METHOD_NOT_FOUND, text).into())
        }
    }
}

/// Leaves out what versions before 2025-06-18 do not know.
fn older(version: ProtocolVersion, mut result: Value) -> Value {
    if version < ProtocolVersion::V2025_06_18
        && let Some(members) = result.as_object_mut()
    {
        members.remove("structuredContent");
        for list in ["tools", "prompts", "resources", "resourceTemplates"] {
            let entries = members.get_mut(list).and_then(Value::as_array_mut);
            for entry in entries.into_iter().flatten().filter_map(Value::as_object_mut) {
                entry.remove("outputSchema");
                entry.remove("title");
            }
        }
    }
    result
}

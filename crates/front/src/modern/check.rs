//! The checks of a request before it is a call, in the order that fixes which error wins (MCP 2026-07-28,
//! streamable HTTP § Request Metadata, versioning).

use drawbridge_core::{Client, Principal};
use drawbridge_wire::level::severity;
use drawbridge_wire::message::Field;
use drawbridge_wire::{Message, ProtocolVersion, RpcError, code, header, method};
use http::{HeaderMap, StatusCode};

use super::client_of;
use crate::reply::{self, Refusal};
use crate::{MAX_DECLARED_BYTES, unsupported_version};

/// Methods of the legacy era, which do not exist here.
const REMOVED: [&str; 7] = [
    method::TASKS_RESULT,
    method::TASKS_LIST,
    method::INITIALIZE,
    method::PING,
    method::SET_LEVEL,
    method::RESOURCES_SUBSCRIBE,
    method::RESOURCES_UNSUBSCRIBE,
];

/// Checks a request and tells who sent it.
pub(super) fn request(
    message: &Message,
    headers: &HeaderMap,
    principal: &Principal,
) -> Result<Client, Refusal> {
    let refuse = |status, error| Refusal::rpc(status, message.id(), error);
    let bad = |error| refuse(StatusCode::BAD_REQUEST, error);
    let mismatch = |what: &str| bad(RpcError::new(code::HEADER_MISMATCH, what));
    let named = reply::version_header(headers);
    let own = message.text(Field::MetaProtocolVersion);
    if let (Some(named), Some(own)) = (named, own.as_deref())
        && named != own
    {
        return Err(mismatch("the MCP-Protocol-Version header differs from the protocolVersion in _meta"));
    }
    let Some(own) = own else {
        return Err(bad(RpcError::new(
            code::INVALID_PARAMS,
            "params._meta lacks io.modelcontextprotocol/protocolVersion",
        )));
    };
    if ProtocolVersion::parse(&own).is_none_or(ProtocolVersion::has_initialize) {
        return Err(bad(unsupported_version(&own)));
    }
    if !message.raw(Field::MetaClientCapabilities).is_some_and(|raw| raw.starts_with(b"{")) {
        return Err(bad(RpcError::new(
            code::INVALID_PARAMS,
            "params._meta lacks the object io.modelcontextprotocol/clientCapabilities",
        )));
    }
    let declared = [Field::MetaClientCapabilities, Field::MetaClientInfo];
    if declared.iter().filter_map(|field| message.raw(*field)).map(<[u8]>::len).sum::<usize>()
        > MAX_DECLARED_BYTES
    {
        let what = format!("clientCapabilities and clientInfo have more than {MAX_DECLARED_BYTES} bytes");
        return Err(bad(RpcError::new(code::INVALID_PARAMS, what)));
    }
    if named.is_none() {
        return Err(mismatch("the MCP-Protocol-Version header is missing"));
    }
    let method = message.method();
    check_mirror(headers, header::METHOD, Some(&method)).map_err(|e| mismatch(&e))?;
    if let Some(field) = header::name_field(&method) {
        let value = message.text(field);
        // A body without the member has no name to mirror; what is wrong then is the body.
        if value.is_some() {
            check_mirror(headers, header::NAME, value.as_deref()).map_err(|e| mismatch(&e))?;
        }
    }
    if REMOVED.contains(&method.as_ref()) {
        let error = RpcError::new(code::METHOD_NOT_FOUND, format!("method not found: {method}"));
        return Err(refuse(StatusCode::NOT_FOUND, error));
    }
    if message.raw(Field::MetaLogLevel).is_some()
        && message.text(Field::MetaLogLevel).and_then(|level| severity(&level)).is_none()
    {
        return Err(bad(RpcError::new(code::INVALID_PARAMS, "unknown logLevel")));
    }
    Ok(client_of(message, principal))
}

/// Compares a header with what it mirrors.
fn check_mirror(headers: &HeaderMap, name: &str, body: Option<&str>) -> Result<(), String> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().ok_or_else(|| format!("the {name} header is missing"))?;
    if values.next().is_some() {
        return Err(format!("the {name} header is there twice"));
    }
    let value = value.to_str().ok().and_then(|v| header::decode(v).ok());
    let value = value.ok_or_else(|| format!("the {name} header is malformed"))?;
    if Some(value.as_ref()) == body {
        Ok(())
    } else {
        Err(format!("the {name} header differs from the body"))
    }
}

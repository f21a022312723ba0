//! JSON-RPC errors and their codes.

use bytes::Bytes;

use crate::json::encode_string;
use crate::message::{Id, Message};

/// Error codes of JSON-RPC 2.0 and of MCP.
pub mod code {
    /// The text is not JSON.
    pub const PARSE_ERROR: i64 = -32700;
    /// The text is not a JSON-RPC message that is allowed here.
    pub const INVALID_REQUEST: i64 = -32600;
    /// Unknown method, or one whose capability is not offered.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// Bad parameters; also unknown tool, prompt, cursor, task.
    pub const INVALID_PARAMS: i64 = -32602;
    /// Something failed inside.
    pub const INTERNAL_ERROR: i64 = -32603;
    /// MCP 2026-07-28: a header is missing, malformed or differs from the body.
    pub const HEADER_MISMATCH: i64 = -32020;
    /// MCP 2026-07-28: the request lacks a client capability that serving it needs.
    pub const MISSING_CLIENT_CAPABILITY: i64 = -32021;
    /// MCP 2026-07-28: the protocol version is not supported.
    pub const UNSUPPORTED_PROTOCOL_VERSION: i64 = -32022;
    /// MCP up to 2025-11-25: resource not found.
    pub const RESOURCE_NOT_FOUND: i64 = -32002;
    /// MCP up to 2025-11-25: a client's user refused to let it sample.
    pub const REJECTED: i64 = -1;
    /// MCP 2025-11-25: a URL elicitation is needed first.
    pub const URL_ELICITATION_REQUIRED: i64 = -32042;
}

/// A JSON-RPC error object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcError {
    /// One of [`code`], or whatever a backend chose.
    pub code: i64,
    /// One sentence for people.
    pub message: String,
    /// Raw JSON for programs.
    pub data: Option<Bytes>,
}

impl RpcError {
    /// An error without data.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// Adds raw JSON as `data`.
    #[must_use]
    pub fn with_data(mut self, data: impl Into<Bytes>) -> Self {
        self.data = Some(data.into());
        self
    }

    /// The answer to the request `id`; without an id the member is `null`, as JSON-RPC asks when the id could
    /// not be read.
    pub fn to_message(&self, id: Option<&Id>) -> Message {
        let mut text = Vec::with_capacity(96 + self.message.len());
        text.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
        text.extend_from_slice(id.map_or(&b"null"[..], |id| id.literal()));
        text.extend_from_slice(format!(",\"error\":{{\"code\":{},\"message\":", self.code).as_bytes());
        text.extend_from_slice(encode_string(&self.message).as_bytes());
        if let Some(data) = &self.data {
            text.extend_from_slice(b",\"data\":");
            text.extend_from_slice(data);
        }
        text.extend_from_slice(b"}}");
        Message::own(text)
    }
}

//! What has become of calls, for whoever keeps a trail of them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::backend::BackendName;
use crate::metrics::{Era, Outcome};
use crate::request;

/// Takes notes of calls.
pub trait CallAudit: Send + Sync {
    /// Notes a call that has ended. Never waits.
    fn note(&self, call: CallRecord);

    /// What calls have said is to be noted too, up to this many bytes of each part; `None` if it is not.
    fn payload_limit(&self) -> Option<usize>;

    /// How many calls wait to be written down.
    fn waiting(&self) -> usize;
}

/// A call that has ended.
#[derive(Debug)]
pub struct CallRecord {
    /// When.
    pub ended_at: SystemTime,
    /// From the reading of the request to the end of its answer.
    pub took: Duration,
    /// The request, whose id is that of its trace.
    pub request: Option<request::Id>,
    /// Whom it was from, where that is asked.
    pub caller: Option<Arc<request::Caller>>,
    /// The endpoint; `None` is the default one.
    pub endpoint: Option<BackendName>,
    /// The backend, if there is just one.
    pub backend: Option<BackendName>,
    /// How the client speaks.
    pub era: Era,
    /// The method, and the tool, prompt or resource.
    pub words: Words,
    /// What has become of it.
    pub outcome: Outcome,
    /// The code, if it has ended with an error.
    pub code: Option<i64>,
    /// The code of the fault behind the error, if there is one.
    pub fault: Option<&'static str>,
    /// The HTTP status, if there was an answer.
    pub status: Option<u16>,
    /// The answer was a stream.
    pub streamed: bool,
    /// What was said.
    pub payload: Option<Box<Payload>>,
}

/// The method of a call and the name of what it calls, in one piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Words {
    text: Box<str>,
    method: usize,
}

impl Words {
    /// Puts both together.
    pub fn new(method: &str, name: Option<&str>) -> Self {
        let name = name.unwrap_or_default();
        let mut text = String::with_capacity(method.len() + name.len());
        text.push_str(method);
        text.push_str(name);
        Self { text: text.into_boxed_str(), method: method.len() }
    }

    /// The method.
    pub fn method(&self) -> &str {
        &self.text[..self.method]
    }

    /// The name or URI; empty if there is none.
    pub fn name(&self) -> &str {
        &self.text[self.method..]
    }
}

/// What was said in a call.
#[derive(Debug, Default)]
pub struct Payload {
    /// The `params` of the request.
    pub request: Option<Part>,
    /// The result or the error.
    pub answer: Option<Part>,
}

impl Payload {
    /// How many bytes it keeps.
    pub fn size(&self) -> usize {
        [&self.request, &self.answer].into_iter().flatten().map(Part::size).sum()
    }
}

impl Payload {
    /// Leaves nothing but the sizes.
    pub fn omit(&mut self) {
        for part in [&mut self.request, &mut self.answer].into_iter().flatten() {
            if let Part::Json(bytes) = part {
                *part = Part::Omitted(bytes.len());
            }
        }
    }
}

/// A part of what was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// JSON.
    Json(Bytes),
    /// It has so many bytes, which are too many.
    Omitted(usize),
}

impl Part {
    /// A copy of `raw` if that is no larger than `limit`: a slice would keep the whole message.
    pub fn of(raw: &[u8], limit: usize) -> Self {
        if raw.len() <= limit { Self::Json(Bytes::copy_from_slice(raw)) } else { Self::Omitted(raw.len()) }
    }

    fn size(&self) -> usize {
        match self {
            Self::Json(bytes) => bytes.len(),
            Self::Omitted(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_apart_as_they_were_put_together() {
        for (method, name) in [("tools/call", Some("ü")), ("", Some("x")), ("ping", None)] {
            let words = Words::new(method, name);
            assert_eq!((words.method(), words.name()), (method, name.unwrap_or_default()));
        }
    }

    #[test]
    fn what_is_too_large_leaves_its_size() {
        let payload = Payload { request: Some(Part::of(b"{}", 2)), answer: Some(Part::of(b"[1]", 2)) };
        assert_eq!(payload.answer, Some(Part::Omitted(3)));
        assert_eq!(payload.size(), 2);
    }
}

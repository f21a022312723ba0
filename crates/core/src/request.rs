//! Which request of a client is being worked on, so that every line of the log can say so.
//!
//! The id goes with the work and not with what is called, so it costs next to nothing until a line is written.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::future::Either;

use crate::rights::Rights;
use crate::trace::Incoming;

tokio::task_local! {
    static CURRENT: Current;
}

#[derive(Clone)]
struct Current {
    id: Id,
    /// `None` where nobody collects traces.
    trace: Option<Arc<Incoming>>,
    /// `None` where nobody was asked.
    caller: Option<Arc<Caller>>,
    /// The same.
    rights: Option<Arc<dyn Rights>>,
}

/// Whom a request is from, as the log and traces say it: nothing by which anybody is let in.
#[derive(Debug, PartialEq, Eq)]
pub struct Caller {
    /// Such as `user:ID` or `service:NAME`.
    pub name: String,
    /// The OAuth client, or `pat:ID` for an issued token.
    pub client: String,
    /// By which it was found out: `token:ID`, `grant:ID`, or `external`.
    pub credential: String,
}

/// Names a request. It has the form of a trace id (W3C Trace Context § trace-id).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Id([u8; 16]);

impl Id {
    /// An id that no other request has.
    pub fn fresh() -> Self {
        Self(rand::random())
    }

    /// The trace id in a `traceparent` header, if it is one: then the request is part of that trace.
    pub fn of_trace(traceparent: &[u8]) -> Option<Self> {
        let (known, more) = traceparent.split_at_checked(55)?;
        let is_hex = |bytes: &[u8]| bytes.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let parts = [&known[..2], &known[3..35], &known[36..52], &known[53..]];
        let dashes = [known[2], known[35], known[52]] == *b"---";
        // Later versions may go on after another dash.
        let ends = more.is_empty() || (parts[0] != b"00" && more[0] == b'-');
        if !dashes || !ends || parts[0] == b"ff" || !parts.into_iter().all(is_hex) {
            return None;
        }
        let id = u128::from_str_radix(std::str::from_utf8(parts[1]).ok()?, 16).ok()?;
        (id != 0).then(|| Self(id.to_be_bytes()))
    }

    /// The id itself.
    pub fn bytes(self) -> [u8; 16] {
        self.0
    }

    /// The id in hexadecimal digits.
    pub fn digits(self) -> [u8; 32] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        std::array::from_fn(|place| {
            let byte = self.0[place / 2];
            DIGITS[usize::from(if place % 2 == 0 { byte >> 4 } else { byte & 15 })]
        })
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// The request that is being worked on here, if it is one's.
pub fn current() -> Option<Id> {
    CURRENT.try_with(|current| current.id).ok()
}

/// What is to be known for tracing the request that is being worked on here, if requests are traced.
pub fn incoming() -> Option<Arc<Incoming>> {
    CURRENT.try_with(|current| current.trace.clone()).ok().flatten()
}

/// Whom the request is from that is being worked on here.
pub fn caller() -> Option<Arc<Caller>> {
    CURRENT.try_with(|current| current.caller.clone()).ok().flatten()
}

/// What the caller may whose request is being worked on here; `None` where nobody was asked.
pub fn rights() -> Option<Arc<dyn Rights>> {
    CURRENT.try_with(|current| current.rights.clone()).ok().flatten()
}

/// Does `work` for the request `id`.
pub fn scope<F: Future>(id: Id, work: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(Current { id, trace: None, caller: None, rights: None }, work)
}

/// Does `work` for the request that is being worked on here, which is from `caller`, who has these `rights`.
pub fn of<F: Future>(
    caller: Option<Arc<Caller>>,
    rights: Option<Arc<dyn Rights>>,
    work: F,
) -> impl Future<Output = F::Output> {
    match CURRENT.try_with(Clone::clone) {
        Ok(current) => Either::Left(CURRENT.scope(Current { caller, rights, ..current }, work)),
        Err(_) => Either::Right(work),
    }
}

/// The same for a request that may be traced.
pub fn traced<F: Future>(id: Id, trace: Option<Arc<Incoming>>, work: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(Current { id, trace, caller: None, rights: None }, work)
}

/// Does a piece of `work` for a request of `caller` that came to another instance, under an id of its own.
pub fn passed<T>(
    caller: Option<Arc<Caller>>,
    rights: Option<Arc<dyn Rights>>,
    work: impl FnOnce() -> T,
) -> T {
    let id = current().unwrap_or_else(Id::fresh);
    CURRENT.sync_scope(Current { id, trace: None, caller, rights }, work)
}

/// Does a piece of `work` for the request `id`, if it is for one.
pub fn within<T>(id: Option<Id>, work: impl FnOnce() -> T) -> T {
    match id {
        Some(id) => CURRENT.sync_scope(Current { id, trace: None, caller: None, rights: None }, work),
        None => work(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_part_of_a_trace_has_its_id() {
        let id = |text: &str| Id::of_trace(text.as_bytes()).map(|id| id.to_string());
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(id(&format!("00-{trace}-00f067aa0ba902b7-01")).as_deref(), Some(trace));
        assert_eq!(id(&format!("01-{trace}-00f067aa0ba902b7-01-more")).as_deref(), Some(trace));
        for text in [
            String::new(),
            trace.to_owned(),
            format!("ff-{trace}-00f067aa0ba902b7-01"),
            format!("00-{trace}-00f067aa0ba902b7-01-more"),
            format!("01-{trace}-00f067aa0ba902b7-01more"),
            format!("00_{trace}-00f067aa0ba902b7-01"),
            format!("00-{}-00f067aa0ba902b7-01", trace.to_uppercase()),
            format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            format!("00-+{}-00f067aa0ba902b7-01", &trace[1..]),
        ] {
            assert_eq!(id(&text), None, "{text}");
        }
    }

    #[test]
    fn digits_are_those_that_are_shown() {
        let id = Id::fresh();
        assert_eq!(id.to_string().as_bytes(), id.digits());
        assert_ne!(id, Id::fresh());
    }

    #[tokio::test]
    async fn the_id_goes_with_the_work() {
        assert_eq!(current(), None);
        let id = Id::fresh();
        let tasks = crate::Tasks::default();
        let (tell, told) = tokio::sync::oneshot::channel();
        scope(id, async {
            tokio::task::yield_now().await;
            assert_eq!(current(), Some(id));
            tasks.spawn("apart", async { assert_eq!(current(), None) });
            tasks.spawn_within("part", async move { tell.send(current()).unwrap() });
        })
        .await;
        assert_eq!((current(), told.await), (None, Ok(Some(id))));
        assert_eq!(within(Some(id), current), Some(id));
    }
}

//! The requests of one peer that are being served, so that it can cancel them.

use std::collections::HashMap;
use std::sync::Arc;

use drawbridge_wire::{Id, RpcError, code};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

const MAX_RUNNING: usize = 256;

/// Requests in flight by id.
#[derive(Debug, Clone, Default)]
pub(crate) struct Running(Arc<Mutex<HashMap<Id, CancellationToken>>>);

impl Running {
    /// Notes that the request `id` runs until the guard is dropped.
    pub(crate) fn start(&self, id: &Id) -> Result<Guard, RpcError> {
        let mut calls = self.0.lock();
        if calls.len() >= MAX_RUNNING {
            let text = format!("more than {MAX_RUNNING} requests at once");
            return Err(RpcError::new(code::INTERNAL_ERROR, text));
        }
        let id = id.canonical();
        if calls.contains_key(&id) {
            return Err(RpcError::new(code::INVALID_REQUEST, "a request with this id is being served"));
        }
        let token = CancellationToken::new();
        calls.insert(id.clone(), token.clone());
        Ok(Guard { running: self.clone(), id, token })
    }

    /// Cancels the request whose id has the JSON `literal`; an unknown one is ignored.
    pub(crate) fn cancel(&self, literal: bytes::Bytes) {
        let found = Id::from_literal(literal).and_then(|id| self.0.lock().remove(&id.canonical()));
        if let Some(token) = found {
            token.cancel();
        }
    }

    /// Cancels everything.
    pub(crate) fn cancel_all(&self) {
        self.0.lock().drain().for_each(|(_, token)| token.cancel());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// A request in flight.
#[derive(Debug)]
pub(crate) struct Guard {
    running: Running,
    id: Id,
    /// Cancelled when the peer does not want the answer any more.
    pub(crate) token: CancellationToken,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut calls = self.running.0.lock();
        // An id that was cancelled may be in use again.
        if !self.token.is_cancelled() {
            calls.remove(&self.id);
        }
    }
}

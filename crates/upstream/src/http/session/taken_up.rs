//! Calls that another instance goes on with when the one that has them is lost: shared state says where the backend's
//! stream of each stands, once it takes long and can be resumed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drawbridge_core::Fault;
use drawbridge_core::backend::TakenUp;
use drawbridge_core::call::{Call, Emitter, Event, generate};
use drawbridge_wire::message::Field;
use drawbridge_wire::{Id, Message};
use http::HeaderValue;
use serde::{Deserialize, Serialize};
use tokio_util::future::FutureExt as _;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::guards::{CancelGuard, Entered, RunningGuard, TokenGuard};
use super::{HttpSession, LAST_EVENT_ID};
use crate::answer::{EventStream, Mark};
use crate::fleet::Home;
use crate::legacy;

/// Calls that take less time leave nothing; how far the others are is said this often.
const SAY_EVERY: Duration = Duration::from_secs(1);
/// The longest request id by which a call can be found.
const MAX_ID_BYTES: usize = 64;

/// Where a call stands.
#[derive(Serialize, Deserialize)]
struct Stand {
    method: String,
    /// The id of the request to the backend, a JSON literal.
    id: String,
    /// The event after which the backend's stream is to be resumed.
    last: String,
    /// The client's progress token, a JSON literal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

fn field(home: &Home, id: &Id) -> Option<String> {
    let literal = std::str::from_utf8(id.literal()).ok().filter(|literal| literal.len() <= MAX_ID_BYTES)?;
    Some(format!("{}:{literal}", home.call_field()))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Says in shared state where a call stands, until it is dropped.
pub(super) struct Said {
    /// Where its stream is to note how far it is.
    pub(super) mark: Mark,
    _stop: DropGuard,
}

impl HttpSession {
    /// Lets other instances go on with a call, should this one be lost.
    pub(super) fn say_where_it_stands(&self, call: &Call, id: &Id) -> Option<Said> {
        let home = self.home().filter(|home| home.is_own())?;
        let field = field(&home, &call.request.id()?)?;
        let (method, id) = (call.request.method().into_owned(), text(id.literal()));
        let token = call.request.slice(Field::MetaProgressToken).map(|token| text(&token));
        let (mark, stop) = (Mark::default(), CancellationToken::new());
        let (marked, stopped) = (mark.clone(), stop.clone());
        self.shared.tasks.spawn_within("say where a call stands", async move {
            let mut said: Option<Bytes> = None;
            while tokio::time::sleep(SAY_EVERY).with_cancellation_token(&stopped).await.is_some() {
                let Some(last) = marked.get() else { continue };
                let stand =
                    Stand { method: method.clone(), id: id.clone(), last: text(&last), token: token.clone() };
                let new = Bytes::from(serde_json::to_vec(&stand).unwrap_or_default());
                if said.as_ref() != Some(&new)
                    && let Ok(kept) = home.put(&field, said.as_ref(), new).await
                {
                    // Where it is another's, this one's comes in its place next time.
                    said = Some(kept);
                }
            }
            if let Some(said) = said {
                // What is left goes with the session.
                let _ = home.take(&field, &said).await;
            }
        });
        Some(Said { mark, _stop: stop.drop_guard() })
    }

    /// Goes on with a call of an instance that is gone.
    pub(super) async fn take_up_call(self: Arc<Self>, id: &Id) -> Option<TakenUp> {
        let home = self.home()?;
        let stand = home.get(&field(&home, id)?).await.ok()??;
        let stand: Stand = serde_json::from_slice(&stand).ok()?;
        let method = stand.method.clone();
        let call = Call::new(Message::request(id, &method, b"{}"), self.client.clone());
        let events = generate(|emit| async move {
            let limit = self.shared.options.timeout;
            let ran = tokio::time::timeout(limit, self.go_on(&emit, &call, stand)).await;
            let late = || Err(self.shared.options.late(drawbridge_core::fault::Deadline::Total));
            ran.unwrap_or_else(|_| late()).unwrap_or_else(Event::Fail)
        });
        Some(TakenUp { method, events })
    }

    async fn go_on(self: &Arc<Self>, emit: &Emitter, call: &Call, stand: Stand) -> Result<Event, Fault> {
        let options = &self.shared.options;
        let lost = || options.outcome_unknown("its stream can't be resumed");
        let id = Id::from_literal(stand.id.into()).ok_or_else(lost)?;
        let _running = RunningGuard::new(self);
        let _token = stand.token.map(|token| TokenGuard::new(self, &id, token.into()));
        let entered = self.client.can_be_asked().then(|| Entered::new(self, &id));
        let opened = self.open().await?;
        let mut cancel = CancelGuard::new(self, &opened, &id);
        let mut headers = opened.headers();
        let last = Bytes::from(stand.last);
        headers.push((LAST_EVENT_ID, HeaderValue::from_maybe_shared(last.clone()).map_err(|_| lost())?));
        let response = self.shared.get(&self.client.principal, &headers, options.first_byte_timeout).await?;
        let said = self.say_where_it_stands(call, &id);
        let stream = EventStream::of(response, options).ok_or_else(lost)?.after(Some((last, SAY_EVERY)));
        let follow = async {
            emit.emit(Event::Begun).await;
            let mark = said.as_ref().map(|said| &said.mark);
            self.follow(emit, Box::new(stream.marked(mark)), &opened, &id).await
        };
        let reply = match &entered {
            Some(entered) => entered.inbox.beside(emit, follow).await,
            None => follow.await,
        };
        if !matches!(reply, Err(Fault::Timeout { .. } | Fault::TooLarge { .. })) {
            cancel.disarm();
        }
        Ok(legacy::answered(call, reply?))
    }
}

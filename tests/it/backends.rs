//! Backends over HTTP: broken ones, both eras, cancelling, asking.

mod asks;
mod cancel;
mod eras;
mod faults;
mod modern;

use drawbridge_testkit::backend::Backend;
use drawbridge_testkit::client::{Modern, Session};
use drawbridge_testkit::gateway::{Gateway, Setup};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

/// Runs `work` beside the test.
pub(crate) fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    TaskTracker::new().spawn(work)
}

/// The code of the gateway's own error and whether it says that trying again is safe.
pub(crate) fn fault(answer: &Value) -> (&str, &str) {
    let data = &answer["error"]["data"];
    let text = |key: &str| data[key].as_str().unwrap_or_else(|| panic!("no fault of the gateway: {answer}"));
    (text("code"), text("retry"))
}

/// The message of an error.
pub(crate) fn message(answer: &Value) -> &str {
    answer["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {answer}"))
}

/// A gateway in front of `backend`, with more settings of it and of the gateway.
pub(crate) async fn in_front_of(backend: &Backend, settings: &str, config: &str) -> Gateway {
    with(Gateway::setup(), backend, settings, config).await
}

/// The same, from a given start.
pub(crate) async fn with(setup: Setup, backend: &Backend, settings: &str, config: &str) -> Gateway {
    let settings = format!("{{ url: \"{}\", {settings} }}", backend.url());
    setup.backend("scripted", &settings).config(config).start().await
}

/// A client of each era, through which a test goes twice.
pub(crate) enum Either {
    Legacy(Session),
    Modern(Modern),
}

impl Either {
    pub(crate) async fn both(gateway: &Gateway) -> [Self; 2] {
        [Self::Legacy(gateway.session().await), Self::Modern(gateway.modern())]
    }

    pub(crate) async fn tool(&self, name: &str) -> Value {
        match self {
            Self::Legacy(session) => session.tool(name, json!({})).await,
            Self::Modern(modern) => modern.tool(name, json!({})).await,
        }
    }
}

//! A memory around a backend that answers from a script.

use std::sync::atomic::{AtomicUsize, Ordering};

use drawbridge_wire::ProtocolVersion;
use futures_util::future::join_all;
use parking_lot::Mutex;

use super::*;
use crate::client::Principal;

/// Answers `{body}` after a moment; counts what it was sent.
type Script = Box<dyn Fn(&Call, usize) -> String + Send + Sync>;

struct Scripted {
    name: BackendName,
    script: Script,
    seen: Mutex<Vec<Call>>,
    sink: Mutex<Option<Weak<dyn Unsolicited>>>,
}

#[async_trait]
impl Backend for Scripted {
    fn name(&self) -> &BackendName {
        &self.name
    }
    async fn describe(&self, _: &Arc<Client>) -> Result<Arc<Description>, Fault> {
        Err(Fault::Draining)
    }
    fn open(
        self: Arc<Self>,
        _: &Arc<Client>,
        _: Scope,
        sink: Option<Weak<dyn Unsolicited>>,
    ) -> Arc<dyn Conversation> {
        *self.sink.lock() = sink;
        Arc::new(Said(self))
    }
    fn list_timeout(&self) -> Duration {
        Duration::from_secs(1)
    }
    async fn close(&self) {}
}

struct Said(Arc<Scripted>);

#[async_trait]
impl Conversation for Said {
    fn call(self: Arc<Self>, call: Call) -> Events {
        generate(|_| async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let count = {
                let mut seen = self.0.seen.lock();
                seen.push(call.clone());
                seen.len()
            };
            let body = (self.0.script)(&call, count);
            if body.is_empty() {
                return std::future::pending().await;
            }
            let message =
                Message::parse(Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":1,{body}}}"#))).unwrap();
            Event::Done(Reply { message, shape: Shape::Marked })
        })
    }
    async fn notify(&self, _: Message) {}
    fn listen(self: Arc<Self>) {}
    fn stop_listening(&self) {}
    async fn close(&self) {}
}

impl Scripted {
    fn new(script: impl Fn(&Call, usize) -> String + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            name: BackendName::parse("b").unwrap(),
            script: Box::new(script),
            seen: Mutex::default(),
            sink: Mutex::default(),
        })
    }

    fn count(&self, method: &str) -> usize {
        self.seen.lock().iter().filter(|call| call.request.method() == method).count()
    }
}

fn client(answers: Answers) -> Arc<Client> {
    Arc::new(Client {
        principal: Principal::anonymous(),
        version: ProtocolVersion::V2026_07_28,
        capabilities: "{}".into(),
        info: None,
        answers,
    })
}

fn talk(backend: &Arc<Scripted>, client: &Arc<Client>) -> Arc<dyn Conversation> {
    Recalling::new(backend.clone(), Keeping::default(), &Peers::alone(), Arc::default()).open(
        client,
        Scope::Profile,
        None,
    )
}

async fn ask(
    talk: &Arc<dyn Conversation>,
    client: &Arc<Client>,
    method: &str,
    params: &str,
    headers: &[(&str, &str)],
) -> String {
    let request = Message::request(&Id::from_number(1), method, params.as_bytes());
    let params_headers = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    let mut events = talk.clone().call(Call { params_headers, ..Call::new(request, client.clone()) });
    match events.next().await {
        Some(Event::Done(reply)) => String::from_utf8(reply.message.bytes().to_vec()).unwrap(),
        Some(Event::Fail(fault)) => format!("{} {fault}", fault.to_rpc_error().code),
        other => panic!("{other:?}"),
    }
}

const LIST: &str = r#""result":{"tools":[{"name":"t","inputSchema":{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}}]}"#;
const PLAIN: &str = r#""result":{"tools":[{"name":"t","inputSchema":{}}]}"#;
const DONE: &str = r#""result":{"done":true}"#;
const REFUSED: &str = r#""error":{"code":-32020,"message":"of the inner hop"}"#;
const CALL: &str = r#"{"name":"t","arguments":{"a":"x"}}"#;

#[tokio::test(start_paused = true)]
async fn many_calls_that_are_refused_at_once_ask_for_one_list() {
    let backend = Scripted::new(|call, _| match call.request.method().as_ref() {
        method::TOOLS_LIST => LIST.to_owned(),
        _ if call.params_headers.is_empty() => REFUSED.to_owned(),
        _ => DONE.to_owned(),
    });
    let client = client(Answers::Live);
    let talk = talk(&backend, &client);
    let answers = join_all((0..20).map(|_| ask(&talk, &client, method::TOOLS_CALL, CALL, &[]))).await;
    assert!(answers.iter().all(|answer| answer.contains("done")), "{answers:?}");
    assert_eq!((backend.count(method::TOOLS_LIST), backend.count(method::TOOLS_CALL)), (1, 40));
}

#[tokio::test(start_paused = true)]
async fn a_call_is_sent_again_once_and_only_with_other_headers() {
    let backend = Scripted::new(|call, _| match call.request.method().as_ref() {
        method::TOOLS_LIST => LIST.to_owned(),
        _ => REFUSED.to_owned(),
    });
    let client = client(Answers::Live);
    let talk = talk(&backend, &client);
    for calls in [2, 3, 4] {
        let answer = ask(&talk, &client, method::TOOLS_CALL, CALL, &[]).await;
        assert!(answer.starts_with("-32603") && answer.contains("inner hop"), "{answer}");
        assert_eq!(backend.count(method::TOOLS_CALL), calls);
    }
    let answer = ask(&talk, &client, "prompts/get", "{}", &[]).await;
    assert!(answer.starts_with("-32603"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_does_not_come_holds_a_call_up_once() {
    let backend = Scripted::new(|call, _| match call.request.method().as_ref() {
        method::TOOLS_LIST => String::new(),
        _ => DONE.to_owned(),
    });
    let client = client(Answers::ByRetry);
    let talk = talk(&backend, &client);
    for _ in 0..3 {
        assert!(
            ask(&talk, &client, method::TOOLS_CALL, CALL, &[("mcp-param-a", "y")]).await.contains("done")
        );
    }
    assert_eq!(backend.count(method::TOOLS_LIST), 1);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_has_changed_is_looked_at_again_before_a_call_is_refused() {
    let changed = Arc::new(AtomicUsize::new(0));
    let flag = changed.clone();
    let backend = Scripted::new(move |call, _| match call.request.method().as_ref() {
        method::TOOLS_LIST if flag.load(Ordering::Relaxed) == 1 => PLAIN.to_owned(),
        method::TOOLS_LIST => LIST.to_owned(),
        _ => DONE.to_owned(),
    });
    let client = client(Answers::ByRetry);
    let talk = talk(&backend, &client);
    ask(&talk, &client, method::TOOLS_LIST, "{}", &[]).await;
    changed.store(1, Ordering::Relaxed);
    // What was learnt a moment ago counts.
    assert!(ask(&talk, &client, method::TOOLS_CALL, CALL, &[]).await.starts_with("-32020"));
    tokio::time::advance(RECENT + Duration::from_millis(1)).await;
    assert!(ask(&talk, &client, method::TOOLS_CALL, CALL, &[]).await.contains("done"));
    assert_eq!(backend.count(method::TOOLS_LIST), 2);
}

#[tokio::test(start_paused = true)]
async fn a_kept_list_teaches_whoever_gets_it() {
    let kept = LIST.replace("\"tools\"", "\"ttlMs\":60000,\"cacheScope\":\"public\",\"tools\"");
    let backend = Scripted::new(move |call, _| match call.request.method().as_ref() {
        method::TOOLS_LIST => kept.clone(),
        _ if call.params_headers.is_empty() => REFUSED.to_owned(),
        _ => DONE.to_owned(),
    });
    let ann = client(Answers::Live);
    let bob = Arc::new(Client { principal: Principal::named("bob"), ..(*ann).clone() });
    let talk = talk(&backend, &ann);
    for who in [&ann, &bob] {
        ask(&talk, who, method::TOOLS_LIST, "{}", &[]).await;
        assert!(ask(&talk, who, method::TOOLS_CALL, CALL, &[]).await.contains("done"));
    }
    assert_eq!((backend.count(method::TOOLS_LIST), backend.count(method::TOOLS_CALL)), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn what_comes_outside_of_calls_is_heard_before_it_is_passed_on() {
    /// Notes with each event whether the list is kept.
    struct Receiver {
        kept: Mutex<Vec<bool>>,
        client: Arc<Client>,
        talk: Mutex<Option<Arc<dyn Conversation>>>,
    }
    impl Unsolicited for Receiver {
        fn deliver(&self, _: Event) {
            let request = Message::request(&Id::from_number(1), method::PROMPTS_LIST, b"{}");
            let call = Call::new(request, self.client.clone());
            let talk = self.talk.lock().clone().unwrap();
            // Only what is kept is there at once.
            let answer = futures_util::FutureExt::now_or_never(async { talk.call(call).next().await });
            self.kept.lock().push(answer.is_some());
        }
    }
    let backend = Scripted::new(|_, _| r#""result":{"prompts":[],"ttlMs":60000}"#.to_owned());
    let client = client(Answers::Live);
    let receiver =
        Arc::new(Receiver { kept: Mutex::default(), client: client.clone(), talk: Mutex::default() });
    let sink: Arc<dyn Unsolicited> = receiver.clone();
    let talk = Recalling::new(backend.clone(), Keeping::default(), &Peers::alone(), Arc::default()).open(
        &client,
        Scope::Session(crate::event_log::SessionKey([0; 16])),
        Some(Arc::downgrade(&sink)),
    );
    *receiver.talk.lock() = Some(talk.clone());
    for _ in 0..2 {
        ask(&talk, &client, method::PROMPTS_LIST, "{}", &[]).await;
    }
    assert_eq!(backend.count(method::PROMPTS_LIST), 1);
    let inner = backend.sink.lock().clone().unwrap().upgrade().unwrap();
    for name in ["notifications/resources/list_changed", "notifications/prompts/list_changed"] {
        inner.deliver(Event::Notify(Message::notification(name, b"{}")));
    }
    assert_eq!(*receiver.kept.lock(), [true, false]);
}

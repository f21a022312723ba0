//! The aggregate against backends that answer from a script.

use std::sync::Weak;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use drawbridge_wire::{Id, ProtocolVersion};

use super::*;
use crate::backend::{Backend, Conversation, Description, Scope, Unsolicited};
use crate::call::{Reply, Shape};
use crate::client::{Answers, Client, Principal};
use crate::rounds::{RoundOptions, Rounds};
use crate::seal::SealKey;
use crate::tasks::Tasks;

type Script = fn(&Message) -> Option<String>;

struct Scripted {
    name: BackendName,
    script: Script,
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
        _: Option<Weak<dyn Unsolicited>>,
    ) -> Arc<dyn Conversation> {
        Arc::new(Talk(self.script))
    }
    fn list_timeout(&self) -> Duration {
        Duration::from_secs(1)
    }
    async fn close(&self) {}
}

struct Talk(Script);

#[async_trait]
impl Conversation for Talk {
    fn call(self: Arc<Self>, call: Call) -> Events {
        match (self.0)(&call.request) {
            None => Box::pin(stream::pending()),
            Some(body) => {
                let text = format!(r#"{{"jsonrpc":"2.0","id":1,{body}}}"#);
                let message = Message::parse(Bytes::from(text)).unwrap();
                once(Event::Done(Reply { message, shape: Shape::Plain }))
            }
        }
    }
    async fn notify(&self, _: Message) {}
    fn listen(self: Arc<Self>) {}
    fn stop_listening(&self) {}
    async fn close(&self) {}
}

struct Caller {
    client: Arc<Client>,
    endpoint: Arc<Endpoint>,
}

impl Conversing for Caller {
    fn client(&self) -> &Arc<Client> {
        &self.client
    }
    fn conversation(&self, index: usize) -> Arc<dyn Conversation> {
        self.endpoint.backends()[index].clone().open(
            &self.client,
            Scope::Session(crate::event_log::SessionKey([0; 16])),
            None,
        )
    }
}

fn endpoint(scripts: &[(&str, Script)]) -> Arc<Endpoint> {
    let keys = Arc::new(KeyRing::new(&[SealKey { id: "t".into(), secret: [3; 32] }]).unwrap());
    let backends = scripts
        .iter()
        .map(|(name, script)| {
            Arc::new(Scripted { name: BackendName::parse(name).unwrap(), script: *script })
                as Arc<dyn Backend>
        })
        .collect();
    let rounds =
        Rounds::new(keys.clone(), RoundOptions::default(), crate::fleet::Peers::alone(), Tasks::default());
    Arc::new(Endpoint::new(None, backends, keys, rounds))
}

async fn ask(endpoint: &Arc<Endpoint>, method: &str, params: &str) -> serde_json::Value {
    let client = Arc::new(Client {
        principal: Principal::anonymous(),
        version: ProtocolVersion::V2025_11_25,
        capabilities: "{}".into(),
        info: None,
        answers: Answers::Live,
    });
    let who: Arc<dyn Conversing> = Arc::new(Caller { client: client.clone(), endpoint: endpoint.clone() });
    let request = Message::request(&Id::from_number(1), method, params.as_bytes());
    let call = Call::new(request, client);
    let name = BackendName::parse("test").unwrap();
    let last = last_event(endpoint.call(&who, call), &name, Duration::from_secs(10));
    match last.await {
        Event::Done(reply) => serde_json::from_slice(reply.message.bytes()).unwrap(),
        Event::Fail(fault) => serde_json::json!({ "fault": fault.to_string() }),
        other => panic!("{other:?}"),
    }
}
fn paged(m: &Message) -> Option<String> {
    Some(match (m.method().as_ref(), m.text(Field::Cursor).as_deref()) {
        ("tools/list", None) => r#""result":{"tools":[{"name":"one","n":1.50}],"nextCursor":"p2"}"#.into(),
        ("tools/list", Some("p2")) => r#""result":{"tools":[{"x":[],"name":"two"}]}"#.into(),
        ("tools/call", _) => {
            format!(r#""result":{{"called":{}}}"#, String::from_utf8_lossy(m.raw(Field::Name)?))
        }
        ("resources/list", _) => r#""result":{"resources":[{"uri":"file:///a"},{"uri":"x://p"}]}"#.into(),
        ("resources/templates/list", _) => {
            r#""result":{"resourceTemplates":[{"uriTemplate":"x://{id}"}]}"#.into()
        }
        ("resources/read", _) => {
            format!(r#""result":{{"paged":{}}}"#, String::from_utf8_lossy(m.raw(Field::Uri)?))
        }
        _ => r#""error":{"code":-32601,"message":"no"}"#.into(),
    })
}

fn small(m: &Message) -> Option<String> {
    Some(match m.method().as_ref() {
        "tools/list" => {
            r#""result":{"tools":[{"name":"a/very long one that has to be shortened since no host would take its name"}]}"#.into()
        }
        "tools/call" => format!(r#""result":{{"called":{}}}"#, String::from_utf8_lossy(m.raw(Field::Name)?)),
        "resources/list" => r#""result":{"resources":[{"uri":"file:///a"}]}"#.into(),
        "resources/read" => format!(r#""result":{{"small":{}}}"#, String::from_utf8_lossy(m.raw(Field::Uri)?)),
        _ => r#""error":{"code":-32601,"message":"no"}"#.into(),
    })
}

fn dead(_: &Message) -> Option<String> {
    None
}

#[tokio::test(start_paused = true)]
async fn lists_are_merged_page_by_page_and_a_dead_backend_costs_only_its_entries() {
    let endpoint = endpoint(&[("paged", paged), ("dead", dead), ("small", small)]);
    let first = ask(&endpoint, "tools/list", "{}").await;
    assert_eq!(first["result"]["tools"][0]["name"], "paged__one");
    assert_eq!(first["result"]["tools"].as_array().unwrap().len(), 2);
    let cursor = first["result"]["nextCursor"].as_str().unwrap();
    let second = ask(&endpoint, "tools/list", &format!(r#"{{"cursor":"{cursor}"}}"#)).await;
    assert_eq!(second["result"]["tools"][0]["name"], "paged__two");
    assert!(second["result"].get("nextCursor").is_none());
    let forged = ask(&endpoint, "tools/list", r#"{"cursor":"p2"}"#).await;
    assert_eq!(forged["fault"], "invalid cursor: list again from the start");
    let other = ask(&endpoint, "prompts/list", &format!(r#"{{"cursor":"{cursor}"}}"#)).await;
    assert_eq!(other["fault"], "invalid cursor: list again from the start");
}

#[tokio::test(start_paused = true)]
async fn a_shortened_name_is_routed_without_a_list_before() {
    let long = "a/very long one that has to be shortened since no host would take its name";
    let exposed = names::expose("small", long);
    let endpoint = endpoint(&[("paged", paged), ("small", small)]);
    let answer = ask(&endpoint, "tools/call", &format!(r#"{{"name":"{exposed}"}}"#)).await;
    assert_eq!(answer["result"]["called"], long);
    let answer = ask(&endpoint, "tools/call", r#"{"name":"paged__one"}"#).await;
    assert_eq!(answer["result"]["called"], "one");
    let answer = ask(&endpoint, "tools/call", r#"{"name":"nobody__one"}"#).await;
    assert_eq!(answer["fault"], "Unknown tool");
}

#[tokio::test(start_paused = true)]
async fn a_resource_of_two_backends_stays_readable_at_both() {
    let endpoint = endpoint(&[("paged", paged), ("small", small)]);
    let list = ask(&endpoint, "resources/list", "{}").await;
    let uris: Vec<_> =
        list["result"]["resources"].as_array().unwrap().iter().map(|r| r["uri"].clone()).collect();
    assert_eq!(uris, ["file:///a", "x://p", "mcp+small+file:///a"]);
    let read = |uri: &str| format!(r#"{{"uri":"{uri}"}}"#);
    assert_eq!(ask(&endpoint, "resources/read", &read("file:///a")).await["result"]["paged"], "file:///a");
    let second = ask(&endpoint, "resources/read", &read("mcp+small+file:///a")).await;
    assert_eq!(second["result"]["small"], "file:///a");
}

#[tokio::test(start_paused = true)]
async fn a_resource_is_found_by_its_template_or_by_asking() {
    let endpoint = endpoint(&[("small", small), ("paged", paged)]);
    let read = |uri: &str| format!(r#"{{"uri":"{uri}"}}"#);
    assert_eq!(ask(&endpoint, "resources/read", &read("x://77")).await["result"]["paged"], "x://77");
    assert_eq!(ask(&endpoint, "resources/read", &read("zzz:1")).await["result"]["small"], "zzz:1");
}

#[tokio::test(start_paused = true)]
async fn methods_that_name_no_backend_are_not_found() {
    let endpoint = endpoint(&[("small", small), ("paged", paged)]);
    assert_eq!(ask(&endpoint, "a/method", "{}").await["fault"], "method not found: a/method");
    // Nobody has such a task.
    assert_eq!(ask(&endpoint, "tasks/get", r#"{"taskId":"7"}"#).await["fault"], "unknown task");
}

//! A test per rule of the cache.

use std::sync::Arc;

use drawbridge_wire::Id;
use serde_json::{Value, json};

use super::*;
use crate::client::Client;

fn client(name: &str, capabilities: &'static str) -> Arc<Client> {
    Arc::new(Client {
        principal: Principal::named(name),
        version: ProtocolVersion::V2026_07_28,
        capabilities: capabilities.into(),
        info: None,
        answers: Answers::ByRetry,
    })
}

fn call_of(client: &Arc<Client>, method: &str, params: &Value) -> Call {
    let request = Message::request(&Id::from_number(7), method, params.to_string().as_bytes());
    Call::new(request, client.clone())
}

fn call(method: &str, params: &Value) -> Call {
    call_of(&client("ann", "{}"), method, params)
}

fn list() -> Call {
    call("tools/list", &json!({}))
}

fn reply(result: &Value) -> Reply {
    let message = Message::result(&Id::from_number(7), result.to_string().as_bytes());
    Reply { message, shape: Shape::Marked }
}

fn good(scope: &str) -> Reply {
    reply(&json!({ "resultType": "complete", "tools": [], "ttlMs": 1000, "cacheScope": scope }))
}

fn ticket(cache: &Cache, call: &Call) -> Ticket {
    match cache.ask(call) {
        Asked::Missed(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

fn keep(cache: &Cache, call: &Call, reply: &Reply) {
    cache.keep(ticket(cache, call), reply);
}

/// The time left of a kept answer.
fn left(cache: &Cache, call: &Call) -> Option<u128> {
    match cache.ask(call) {
        Asked::Kept(Reply { shape: Shape::Aged(left), .. }) => Some(left.as_millis()),
        Asked::Kept(other) => panic!("{other:?}"),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_given_again_with_the_time_that_is_left_and_not_after_it() {
    let cache = Cache::default();
    keep(&cache, &list(), &good("private"));
    assert_eq!(left(&cache, &list()), Some(1000));
    tokio::time::advance(Duration::from_millis(400)).await;
    assert_eq!(left(&cache, &list()), Some(600));
    tokio::time::advance(Duration::from_millis(600)).await;
    assert_eq!(left(&cache, &list()), None);
    assert_eq!(cache.0.lock().bytes, 0);
}

#[tokio::test(start_paused = true)]
async fn the_text_is_kept_as_it_came() {
    let cache = Cache::default();
    let text = r#"{"jsonrpc":"2.0", "id":7,"result":{"ttlMs":9,"n":1.50,"é":"\u00e9" }}"#;
    let message = Message::parse(Bytes::from(text)).unwrap();
    keep(&cache, &list(), &Reply { message, shape: Shape::Marked });
    let Asked::Kept(reply) = cache.ask(&list()) else { panic!() };
    assert_eq!(reply.message.bytes(), text);
}

#[test]
fn what_says_no_time_is_not_kept() {
    for ttl in [json!(0), json!(-5), json!("1000"), json!(1.5), json!(null)] {
        let cache = Cache::default();
        keep(
            &cache,
            &list(),
            &reply(&json!({ "resultType": "complete", "ttlMs": ttl, "cacheScope": "public" })),
        );
        assert_eq!(left(&cache, &list()), None, "{ttl}");
    }
    let cache = Cache::default();
    keep(&cache, &list(), &reply(&json!({ "tools": [] })));
    assert_eq!(left(&cache, &list()), None);
    // Of a backend that doesn't mean anything by it.
    keep(&cache, &list(), &Reply { shape: Shape::Plain, ..good("public") });
    assert_eq!(left(&cache, &list()), None);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_says_no_time_is_kept_for_as_long_as_is_configured() {
    let minute = Duration::from_secs(60);
    let (ann, bob) = (client("ann", "{}"), client("bob", "{}"));
    let list = |who| call_of(who, "tools/list", &json!({}));
    let plain = |result: &Value| Reply { shape: Shape::Plain, ..reply(result) };
    let cache = Cache::default();
    keep(&cache, &list(&ann), &lasting(plain(&json!({ "tools": [], "cacheScope": "public" })), minute));
    tokio::time::advance(Duration::from_secs(20)).await;
    let Asked::Kept(kept) = cache.ask(&list(&ann)) else { panic!() };
    assert_eq!(kept.shape, Shape::Lasting(Duration::from_secs(40)));
    assert!(matches!(cache.ask(&list(&bob)), Asked::Missed(_)), "whatever it says, it is private");
    cache.heard(&Message::notification("notifications/tools/list_changed", b"{}"));
    assert!(matches!(cache.ask(&list(&ann)), Asked::Missed(_)));
    // The day is the most, and nothing is nothing.
    let day = lasting(plain(&json!({ "tools": [] })), MAX_AGE * 2).shape;
    assert_eq!(day, Shape::Lasting(MAX_AGE));
    assert_eq!(lasting(plain(&json!({ "tools": [] })), Duration::ZERO).shape, Shape::Plain);
}

#[test]
fn a_configured_time_is_only_for_lists_that_say_none_and_stateless_clients() {
    let minute = Duration::from_secs(60);
    let plain = |result: &Value| Reply { shape: Shape::Plain, ..reply(result) };
    assert_eq!(lasting(good("public"), minute).shape, Shape::Marked);
    assert_eq!(lasting(plain(&json!({ "tools": [], "ttlMs": 5 })), minute).shape, Shape::Plain);
    let error = Message::parse(Bytes::from(r#"{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"m"}}"#));
    let error = Reply { message: error.unwrap(), shape: Shape::Plain };
    assert_eq!(lasting(error, minute).shape, Shape::Plain);
    let lists =
        METHODS.map(|(method, _)| method).into_iter().filter(|method| may_last(&call(method, &json!({}))));
    assert_eq!(lists.count(), 4, "all but what a resource contains");
    assert!(!may_last(&call("tools/call", &json!({}))));
    let live = Arc::new(Client { answers: Answers::Live, ..(*client("ann", "{}")).clone() });
    assert!(!may_last(&call_of(&live, "tools/list", &json!({}))));
}

#[test]
fn errors_and_what_is_not_complete_are_not_kept() {
    let cache = Cache::default();
    for kind in ["input_required", "task"] {
        keep(&cache, &list(), &reply(&json!({ "resultType": kind, "ttlMs": 1000, "cacheScope": "public" })));
    }
    let error = r#"{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"m","data":{"ttlMs":1000}}}"#;
    let message = Message::parse(Bytes::from(error)).unwrap();
    keep(&cache, &list(), &Reply { message, shape: Shape::Marked });
    assert_eq!(left(&cache, &list()), None);
}

#[test]
fn only_five_methods_are_kept() {
    let cache = Cache::default();
    for method in ["tools/call", "prompts/get", "completion/complete", "server/discover", "tasks/get", "x"] {
        assert!(matches!(cache.ask(&call(method, &json!({}))), Asked::Nothing), "{method}");
    }
    for (method, _) in METHODS {
        keep(&cache, &call(method, &json!({})), &good("private"));
        assert!(left(&cache, &call(method, &json!({}))).is_some(), "{method}");
    }
}

#[test]
fn r084_results_of_retries_are_neither_kept_nor_given() {
    let cache = Cache::default();
    let first = call("resources/read", &json!({ "uri": "x:1" }));
    keep(&cache, &first, &good("public"));
    for retry in [json!({ "uri": "x:1", "requestState": "s" }), json!({ "uri": "x:1", "inputResponses": {} })]
    {
        assert!(matches!(cache.ask(&call("resources/read", &retry)), Asked::Nothing));
    }
}

#[test]
fn r096_private_answers_are_for_one_principal_and_public_ones_for_all() {
    let cache = Cache::default();
    let (ann, bob) = (client("ann", "{}"), client("bob", "{}"));
    let list = |who| call_of(who, "tools/list", &json!({}));
    let read = |who| call_of(who, "resources/read", &json!({ "uri": "x:1" }));
    keep(&cache, &list(&ann), &good("private"));
    keep(&cache, &read(&ann), &good("public"));
    assert!(left(&cache, &list(&ann)).is_some() && left(&cache, &list(&bob)).is_none());
    assert!(left(&cache, &read(&ann)).is_some() && left(&cache, &read(&bob)).is_some());
    // What doesn't say is private.
    let prompts = |who| call_of(who, "prompts/list", &json!({}));
    for scope in [json!(null), json!("Public"), json!(1)] {
        keep(&cache, &prompts(&ann), &reply(&json!({ "ttlMs": 1000, "cacheScope": scope })));
        assert_eq!(left(&cache, &prompts(&bob)), None, "{scope}");
        cache.heard(&Message::notification("notifications/prompts/list_changed", b"{}"));
    }
}

#[test]
fn r096_public_answers_are_not_for_clients_of_another_kind() {
    let cache = Cache::default();
    let ann = client("ann", "{}");
    keep(&cache, &call_of(&ann, "tools/list", &json!({})), &good("public"));
    let capable = client("ann", r#"{"sampling":{}}"#);
    let older = Arc::new(Client { version: ProtocolVersion::V2025_11_25, ..(*ann).clone() });
    let live = Arc::new(Client { answers: Answers::Live, ..(*ann).clone() });
    for other in [&capable, &older, &live] {
        assert_eq!(left(&cache, &call_of(other, "tools/list", &json!({}))), None, "{other:?}");
    }
}

#[test]
fn r097_the_key_has_the_method_and_all_parameters_but_metadata() {
    let cache = Cache::default();
    keep(&cache, &call("tools/list", &json!({ "_meta": { "progressToken": 1 } })), &good("private"));
    assert!(left(&cache, &call("tools/list", &json!({ "_meta": { "progressToken": 2 } }))).is_some());
    assert!(left(&cache, &list()).is_some());
    for other in [json!({ "cursor": "" }), json!({ "cursor": "2" }), json!({ "unknown": 1 })] {
        assert_eq!(left(&cache, &call("tools/list", &other)), None, "{other}");
    }
    assert_eq!(left(&cache, &call("prompts/list", &json!({}))), None);
    keep(&cache, &call("resources/read", &json!({ "uri": "x:1" })), &good("private"));
    assert_eq!(left(&cache, &call("resources/read", &json!({ "uri": "x:2" }))), None);
}

#[test]
fn r097_a_notification_drops_what_it_is_about_and_nothing_else() {
    let reads = ["x:1", "x:1/part", "x:2"].map(|uri| call("resources/read", &json!({ "uri": uri })));
    let lists = ["tools/list", "prompts/list", "resources/list", "resources/templates/list"]
        .map(|method| call(method, &json!({})));
    for (notification, params, dropped) in [
        ("tools/list_changed", "{}", &["tools/list"][..]),
        ("prompts/list_changed", "{}", &["prompts/list"]),
        ("resources/list_changed", "{}", &["resources/list", "resources/templates/list"]),
        ("resources/updated", r#"{"uri":"x:2"}"#, &["x:2"]),
        ("resources/updated", r#"{"uri":"x:1"}"#, &["x:1", "x:1/part"]),
        ("resources/updated", r#"{"uri":"x:1/part"}"#, &["x:1", "x:1/part"]),
        ("resources/updated", "{}", &["x:1", "x:1/part", "x:2"]),
        ("message", "{}", &[]),
    ] {
        let cache = Cache::default();
        for call in reads.iter().chain(&lists) {
            keep(&cache, call, &good("private"));
        }
        cache.heard(&Message::notification(&format!("notifications/{notification}"), params.as_bytes()));
        for call in reads.iter().chain(&lists) {
            let name = call.request.text(Field::Uri).unwrap_or_else(|| call.request.method());
            let gone = left(&cache, call).is_none();
            assert_eq!(gone, dropped.contains(&name.as_ref()), "{notification} {params} {name}");
        }
    }
}

#[test]
fn r097_an_answer_that_was_on_its_way_when_things_changed_is_not_kept() {
    let cache = Cache::default();
    let ticket = ticket(&cache, &list());
    cache.heard(&Message::notification("notifications/tools/list_changed", b"{}"));
    cache.keep(ticket, &good("public"));
    assert_eq!(left(&cache, &list()), None);
}

#[test]
fn the_cache_is_bounded_in_answers_and_in_bytes() {
    let cache = Cache::default();
    let page = |n: usize| call("tools/list", &json!({ "cursor": n.to_string() }));
    for n in 0..MAX_ENTRIES * 2 {
        keep(&cache, &page(n), &good("private"));
        assert!(left(&cache, &page(0)).is_some(), "what is in use stays");
        assert!(cache.0.lock().entries.len() <= MAX_ENTRIES);
    }
    let large = reply(&json!({ "ttlMs": 1000, "x": "x".repeat(MAX_ANSWER - 2 * OVERHEAD) }));
    for n in 0..MAX_ENTRIES {
        keep(&cache, &page(n + MAX_ENTRIES * 3), &large);
        let state = cache.0.lock();
        assert!(state.bytes <= MAX_BYTES);
        assert_eq!(state.bytes, state.entries.values().map(|entry| entry.bytes).sum::<usize>());
        drop(state);
        if n > 20 {
            break;
        }
    }
    let huge = reply(&json!({ "ttlMs": 1000, "x": "x".repeat(MAX_ANSWER) }));
    keep(&cache, &list(), &huge);
    assert_eq!(left(&cache, &list()), None);
}

#[tokio::test(start_paused = true)]
async fn a_time_beyond_all_measure_is_cut() {
    let cache = Cache::default();
    keep(&cache, &list(), &reply(&json!({ "ttlMs": u64::MAX, "cacheScope": "public" })));
    assert_eq!(left(&cache, &list()), Some(MAX_AGE.as_millis()));
    tokio::time::advance(MAX_AGE).await;
    assert_eq!(left(&cache, &list()), None);
}

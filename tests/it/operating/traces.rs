//! Traces, as a collector gets them.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use drawbridge_testkit::backend::{Backend, Reply, legacy, modern};
use drawbridge_testkit::client::{Modern, text};
use drawbridge_testkit::eventually;
use drawbridge_testkit::gateway::{Gateway, Setup, binary};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use prost::Message as _;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::backends::spawn;

const SOON: Duration = Duration::from_secs(20);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// A span as it came, in the words of the test.
#[derive(Debug, Clone)]
struct Span {
    trace: String,
    id: String,
    parent: String,
    name: String,
    /// 2: of a server, 3: of a client.
    kind: i32,
    /// 2: an error.
    status: i32,
    state: String,
    nanos: u64,
    attributes: HashMap<String, String>,
    service: String,
}

#[derive(Default)]
struct Got {
    spans: Vec<Span>,
    requests: Vec<(String, String)>,
}

/// A collector that speaks OTLP over HTTP and over gRPC.
struct Collector {
    url: String,
    got: Arc<Mutex<Got>>,
    _stop: DropGuard,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(pairs: Vec<opentelemetry_proto::tonic::common::v1::KeyValue>) -> HashMap<String, String> {
    let shown = |value| match value {
        Some(Any::StringValue(text)) => text,
        Some(Any::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    pairs.into_iter().map(|pair| (pair.key, shown(pair.value.and_then(|value| value.value)))).collect()
}

fn read(body: &[u8]) -> Vec<Span> {
    let mut spans = Vec::new();
    for resource in ExportTraceServiceRequest::decode(body).unwrap().resource_spans {
        let service = attributes(resource.resource.unwrap().attributes).remove("service.name").unwrap();
        for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            spans.push(Span {
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                name: span.name,
                kind: span.kind,
                status: span.status.map_or(0, |status| status.code),
                state: span.trace_state,
                nanos: span.end_time_unix_nano - span.start_time_unix_nano,
                attributes: attributes(span.attributes),
                service: service.clone(),
            });
        }
    }
    spans
}

impl Collector {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (got, stop) = (Arc::<Mutex<Got>>::default(), CancellationToken::new());
        let (keep, stopped) = (got.clone(), stop.clone());
        spawn(stop.clone().run_until_cancelled_owned(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let keep = keep.clone();
                let service = service_fn(move |request| take(keep.clone(), request));
                let serving = async move {
                    let _ = auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                };
                spawn(stopped.clone().run_until_cancelled_owned(serving));
            }
        }));
        Self { url, got, _stop: stop.drop_guard() }
    }

    fn spans(&self) -> Vec<Span> {
        self.got.lock().unwrap().spans.clone()
    }

    /// The spans, once there are this many.
    async fn all(&self, count: usize) -> Vec<Span> {
        eventually(SOON, async || self.spans().len() >= count).await;
        let spans = self.spans();
        assert_eq!(spans.len(), count, "{spans:#?}");
        spans
    }
}

async fn take(
    got: Arc<Mutex<Got>>,
    request: Request<Incoming>,
) -> Result<Response<http_body_util::Either<Full<Bytes>, Grpc>>, Infallible> {
    let path = request.uri().path().to_owned();
    let header =
        |name: &str| request.headers().get(name).map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default();
    let (media, key) = (header("content-type"), header("x-key"));
    let mut body = request.into_body().collect().await.unwrap().to_bytes();
    let is_grpc = media == "application/grpc";
    match &*path {
        "/v1/traces" => assert_eq!(media, "application/x-protobuf"),
        "/opentelemetry.proto.collector.trace.v1.TraceService/Export" => {
            assert!(is_grpc);
            // Flags and length of the one message.
            body.advance(5);
        }
        path => panic!("{path}"),
    }
    let mut got = got.lock().unwrap();
    got.spans.extend(read(&body));
    got.requests.push((path, key));
    let mut response = Response::new(match is_grpc {
        true => http_body_util::Either::Right(Grpc(0)),
        false => http_body_util::Either::Left(Full::default()),
    });
    let media = if is_grpc { "application/grpc" } else { "application/x-protobuf" };
    response.headers_mut().insert("content-type", media.parse().unwrap());
    Ok(response)
}

/// An empty message, and the status that all is well.
struct Grpc(u8);

impl hyper::body::Body for Grpc {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Infallible>>> {
        use hyper::body::Frame;
        self.0 += 1;
        std::task::Poll::Ready(match self.0 {
            1 => Some(Ok(Frame::data(Bytes::from_static(&[0; 5])))),
            2 => {
                let status = [("grpc-status".parse().unwrap(), "0".parse().unwrap())];
                Some(Ok(Frame::trailers(status.into_iter().collect())))
            }
            _ => None,
        })
    }
}

fn traced(collector: &Collector, more: &str) -> Setup {
    let setup = Gateway::setup().config("log: { format: json }");
    setup.config(&format!("tracing: {{ otlp: {{ endpoint: \"{}\"{more} }} }}", collector.url))
}

async fn echoing() -> Backend {
    Backend::start(|r| async move {
        match r.name() {
            "fails" => Reply::result(&r, json!({ "content": [], "isError": true, "resultType": "complete" })),
            "errs" => Reply::error(&r, 200, -32602, "no"),
            _ => modern(&r),
        }
    })
    .await
}

/// The context that a backend got with its latest call: the header's, and that in `_meta`.
fn context_of(backend: &Backend) -> (String, Value) {
    let request = backend.requests_of("tools/call").pop().unwrap();
    (request.header("traceparent").to_owned(), request.body["params"]["_meta"]["traceparent"].clone())
}

#[tokio::test]
async fn a_call_is_a_span_and_what_its_backend_gets_another() {
    let (collector, backend) = (Collector::start().await, echoing().await);
    let setup =
        traced(&collector, ", headers: { x-key: { env: COLLECTOR_KEY } }").env("COLLECTOR_KEY", "hush");
    let setup = setup.env("OTEL_SERVICE_NAME", "gate");
    let gateway = setup.url("it", &backend.url(), "modern").start().await;
    let at = Modern::new(&gateway.client(), "/mcp/it", json!({}));
    let reply = at.request("tools/call", json!({ "name": "echo", "arguments": { "text": "secret" } })).await;
    let id = reply.header("x-request-id").unwrap().to_owned();
    assert!(reply.json().await["result"].is_object());
    let spans = collector.all(2).await;
    let [client, server] = &spans[..] else { panic!() };
    // The log's request is the trace.
    assert_eq!((&server.trace, &client.trace), (&id, &id));
    assert_eq!((server.parent.as_str(), &client.parent), ("", &server.id));
    assert_eq!((server.kind, client.kind), (2, 3));
    assert_eq!((server.name.as_str(), client.name.as_str()), ("tools/call echo", "tools/call echo"));
    assert_eq!((server.status, client.status, server.service.as_str()), (0, 0, "gate"));
    assert!(server.nanos >= client.nanos && client.nanos > 0, "{spans:?}");
    for (key, value) in [
        ("mcp.method.name", "tools/call"),
        ("gen_ai.tool.name", "echo"),
        ("gen_ai.operation.name", "execute_tool"),
        ("mcp.protocol.version", "2026-07-28"),
        ("drawbridge.endpoint.name", "it"),
        ("http.response.status_code", "200"),
        ("network.protocol.name", "http"),
    ] {
        assert_eq!(server.attributes.get(key).map(String::as_str), Some(value), "{key}: {server:?}");
    }
    assert!(server.attributes.contains_key("jsonrpc.request.id"), "{server:?}");
    assert_eq!(client.attributes["drawbridge.backend.name"], "it");
    let parent = format!("00-{id}-{}-01", client.id);
    assert_eq!(context_of(&backend), (parent.clone(), json!(parent)));
    assert!(!format!("{spans:?}").contains("secret"));
    assert_eq!(collector.got.lock().unwrap().requests[0], ("/v1/traces".to_owned(), "hush".to_owned()));

    at.call("tools/call", json!({ "name": "fails" })).await;
    at.call("tools/call", json!({ "name": "errs" })).await;
    at.call("tools/list", json!({})).await;
    let spans = collector.all(8).await;
    let find = |name: &str, kind| spans.iter().find(|span| span.name == name && span.kind == kind).unwrap();
    for kind in [2, 3] {
        let (fails, errs) = (find("tools/call fails", kind), find("tools/call errs", kind));
        assert_eq!((fails.status, fails.attributes["error.type"].as_str()), (2, "tool_error"));
        assert_eq!((errs.status, errs.attributes["error.type"].as_str()), (2, "-32602"));
        assert_eq!(errs.attributes["rpc.response.status_code"], "-32602");
        assert_eq!(find("tools/list", kind).status, 0);
    }
}

#[tokio::test]
async fn the_clients_trace_goes_on_and_what_its_message_says_wins() {
    let (collector, backend) = (Collector::start().await, echoing().await);
    // Nothing that begins here is recorded.
    let gateway = traced(&collector, ", sample: 0").url("it", &backend.url(), "modern").start().await;
    let at = Modern::new(&gateway.client(), "/mcp/it", json!({}));
    let call = || at.body("tools/call", json!({ "name": "echo", "arguments": { "text": "x" } }));
    at.post_with(&call(), &[]).await.bytes().await;
    assert_eq!(context_of(&backend), (String::new(), Value::Null), "it was neither recorded nor passed on");

    let header = format!("00-{TRACE}-{SPAN}-01");
    at.post_with(&call(), &[("traceparent", &header), ("tracestate", "a=b,c=d")]).await.bytes().await;
    let spans = collector.all(2).await;
    let [client, server] = &spans[..] else { panic!() };
    assert_eq!((server.trace.as_str(), server.parent.as_str()), (TRACE, SPAN));
    assert_eq!((server.state.as_str(), client.state.as_str()), ("a=b,c=d", "a=b,c=d"));
    let parent = format!("00-{TRACE}-{}-01", client.id);
    assert_eq!(context_of(&backend), (parent.clone(), json!(parent)));
    let last = backend.requests_of("tools/call").pop().unwrap();
    assert_eq!(
        (last.header("tracestate"), &last.body["params"]["_meta"]["tracestate"]),
        ("a=b,c=d", &json!("a=b,c=d"))
    );

    let own = "00-11111111111111111111111111111111-2222222222222222-01";
    let mut body = call();
    body["params"]["_meta"]["traceparent"] = json!(own);
    at.post_with(&body, &[("traceparent", &header), ("tracestate", "a=b")]).await.bytes().await;
    let spans = collector.all(4).await;
    let server = &spans[3];
    assert_eq!((&server.trace[..4], &server.parent[..4], server.state.as_str()), ("1111", "2222", ""));
    let last = backend.requests_of("tools/call").pop().unwrap();
    assert_eq!((last.header("tracestate"), &last.body["params"]["_meta"]["tracestate"]), ("", &Value::Null));

    // A client that doesn't record is no reason to record, and its context is passed on as it is.
    let unrecorded = format!("00-{TRACE}-{SPAN}-00");
    at.post_with(&call(), &[("traceparent", &unrecorded)]).await.bytes().await;
    assert_eq!(context_of(&backend), (unrecorded.clone(), json!(unrecorded)));
    at.call("tools/call", json!({ "name": "echo", "arguments": { "text": "x" } })).await;
    assert!(gateway.stop().await.success());
    assert_eq!(collector.spans().len(), 4);
}

#[tokio::test]
async fn sessions_and_processes_are_part_of_the_trace() {
    let collector = Collector::start().await;
    let backend = Backend::start(|r| async move { legacy(&r, "s") }).await;
    let program = format!("{{ command: \"{}\", args: [demo-server, --stdio] }}", binary().display());
    let setup = traced(&collector, "").url("one", &backend.url(), "legacy").backend("two", &program);
    let gateway = setup.start().await;
    let session = gateway.session().await;
    let id = session.id.clone();
    let answer = session.tool("one__echo", json!({ "text": "x" })).await;
    assert_eq!(text(&answer), "x");
    let spans = collector.all(3).await;
    let find = |name: &str, kind| spans.iter().find(|span| span.name == name && span.kind == kind).unwrap();
    assert_eq!(find("initialize", 2).attributes["drawbridge.endpoint.name"], "/mcp");
    let (server, client) = (find("tools/call one__echo", 2), find("tools/call echo", 3));
    assert_eq!((&client.parent, client.attributes["gen_ai.tool.name"].as_str()), (&server.id, "echo"));
    assert_eq!(server.attributes["mcp.protocol.version"], "2025-11-25");
    let named = &server.attributes["mcp.session.id"];
    assert!(named.len() == 32 && !id.contains(named.as_str()), "{named}");
    let parent = format!("00-{}-{}-01", server.trace, client.id);
    assert_eq!(context_of(&backend), (parent.clone(), json!(parent)));

    session.tool("two__echo", json!({ "message": "x" })).await;
    let spans = collector.all(5).await;
    let client =
        spans.iter().find(|span| span.kind == 3 && span.attributes["drawbridge.backend.name"] == "two");
    let server = spans.iter().find(|span| span.name == "tools/call two__echo").unwrap();
    assert_eq!(client.unwrap().parent, server.id);
    // The next call of the same session is another trace, in the same session.
    session.tool("one__echo", json!({ "text": "y" })).await;
    let spans = collector.all(7).await;
    let last = &spans[6];
    assert_eq!(&last.attributes["mcp.session.id"], named);
    assert_ne!(last.trace, server.trace);
    assert!(!format!("{spans:?}").contains(&id), "a session id is a secret");
}

#[tokio::test]
async fn a_list_of_several_backends_is_a_span_for_each() {
    let (collector, one, two) = (Collector::start().await, echoing().await, echoing().await);
    let setup = traced(&collector, ", protocol: grpc, headers: { X-Key: hush }");
    let gateway = setup.url("one", &one.url(), "modern").url("two", &two.url(), "modern").start().await;
    gateway.modern().call("tools/list", json!({})).await;
    let spans = collector.all(3).await;
    let server = spans.iter().find(|span| span.kind == 2).unwrap();
    let clients: Vec<&Span> = spans.iter().filter(|span| span.kind == 3).collect();
    assert_eq!(clients.len(), 2);
    assert!(clients.iter().all(|client| client.parent == server.id && client.trace == server.trace));
    let (path, key) = collector.got.lock().unwrap().requests[0].clone();
    assert_eq!((path.rsplit('/').next().unwrap(), key.as_str()), ("Export", "hush"));
}

#[tokio::test]
async fn what_is_recorded_last_is_sent_before_the_end() {
    let (collector, backend) = (Collector::start().await, echoing().await);
    let gateway = Gateway::setup().url("it", &backend.url(), "modern");
    // The variable of OpenTelemetry is enough.
    let gateway = gateway.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url).start().await;
    gateway.modern().tool("echo", json!({ "text": "x" })).await;
    assert!(gateway.stop().await.success());
    assert_eq!(collector.spans().len(), 2);
    assert_eq!(collector.spans()[0].service, "drawbridge");
}

#[tokio::test]
async fn a_collector_that_is_away_is_no_harm_and_found_again() {
    let (backend, place) = (echoing().await, Collector::start().await);
    let setup = traced(&place, "").url("it", &backend.url(), "modern");
    let address = place.url.strip_prefix("http://").unwrap().to_owned();
    drop(place);
    let gateway = setup.start().await;
    let said = |words: &str| gateway.program.stderr().contains(words);
    for number in 0..10 {
        let answer = gateway.modern().tool("echo", json!({ "text": format!("{number}") })).await;
        assert_eq!(text(&answer), format!("{number}"));
    }
    eventually(SOON, async || said("traces can't be sent")).await;
    let listener = tokio::net::TcpListener::bind(&address).await.unwrap();
    let got = Arc::<Mutex<Got>>::default();
    let keep = got.clone();
    let serving = spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let keep = keep.clone();
            let service = service_fn(move |request| take(keep.clone(), request));
            spawn(async move {
                let http = auto::Builder::new(TokioExecutor::new());
                let _ = http.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    eventually(SOON, async || {
        gateway.modern().tool("echo", json!({ "text": "again" })).await;
        !got.lock().unwrap().spans.is_empty()
    })
    .await;
    eventually(SOON, async || said("traces are sent again")).await;
    serving.abort();
}

#[tokio::test]
async fn without_a_collector_messages_are_as_they_were() {
    let backend = Backend::start(|r| async move { modern(&r) }).await;
    let gateway = Gateway::setup().url("it", &backend.url(), "modern").start().await;
    let at = Modern::new(&gateway.client(), "/mcp/it", json!({}));
    let mut body = at.body("tools/call", json!({ "name": "echo", "arguments": {} }));
    body["params"]["_meta"]["traceparent"] = json!(format!("00-{TRACE}-{SPAN}-01"));
    at.post_with(&body, &[("traceparent", &format!("00-{TRACE}-{SPAN}-01"))]).await.bytes().await;
    let got = backend.requests_of("tools/call").pop().unwrap();
    body["id"] = got.id();
    assert_eq!(got.body, body);
    assert_eq!(got.header("traceparent"), "");
}

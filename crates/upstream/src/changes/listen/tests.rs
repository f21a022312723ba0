//! The streams of one hub, with a backend in the test's hand and a clock that jumps.

use super::*;
use drawbridge_core::Answers;
use drawbridge_core::client::Principal;
use drawbridge_wire::ProtocolVersion;
use futures_util::stream;
use tokio::sync::mpsc;

/// A listen that a backend got, and the way to its stream.
struct Got {
    wanted: Filter,
    events: mpsc::Sender<Event>,
}

impl Got {
    /// Acknowledges it.
    async fn honours(self, filter: &Filter) -> mpsc::Sender<Event> {
        self.events.send(modern::acknowledged(&filter.write())).await.unwrap();
        self.events
    }
}

struct Backend {
    hubs: Hubs,
    client: Arc<Client>,
    listens: mpsc::Receiver<Got>,
}

fn backend() -> Backend {
    let (got, listens) = mpsc::channel(64);
    let caller: Caller = Arc::new(move |call: Call| {
        let (events, stream) = mpsc::channel(64);
        let wanted = Filter::read_whole(call.request.raw(Field::Notifications).unwrap());
        got.try_send(Got { wanted, events }).unwrap();
        Box::pin(stream::unfold(stream, |mut stream| async move { Some((stream.recv().await?, stream)) }))
    });
    let client = Arc::new(Client {
        principal: Principal::anonymous(),
        version: ProtocolVersion::V2025_11_25,
        capabilities: "{}".into(),
        info: None,
        answers: Answers::Live,
    });
    Backend { hubs: Hubs::new(&BackendName::parse("b").unwrap(), caller, Tasks::default()), client, listens }
}

impl Backend {
    fn subscription(&self, inbox: &Arc<Inbox>) -> Subscription {
        let to: Weak<dyn Unsolicited> = Arc::downgrade(&(inbox.clone() as Arc<dyn Unsolicited>));
        self.hubs.subscription(&self.client, to)
    }
}

fn lists() -> Filter {
    Filter::all_lists()
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_never_acknowledges_is_asked_again_and_subscriptions_are_refused_in_time() {
    let mut backend = backend();
    let inbox = Arc::default();
    let subscription = backend.subscription(&inbox);
    assert_eq!(subscription.subscribe("a://1").await, Ok(false));
    assert!(subscription.filter.lock().uris.is_empty());
    subscription.change(|filter| filter.add(&lists()));
    let mut kept = Vec::new();
    for _ in 0..4 {
        kept.push(backend.listens.recv().await.unwrap());
    }
    assert!(kept[0].events.is_closed(), "those that are given up are let go");
    let last = backend.listens.recv().await.unwrap();
    assert_eq!(last.wanted, lists());
    last.honours(&lists()).await;
}

#[tokio::test(start_paused = true)]
async fn a_subscription_does_not_wait_for_the_pause_after_a_listen_that_ended() {
    let mut backend = backend();
    let inbox = Arc::default();
    let subscription = backend.subscription(&inbox);
    subscription.change(|filter| filter.add(&lists()));
    // Each one ends at once, so the pauses grow.
    for _ in 0..8 {
        drop(backend.listens.recv().await.unwrap().honours(&lists()).await);
    }
    let begun = Instant::now();
    let mut open = Vec::new();
    let honouring = async {
        while let Some(got) = backend.listens.recv().await {
            let all = got.wanted.clone();
            open.push(got.honours(&all).await);
        }
    };
    let subscribed = tokio::select! {
        subscribed = subscription.subscribe("a://1") => subscribed,
        () = honouring => panic!("nobody asks any more"),
    };
    assert_eq!(subscribed, Ok(true));
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    drop(subscription);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(open.iter().all(mpsc::Sender::is_closed), "nobody listens any more");
}

#[tokio::test(start_paused = true)]
async fn a_listen_that_fails_does_not_silence_the_one_that_is_open() {
    let mut backend = backend();
    let inbox = Arc::<Inbox>::default();
    let first = backend.subscription(&inbox);
    first.change(|filter| filter.add(&lists()));
    let open = backend.listens.recv().await.unwrap().honours(&lists()).await;
    let others = Arc::default();
    let second = backend.subscription(&others);
    second.change(|filter| {
        filter.uris.insert("a://1".to_owned());
    });
    let refused = backend.listens.recv().await.unwrap();
    refused.events.send(Event::Fail(Fault::method_not_found("x"))).await.unwrap();
    open.send(Event::Notify(Message::notification(method::TOOLS_LIST_CHANGED, b"{}"))).await.unwrap();
    let told =
        drawbridge_core::call::generate(
            |emit| async move { inbox.beside(&emit, std::future::pending()).await },
        );
    let told = told.into_future();
    assert!(tokio::time::timeout(Duration::from_secs(1), told).await.is_ok());
    assert!(backend.listens.recv().now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_while_it_subscribes_leaves_nothing() {
    let mut backend = backend();
    let inbox = Arc::default();
    let subscription = backend.subscription(&inbox);
    let gone = tokio::time::timeout(Duration::from_secs(1), subscription.subscribe("a://1")).await;
    assert!(gone.is_err() && subscription.filter.lock().uris.is_empty());
    let got = backend.listens.recv().await.unwrap();
    tokio::time::sleep(ACKNOWLEDGE_TIME).await;
    assert!(got.events.is_closed());
    assert!(backend.listens.recv().now_or_never().is_none());
}

fn stateless(number: u8) -> Arc<Client> {
    Arc::new(Client {
        principal: Principal::named(&number.to_string()),
        version: ProtocolVersion::V2026_07_28,
        capabilities: "{}".into(),
        info: None,
        answers: Answers::ByRetry,
    })
}

fn uris(uris: &[&str]) -> Filter {
    Filter { uris: uris.iter().map(|uri| (*uri).to_owned()).collect(), ..Filter::default() }
}

fn updated(uri: &str) -> Event {
    let params = json::object([("uri", json::encode_string(uri).as_bytes())]);
    Event::Notify(Message::notification(method::RESOURCES_UPDATED, &params))
}

/// What a listener gets, in short.
fn short(event: &Event) -> String {
    match event {
        Event::Notify(message) if message.method() == method::SUBSCRIPTIONS_ACKNOWLEDGED => "ack".to_owned(),
        Event::Notify(message) => message.text(Field::Uri).unwrap_or(message.method()).into_owned(),
        Event::Done(reply) => reply.message.error_code().to_string(),
        Event::Fail(fault) => fault.code().to_owned(),
        other => format!("{other:?}"),
    }
}

/// A listen of a stateless client that runs, and what it gets.
fn listen(hubs: &Arc<Hubs>, client: &Arc<Client>, wanted: Filter) -> mpsc::UnboundedReceiver<String> {
    let (hubs, client) = (hubs.clone(), client.clone());
    let (told, hears) = mpsc::unbounded_channel();
    let mut events =
        drawbridge_core::call::generate(|emit| async move { hubs.listen(&emit, &client, wanted).await });
    let running = async move {
        while let Some(event) = events.next().await {
            if told.send(short(&event)).is_err() {
                return;
            }
        }
    };
    Tasks::default().spawn("listen", running);
    hears
}

/// What was got within a while.
async fn within(hears: &mut mpsc::UnboundedReceiver<String>, time: Duration) -> Vec<String> {
    tokio::time::sleep(time).await;
    std::iter::from_fn(|| hears.try_recv().ok()).collect()
}

const SOON: Duration = Duration::from_millis(100);

#[tokio::test(start_paused = true)]
async fn a_change_that_comes_while_others_begin_to_listen_is_told_once_whichever_stream_it_comes_on() {
    let Backend { hubs, mut listens, .. } = backend();
    let (hubs, client) = (Arc::new(hubs), stateless(1));
    let mut first = listen(&hubs, &client, uris(&["a://1"]));
    let old = listens.recv().await.unwrap().honours(&uris(&["a://1"])).await;
    assert_eq!(within(&mut first, SOON).await, ["ack"]);
    let mut second = listen(&hubs, &client, uris(&["a://2"]));
    let slow = listens.recv().await.unwrap();
    assert_eq!(slow.wanted, uris(&["a://2"]), "what there is already is not asked for again");
    for _ in 0..3 {
        old.send(updated("a://1")).await.unwrap();
    }
    assert_eq!(within(&mut first, SOON).await, ["a://1"; 3], "it waits for nobody");
    let new = slow.honours(&uris(&["a://2"])).await;
    assert_eq!(within(&mut second, SOON).await, ["ack"]);
    // One takes the place of both; what the two say of one change is told once.
    let merged = listens.recv().await.unwrap();
    assert_eq!(merged.wanted, uris(&["a://1", "a://2"]));
    old.send(updated("a://1")).await.unwrap();
    let merged = merged.honours(&uris(&["a://1", "a://2"])).await;
    assert_eq!(within(&mut first, SOON).await, ["a://1"]);
    for (one, other) in [(&old, &merged), (&merged, &old)] {
        one.send(updated("a://1")).await.unwrap();
        tokio::time::sleep(SOON).await;
        other.send(updated("a://1")).await.unwrap();
    }
    let told = within(&mut first, SOON).await;
    assert_eq!(told, ["a://1"; 2]);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(old.is_closed() && new.is_closed() && !merged.is_closed());
    merged.send(updated("a://1")).await.unwrap();
    merged.send(updated("a://2")).await.unwrap();
    assert_eq!(within(&mut first, SOON).await, ["a://1"]);
    assert_eq!(within(&mut second, SOON).await, ["a://2"]);
}

#[tokio::test(start_paused = true)]
async fn who_wants_what_is_refused_is_refused_alone_at_first_and_after_the_stream_was_lost() {
    let Backend { hubs, mut listens, .. } = backend();
    let (hubs, client) = (Arc::new(hubs), stateless(1));
    let refusal = || {
        let error = drawbridge_wire::RpcError::new(code::INVALID_PARAMS, "no");
        let message = error.to_message(Some(&Id::from_number(1)));
        Event::Done(Reply { message, shape: drawbridge_core::call::Shape::Marked })
    };
    // Both at once, and the backend takes neither together nor the second.
    let mut good = listen(&hubs, &client, uris(&["a://1"]));
    let mut bad = listen(&hubs, &client, uris(&["x://"]));
    tokio::time::sleep(SOON).await;
    let mut kept = Vec::new();
    while let Ok(got) = listens.try_recv() {
        match got.wanted.uris.contains("x://") {
            true => got.events.send(refusal()).await.unwrap(),
            false => kept.push(got.honours(&uris(&["a://1"])).await),
        }
        tokio::time::sleep(SOON).await;
    }
    assert_eq!(within(&mut good, SOON).await, ["ack"]);
    assert_eq!(within(&mut bad, SOON).await, ["-32602"]);
    // One that was fine at first and is refused after the stream was lost.
    let mut later = listen(&hubs, &client, uris(&["x://"]));
    let got = listens.recv().await.unwrap();
    kept.push(got.honours(&uris(&["x://"])).await);
    assert_eq!(within(&mut later, SOON).await, ["ack"]);
    kept.clear();
    let mut again = Vec::new();
    let until = Instant::now() + Duration::from_secs(20);
    while let Ok(Some(got)) = tokio::time::timeout_at(until, listens.recv()).await {
        match got.wanted.uris.contains("x://") {
            true => drop(got.events.send(refusal()).await),
            false => again.push(got.honours(&uris(&["a://1"])).await),
        }
    }
    assert_eq!(within(&mut later, SOON).await, ["-32602"], "and hears of it");
    assert_eq!(within(&mut good, SOON).await, ["a://1"], "it may have changed meanwhile");
    let open: Vec<_> = again.iter().filter(|stream| !stream.is_closed()).collect();
    assert_eq!(open.len(), 1);
    open[0].send(updated("a://1")).await.unwrap();
    assert_eq!(within(&mut good, SOON).await, ["a://1"]);
}

#[tokio::test(start_paused = true)]
async fn a_listen_that_is_never_acknowledged_holds_up_nobody_and_says_whose_fault_it_is() {
    let Backend { hubs, mut listens, .. } = backend();
    let (hubs, client) = (Arc::new(hubs), stateless(1));
    let mut stuck = listen(&hubs, &client, uris(&["x://"]));
    let _kept = listens.recv().await.unwrap();
    let mut good = listen(&hubs, &client, uris(&["a://1"]));
    let _open = listens.recv().await.unwrap().honours(&uris(&["a://1"])).await;
    assert_eq!(within(&mut good, SOON).await, ["ack"]);
    assert_eq!(within(&mut stuck, ACKNOWLEDGE_TIME + SOON).await, ["backend_timeout"]);
}

#[tokio::test(start_paused = true)]
async fn clients_that_listen_to_more_than_fits_one_stream_are_all_told() {
    let Backend { hubs, mut listens, .. } = backend();
    let (hubs, client) = (Arc::new(hubs), stateless(1));
    let many = |from: usize| Filter {
        uris: (from..from + MAX_URIS).map(|number| format!("a://{number:05}")).collect(),
        ..Filter::default()
    };
    let mut hear = Vec::new();
    let mut open = Vec::new();
    for number in 0..6 {
        let wanted = many(number * MAX_URIS);
        hear.push(listen(&hubs, &client, wanted.clone()));
        tokio::time::sleep(SOON).await;
        while let Ok(got) = listens.try_recv() {
            let wanted = Filter::read_whole(&got.wanted.write());
            open.push((got.honours(&wanted).await, wanted));
        }
    }
    let until = Instant::now() + Duration::from_secs(30);
    while let Ok(Some(got)) = tokio::time::timeout_at(until, listens.recv()).await {
        let wanted = got.wanted.clone();
        assert!(wanted.len() <= MAX_MERGED, "{}", wanted.len());
        open.push((got.honours(&wanted).await, wanted));
    }
    for (number, hears) in hear.iter_mut().enumerate() {
        assert_eq!(within(hears, SOON).await, ["ack"], "{number}");
        let uri = format!("a://{:05}", number * MAX_URIS + 7);
        for (stream, wanted) in &open {
            if wanted.uris.contains(&uri) && !stream.is_closed() {
                stream.send(updated(&uri)).await.unwrap();
            }
        }
        assert_eq!(within(hears, SOON).await, [uri.as_str()]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_listen_for_what_the_backend_tells_of_no_more_ends_in_good_order() {
    let Backend { hubs, mut listens, .. } = backend();
    let (hubs, client) = (Arc::new(hubs), stateless(1));
    let mut all = listen(&hubs, &client, uris(&["a://1", "a://2"]));
    let mut some = listen(&hubs, &client, uris(&["a://1"]));
    let first = listens.recv().await.unwrap().honours(&uris(&["a://1", "a://2"])).await;
    assert_eq!(within(&mut all, SOON).await, ["ack"]);
    assert_eq!(within(&mut some, SOON).await, ["ack"]);
    drop(first);
    let _second = listens.recv().await.unwrap().honours(&uris(&["a://1"])).await;
    // Both have missed what may have changed meanwhile.
    assert_eq!(within(&mut some, SOON).await, ["a://1"]);
    assert_eq!(within(&mut all, SOON).await, ["a://1", "a://2", "0"]);
}

#[tokio::test(start_paused = true)]
async fn a_session_hears_again_after_its_backend_was_away_and_something_else_answered_for_it() {
    for was_honoured in [true, false] {
        let mut backend = backend();
        let inbox = Arc::default();
        let subscription = backend.subscription(&inbox);
        subscription.change(|filter| filter.add(&lists()));
        if was_honoured {
            drop(backend.listens.recv().await.unwrap().honours(&lists()).await);
        }
        for _ in 0..3 {
            let got = backend.listens.recv().await.unwrap();
            got.events.send(not_stateless()).await.unwrap();
        }
        let open = backend.listens.recv().await.unwrap().honours(&lists()).await;
        tokio::time::sleep(SOON).await;
        assert!(subscription.heard(None).await && !open.is_closed());
    }
}

//! Listeners: one accepts, one runtime per core serves.

use std::io::Write as _;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use axum::body::Body;
use drawbridge_core::metrics::{Gauge, Held, Metrics};
use drawbridge_core::{Tasks, worker};
use drawbridge_front::Front;
use drawbridge_front::gate::PeerAddress;
use futures_util::FutureExt as _;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::wiring::Work;

/// Connections that were accepted and not yet taken by their runtime.
const MAX_ACCEPTED: usize = 1024;
/// A client that takes longer to send its headers is let go.
const HEADER_TIME: Duration = Duration::from_secs(30);
/// How a client of HTTP/2 begins.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How often a connection is looked at that has begun as HTTP/2 would and not gone on.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Connections that are not accepted are reported this often at most.
const REPORT_EVERY: Duration = Duration::from_secs(1);
const BACKLOG: i32 = 4096;

/// Binds a listener that does not block.
///
/// # Errors
///
/// If the address is taken or not this machine's.
pub fn bind(address: SocketAddr, key: &str) -> anyhow::Result<std::net::TcpListener> {
    let bound = || -> std::io::Result<std::net::TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    };
    bound().with_context(|| {
        format!("{address} can't be listened on; is another program there? ({key} names the address)")
    })
}

/// What a client is told whose connection is one too many.
const TOO_MANY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// How many connections of clients there may be, and how many there are.
pub struct Admission {
    /// Has the number.
    pub front: Front,
    /// Counts them.
    pub metrics: Arc<Metrics>,
}

impl Admission {
    /// Lets one more in, if there is room.
    fn admit(&self) -> Option<Held> {
        let open = &self.metrics.connections.open;
        let is_full = usize::try_from(open.get()).is_ok_and(|open| open >= self.front.max_connections());
        (!is_full).then(|| Gauge::hold(open))
    }

    /// Tells a client that its connection is one too many. Nobody waits for it to be read.
    fn refuse(&self, mut stream: &std::net::TcpStream) {
        self.metrics.connections.refused.inc();
        let _ = stream.write(TOO_MANY);
        let _ = stream.shutdown(Shutdown::Write);
    }
}

/// A connection that was let in.
struct Accepted {
    stream: std::net::TcpStream,
    /// Counted until it is closed.
    place: Held,
}

/// The runtimes that serve connections.
pub struct Workers {
    queues: Vec<mpsc::Sender<Accepted>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Workers {
    /// Starts `count` runtimes that serve `front`, until all of `work` has ended.
    ///
    /// # Errors
    ///
    /// If a thread or runtime can't be made.
    pub fn start(count: usize, front: &Front, work: &Work) -> anyhow::Result<Self> {
        let mut workers = Self { queues: Vec::new(), threads: Vec::new() };
        for index in 0..count {
            let (queue, accepted) = mpsc::channel(MAX_ACCEPTED);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (front, work) = (front.clone(), work.clone());
            let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
                worker::enter(index);
                runtime.block_on(serve(accepted, front, work));
                // What is left was told to end; nothing of it may outlive the process.
                runtime.shutdown_timeout(Duration::from_secs(1));
            })?;
            workers.queues.push(queue);
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// Accepts connections until the gateway drains, and gives them to the runtimes in turn.
    pub async fn accept(&self, listener: tokio::net::TcpListener, admission: &Admission, tasks: &Tasks) {
        let mut turn = 0;
        let (mut reports, mut refusals) = (Reports::default(), Reports::default());
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = tasks.draining() => return,
            };
            let stream = match accepted.and_then(|(stream, _)| stream.into_std()) {
                Ok(stream) => stream,
                Err(e) => {
                    // Out of descriptors, most likely: others must be able to finish.
                    if let Some(suppressed) = reports.next(Instant::now()) {
                        tracing::warn!(suppressed, "a connection was not accepted: {e}");
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let Some(place) = admission.admit() else {
                admission.refuse(&stream);
                if let Some(suppressed) = refusals.next(Instant::now()) {
                    tracing::warn!(
                        suppressed,
                        limit = admission.front.max_connections(),
                        "a connection was one too many; see limits.max_connections and the limit on open files"
                    );
                }
                continue;
            };
            turn = (turn + 1) % self.queues.len();
            if self.queues[turn].send(Accepted { stream, place }).await.is_err() {
                return;
            }
        }
    }

    /// Waits for the threads, which end when their work is done.
    pub fn join(self) {
        drop(self.queues);
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a worker panicked");
            }
        }
    }
}

/// Something that is reported now and then, however often it happens.
#[derive(Default)]
struct Reports {
    last: Option<Instant>,
    suppressed: u64,
}

impl Reports {
    /// If this one is to be reported, how many were not since the last.
    fn next(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < REPORT_EVERY) {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// What speaks HTTP of either version on a connection.
fn server_of(max_header_bytes: usize) -> auto::Builder<TokioExecutor> {
    let mut server = auto::Builder::new(TokioExecutor::new());
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_buf_size(max_header_bytes.max(8 * 1024));
    server
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(HEADER_TIME))
        .max_header_list_size(u32::try_from(max_header_bytes).unwrap_or(u32::MAX));
    server
}

async fn serve(mut accepted: mpsc::Receiver<Accepted>, front: Front, work: Work) {
    let tasks = work.clients;
    let mut max_header_bytes = front.max_header_bytes();
    let mut server = server_of(max_header_bytes);
    loop {
        let next = tokio::select! {
            next = accepted.recv() => next,
            () = tasks.stop_token().cancelled() => None,
        };
        let Some(Accepted { stream, place }) = next else { break };
        if front.max_header_bytes() != max_header_bytes {
            max_header_bytes = front.max_header_bytes();
            server = server_of(max_header_bytes);
        }
        match TcpStream::from_std(stream) {
            Ok(stream) => {
                let serving = connection(server.clone(), stream, front.clone(), tasks.clone());
                tasks.spawn("connection", serving.inspect(|()| drop(place)));
            }
            Err(e) => tracing::warn!("a connection was lost: {e}"),
        }
    }
    // Connections live on this runtime, and so does what their calls have started at backends: processes among
    // it, which are to be ended in order.
    tasks.tracker().wait().await;
    work.backends.tracker().wait().await;
}

/// Waits until it can be told which version of HTTP a client speaks. The server's own timers start no earlier.
async fn begins(stream: &TcpStream) -> std::io::Result<()> {
    let mut head = [0; HTTP2_PREFACE.len()];
    loop {
        let length = stream.peek(&mut head).await?;
        if length == 0 || length == head.len() || !HTTP2_PREFACE.starts_with(&head[..length]) {
            return Ok(());
        }
        // What is there already would be seen again at once.
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn connection(server: auto::Builder<TokioExecutor>, stream: TcpStream, front: Front, tasks: Tasks) {
    // Answers are written whole; waiting for more would only delay them.
    let _ = stream.set_nodelay(true);
    let begun = tokio::select! {
        begun = tokio::time::timeout(HEADER_TIME, begins(&stream)) => matches!(begun, Ok(Ok(()))),
        () = tasks.draining() => false,
    };
    if !begun {
        return;
    }
    let tasks_of_service = tasks.clone();
    let peer = stream.peer_addr().ok().map(|address| PeerAddress(address.ip()));
    let service = service_fn(move |mut request: Request<Incoming>| {
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        let (front, leaving) = (front.clone(), tasks_of_service.is_leaving());
        // Boxed, so that a connection with an open stream does not keep room for a request's whole way.
        Box::pin(async move {
            let version = request.version();
            let mut answer = front.handle(request.map(Body::new)).await;
            // The next request on it should go to another instance.
            if let (true, http::Version::HTTP_11, Ok(response)) = (leaving, version, &mut answer) {
                response
                    .headers_mut()
                    .insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
            }
            answer
        })
    });
    // Boxed once: a future that is moved about inside another is kept room for more than once.
    let mut serving = Box::pin(server.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = tasks.draining() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(e) = ended {
        tracing::debug!("connection: {e}");
    }
}

#[cfg(test)]
mod tests {
    use drawbridge_core::event_log::EventRing;
    use drawbridge_core::fleet::Peers;
    use drawbridge_core::seal::{KeyRing, SealKey};
    use drawbridge_core::state::{MemoryLimiter, WithFallback};
    use drawbridge_core::{RoundOptions, Rounds};
    use drawbridge_front::Parts;
    use drawbridge_front::options::FrontOptions;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn front() -> Front {
        let keys = Arc::new(KeyRing::new(&[SealKey { id: "k".into(), secret: [1; 32] }]).unwrap());
        Front::new(Parts {
            options: FrontOptions::default(),
            endpoints: Vec::new(),
            rounds: Rounds::new(keys.clone(), RoundOptions::default(), Peers::alone(), Tasks::default()),
            keys,
            events: Arc::new(EventRing::new(1 << 20, Duration::from_secs(60))),
            tasks: Tasks::default(),
            metrics: Arc::default(),
            tracer: None,
            peers: Peers::alone(),
            gate: None,
            limiter: WithFallback::new(Arc::new(MemoryLimiter::default())),
            others: None,
        })
    }

    /// How long a connection lasts whose client says `words` and no more, and what it is answered.
    async fn lasts(words: &[u8]) -> (Duration, Vec<u8>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        client.write_all(words).await.unwrap();
        let begun = tokio::time::Instant::now();
        let serving = connection(server_of(8 * 1024), stream, front(), Tasks::default());
        let closed = tokio::time::timeout(HEADER_TIME * 4, serving).await;
        assert!(closed.is_ok(), "{}", String::from_utf8_lossy(words));
        let lasted = begun.elapsed();
        let mut answer = Vec::new();
        // What was not read is a reason to reset.
        let _ = client.read_to_end(&mut answer).await;
        (lasted, answer)
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_says_too_little_is_closed_after_its_time() {
        let slack = Duration::from_secs(1);
        for words in ["", "P", "PRI * HTTP/2.0\r\n", "GET /mcp HTTP/1.1\r\nhost: 127"] {
            let (lasted, _) = lasts(words.as_bytes()).await;
            assert!(lasted >= HEADER_TIME - slack && lasted <= HEADER_TIME + slack, "{words:?}: {lasted:?}");
        }
        // One that was answered may say more, for as long as that.
        let (lasted, answer) = lasts(b"GET /none HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
        assert!(answer.starts_with(b"HTTP/1.1 404"), "{}", String::from_utf8_lossy(&answer));
        assert!(lasted <= HEADER_TIME + slack, "{lasted:?}");
    }

    #[test]
    fn what_happens_all_the_time_is_reported_once_a_second() {
        let (start, mut reports) = (Instant::now(), Reports::default());
        let reported: Vec<u64> =
            (0..100).filter_map(|n| reports.next(start + REPORT_EVERY * n / 40)).collect();
        assert_eq!(reported, [0, 39, 39]);
    }
}

//! Listeners: one accepts, one runtime per core serves.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use axum::body::Body;
use drawbridge_core::{Tasks, worker};
use drawbridge_front::Front;
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

/// The runtimes that serve connections.
pub struct Workers {
    queues: Vec<mpsc::Sender<std::net::TcpStream>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Workers {
    /// Starts `count` runtimes that serve `front`, until all of `work` has ended.
    ///
    /// # Errors
    ///
    /// If a thread or runtime can't be made.
    pub fn start(count: usize, front: &Front, max_header_bytes: usize, work: &Work) -> anyhow::Result<Self> {
        let mut workers = Self { queues: Vec::new(), threads: Vec::new() };
        for index in 0..count {
            let (queue, accepted) = mpsc::channel(MAX_ACCEPTED);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (front, work) = (front.clone(), work.clone());
            let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
                worker::enter(index);
                runtime.block_on(serve(accepted, front, max_header_bytes, work));
                // What is left was told to end; nothing of it may outlive the process.
                runtime.shutdown_timeout(Duration::from_secs(1));
            })?;
            workers.queues.push(queue);
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// Accepts connections until the gateway drains, and gives them to the runtimes in turn.
    pub async fn accept(&self, listener: tokio::net::TcpListener, tasks: &Tasks) {
        let mut turn = 0;
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = tasks.draining() => return,
            };
            let stream = match accepted.and_then(|(stream, _)| stream.into_std()) {
                Ok(stream) => stream,
                Err(e) => {
                    // Out of descriptors, most likely: others must be able to finish.
                    tracing::warn!("a connection was not accepted: {e}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            turn = (turn + 1) % self.queues.len();
            if self.queues[turn].send(stream).await.is_err() {
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

async fn serve(
    mut accepted: mpsc::Receiver<std::net::TcpStream>,
    front: Front,
    max_header_bytes: usize,
    work: Work,
) {
    let tasks = work.clients;
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
    loop {
        let stream = tokio::select! {
            stream = accepted.recv() => stream,
            () = tasks.stop_token().cancelled() => None,
        };
        let Some(stream) = stream else { break };
        match TcpStream::from_std(stream) {
            Ok(stream) => {
                tasks.spawn("connection", connection(server.clone(), stream, front.clone(), tasks.clone()))
            }
            Err(e) => tracing::warn!("a connection was lost: {e}"),
        }
    }
    // Connections live on this runtime, and so does what their calls have started at backends: processes among
    // it, which are to be ended in order.
    tasks.tracker().wait().await;
    work.backends.tracker().wait().await;
}

async fn connection(server: auto::Builder<TokioExecutor>, stream: TcpStream, front: Front, tasks: Tasks) {
    // Answers are written whole; waiting for more would only delay them.
    let _ = stream.set_nodelay(true);
    // The server's own timers start with the first byte.
    let begun = tokio::select! {
        begun = tokio::time::timeout(HEADER_TIME, stream.readable()) => begun.is_ok(),
        () = tasks.draining() => false,
    };
    if !begun {
        return;
    }
    let service = service_fn(move |request: Request<Incoming>| {
        let front = front.clone();
        // Boxed, so that a connection with an open stream does not keep room for a request's whole way.
        Box::pin(async move { front.handle(request.map(Body::new)).await })
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

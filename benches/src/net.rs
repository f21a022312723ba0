//! One runtime per core, each with its own listener on a shared port.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context as _, anyhow};
use hyper::Request;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::HttpService;
use hyper_util::rt::TokioIo;
use tokio::net::TcpSocket;
use tokio::runtime::{Builder, Runtime};

/// The number of cores.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// A runtime for one thread.
pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("build a runtime")
}

/// Serves HTTP/1 on `listen` with a runtime per core and a service per runtime, and prints the address. Never returns.
pub(crate) fn serve<M, S>(listen: SocketAddr, cores: usize, make: M) -> anyhow::Result<()>
where
    M: Fn() -> S + Clone + Send + 'static,
    S: HttpService<Incoming, Future: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
    S: Clone + Send + 'static,
    S::ResBody: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let first = bind(listen)?;
    let bound = first.local_addr()?;
    let mut sockets = vec![first];
    while sockets.len() < cores {
        sockets.push(bind(bound)?);
    }
    let (ready, all_ready) = mpsc::channel();
    let threads: Vec<_> = sockets
        .into_iter()
        .map(|socket| {
            let (make, ready) = (make.clone(), ready.clone());
            thread::spawn(move || runtime()?.block_on(accept(socket, make(), ready)))
        })
        .collect();
    drop(ready);
    for _ in &threads {
        all_ready.recv().map_err(|_closed| anyhow!("a listener did not start"))?;
    }
    announce(bound);
    for thread in threads {
        thread.join().map_err(|_panic| anyhow!("a thread failed"))??;
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "whoever started this process reads the address from here")]
fn announce(bound: SocketAddr) {
    println!("listening public http://{bound}");
}

fn bind(listen: SocketAddr) -> anyhow::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(listen).with_context(|| format!("bind {listen}"))?;
    Ok(socket)
}

async fn accept<S>(socket: TcpSocket, service: S, ready: mpsc::Sender<()>) -> anyhow::Result<()>
where
    S: HttpService<Incoming, Future: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
    S: Clone + Send + 'static,
    S::ResBody: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let listener = socket.listen(4096)?;
    ready.send(())?;
    drop(ready);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service.clone());
        detach(async move {
            // a client that went away is no news
            let _ended = connection.await;
        });
    }
}

#[expect(clippy::disallowed_methods, reason = "ends with the process: nothing here shuts down in order")]
fn detach(work: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(work);
}

/// A loopback port that was free a moment ago, for programs that can't take port 0.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    let probe = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(probe.local_addr()?.port())
}

/// The request type that all services here take.
pub(crate) type Asked = Request<Incoming>;

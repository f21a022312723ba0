//! A TCP proxy that does what networks do: it is slow, it cuts, it falls silent.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// What happens to connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Whatever goes through takes this much longer, in each direction.
    Delay(Duration),
    /// Nothing goes through, and neither side is told. A connection that has fallen silent stays so.
    Silence,
    /// New connections are closed at once.
    Refuse,
}

/// A proxy in front of one server.
#[derive(Debug)]
pub struct FaultProxy {
    /// Its port on 127.0.0.1.
    pub port: u16,
    fault: watch::Sender<Fault>,
    /// Counts how often connections were cut.
    cuts: watch::Sender<u64>,
    _stop: DropGuard,
}

impl FaultProxy {
    /// A proxy in front of `127.0.0.1:port`.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    pub async fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (fault, cuts) = (watch::channel(Fault::None).0, watch::channel(0).0);
        let stop = CancellationToken::new();
        let own_port = listener.local_addr().unwrap().port();
        let accepting = accept(listener, port, fault.clone(), cuts.clone(), stop.clone());
        TaskTracker::new().spawn(stop.clone().run_until_cancelled_owned(accepting));
        Self { port: own_port, fault, cuts, _stop: stop.drop_guard() }
    }

    /// What happens from now on.
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// Cuts all connections that are there.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

async fn accept(
    listener: TcpListener,
    port: u16,
    fault: watch::Sender<Fault>,
    cuts: watch::Sender<u64>,
    stop: CancellationToken,
) {
    let tasks = TaskTracker::new();
    while let Ok((client, _)) = listener.accept().await {
        let mut cuts = cuts.subscribe();
        cuts.mark_unchanged();
        let through = through(client, port, fault.subscribe());
        tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
            tokio::select! {
                () = through => {}
                _ = cuts.changed() => {}
            }
        }));
    }
}

async fn through(client: TcpStream, port: u16, fault: watch::Receiver<Fault>) {
    if *fault.borrow() == Fault::Refuse {
        return;
    }
    if *fault.borrow() == Fault::Silence {
        return std::future::pending().await;
    }
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pass(from_client, to_server, fault.clone()) => {}
        () = pass(from_server, to_client, fault) => {}
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, fault: watch::Receiver<Fault>) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let read = from.read(&mut buffer).await;
        let now = *fault.borrow();
        match now {
            Fault::Silence => return std::future::pending().await,
            Fault::Delay(delay) => tokio::time::sleep(delay).await,
            Fault::None | Fault::Refuse => {}
        }
        let Ok(read @ 1..) = read else { return };
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

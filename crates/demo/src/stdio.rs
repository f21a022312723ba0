//! Both eras over a pair of pipes: one message per line.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use drawbridge_wire::{Message, RpcError, code};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::Demo;
use crate::link::Link;
use crate::outlet::PIPE;

/// The longest line that is read.
const MAX_LINE: u64 = 16 << 20;
/// How long running requests may take to finish after the input has ended.
const GRACE: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_millis(10);

/// Serves until the input ends or the server is shut down.
pub(crate) async fn run(
    demo: &Demo,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let (sender, receiver) = mpsc::channel(PIPE);
    let link = Link::new(demo, sender.clone(), true);
    let over = CancellationToken::new();
    let writing = write(output, receiver, over.clone());
    let reading = async {
        let ended = tokio::select! {
            ended = read(input, &link, &sender) => ended,
            () = demo.0.stop.cancelled() => Ok(()),
        };
        finish(&link).await;
        drop(link);
        over.cancel();
        ended
    };
    tokio::try_join!(writing, reading).map(|_| ())
}

/// Lets requests that run finish, for a moment.
async fn finish(link: &Link) {
    let idle = async {
        while !link.is_idle() {
            tokio::time::sleep(TICK).await;
        }
    };
    if tokio::time::timeout(GRACE, idle).await.is_err() {
        tracing::debug!("the input ended before all requests were answered");
    }
}

async fn read(input: impl AsyncRead + Unpin, link: &Link, errors: &mpsc::Sender<Message>) -> io::Result<()> {
    let mut input = BufReader::new(input);
    loop {
        let mut line = Vec::new();
        let read = (&mut input).take(MAX_LINE).read_until(b'\n', &mut line).await?;
        if read == 0 {
            return Ok(());
        }
        if read as u64 == MAX_LINE && line.last() != Some(&b'\n') {
            let error =
                RpcError::new(code::INVALID_REQUEST, format!("a line is longer than {MAX_LINE} bytes"));
            // Nobody can tell where the next message starts.
            drop(errors.send(error.to_message(None)).await);
            return Ok(());
        }
        let text = line.trim_ascii();
        if !text.is_empty() {
            link.receive(Bytes::copy_from_slice(text)).await;
        }
    }
}

async fn write(
    mut output: impl AsyncWrite + Unpin,
    mut messages: mpsc::Receiver<Message>,
    over: CancellationToken,
) -> io::Result<()> {
    loop {
        // cancel-safe: a message is received or not.
        let message = tokio::select! {
            biased;
            message = messages.recv() => message,
            () = over.cancelled() => messages.try_recv().ok(),
        };
        let Some(message) = message else { break };
        output.write_all(message.bytes()).await?;
        output.write_all(b"\n").await?;
        if messages.is_empty() {
            output.flush().await?;
        }
    }
    output.flush().await
}

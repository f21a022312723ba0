//! A server's stderr: written to the log, and its last lines kept for error messages.
//!
//! Free-form text (MCP 2025-11-25, transports § stdio), and no sign of failure. It comes from the server, so
//! neither its lines nor their number are trusted: both are bounded, and control characters are taken out.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{io::AsyncReadExt, process::ChildStderr, time::Instant};
use tokio_util::sync::CancellationToken;

use super::framing::{Framer, Line};

const MAX_LINE_BYTES: usize = 2048;
const TAIL_LINES: usize = 20;
const LOGGED_PER_WINDOW: u32 = 50;
const WINDOW: Duration = Duration::from_secs(1);

/// The last lines of a server's stderr.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail(Arc<Mutex<VecDeque<Kept>>>);

#[derive(Clone, Debug)]
struct Kept {
    text: String,
    is_logged: bool,
}

impl Tail {
    fn push(&self, line: Kept) {
        let mut lines = self.0.lock();
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.0.lock().iter().map(|line| line.text.clone()).collect()
    }

    /// Those of the lines that the log does not have yet.
    pub(super) fn unlogged_lines(&self) -> Vec<String> {
        self.0.lock().iter().filter(|line| !line.is_logged).map(|line| line.text.clone()).collect()
    }
}

/// Reads until the end, or until `ended` and nothing is left to read.
pub(super) async fn capture(name: Arc<str>, mut stderr: ChildStderr, tail: Tail, ended: CancellationToken) {
    let mut framer = Framer::truncating(MAX_LINE_BYTES);
    let mut rate = Rate::new(Instant::now());
    loop {
        // cancel-safe: read_buf has read nothing when it is dropped.
        let read = tokio::select! {
            biased;
            read = stderr.read_buf(framer.buffer()) => read.unwrap_or(0),
            () = ended.cancelled() => 0,
        };
        while let Some(line) = framer.next_line() {
            log(&name, &tail, &mut rate, line);
        }
        if read == 0 {
            break;
        }
    }
    if let Some(line) = framer.finish() {
        log(&name, &tail, &mut rate, line);
    }
    report_suppressed(&name, rate.take_suppressed());
}

fn log(name: &str, tail: &Tail, rate: &mut Rate, line: Line) {
    let text = readable(line);
    let (is_admitted, suppressed) = rate.admit(Instant::now());
    report_suppressed(name, suppressed);
    if is_admitted {
        tracing::info!(target: "drawbridge::backend::stderr", { backend.name = name }, "{text}");
    }
    let is_logged =
        is_admitted && tracing::enabled!(target: "drawbridge::backend::stderr", tracing::Level::INFO);
    tail.push(Kept { text, is_logged });
}

fn report_suppressed(name: &str, lines: u64) {
    if lines > 0 {
        tracing::info!(
            target: "drawbridge::backend::stderr",
            { backend.name = name, suppressed = lines },
            "lines left out, the server writes more than {LOGGED_PER_WINDOW} a second"
        );
    }
}

fn readable(line: Line) -> String {
    let (bytes, cut) = match line {
        Line::Text(text) => (text, 0),
        Line::TooLong { bytes, head } => {
            let cut = bytes - head.len() as u64;
            (head, cut)
        }
    };
    let mut text: String =
        String::from_utf8_lossy(&bytes).chars().filter(|char| !char.is_control() || *char == '\t').collect();
    if cut > 0 {
        text.push_str(&format!("… ({cut} bytes more)"));
    }
    text
}

/// Counts lines in windows of a second, and lets the first ones of each pass.
#[derive(Debug)]
struct Rate {
    window: Instant,
    seen: u32,
    suppressed: u64,
}

impl Rate {
    fn new(now: Instant) -> Self {
        Self { window: now, seen: 0, suppressed: 0 }
    }

    /// Whether the next line passes, and how many did not since it was last said.
    fn admit(&mut self, now: Instant) -> (bool, u64) {
        let mut suppressed = 0;
        if now.duration_since(self.window) >= WINDOW {
            self.window = now;
            self.seen = 0;
            suppressed = self.take_suppressed();
        }
        let is_admitted = self.seen < LOGGED_PER_WINDOW;
        if is_admitted {
            self.seen += 1;
        } else {
            self.suppressed += 1;
        }
        (is_admitted, suppressed)
    }

    fn take_suppressed(&mut self) -> u64 {
        std::mem::take(&mut self.suppressed)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_window_passes_so_many_lines_and_the_next_says_how_many_did_not() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        let passed = (0..80).filter(|_| rate.admit(start).0).count();
        assert_eq!(passed, 50);
        assert_eq!(rate.admit(start + WINDOW), (true, 30));
        assert_eq!(rate.admit(start + WINDOW), (true, 0));
    }

    #[test]
    fn the_tail_keeps_the_last_lines() {
        let tail = Tail::default();
        for line in 0..50 {
            tail.push(Kept { text: line.to_string(), is_logged: line < 48 });
        }
        let expected: Vec<String> = (30..50).map(|line| line.to_string()).collect();
        assert_eq!(tail.lines(), expected);
        assert_eq!(tail.unlogged_lines(), ["48", "49"]);
    }

    #[test]
    fn text_is_made_readable() {
        assert_eq!(readable(Line::Text(Bytes::from_static(b"\x1b[31mred\xff\ta\r"))), "[31mred\u{fffd}\ta");
        let cut = Line::TooLong { bytes: 10, head: Bytes::from_static(b"abc") };
        assert_eq!(readable(cut), "abc… (7 bytes more)");
    }
}

//! Where the log goes: standard error, one line per event.
//!
//! A line costs a system call, which is a good part of what a small call costs in all. So the lines about calls are
//! gathered for a moment and written together; all others are written at once, after what was gathered before them.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use super::CALL;

/// This much is gathered at most.
const MAX_GATHERED: usize = 16 * 1024;
/// A line waits this long at most.
const MAX_WAIT: Duration = Duration::from_millis(50);

/// A way out that gathers some lines. Cheap to clone.
#[derive(Clone)]
pub(super) struct Output(Arc<Shared>);

struct Shared {
    gathered: Mutex<Gathered>,
    /// Rung when there is something.
    filled: Condvar,
}

struct Gathered {
    lines: Vec<u8>,
    to: Box<dyn Write + Send>,
}

impl Gathered {
    /// Writes what was gathered. There is nobody to tell if that fails.
    fn write_out(&mut self) {
        if !self.lines.is_empty() {
            let _ = self.to.write_all(&self.lines);
            self.lines.clear();
        }
    }
}

impl Output {
    /// Writes to `to`.
    pub(super) fn new(to: impl Write + Send + 'static) -> Self {
        let gathered = Gathered { lines: Vec::with_capacity(MAX_GATHERED), to: Box::new(to) };
        Self(Arc::new(Shared { gathered: Mutex::new(gathered), filled: Condvar::new() }))
    }

    /// Starts the thread that writes what nothing else has caused to be written. It ends with the process.
    ///
    /// # Errors
    ///
    /// If there can be no more threads.
    pub(super) fn start(&self) -> io::Result<()> {
        let output = self.clone();
        std::thread::Builder::new().name("log".to_owned()).spawn(move || {
            loop {
                let mut gathered = output.0.gathered.lock();
                output.0.filled.wait_while(&mut gathered, |gathered| gathered.lines.is_empty());
                drop(gathered);
                std::thread::sleep(MAX_WAIT);
                output.flush();
            }
        })?;
        Ok(())
    }

    /// Writes what was gathered.
    pub(super) fn flush(&self) {
        self.0.gathered.lock().write_out();
    }
}

/// Takes one event, which the logger writes at once.
pub(super) struct Line<'a> {
    output: &'a Output,
    /// It may wait for others.
    may_wait: bool,
}

impl<'a> MakeWriter<'a> for Output {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { output: self, may_wait: false }
    }

    fn make_writer_for(&'a self, about: &Metadata<'_>) -> Line<'a> {
        Line { output: self, may_wait: about.target() == CALL }
    }
}

impl Write for Line<'_> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let shared = &self.output.0;
        let mut gathered = shared.gathered.lock();
        let is_first = gathered.lines.is_empty();
        gathered.lines.extend_from_slice(event);
        if !self.may_wait || gathered.lines.len() >= MAX_GATHERED {
            gathered.write_out();
        } else if is_first {
            shared.filled.notify_one();
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<String>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().push(String::from_utf8(bytes.to_vec()).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_keep_their_order_and_some_are_written_together() {
        let written = Written::default();
        let output = Output::new(written.clone());
        let say =
            |text: &str, may_wait| Line { output: &output, may_wait }.write_all(text.as_bytes()).unwrap();
        say("1\n", true);
        say("2\n", true);
        assert!(written.0.lock().is_empty());
        say("3\n", false);
        assert_eq!(*written.0.lock(), ["1\n2\n3\n"]);
        say("4\n", true);
        output.flush();
        output.flush();
        assert_eq!(written.0.lock()[1..], ["4\n"]);
        let long = "x".repeat(MAX_GATHERED);
        say(&long, true);
        assert_eq!(written.0.lock()[2..], [long]);
    }

    #[test]
    fn no_line_waits_for_another() {
        let written = Written::default();
        let output = Output::new(written.clone());
        output.start().unwrap();
        for round in 1..=2 {
            Line { output: &output, may_wait: true }.write_all(b"x").unwrap();
            let begun = std::time::Instant::now();
            while written.0.lock().len() < round {
                assert!(begun.elapsed() < Duration::from_secs(10));
                std::thread::yield_now();
            }
        }
    }
}

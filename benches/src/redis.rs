//! A Redis of the bench's own, and what it counts.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use crate::net;
use crate::process;
use crate::target::{self, Running};

const PATIENCE: Duration = Duration::from_secs(5);

/// A `redis-server` that keeps nothing, ended when dropped.
pub(crate) struct Redis {
    process: Running,
    address: SocketAddr,
    /// Bytes of the bench's own questions and their answers.
    own: Cell<(usize, usize)>,
    _files: TempDir,
}

/// What it has counted since its start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// How often each command ran; those within scripts count too.
    pub(crate) commands: BTreeMap<String, f64>,
    pub(crate) bytes_in: f64,
    pub(crate) bytes_out: f64,
    /// Bytes that it uses.
    pub(crate) memory: f64,
    /// Processor time in seconds.
    pub(crate) cpu: f64,
}

impl Redis {
    /// Starts it.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let files = TempDir::new()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, net::free_port()?));
        let mut command = target::quiet("redis-server")?;
        command.args(["--port", &address.port().to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.arg("--dir").arg(files.path());
        let is_ready = || ask(address, "PING").is_ok();
        let process = target::start_quiet(&mut command, is_ready).context("start redis-server")?;
        Ok(Self { process, address, own: Cell::default(), _files: files })
    }

    /// As in the configuration.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// What it has counted, at the beginning of something. Between this and [`Redis::end`] nothing is the bench's own.
    pub(crate) fn begin(&self) -> anyhow::Result<Counts> {
        let counts = self.counts()?;
        Ok(Counts { cpu: process::busy(self.process.pid())?, ..counts })
    }

    /// What it has counted since `begin`.
    pub(crate) fn end(&self, begin: &Counts) -> anyhow::Result<Counts> {
        let cpu = process::busy(self.process.pid())?;
        Ok(Counts { cpu, ..self.counts()? }.since(begin))
    }

    fn counts(&self) -> anyhow::Result<Counts> {
        const QUESTION: &str = "INFO everything";
        let text = ask(self.address, QUESTION)?;
        let (own_in, own_out) = self.own.get();
        // The question is counted in what it asks for, its answer is not.
        let own_in = own_in + QUESTION.len() + 2;
        self.own.set((own_in, own_out + format!("${}\r\n{text}\r\n", text.len()).len()));
        let member = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value
                .and_then(|value| value.trim().parse().ok())
                .with_context(|| format!("Redis tells no {name}"))
        };
        let commands = text.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let count = rest.split(',').next()?.parse().ok()?;
            (!matches!(name, "info" | "ping")).then(|| (name.to_owned(), count))
        });
        Ok(Counts {
            commands: commands.collect(),
            bytes_in: member("total_net_input_bytes")? - own_in as f64,
            bytes_out: member("total_net_output_bytes")? - own_out as f64,
            memory: member("used_memory")?,
            cpu: 0.0,
        })
    }
}

impl Counts {
    /// What was added since `before`.
    fn since(&self, before: &Self) -> Self {
        let earlier = |name: &str| before.commands.get(name).copied().unwrap_or(0.0);
        let commands = self.commands.iter().map(|(name, count)| (name.clone(), count - earlier(name)));
        Self {
            commands: commands.filter(|(_, count)| *count != 0.0).collect(),
            bytes_in: self.bytes_in - before.bytes_in,
            bytes_out: self.bytes_out - before.bytes_out,
            memory: self.memory - before.memory,
            cpu: self.cpu - before.cpu,
        }
    }

    /// Adds `other`, so many times.
    pub(crate) fn add(&mut self, other: &Self, times: f64) {
        for (name, count) in &other.commands {
            *self.commands.entry(name.clone()).or_default() += count * times;
        }
        self.bytes_in += other.bytes_in * times;
        self.bytes_out += other.bytes_out * times;
        self.memory += other.memory * times;
        self.cpu += other.cpu * times;
    }

    /// A share of it.
    pub(crate) fn times(&self, factor: f64) -> Self {
        let mut share = Self::default();
        share.add(self, factor);
        share
    }

    /// Commands of all kinds.
    pub(crate) fn all(&self) -> f64 {
        self.commands.values().sum()
    }

    /// The commands that matter, by name.
    pub(crate) fn names(&self) -> String {
        let mut sorted: Vec<_> = self.commands.iter().filter(|(_, count)| **count >= 0.05).collect();
        sorted.sort_by(|a, b| b.1.total_cmp(a.1));
        let names: Vec<String> = sorted.iter().map(|(name, count)| format!("{name} {count:.2}")).collect();
        if names.is_empty() { "-".to_owned() } else { names.join(", ") }
    }
}

/// The answer to one command without arguments that need quotes.
fn ask(address: SocketAddr, command: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    reader.read_line(&mut head)?;
    let Some(length) = head.strip_prefix('$') else {
        ensure!(head.starts_with('+'), "Redis answers {head:?}");
        return Ok(head);
    };
    let mut text = vec![0; length.trim().parse()?];
    reader.read_exact(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn counts_are_taken_off_and_divided() {
        let counts = |calls: &[(&str, f64)]| Counts {
            commands: calls.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            ..Counts::default()
        };
        let grown = counts(&[("get", 30.0), ("set", 5.0), ("xadd", 10.0)])
            .since(&counts(&[("get", 10.0), ("set", 5.0)]));
        assert_eq!(grown.times(0.1).names(), "get 2.00, xadd 1.00");
        assert_eq!(grown.all().to_string(), "30");
        assert_eq!(Counts::default().names(), "-");
    }
}

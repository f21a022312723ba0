//! What a process and its children cost: processor time and memory, as the kernel counts them.

use std::fs;

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// Clock ticks per second in `/proc/PID/stat`: 100 on all Linux machines that matter.
pub(crate) const TICKS_PER_SECOND: f64 = 100.0;

/// Memory of a process tree, in KiB.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) rss: u64,
    pub(crate) pss: u64,
}

struct Stat {
    pid: u32,
    parent: u32,
    ticks: u64,
}

/// User and system time of `root` and all processes below it, in ticks.
pub(crate) fn ticks(root: u32) -> anyhow::Result<u64> {
    Ok(tree(root)?.iter().map(|stat| stat.ticks).sum())
}

/// Processor time of one process in seconds, much finer than [`ticks`]. Threads that have ended don't count.
pub(crate) fn busy(pid: u32) -> anyhow::Result<f64> {
    let tasks = format!("/proc/{pid}/task");
    let mut sum = 0_u64;
    for task in fs::read_dir(&tasks).with_context(|| format!("process {pid} is gone"))? {
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        sum += text.split_whitespace().next().and_then(|spent| spent.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum as f64 / 1e9)
}

/// Nanoseconds on the clock that all processes of this machine share.
pub(crate) fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Time that the host took from this machine since it started, in ticks of all cores.
pub(crate) fn stolen() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    text.lines().next().and_then(|all| all.split_whitespace().nth(8)?.parse().ok()).unwrap_or(0)
}

/// Memory of `root` and all processes below it.
pub(crate) fn memory(root: u32) -> anyhow::Result<Memory> {
    let mut sum = Memory::default();
    for stat in tree(root)? {
        let path = format!("/proc/{}/smaps_rollup", stat.pid);
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        sum.rss += kib(&text, "Rss:");
        sum.pss += kib(&text, "Pss:");
    }
    Ok(sum)
}

fn kib(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn tree(root: u32) -> anyhow::Result<Vec<Stat>> {
    let mut rest: Vec<Stat> = fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(stat)
        .collect();
    let mut tree: Vec<Stat> = Vec::new();
    loop {
        let (found, others): (Vec<_>, Vec<_>) = rest
            .into_iter()
            .partition(|stat| stat.pid == root || tree.iter().any(|above| above.pid == stat.parent));
        if found.is_empty() {
            break;
        }
        tree.extend(found);
        rest = others;
    }
    anyhow::ensure!(!tree.is_empty(), "process {root} is gone");
    Ok(tree)
}

/// One process, unless it is gone.
fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // the name in brackets may hold anything
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat { pid, parent: fields.get(1)?.parse().ok()?, ticks: number(11)? + number(12)? })
}

/// Raises the limit of open files as far as allowed, for this process and those it starts, and returns it.
pub(crate) fn raise_files() -> anyhow::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(1 << 20);
    setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: limit.maximum })
        .context("raise the limit of open files")?;
    Ok(most)
}

#[cfg(test)]
mod tests {
    #[test]
    fn sees_itself() {
        let memory = super::memory(std::process::id()).unwrap();
        assert!(memory.rss > 100 && memory.pss > 0 && memory.pss <= memory.rss, "{memory:?}");
        super::ticks(std::process::id()).unwrap();
        super::busy(std::process::id()).unwrap();
        assert!(super::clock() > 0);
    }
}

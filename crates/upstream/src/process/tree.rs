//! Looking at the process table, and signalling what was found there.
//!
//! Between reading an entry and signalling it, the process may be gone and its id taken by a stranger. A signal
//! therefore goes through a pidfd, and only after the entry was read again with the pidfd open: same start time,
//! same process.

use std::{collections::HashSet, fs};

use rustix::{
    io::Errno,
    process::{self, Pid, PidfdFlags, Signal},
};

/// One process, as the kernel describes it in `/proc/<pid>/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pid: Pid,
    parent: i32,
    group: i32,
    session: i32,
    started: u64,
}

impl Entry {
    fn read(pid: Pid) -> Option<Self> {
        let stat = fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
        Self::parse(pid, &stat)
    }

    /// The command name stands in parentheses and may contain anything, parentheses and line ends included, so
    /// the fields are counted from the last closing one.
    fn parse(pid: Pid, stat: &[u8]) -> Option<Self> {
        let end = memchr::memrchr(b')', stat)?;
        let fields = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
        let mut fields = fields.split_ascii_whitespace().skip(1);
        Some(Self {
            pid,
            parent: fields.next()?.parse().ok()?,
            group: fields.next()?.parse().ok()?,
            session: fields.next()?.parse().ok()?,
            started: fields.nth(15)?.parse().ok()?,
        })
    }

    /// What stays the same for as long as the process lives, and is no other's then or later.
    pub(super) fn identity(&self) -> (Pid, u64) {
        (self.pid, self.started)
    }

    pub(super) fn is_in_group(&self, group: Pid) -> bool {
        self.group == group.as_raw_pid()
    }

    /// Signals exactly this process. One that is gone already is not an error, and one that may not be
    /// signalled (another user's) is left alone.
    pub(super) fn signal(&self, signal: Signal) {
        match process::pidfd_open(self.pid, PidfdFlags::empty()) {
            Ok(pidfd) => {
                if Self::read(self.pid).is_some_and(|now| now.started == self.started) {
                    let _ = process::pidfd_send_signal(pidfd, signal);
                }
            }
            Err(Errno::SRCH) => {}
            // No pidfds here (an old kernel, a strict seccomp profile).
            Err(_) => {
                let _ = process::kill_process(self.pid, signal);
            }
        }
    }
}

fn snapshot() -> Vec<Entry> {
    let Ok(directory) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    directory
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().and_then(Pid::from_raw))
        .filter_map(Entry::read)
        .collect()
}

/// All processes below `root`, `root` itself not included.
pub(super) fn descendants(root: Pid) -> Vec<Entry> {
    below(root, snapshot())
}

fn below(root: Pid, mut table: Vec<Entry>) -> Vec<Entry> {
    let mut known = HashSet::from([root.as_raw_pid()]);
    let mut found = Vec::new();
    loop {
        let before = found.len();
        table.retain(|entry| {
            let is_below = known.contains(&entry.parent) && known.insert(entry.pid.as_raw_pid());
            if is_below {
                found.push(*entry);
            }
            !is_below
        });
        if found.len() == before {
            return found;
        }
    }
}

/// Kills everything below `root` once; the caller repeats it until nothing is left.
pub(super) fn kill_below(root: Pid) {
    for entry in descendants(root) {
        entry.signal(Signal::KILL);
    }
}

/// Kills the members of the session that `leader` founded.
pub(super) fn kill_session(leader: Pid) {
    for entry in snapshot().into_iter().filter(|entry| entry.session == leader.as_raw_pid()) {
        entry.signal(Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(raw: i32) -> Pid {
        Pid::from_raw(raw).unwrap()
    }

    fn entry(raw: i32, parent: i32) -> Entry {
        Entry { pid: pid(raw), parent, group: raw, session: 1, started: 7 }
    }

    #[test]
    fn command_names_may_hold_anything() {
        let stat = b"42 (a) S 1 (\n) R 7 8 9 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 12345 1000 2";
        let parsed = Entry::parse(pid(42), stat).unwrap();
        assert_eq!(parsed, Entry { pid: pid(42), parent: 7, group: 8, session: 9, started: 12345 });
        assert_eq!(Entry::parse(pid(42), b"42 (cut) S 1"), None);
    }

    #[test]
    fn own_entry_is_readable() {
        let own = Entry::read(process::getpid()).unwrap();
        assert_eq!(own.parent, Pid::as_raw(process::getppid()));
        assert_eq!(own.group, process::getpgrp().as_raw_pid());
    }

    #[test]
    fn descendants_are_found_in_any_order_and_strangers_are_not() {
        let table =
            vec![entry(30, 20), entry(20, 10), entry(10, 1), entry(99, 1), entry(31, 20), entry(11, 10)];
        let mut found: Vec<i32> = below(pid(10), table).iter().map(|entry| entry.pid.as_raw_pid()).collect();
        found.sort_unstable();
        assert_eq!(found, [11, 20, 30, 31]);
    }

    #[test]
    fn a_process_that_took_over_an_id_is_not_signalled() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let current = Entry::read(pid(child.id().try_into().unwrap())).unwrap();
        let former = Entry { started: current.started - 1, ..current };
        former.signal(Signal::KILL);
        assert_eq!(child.try_wait().unwrap(), None);
        current.signal(Signal::KILL);
        assert!(!child.wait().unwrap().success());
    }
}

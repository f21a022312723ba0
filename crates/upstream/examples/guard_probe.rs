//! A stand-in for the gateway's binary in tests of the guard.
//!
//! * `guard_probe guard ARGS...` is `drawbridge guard ARGS...`.
//! * `guard_probe gateway CMD ARGS...` runs `CMD` as a gateway would, prints what it writes, and stays until it is
//!   killed.
//! * `guard_probe unlinked-gateway CMD ARGS...` does so after removing its own file: run a copy.
//! * `guard_probe measure` prints what a guard costs.

use std::{
    error::Error,
    ffi::OsString,
    fs,
    io::Write as _,
    process::ExitCode,
    time::{Duration, Instant},
};

use bytes::Bytes;
use drawbridge_upstream::process::{GuardCommand, Line, Process, Spec, guard};
use tokio_util::task::TaskTracker;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let mode = args.next().unwrap_or_default();
    if mode == "guard" {
        return guard::run(args);
    }
    let done =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Into::into).and_then(
            |runtime| match mode.to_str() {
                Some("gateway") => runtime.block_on(gateway(args.collect())),
                Some("unlinked-gateway") => {
                    fs::remove_file(std::env::current_exe()?)?;
                    runtime.block_on(gateway(args.collect()))
                }
                Some("measure") => runtime.block_on(measure()),
                _ => Err("usage: guard_probe guard|gateway|measure ...".into()),
            },
        );
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "guard_probe: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn gateway(args: Vec<OsString>) -> Result<(), Box<dyn Error>> {
    let mut args = args.into_iter().filter_map(|arg| arg.into_string().ok());
    let mut spec = Spec::new("probe", args.next().ok_or("the command is missing")?);
    spec.args = args.collect();
    spec.stop_grace = Duration::from_millis(200);
    let mut process = Process::spawn(&spec, &GuardCommand::default(), &TaskTracker::new())?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "guard {}", process.control.pid().unwrap_or_default())?;
    while let Some(line) = process.lines.next().await {
        if let Line::Text(text) = line {
            stdout.write_all(&text)?;
            writeln!(stdout)?;
        }
    }
    writeln!(stdout, "{}", process.control.exited().await)?;
    Ok(())
}

async fn measure() -> Result<(), Box<dyn Error>> {
    const ROUNDS: usize = 50;
    let tracker = TaskTracker::new();
    let mut guarded = Vec::new();
    let mut bare = Vec::new();
    let mut memory = String::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut process = Process::spawn(&Spec::new("probe", "cat"), &GuardCommand::default(), &tracker)?;
        process.writer.send(Bytes::from_static(b"x")).await?;
        process.lines.next().await.ok_or("no answer from cat")?;
        guarded.push(start.elapsed());
        if let Some(pid) = process.control.pid() {
            memory = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        }
        drop(process.control.stop().await);

        let start = Instant::now();
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()?;
        if let (Some(stdin), Some(stdout)) = (&mut child.stdin, &mut child.stdout) {
            stdin.write_all(b"x")?;
            std::io::Read::read_exact(stdout, &mut [0])?;
        }
        bare.push(start.elapsed());
        child.kill()?;
        child.wait()?;
    }
    let mut stdout = std::io::stdout();
    for (what, mut times) in [("guarded", guarded), ("bare", bare)] {
        times.sort_unstable();
        if let (Some(median), Some(worst)) = (times.get(ROUNDS / 2), times.last()) {
            writeln!(stdout, "{what}: start to first answer of cat, median {median:?}, worst {worst:?}")?;
        }
    }
    for line in
        memory.lines().filter(|line| ["Rss", "Pss", "Private"].iter().any(|key| line.starts_with(key)))
    {
        writeln!(stdout, "guard {line}")?;
    }
    Ok(())
}

//! stdio servers as real processes: shell and Python scripts under a real guard.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use bytes::Bytes;
use drawbridge_upstream::process::{
    Control, Exit, GuardCommand, Line, Lines, Process, SpawnError, Spec, Status, WriteError,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

const DEADLINE: Duration = Duration::from_secs(10);
/// Long enough that a test which runs into it fails by time.
const NO_GRACE_NEEDED: Duration = Duration::from_secs(60);

fn probe() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().parent().unwrap().join("examples/guard_probe");
    assert!(
        path.exists(),
        "{} is missing; run the tests without --test, or build the examples",
        path.display()
    );
    path
}

fn spawn(spec: &Spec) -> Process {
    Process::spawn(spec, &GuardCommand::new(probe(), ["guard"]), &TaskTracker::new()).unwrap()
}

fn sh(script: &str) -> Spec {
    let mut spec = Spec::new("test", "sh");
    spec.args = vec!["-c".to_owned(), script.to_owned()];
    spec.stop_grace = NO_GRACE_NEEDED;
    spec
}

async fn next(lines: &mut Lines) -> Option<Line> {
    timeout(DEADLINE, lines.next()).await.expect("no line in time")
}

async fn text(lines: &mut Lines) -> String {
    match next(lines).await {
        Some(Line::Text(text)) => String::from_utf8(text.to_vec()).unwrap(),
        other => panic!("not a line of text: {other:?}"),
    }
}

async fn pid(lines: &mut Lines) -> Pid {
    Pid::from_raw(text(lines).await.trim().parse().unwrap()).unwrap()
}

async fn exited(control: &Control) -> Exit {
    timeout(DEADLINE, control.exited()).await.expect("not ended in time")
}

/// Zombies count as alive: somebody has to reap them.
fn is_alive(pid: Pid) -> bool {
    fs::exists(format!("/proc/{}", pid.as_raw_pid())).unwrap()
}

/// A zombie whose parent is not under test doesn't count.
fn is_running(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid()))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim_start().starts_with(['Z', 'X']))
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Prints the ids of itself, of a child, and of a grandchild that left session and parent behind, and then waits for
/// ever. None of them cares for SIGTERM, SIGHUP or the end of stdin.
const STUBBORN_TREE: &str = r#"
trap '' TERM HUP
echo $$
sleep 1000 >/dev/null &
echo $!
python3 -c '
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(1000)
    os._exit(0)
os.wait()
'
while :; do sleep 1000; done
"#;

async fn stubborn_pids(lines: &mut Lines) -> [Pid; 3] {
    [pid(lines).await, pid(lines).await, pid(lines).await]
}

#[tokio::test]
async fn lines_pass_both_ways_in_order() {
    let Process { writer, mut lines, control } = spawn(&Spec::new("test", "cat"));
    let sender = writer.clone();
    let sent = async move {
        for number in 0..5000 {
            sender.send(Bytes::from(format!("{{\"id\":{number}}}"))).await.unwrap();
        }
    };
    let received = async {
        for number in 0..5000 {
            assert_eq!(text(&mut lines).await, format!("{{\"id\":{number}}}"));
        }
    };
    tokio::join!(sent, received);
    let exit = timeout(DEADLINE, control.stop()).await.unwrap();
    assert_eq!(exit.status(), Status::Exited(0));
    assert_eq!(next(&mut lines).await, None);
    assert_eq!(writer.send(Bytes::from_static(b"x")).await, Err(WriteError::Closed));
}

#[tokio::test]
async fn a_huge_line_passes_whole_and_a_line_in_lines_stays_one() {
    let mut spec = Spec::new("test", "cat");
    spec.max_line_bytes = 8 * 1024 * 1024;
    let Process { writer, mut lines, control } = spawn(&spec);
    let huge = "é".repeat(4 * 1024 * 1024);
    let send = async {
        writer.send(Bytes::from(huge.clone())).await.unwrap();
        writer.send(Bytes::from_static(b"{\n\"a\": 1\r\n}")).await.unwrap();
    };
    let ((), received) = tokio::join!(send, text(&mut lines));
    assert!(received == huge);
    assert_eq!(text(&mut lines).await, "{ \"a\": 1  }");
    timeout(DEADLINE, control.stop()).await.unwrap();
}

#[tokio::test]
async fn a_line_that_is_too_long_is_reported_and_the_next_one_is_read() {
    let mut spec = sh("head -c 3000000 /dev/zero | tr '\\0' x; printf '\\nnext\\n'");
    spec.max_line_bytes = 1000;
    let Process { mut lines, control, .. } = spawn(&spec);
    let head = Bytes::from(vec![b'x'; 256]);
    assert_eq!(next(&mut lines).await, Some(Line::TooLong { bytes: 3_000_000, head }));
    assert_eq!(text(&mut lines).await, "next");
    assert_eq!(exited(&control).await.status(), Status::Exited(0));
}

#[tokio::test]
async fn line_ends_and_junk_are_taken_as_they_come() {
    let Process { mut lines, control, .. } = spawn(&sh(r"printf 'a\r\n\n  \n\377\000\376\nlast'"));
    assert_eq!(text(&mut lines).await, "a");
    assert_eq!(next(&mut lines).await, Some(Line::Text(Bytes::from_static(b"\xff\0\xfe"))));
    assert_eq!(text(&mut lines).await, "last");
    assert_eq!(next(&mut lines).await, None);
    exited(&control).await;
}

#[tokio::test]
async fn the_exit_has_the_code_and_what_was_said_last() {
    let script = "for i in $(seq 1 30); do echo line $i >&2; done; printf 'no config' >&2; exit 3";
    let exit = exited(&spawn(&sh(script)).control).await;
    assert_eq!(exit.status(), Status::Exited(3));
    assert_eq!(exit.to_string(), "exited with code 3");
    assert_eq!(exit.stderr().len(), 20);
    assert_eq!(exit.stderr()[0], "line 12");
    assert_eq!(exit.stderr()[19], "no config");
}

#[tokio::test]
async fn a_server_ended_by_a_signal_says_so() {
    let exit = exited(&spawn(&sh("kill -SEGV $$")).control).await;
    assert_eq!(exit.status(), Status::Signalled(11));
    assert_eq!(exit.to_string(), "was ended by signal 11 (SIGSEGV)");
}

#[tokio::test]
async fn a_command_that_cannot_start_says_why() {
    let exit = exited(&spawn(&Spec::new("test", "no-such-command")).control).await;
    assert_eq!(exit.status(), Status::Exited(127));
    assert!(exit.stderr()[0].contains("cannot start no-such-command"), "{:?}", exit.stderr());

    let exit = exited(&spawn(&Spec::new("test", "/")).control).await;
    assert_eq!(exit.status(), Status::Exited(126));
}

#[tokio::test]
async fn what_is_wrong_before_the_start_is_an_error() {
    let mut spec = Spec::new("test", "cat");
    spec.cwd = Some("/no/such/directory".into());
    let guard = GuardCommand::new(probe(), ["guard"]);
    let error = Process::spawn(&spec, &guard, &TaskTracker::new()).unwrap_err();
    assert!(matches!(error, SpawnError::WorkingDirectory { .. }), "{error}");

    let guard = GuardCommand::new("/no/such/guard", ["guard"]);
    let error = Process::spawn(&Spec::new("test", "cat"), &guard, &TaskTracker::new()).unwrap_err();
    assert!(matches!(error, SpawnError::Guard { .. }), "{error}");
}

#[tokio::test]
async fn a_server_sees_its_directory_and_variables_and_not_the_gateways() {
    let directory = tempfile::tempdir().unwrap();
    let mut spec = sh("pwd -P; env");
    spec.cwd = Some(directory.path().into());
    spec.env.insert("OWN".to_owned(), "yes".to_owned());
    // Cargo sets CARGO_MANIFEST_DIR for this test; the server must not see it.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let Process { mut lines, control, .. } = spawn(&spec);
    let real = directory.path().canonicalize().unwrap();
    assert_eq!(text(&mut lines).await, real.to_str().unwrap());
    let mut variables = Vec::new();
    while let Some(Line::Text(line)) = next(&mut lines).await {
        variables.push(String::from_utf8(line.to_vec()).unwrap());
    }
    exited(&control).await;
    assert!(variables.contains(&"OWN=yes".to_owned()));
    assert!(variables.iter().any(|line| line.starts_with("PATH=")));
    assert!(!variables.iter().any(|line| line.starts_with("CARGO")), "{variables:?}");
}

#[tokio::test]
async fn each_side_sees_the_other_close_its_pipe() {
    let Process { writer, mut lines, control } = spawn(&sh("exec <&- >&-; sleep 1000"));
    // The guard must not hold stdout or stdin open.
    assert_eq!(next(&mut lines).await, None);
    let closed = async { while writer.send(Bytes::from_static(b"x")).await.is_ok() {} };
    timeout(DEADLINE, closed).await.unwrap();
    drop(control);
}

#[tokio::test]
async fn stop_closes_stdin_first_and_the_last_words_arrive() {
    let Process { writer, mut lines, control } = spawn(&sh("trap 'echo term' TERM; cat; echo bye"));
    writer.send(Bytes::from_static(b"queued before the stop")).await.unwrap();
    let exit = timeout(DEADLINE, control.stop()).await.unwrap();
    assert_eq!(exit.status(), Status::Exited(0));
    assert_eq!(text(&mut lines).await, "queued before the stop");
    assert_eq!(text(&mut lines).await, "bye");
    assert_eq!(next(&mut lines).await, None);
}

#[tokio::test]
async fn a_server_that_outstays_the_end_of_stdin_gets_one_sigterm() {
    let script = "import signal, sys, time
count = 0
def term(*_):
    global count
    count += 1
signal.signal(signal.SIGTERM, term)
print('ready', flush=True)
while not count:
    signal.pause()
time.sleep(0.2)
sys.exit(40 + count)";
    let mut spec = Spec::new("test", "python3");
    spec.args = vec!["-c".to_owned(), script.to_owned()];
    spec.stop_grace = Duration::from_secs(1);
    let Process { mut lines, control, .. } = spawn(&spec);
    assert_eq!(text(&mut lines).await, "ready");
    assert_eq!(timeout(DEADLINE, control.stop()).await.unwrap().status(), Status::Exited(41));
}

#[tokio::test]
async fn stop_kills_what_ignores_everything_daemons_included() {
    let mut spec = sh(STUBBORN_TREE);
    spec.stop_grace = Duration::from_millis(200);
    let Process { mut lines, control, .. } = spawn(&spec);
    let pids = stubborn_pids(&mut lines).await;
    assert!(pids.iter().all(|pid| is_running(*pid)));
    let exit = timeout(DEADLINE, control.stop()).await.unwrap();
    assert_eq!(exit.status(), Status::Signalled(9));
    assert!(!pids.iter().any(|pid| is_alive(*pid)));
}

#[tokio::test]
async fn dropping_the_control_ends_the_tree_without_waiting_for_the_server() {
    let mut spec = sh("echo $$; sleep 1000");
    spec.stop_grace = NO_GRACE_NEEDED;
    let Process { mut lines, control, writer } = spawn(&spec);
    let server = pid(&mut lines).await;
    let exit = control.exited();
    drop(control);
    assert_eq!(timeout(DEADLINE, exit).await.unwrap().status(), Status::Signalled(15));
    assert!(!is_alive(server));
    drop(writer);
}

/// A shell may also get there unasked: SIGTERM waits while it has signals blocked for a fork, and the new process
/// does not inherit it.
#[tokio::test]
async fn a_process_started_after_sigterm_is_told_once_the_server_is_gone() {
    // The substitution ends with the redirection, when the new process no longer has the handler of its parent.
    let script = "late() { pid=$(sh -c 'echo $$; exec sleep 1000 >/dev/null' &); echo $pid; exit 4; }
        trap late TERM; echo ready; while :; do sleep 0.01; done";
    let Process { mut lines, control, .. } = spawn(&sh(script));
    assert_eq!(text(&mut lines).await, "ready");
    let exit = control.exited();
    drop(control);
    let late = pid(&mut lines).await;
    assert_eq!(timeout(DEADLINE, exit).await.unwrap().status(), Status::Exited(4));
    assert!(!is_alive(late));
}

#[tokio::test]
async fn what_a_server_leaves_behind_is_killed() {
    let script = "python3 -c '
import os, time
if os.fork() == 0:
    os.setsid()
    daemon = os.fork()
    if daemon == 0:
        time.sleep(1000)
    print(daemon, flush=True)
    os._exit(0)
os.wait()
'; exit 5";
    let Process { mut lines, control, .. } = spawn(&sh(script));
    let daemon = pid(&mut lines).await;
    assert_eq!(exited(&control).await.status(), Status::Exited(5));
    assert!(!is_alive(daemon));
}

#[tokio::test]
async fn the_end_of_the_runtime_ends_the_tree() {
    let mut spec = sh(STUBBORN_TREE);
    spec.stop_grace = Duration::from_millis(200);
    let pids = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (process, pids) = runtime.block_on(async {
            let mut process = spawn(&spec);
            let pids = stubborn_pids(&mut process.lines).await;
            (process, pids)
        });
        drop(runtime);
        drop(process);
        pids
    })
    .await
    .unwrap();
    eventually("the tree is gone", || !pids.iter().any(|pid| is_alive(*pid))).await;
}

#[tokio::test]
async fn a_killed_guard_takes_its_session_along() {
    let Process { mut lines, control, .. } = spawn(&sh("echo $$; sleep 1000 & echo $!; wait"));
    let pids = [pid(&mut lines).await, pid(&mut lines).await];
    let guard = Pid::from_raw(control.pid().unwrap().try_into().unwrap()).unwrap();
    kill_process(guard, Signal::KILL).unwrap();
    assert_eq!(exited(&control).await.status(), Status::Signalled(9));
    eventually("the session is gone", || !pids.iter().any(|pid| is_running(*pid))).await;
}

#[tokio::test]
async fn a_guard_that_hangs_is_killed_with_its_tree() {
    let mut spec = sh(STUBBORN_TREE);
    spec.stop_grace = Duration::from_millis(100);
    let Process { mut lines, control, .. } = spawn(&spec);
    let pids = stubborn_pids(&mut lines).await;
    let guard = Pid::from_raw(control.pid().unwrap().try_into().unwrap()).unwrap();
    kill_process(guard, Signal::STOP).unwrap();
    timeout(2 * DEADLINE, control.stop()).await.unwrap();
    eventually("the tree is gone", || !pids.iter().any(|pid| is_running(*pid))).await;
}

/// Ends a gateway by `signal` and sees whether anything of the tree it ran is left.
async fn end_gateway(signal: Signal) {
    let mut gateway = Command::new(probe())
        .args(["gateway", "sh", "-c", STUBBORN_TREE])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = BufReader::new(gateway.stdout.take().unwrap());
    let pids: Vec<Pid> = stdout
        .lines()
        .take(4)
        .map(|line| Pid::from_raw(line.unwrap().trim_start_matches("guard ").parse().unwrap()).unwrap())
        .collect();
    assert_eq!(pids.len(), 4);
    assert!(pids.iter().all(|pid| is_running(*pid)));
    kill_process(Pid::from_raw(gateway.id().try_into().unwrap()).unwrap(), signal).unwrap();
    // Not reaped yet on purpose: the guard must see the end itself, not only that its parent changed.
    eventually("the tree is gone", || !pids.iter().any(|pid| is_running(*pid))).await;
    gateway.wait().unwrap();
}

#[tokio::test]
async fn a_killed_gateway_leaves_nothing() {
    end_gateway(Signal::KILL).await;
}

#[tokio::test]
async fn a_gateway_ended_by_its_terminal_leaves_nothing() {
    end_gateway(Signal::INT).await;
}

#[tokio::test]
async fn a_guard_starts_nothing_for_a_gateway_that_is_gone() {
    let output = Command::new(probe())
        .args(["guard", "--parent", "1999999999", "--", "echo", "started"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8(output.stderr).unwrap().contains("is gone"));
}

#[tokio::test]
async fn a_server_may_open_as_many_files_as_it_could_without_the_gateway() {
    let guard = GuardCommand::new(probe(), ["guard"]).with_open_files(99);
    let process = Process::spawn(&sh("ulimit -S -n; ulimit -H -n"), &guard, &TaskTracker::new()).unwrap();
    let Process { mut lines, control, .. } = process;
    assert_eq!(text(&mut lines).await, "99");
    assert_ne!(text(&mut lines).await, "99", "it may raise its own limit");
    drop(control);
}

#[tokio::test]
async fn a_server_is_out_of_reach_of_the_terminals_signals() {
    let Process { mut lines, control, .. } =
        spawn(&sh("echo $$; cut -d' ' -f 5,6 /proc/$$/stat; sleep 1000"));
    let server = text(&mut lines).await;
    let guard = control.pid().unwrap();
    assert_eq!(text(&mut lines).await, format!("{server} {guard}"), "process group and session");
    drop(control);
}

#[tokio::test]
async fn a_reader_that_waits_holds_the_server_back_and_loses_nothing() {
    let Process { mut lines, control, .. } = spawn(&sh("seq 1 200000"));
    let exit = timeout(Duration::from_millis(300), control.exited()).await;
    assert!(exit.is_err(), "the server could write everything: {exit:?}");
    for number in 1..=200_000 {
        assert_eq!(text(&mut lines).await, number.to_string());
    }
    assert_eq!(exited(&control).await.status(), Status::Exited(0));
}

#[test]
fn a_gateway_whose_file_is_gone_still_starts_its_guard() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("gateway");
    fs::copy(probe(), &program).unwrap();
    let output = Command::new(&program).args(["unlinked-gateway", "echo", "hello"]).output().unwrap();
    assert!(!program.exists());
    assert!(String::from_utf8(output.stdout).unwrap().contains("hello\nexited with code 0"));
}

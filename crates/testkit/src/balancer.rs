//! HAProxy in front of gateways, with the configuration that is deployed: round robin, and no stickiness.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::client::Client;
use crate::gateway::Gateway;
use crate::{PATIENCE, eventually};

const CONFIGURATION: &str = include_str!("../../../deploy/haproxy.cfg");

/// A running HAProxy. It ends when this is dropped.
#[derive(Debug)]
pub struct Balancer {
    /// `http://127.0.0.1:port`.
    pub url: String,
    process: Child,
    _dir: TempDir,
}

impl Balancer {
    /// Starts it in front of up to three gateways and waits until it has found each of them well.
    ///
    /// # Panics
    ///
    /// If `haproxy` is not installed or does not start.
    pub async fn start(gateways: &[Gateway]) -> Self {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("haproxy.cfg");
        std::fs::write(&file, CONFIGURATION).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let program =
            ["/usr/sbin/haproxy", "/usr/local/sbin/haproxy"].into_iter().find(|p| Path::new(p).exists());
        let mut command = Command::new(program.unwrap_or("haproxy"));
        command.arg("-db").arg("-f").arg(&file).env("DRAWBRIDGE_BIND", format!("127.0.0.1:{port}"));
        command.env("DRAWBRIDGE_MAXCONN", "2000");
        for (number, gateway) in gateways.iter().enumerate() {
            let probes = gateway.admin.rsplit(':').next().unwrap();
            command.env(format!("DRAWBRIDGE_SERVER_{}", number + 1), gateway.address());
            command.env(format!("DRAWBRIDGE_PROBES_{}", number + 1), probes);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let process = command.spawn().expect("haproxy (Debian: apt-get install haproxy)");
        let this = Self { url: format!("http://127.0.0.1:{port}"), process, _dir: dir };
        eventually(PATIENCE, async || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()).await;
        this
    }

    /// A client of all of the gateways, each of whose requests goes to the next of them.
    pub fn client(&self) -> Client {
        Client::new(&self.url)
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        // Its one process has no children with `-db`.
        let pid = self.process.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}
